"""A store that is watched: what fails in it is counted and logged, and whether it takes any writes is known."""

import time
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, ParamSpec, TypeVar

from fairlead.core.errors import FairleadError
from fairlead.storage.contract import OutcomeUnknown, StoreUnavailable
from fairlead.storage.failures import reason_of
from fairlead.storage.history_contract import HistoryStore
from fairlead.storage.store import Store
from fairlead.telemetry import PERSISTENCE_ERROR_WITH_TYPE, Metrics, get_log

# A store that has taken no write for this long, and refused some, is out of service. Every host writes a heartbeat at
# least every few seconds, so this is known where nobody else asks for anything.
UNAVAILABLE_AFTER_S = 5.0

P = ParamSpec("P")
Answer = TypeVar("Answer")
Clock = Callable[[], float]

_log = get_log("storage")


class _Watch:
    """Follows what one store is asked, whichever part of it: its failures, and since when it takes no writes."""

    def __init__(self, metrics: Metrics, *, clock: Clock) -> None:
        self._metrics = metrics
        self._clock = clock
        # When the first write failed after the last one that did not.
        self.failing_since_s: float | None = None
        self.is_closing = False

    def read(self, operation: str, ask: Callable[P, Awaitable[Answer]]) -> Callable[P, Coroutine[Any, Any, Answer]]:
        """What asks the same of the store, and is watched."""

        async def watched(*args: P.args, **kwargs: P.kwargs) -> Answer:
            try:
                return await ask(*args, **kwargs)
            except Exception as failure:
                self._failed(operation, failure)
                raise

        return watched

    def write(self, operation: str, ask: Callable[P, Awaitable[Answer]]) -> Callable[P, Coroutine[Any, Any, Answer]]:
        """As `read`, of what changes the store: it tells whether the store takes any writes."""

        async def watched(*args: P.args, **kwargs: P.kwargs) -> Answer:
            try:
                answer = await ask(*args, **kwargs)
            except Exception as failure:
                if self._failed(operation, failure) and self.failing_since_s is None:
                    self.failing_since_s = self._clock()
                raise
            if self.failing_since_s is not None:
                self._recovered(self.failing_since_s)
            return answer

        return watched

    def _failed(self, operation: str, failure: Exception) -> bool:
        """Count and log a failure; False if it is none of the store's."""
        is_of_store = isinstance(failure, StoreUnavailable | OutcomeUnknown) or not isinstance(failure, FairleadError)
        if self.is_closing or not is_of_store:
            return False
        kind = type(failure).__name__
        self._metrics.count(PERSISTENCE_ERROR_WITH_TYPE, operation, kind)
        _log.error("store failed", operation=operation, error_type=kind, error=str(failure), reason=reason_of(failure))
        return True

    def _recovered(self, since_s: float) -> None:
        self.failing_since_s = None
        _log.info("store takes writes again", failed_since=moment(since_s), failed_s=round(self._clock() - since_s, 3))


class WatchedStore:
    """Does what a `Store` does, and keeps watch over its failures: those of the store, not of what it was asked.

    A lease that was lost or a level that is taken is an answer like any other. Where all goes well a call costs one
    comparison more.
    """

    def __init__(self, store: Store, metrics: Metrics, *, clock: Clock = time.time) -> None:
        self._store = store
        self._clock = clock
        watch = self._watch = _Watch(metrics, clock=clock)
        self.history: HistoryStore = _WatchedHistory(store.history, watch)
        self.take_lease = watch.write("take_lease", store.take_lease)
        self.renew_lease = watch.write("renew_lease", store.renew_lease)
        self.append = watch.write("append", store.append)
        self.read = watch.read("read", store.read)
        self.stored_keys = watch.read("stored_keys", store.stored_keys)
        self.delete_through = watch.write("delete_through", store.delete_through)
        self.save_levels = watch.write("save_levels", store.save_levels)
        self.save_config = watch.write("save_config", store.save_config)
        self.load_config = watch.read("load_config", store.load_config)
        self.save_rules = watch.write("save_rules", store.save_rules)
        self.load_rules = watch.read("load_rules", store.load_rules)
        self.count = watch.read("count", store.count)
        self.list_queues = watch.read("list_queues", store.list_queues)
        self.heartbeat = watch.write("heartbeat", store.heartbeat)
        self.leave = watch.write("leave", store.leave)
        self.members = watch.read("members", store.members)

    @property
    def is_failing_since_s(self) -> float | None:
        """Since when every write has failed, by the wall clock; None if the last one did not."""
        return self._watch.failing_since_s

    @property
    def unavailable_since(self) -> str | None:
        """Since when the store is out of service, for people; None if it is not, or not for long enough to say."""
        since_s = self._watch.failing_since_s
        return None if since_s is None or self._clock() - since_s < UNAVAILABLE_AFTER_S else moment(since_s)

    async def close(self) -> None:
        """Finish what was begun. What comes too late is refused, which is no failure of the store."""
        self._watch.is_closing = True
        await self._store.close()


class _WatchedHistory:
    """The same of the store's workflows."""

    def __init__(self, store: HistoryStore, watch: _Watch) -> None:
        self.take_shard = watch.write("take_shard", store.take_shard)
        self.renew_shard = watch.write("renew_shard", store.renew_shard)
        self.commit = watch.write("commit", store.commit)
        self.read_run = watch.read("read_run", store.read_run)
        self.read_current = watch.read("read_current", store.read_current)
        self.list_runs = watch.read("list_runs", store.list_runs)
        self.read_branch = watch.read("read_branch", store.read_branch)
        self.read_tasks = watch.read("read_tasks", store.read_tasks)
        self.complete_tasks = watch.write("complete_tasks", store.complete_tasks)
        self.delete_run = watch.write("delete_run", store.delete_run)
        self.create_namespace = watch.write("create_namespace", store.create_namespace)
        self.update_namespace = watch.write("update_namespace", store.update_namespace)
        self.rename_namespace = watch.write("rename_namespace", store.rename_namespace)
        self.delete_namespace = watch.write("delete_namespace", store.delete_namespace)
        self.read_namespace = watch.read("read_namespace", store.read_namespace)
        self.list_namespaces = watch.read("list_namespaces", store.list_namespaces)
        self.read_metadata = watch.read("read_metadata", store.read_metadata)
        self.write_metadata = watch.write("write_metadata", store.write_metadata)
        self.delete_metadata = watch.write("delete_metadata", store.delete_metadata)
        self.list_metadata = watch.read("list_metadata", store.list_metadata)
        self.list_visibility = watch.read("list_visibility", store.list_visibility)
        self.count_visibility = watch.read("count_visibility", store.count_visibility)


def moment(wall_s: float) -> str:
    """A time of the wall clock, for people."""
    return datetime.fromtimestamp(wall_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
