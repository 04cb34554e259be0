"""A store that is watched: what fails in it is counted and logged, and whether it takes any writes is known."""

import time
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, ParamSpec, TypeVar

from fairlead.core.errors import FairleadError
from fairlead.storage.contract import OutcomeUnknown, StoreUnavailable, TaskStore
from fairlead.storage.failures import reason_of
from fairlead.telemetry import PERSISTENCE_ERROR_WITH_TYPE, Metrics, get_log

# A store that has taken no write for this long, and refused some, is out of service. Every host writes a heartbeat at
# least every few seconds, so this is known where nobody else asks for anything.
UNAVAILABLE_AFTER_S = 5.0

P = ParamSpec("P")
Answer = TypeVar("Answer")
Clock = Callable[[], float]

_log = get_log("storage")


class WatchedStore:
    """Does what a `TaskStore` does, and keeps watch over its failures: those of the store, not of what it was asked.

    A lease that was lost or a level that is taken is an answer like any other. Where all goes well a call costs one
    comparison more.
    """

    def __init__(self, store: TaskStore, metrics: Metrics, *, clock: Clock = time.time) -> None:
        self._store = store
        self._metrics = metrics
        self._clock = clock
        # When the first write failed after the last one that did not.
        self._failing_since_s: float | None = None
        self._is_closing = False
        self.take_lease = self._write("take_lease", store.take_lease)
        self.renew_lease = self._write("renew_lease", store.renew_lease)
        self.append = self._write("append", store.append)
        self.read = self._read("read", store.read)
        self.stored_keys = self._read("stored_keys", store.stored_keys)
        self.delete_through = self._write("delete_through", store.delete_through)
        self.save_levels = self._write("save_levels", store.save_levels)
        self.save_config = self._write("save_config", store.save_config)
        self.load_config = self._read("load_config", store.load_config)
        self.count = self._read("count", store.count)
        self.list_queues = self._read("list_queues", store.list_queues)
        self.heartbeat = self._write("heartbeat", store.heartbeat)
        self.leave = self._write("leave", store.leave)
        self.members = self._read("members", store.members)

    @property
    def is_failing_since_s(self) -> float | None:
        """Since when every write has failed, by the wall clock; None if the last one did not."""
        return self._failing_since_s

    @property
    def unavailable_since(self) -> str | None:
        """Since when the store is out of service, for people; None if it is not, or not for long enough to say."""
        since_s = self._failing_since_s
        return None if since_s is None or self._clock() - since_s < UNAVAILABLE_AFTER_S else moment(since_s)

    async def close(self) -> None:
        """Finish what was begun. What comes too late is refused, which is no failure of the store."""
        self._is_closing = True
        await self._store.close()

    def _read(self, operation: str, ask: Callable[P, Awaitable[Answer]]) -> Callable[P, Coroutine[Any, Any, Answer]]:
        async def watched(*args: P.args, **kwargs: P.kwargs) -> Answer:
            try:
                return await ask(*args, **kwargs)
            except Exception as failure:
                self._failed(operation, failure)
                raise

        return watched

    def _write(self, operation: str, ask: Callable[P, Awaitable[Answer]]) -> Callable[P, Coroutine[Any, Any, Answer]]:
        async def watched(*args: P.args, **kwargs: P.kwargs) -> Answer:
            try:
                answer = await ask(*args, **kwargs)
            except Exception as failure:
                if self._failed(operation, failure) and self._failing_since_s is None:
                    self._failing_since_s = self._clock()
                raise
            if self._failing_since_s is not None:
                self._recovered(self._failing_since_s)
            return answer

        return watched

    def _failed(self, operation: str, failure: Exception) -> bool:
        """Count and log a failure; False if it is none of the store's."""
        is_of_store = isinstance(failure, StoreUnavailable | OutcomeUnknown) or not isinstance(failure, FairleadError)
        if self._is_closing or not is_of_store:
            return False
        kind = type(failure).__name__
        self._metrics.count(PERSISTENCE_ERROR_WITH_TYPE, operation, kind)
        _log.error("store failed", operation=operation, error_type=kind, error=str(failure), reason=reason_of(failure))
        return True

    def _recovered(self, since_s: float) -> None:
        self._failing_since_s = None
        _log.info("store takes writes again", failed_since=moment(since_s), failed_s=round(self._clock() - since_s, 3))


def moment(wall_s: float) -> str:
    """A time of the wall clock, for people."""
    return datetime.fromtimestamp(wall_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
