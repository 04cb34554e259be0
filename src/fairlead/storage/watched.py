"""Wraps a store: counts and logs its failures, and tracks whether it accepts writes."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, ParamSpec, TypeVar

from fairlead.core.errors import FairleadError
from fairlead.storage.failures import damage_of, reason_of
from fairlead.storage.history import HistoryStore
from fairlead.storage.store import Store
from fairlead.storage.tasks import OutcomeUnknown, StoreUnavailable
from fairlead.telemetry import PERSISTENCE_ERROR_WITH_TYPE, Metrics, get_log

# Seconds of failing writes after which the store is out of service. Every host writes a heartbeat every few seconds, so
# an outage is noticed even without other requests.
UNAVAILABLE_AFTER_S = 5.0

P = ParamSpec("P")
Response = TypeVar("Response")
Clock = Callable[[], float]

_log = get_log("storage")


class _Watch:
    """Tracks the failures of one store, and the time since which its writes fail."""

    def __init__(self, metrics: Metrics, *, clock: Clock) -> None:
        self._metrics = metrics
        self._clock = clock
        # Time of the first failed write since the last successful one.
        self.failing_since_s: float | None = None
        # Time at which a read or write first found damaged data, which does not heal by itself.
        self.damaged_since_s: float | None = None
        # Start of the heartbeat that the store has not answered yet.
        self.heartbeat_since_s: float | None = None
        self.is_closing = False

    def read(self, operation: str, ask: Callable[P, Awaitable[Response]]) -> Callable[P, Coroutine[Any, Any, Response]]:
        """Wrap a read of the store."""

        async def watched(*args: P.args, **kwargs: P.kwargs) -> Response:
            try:
                return await ask(*args, **kwargs)
            except Exception as failure:
                self._failed(operation, failure)
                raise

        return watched

    def write(
        self, operation: str, ask: Callable[P, Awaitable[Response]]
    ) -> Callable[P, Coroutine[Any, Any, Response]]:
        """Wrap a write of the store. Its result also shows whether the store accepts writes."""

        async def watched(*args: P.args, **kwargs: P.kwargs) -> Response:
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

    def begun_write(
        self, operation: str, begin: "Callable[P, asyncio.Future[Response]]"
    ) -> "Callable[P, asyncio.Future[Response]]":
        """Wrap a write of the store that returns a future."""

        def failed(failure: Exception) -> None:
            if self._failed(operation, failure) and self.failing_since_s is None:
                self.failing_since_s = self._clock()

        def ended(writing: "asyncio.Future[Response]") -> None:
            failure = None if writing.cancelled() else writing.exception()
            if isinstance(failure, Exception):
                failed(failure)
            elif self.failing_since_s is not None:
                self._recovered(self.failing_since_s)

        def watched(*args: P.args, **kwargs: P.kwargs) -> "asyncio.Future[Response]":
            try:
                writing = begin(*args, **kwargs)
            except Exception as failure:
                failed(failure)
                raise
            writing.add_done_callback(ended)
            return writing

        return watched

    def heartbeat(self, ask: Callable[P, Awaitable[Response]]) -> Callable[P, Coroutine[Any, Any, Response]]:
        """Wrap the heartbeat. Every host repeats it, so that a store without responses is noticed."""
        write = self.write("heartbeat", ask)

        async def watched(*args: P.args, **kwargs: P.kwargs) -> Response:
            self.heartbeat_since_s = self._clock()
            try:
                return await write(*args, **kwargs)
            finally:
                self.heartbeat_since_s = None

        return watched

    def trouble(self) -> str | None:
        """The reason why the store is out of service; None if it works, or has failed only for a short time."""
        if self.damaged_since_s is not None:
            return f"store damaged, found at {moment(self.damaged_since_s)}: see the log"
        longest_s = self._clock() - UNAVAILABLE_AFTER_S
        if self.failing_since_s is not None and self.failing_since_s <= longest_s:
            return f"store unavailable since {moment(self.failing_since_s)}"
        if self.heartbeat_since_s is not None and self.heartbeat_since_s <= longest_s:
            return f"store unavailable since {moment(self.heartbeat_since_s)}: a heartbeat got no response"
        return None

    def _failed(self, operation: str, failure: Exception) -> bool:
        """Count and log a failure; return False if the failure is not the store's."""
        is_of_store = isinstance(failure, StoreUnavailable | OutcomeUnknown) or not isinstance(failure, FairleadError)
        if self.is_closing or not is_of_store:
            return False
        kind = type(failure).__name__
        self._metrics.count(PERSISTENCE_ERROR_WITH_TYPE, operation, kind)
        if self.damaged_since_s is None and damage_of(failure) is not None:
            self.damaged_since_s = self._clock()
        _log.error("store failed", operation=operation, error_type=kind, error=str(failure), reason=reason_of(failure))
        return True

    def _recovered(self, since_s: float) -> None:
        self.failing_since_s = None
        _log.info("store takes writes again", failed_since=moment(since_s), failed_s=round(self._clock() - since_s, 3))


class WatchedStore:
    """A `Store` that counts and logs failures of the underlying store, but not errors of the requests.

    A lost lease or a taken level is a normal result, not a failure. For a successful call, the wrapper costs one
    comparison.
    """

    def __init__(self, store: Store, metrics: Metrics, *, clock: Clock = time.time) -> None:
        self._store = store
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
        self.list_partitions = watch.read("list_partitions", store.list_partitions)
        self.list_queues = watch.read("list_queues", store.list_queues)
        self.heartbeat = watch.heartbeat(store.heartbeat)
        self.leave = watch.write("leave", store.leave)
        self.members = watch.read("members", store.members)

    @property
    def is_failing_since_s(self) -> float | None:
        """The wall clock time since which every write has failed; None if the last write succeeded."""
        return self._watch.failing_since_s

    @property
    def trouble(self) -> str | None:
        """The reason why the store is out of service; None if it works, or has failed only for a short time."""
        return self._watch.trouble()

    async def close(self) -> None:
        """Close the store. Requests that come later fail, but are not counted as failures of the store."""
        self._watch.is_closing = True
        await self._store.close()


class _WatchedHistory:
    """The history part of a watched store."""

    def __init__(self, store: HistoryStore, watch: _Watch) -> None:
        self.take_shard = watch.write("take_shard", store.take_shard)
        self.renew_shard = watch.write("renew_shard", store.renew_shard)
        self.commit = watch.write("commit", store.commit)
        begin_commit = getattr(store, "begin_commit", None)
        self.begin_commit = None if begin_commit is None else watch.begun_write("commit", begin_commit)
        self.read_run = watch.read("read_run", store.read_run)
        self.read_current = watch.read("read_current", store.read_current)
        self.list_runs = watch.read("list_runs", store.list_runs)
        self.read_branch = watch.read("read_branch", store.read_branch)
        self.read_tasks = watch.read("read_tasks", store.read_tasks)
        self.complete_tasks = watch.write("complete_tasks", store.complete_tasks)
        self.delete_run = watch.write("delete_run", store.delete_run)
        self.take_slot = watch.write("take_slot", store.take_slot)
        self.free_slot = watch.write("free_slot", store.free_slot)
        self.list_slots = watch.read("list_slots", store.list_slots)
        self.count_slots = watch.read("count_slots", store.count_slots)
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
    """Format a wall clock time."""
    return datetime.fromtimestamp(wall_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
