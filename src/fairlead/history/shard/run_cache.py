"""Runs in memory: their stored state, their latest events, and their waiting updates and queries."""

from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

from fairlead.history.events import Batch
from fairlead.history.shard.queries import QueryRegistry
from fairlead.history.shard.updates import UpdateRegistry
from fairlead.history.state import RunState, TaskKind, decode
from fairlead.storage.history import RunKey, StoredRun

# Number of runs in memory, of all shards together; each shard has an equal part.
RUNS_IN_MEMORY_MAX = 20_000
# Minimum number of runs that each shard may keep.
RUNS_A_SHARD_MIN = 100
# Maximum bytes of events in memory, of one run and of all shards together, and the minimum share of each shard.
EVENT_BYTES_A_RUN_MAX = 128 * 1024
EVENT_BYTES_MAX = 64 * 1024 * 1024
EVENT_BYTES_A_SHARD_MIN = 256 * 1024


class ReappliedKeys(NamedTuple):
    """The keys of the signals and updates on a branch, up to an event."""

    branch_id: str = ""
    last_event_id: int = 0
    keys: frozenset[str] = frozenset()


class LoadedRun:
    """A run as it was last written. Hold the lock of its workflow id to read or change it.

    `batches` are the latest events, without a gap up to the last event; may be empty.
    """

    __slots__ = (
        *(
            "batches",
            "bytes",
            "db_version",
            "key",
            "on_commit",
            "queries",
            "skip_write",
            "state",
            "reapplied",
            "updates",
        ),
    )

    def __init__(self, key: RunKey, state: RunState, db_version: int | None) -> None:
        self.key = key
        self.state = state
        self.db_version = db_version
        self.batches: list[Batch] = []
        self.bytes = 0
        # Cached keys of the signals and updates on its branch; the set only grows.
        self.reapplied = ReappliedKeys()
        self.updates: UpdateRegistry | None = None
        self.queries: QueryRegistry | None = None
        # Callbacks to call when a step is durable. `skip_write` keeps a step in memory only.
        self.on_commit: list[Callable[[], None]] = []
        self.skip_write = False

    @classmethod
    def from_store(cls, stored: StoredRun) -> "LoadedRun":
        """Decode a stored run.

        Its speculative workflow task is dropped, because only the memory of the previous host had the task.
        """
        state = decode(stored.state)
        task = state.live.unwritten_task
        if task is not None and task.kind is TaskKind.SPECULATIVE:
            state.live.unwritten_task = None
        return cls(RunKey(stored.namespace_id, stored.workflow_id, stored.run_id), state, stored.db_version)

    def update_registry(self) -> UpdateRegistry:
        """The registry of the run's updates, created on first use."""
        if self.updates is None:
            self.updates = UpdateRegistry()
        return self.updates

    def query_registry(self) -> QueryRegistry:
        """The registry of the run's queries, created on first use."""
        if self.queries is None:
            self.queries = QueryRegistry()
        return self.queries

    @property
    def is_idle(self) -> bool:
        """Whether the store has the whole run: no update, query or speculative task is only in memory."""
        task = self.state.live.unwritten_task
        return (
            (self.updates is None or self.updates.is_idle)
            and (self.queries is None or self.queries.is_idle)
            and (task is None or task.kind is not TaskKind.SPECULATIVE)
        )

    def keep(self, batch: Batch) -> None:
        """Add a batch that was just written, and drop the oldest batches above the limit."""
        if not batch.payload:
            return
        self.batches.append(batch)
        self.bytes += len(batch.payload)
        while self.bytes > EVENT_BYTES_A_RUN_MAX:
            self.bytes -= len(self.batches.pop(0).payload)

    def abandon(self) -> None:
        """Fail the updates and queries that wait in memory, so that their callers send them again."""
        if self.updates is not None:
            self.updates.abandon()
        if self.queries is not None:
            self.queries.abandon()

    def forget_events(self) -> None:
        """Drop the events from memory; the store has them."""
        self.batches = []
        self.bytes = 0


class RunCache:
    """LRU cache of one shard's runs. `shards` is the number of shards that share the memory."""

    def __init__(self, *, shards: int = 1) -> None:
        self._runs: OrderedDict[RunKey, LoadedRun] = OrderedDict()
        self._with_events: OrderedDict[RunKey, int] = OrderedDict()
        # Runs with buffered events, including evicted runs; the next `put` of a run updates this.
        self._with_buffers: set[RunKey] = set()
        self._bytes = 0
        self._runs_max = max(RUNS_IN_MEMORY_MAX // shards, RUNS_A_SHARD_MIN)
        self._event_bytes_max = max(EVENT_BYTES_MAX // shards, EVENT_BYTES_A_SHARD_MIN)

    def __len__(self) -> int:
        return len(self._runs)

    def get(self, key: RunKey) -> LoadedRun | None:
        """A run, if it is in memory."""
        run = self._runs.get(key)
        if run is not None:
            self._runs.move_to_end(key)
        return run

    def put(self, run: LoadedRun) -> None:
        """Keep a run in its present state, and evict the least recently used runs."""
        self._runs[run.key] = run
        self._runs.move_to_end(run.key)
        if run.state.live.buffered:
            self._with_buffers.add(run.key)
        else:
            self._with_buffers.discard(run.key)
        self._bytes += run.bytes - self._with_events.pop(run.key, 0)
        if run.bytes:
            self._with_events[run.key] = run.bytes
        while self._bytes > self._event_bytes_max:
            key, size = self._with_events.popitem(last=False)
            self._bytes -= size
            self._runs[key].forget_events()
        if len(self._runs) > self._runs_max:
            self._let_go()

    def replace(self, run: LoadedRun) -> None:
        """Keep a run that may be a new object; callers that wait on the old object send their requests again."""
        before = self.get(run.key)
        if before is not None and before is not run:
            self.drop(run.key)
            before.abandon()
        self.put(run)

    def drop(self, key: RunKey) -> LoadedRun | None:
        """Forget a run whose state in memory may differ from the stored state."""
        self._bytes -= self._with_events.pop(key, 0)
        return self._runs.pop(key, None)

    def forget(self, key: RunKey) -> None:
        """Forget a run that was deleted."""
        self.drop(key)
        self._with_buffers.discard(key)

    def with_buffers(self, namespace_id: str) -> list[RunKey]:
        """The runs of a namespace with buffered events, among all that were in memory after the shard was opened."""
        return [key for key in self._with_buffers if key.namespace_id == namespace_id]

    def clear(self) -> list[LoadedRun]:
        """Forget all runs, and return them."""
        runs = list(self._runs.values())
        self._runs.clear()
        self._with_events.clear()
        self._with_buffers.clear()
        self._bytes = 0
        return runs

    def _let_go(self) -> None:
        for key, run in list(islice(self._runs.items(), self._runs_max // 50)):
            if run.is_idle:
                self.drop(key)
            else:
                # Don't try it again at the next eviction.
                self._runs.move_to_end(key)
