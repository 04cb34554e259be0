"""The state of a root as it is in the store."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from structlog.typing import FilteringBoundLogger

from fairlead.aio.background import Background
from fairlead.aio.backoff import Backoff
from fairlead.core.partitions import accept
from fairlead.matching.root.config_push import RETRY_S_MAX, RETRY_S_MIN
from fairlead.matching.root.state import RootState, RootStore
from fairlead.storage.tasks import LeaseLost, OutcomeUnknown, StoreUnavailable

T = TypeVar("T")


class DurableState:
    """Saves each new state before using it, so that no partition uses a state that a crash could undo.

    `on_use` gets the previous and the new state. If the outcome of a save is unknown, the state is in doubt until
    `resolve_doubt` has read it back. The caller runs one change at a time.
    """

    def __init__(
        self,
        state: RootState,
        store: RootStore,
        *,
        on_use: Callable[[RootState, RootState], None],
        on_lease_lost: Callable[[], None],
        log: FilteringBoundLogger,
        jitter: Callable[[], float],
    ) -> None:
        self.current = state
        self._store = store
        self._on_use = on_use
        self._on_lease_lost = on_lease_lost
        self._log = log
        self._jitter = jitter
        # Store calls are never cancelled: that would not undo them, and a call may itself close this root.
        self._store_calls = Background(log)
        self._is_in_doubt = False

    async def put_in_force(self, state: RootState) -> None:
        """Save `state`, then use it.

        If this raises, `state` is not in force; unless in doubt, it is not stored either.
        """
        self._is_in_doubt = True
        try:
            await self._call(self._store.save(state, before=self.current))
        except StoreUnavailable:
            self._is_in_doubt = False
            raise
        except OutcomeUnknown as error:
            await self.resolve_doubt()
            if self.current != state:
                raise StoreUnavailable(f"{error}; reading the state back shows that it was not saved: retry") from error
            return
        self._is_in_doubt = False
        self._use(state)

    async def resolve_doubt(self) -> None:
        """If the state is in doubt, read it back and use what is stored; retry until the store answers."""
        backoff = Backoff(RETRY_S_MIN, RETRY_S_MAX, random=self._jitter)
        while self._is_in_doubt:
            try:
                stored = await self._call(self._store.load())
            except (StoreUnavailable, OutcomeUnknown) as error:
                self._log.warning("partition_config_in_doubt", error=str(error))
                await asyncio.sleep(backoff.next_s())
                continue
            # This root holds the lease, so no other root has saved a state since then.
            if (
                stored is not None
                and accept(self.current.config, stored.config) == stored.config
                and stored != self.current
            ):
                self._use(stored)
            self._is_in_doubt = False

    def _use(self, state: RootState) -> None:
        before, self.current = self.current, state
        self._on_use(before, state)

    async def _call(self, call: Coroutine[Any, Any, T]) -> T:
        try:
            return await self._store_calls.apart(call)
        except LeaseLost:
            # Another root decides now. This one is about to be unloaded.
            self._on_lease_lost()
            raise
