"""How a store in memory is made to fail on demand: before an operation, after it, or by taking effect late."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from fairlead.core.errors import FairleadError
from fairlead.storage.contract import OutcomeUnknown, StoreUnavailable

Answer = TypeVar("Answer")
Place = TypeVar("Place")
Place_contra = TypeVar("Place_contra", contravariant=True)


class FaultsAt(Protocol[Place_contra]):
    """What goes wrong with each operation. `operation` is the name of the store's method, `place` where it works.

    Both methods may wait, which delays the operation and lets others overtake it. Both are called for reads too; for
    these only delays and `StoreUnavailable` make sense.
    """

    async def before(self, operation: str, place: Place_contra, /) -> Callable[[], Awaitable[None]] | None:
        """Called before the operation takes effect, which it does when None is returned.

        Where this raises, it never does: `StoreUnavailable` says so to the caller, `OutcomeUnknown` does not. Where it
        returns a function, the caller gets `OutcomeUnknown` at once, and the change is made when what that function
        returns has been awaited, unless the lease was renewed or taken meanwhile.
        """
        ...

    async def after(self, operation: str, place: Place_contra, /) -> None:
        """Called after the operation has taken effect. `OutcomeUnknown` means that its answer was lost."""
        ...


class FaultyStore(Generic[Place]):
    """Without faults each call runs to its end without waiting."""

    # What a place is called in a message.
    _place_is = ""

    def __init__(self, faults: FaultsAt[Place] | None) -> None:
        self._faults = faults
        # In the order in which they were begun, so that every run of a simulation ends alike.
        self._late: dict[asyncio.Task[None], None] = {}
        self._is_closed = False

    async def close(self) -> None:
        """Finish what was begun, and let go of everything."""
        self._is_closed = True
        late = list(self._late)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    async def _read(self, operation: str, place: Place, look: Callable[[], Answer]) -> Answer:
        self._check_open()
        if self._faults is None:
            return look()
        await self._faults.before(operation, place)
        answer = look()
        await self._faults.after(operation, place)
        return answer

    async def _change(self, operation: str, place: Place, change: Callable[[], Answer]) -> Answer:
        self._check_open()
        if self._faults is None:
            return change()
        wait = await self._faults.before(operation, place)
        if wait is not None:
            task = asyncio.create_task(_change_late(wait, change))
            self._late[task] = None
            task.add_done_callback(self._late.pop)
            raise OutcomeUnknown(f"{operation} of {self._place_is}{place}: no answer in time; it may yet take effect")
        answer = change()
        await self._faults.after(operation, place)
        return answer

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreUnavailable("the store is closed: nothing was changed")


async def _change_late(wait: Callable[[], Awaitable[None]], change: Callable[[], object]) -> None:
    await wait()
    try:
        change()
    except FairleadError:
        # Refused as it should be; nobody waits for the answer.
        return
