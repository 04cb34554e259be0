"""Fault injection for stores in memory: before an operation, after it, or as a delayed effect."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from fairlead.core.errors import FairleadError
from fairlead.storage.tasks import OutcomeUnknown, StoreUnavailable

Response = TypeVar("Response")
Location = TypeVar("Location")
Location_contra = TypeVar("Location_contra", contravariant=True)


class FaultsAt(Protocol[Location_contra]):
    """The faults of a store. `operation` is the name of the store's method, `location` the queue or shard.

    Both methods may wait, which delays the operation and lets others overtake it. Both are also called for reads, for
    which only delays and `StoreUnavailable` make sense.
    """

    async def before(self, operation: str, location: Location_contra, /) -> Callable[[], Awaitable[None]] | None:
        """Called before the operation takes effect; None lets it take effect.

        If this raises, the operation never takes effect. `StoreUnavailable` tells the caller so; `OutcomeUnknown` does
        not. If this returns a function, the caller gets `OutcomeUnknown` at once, and the change is made when that
        function has returned, unless the lease was renewed or taken before.
        """
        ...

    async def after(self, operation: str, location: Location_contra, /) -> None:
        """Called after the operation has taken effect. `OutcomeUnknown` means that the response was lost."""
        ...


class FaultyStore(Generic[Location]):
    """A store with fault injection. Without faults each call completes without waiting."""

    # Prefix of the location in error messages, such as "shard ".
    _location_prefix = ""

    def __init__(self, faults: FaultsAt[Location] | None) -> None:
        self._faults = faults
        # Kept in order of start, so that simulations are deterministic.
        self._late: dict[asyncio.Task[None], None] = {}
        self._is_closed = False

    async def close(self) -> None:
        """Cancel delayed changes and close the store."""
        self._is_closed = True
        late = list(self._late)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    async def _read(self, operation: str, location: Location, read: Callable[[], Response]) -> Response:
        self._check_open()
        if self._faults is None:
            return read()
        await self._faults.before(operation, location)
        answer = read()
        await self._faults.after(operation, location)
        return answer

    async def _change(self, operation: str, location: Location, change: Callable[[], Response]) -> Response:
        self._check_open()
        if self._faults is None:
            return change()
        wait = await self._faults.before(operation, location)
        if wait is not None:
            task = asyncio.create_task(_change_late(wait, change))
            self._late[task] = None
            task.add_done_callback(self._late.pop)
            raise OutcomeUnknown(
                f"{operation} of {self._location_prefix}{location}: no response in time; it may still take effect"
            )
        answer = change()
        await self._faults.after(operation, location)
        return answer

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreUnavailable("the store is closed: nothing was changed")


async def _change_late(wait: Callable[[], Awaitable[None]], change: Callable[[], object]) -> None:
    await wait()
    try:
        change()
    except FairleadError:
        # The store has rejected the late change, as expected; no caller waits for the result.
        return
