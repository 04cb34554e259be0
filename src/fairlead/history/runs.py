"""Runs in memory: their states as they are in the store, their latest events, and who waits for them."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from fairlead.history.events import Batch
from fairlead.history.queries import QueryRegistry
from fairlead.history.state import RunState, TaskKind, decode
from fairlead.history.updates import UpdateRegistry
from fairlead.storage.history_contract import RunKey, StoredRun

# Of all shards of a store together; each has its part, but some at least.
RUNS_IN_MEMORY_MAX = 20_000
RUNS_A_SHARD_MIN = 100
# Events that are kept in memory: of one run, and of all runs of a shard.
EVENT_BYTES_A_RUN_MAX = 128 * 1024
EVENT_BYTES_MAX = 64 * 1024 * 1024
EVENT_BYTES_A_SHARD_MIN = 256 * 1024


class Told(NamedTuple):
    """The keys of the signals and updates on a branch, up to an event."""

    branch_id: str = ""
    last_event_id: int = 0
    keys: frozenset[str] = frozenset()


class LoadedRun:
    """A run as it was last written. Only who has its workflow's lock may look at it or change it.

    `batches` are the latest events, without a gap up to the last one; they may begin late or not be there at all.
    """

    __slots__ = (
        *("batches", "bytes", "db_version", "key", "on_commit", "queries", "skip_write", "state", "told", "updates"),
    )

    def __init__(self, key: RunKey, state: RunState, db_version: int | None) -> None:
        self.key = key
        self.state = state
        self.db_version = db_version
        self.batches: list[Batch] = []
        self.bytes = 0
        # What was read of the signals and updates on its line: they are added to, and never change.
        self.told = Told()
        self.updates: UpdateRegistry | None = None
        self.queries: QueryRegistry | None = None
        # What a step wants done when it is durable, and whether it is to be written at all.
        self.on_commit: list[Callable[[], None]] = []
        self.skip_write = False

    @classmethod
    def from_store(cls, stored: StoredRun) -> "LoadedRun":
        """A run that was read. A speculative task was known to a memory that is gone: nobody has it any more."""
        state = decode(stored.state)
        task = state.live.unwritten_task
        if task is not None and task.kind is TaskKind.SPECULATIVE:
            state.live.unwritten_task = None
        return cls(RunKey(stored.namespace_id, stored.workflow_id, stored.run_id), state, stored.db_version)

    def update_registry(self) -> UpdateRegistry:
        """The updates that wait or are on their way."""
        if self.updates is None:
            self.updates = UpdateRegistry()
        return self.updates

    def query_registry(self) -> QueryRegistry:
        """The queries that wait."""
        if self.queries is None:
            self.queries = QueryRegistry()
        return self.queries

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for something that only memory knows."""
        task = self.state.live.unwritten_task
        return (
            (self.updates is None or self.updates.is_idle)
            and (self.queries is None or self.queries.is_idle)
            and (task is None or task.kind is not TaskKind.SPECULATIVE)
        )

    def keep(self, batch: Batch) -> None:
        """Remember events that were just written."""
        if not batch.payload:
            return
        self.batches.append(batch)
        self.bytes += len(batch.payload)
        while self.bytes > EVENT_BYTES_A_RUN_MAX:
            self.bytes -= len(self.batches.pop(0).payload)

    def forget_events(self) -> None:
        """Let the events go: they are in the store."""
        self.batches = []
        self.bytes = 0


class RunCache:
    """The runs of one of so many shards that were used last."""

    def __init__(self, *, shards: int = 1) -> None:
        self._runs: OrderedDict[RunKey, LoadedRun] = OrderedDict()
        self._with_events: OrderedDict[RunKey, int] = OrderedDict()
        # Of those that were let go, too, until they are here again: then it is seen whether they still have one.
        self._with_buffers: set[RunKey] = set()
        self._bytes = 0
        self._runs_max = max(RUNS_IN_MEMORY_MAX // shards, RUNS_A_SHARD_MIN)
        self._event_bytes_max = max(EVENT_BYTES_MAX // shards, EVENT_BYTES_A_SHARD_MIN)

    def __len__(self) -> int:
        return len(self._runs)

    def get(self, key: RunKey) -> LoadedRun | None:
        """A run that is in memory."""
        run = self._runs.get(key)
        if run is not None:
            self._runs.move_to_end(key)
        return run

    def put(self, run: LoadedRun) -> None:
        """Keep a run as it is now, and let go of those that were not used for longest."""
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

    def drop(self, key: RunKey) -> LoadedRun | None:
        """Forget a run whose state in memory may not be the one in the store."""
        self._bytes -= self._with_events.pop(key, 0)
        return self._runs.pop(key, None)

    def forget(self, key: RunKey) -> None:
        """Forget a run that is not there any more."""
        self.drop(key)
        self._with_buffers.discard(key)

    def with_buffers(self, namespace_id: str) -> list[RunKey]:
        """The runs of a namespace that have events which wait to be written, as far as they were ever in memory."""
        return [key for key in self._with_buffers if key.namespace_id == namespace_id]

    def clear(self) -> list[LoadedRun]:
        """Forget everything, and say what there was."""
        runs = list(self._runs.values())
        self._runs.clear()
        self._with_events.clear()
        self._with_buffers.clear()
        self._bytes = 0
        return runs

    def _let_go(self) -> None:
        for key, run in list(zip(self._runs, self._runs.values(), strict=True))[: self._runs_max // 50]:
            if run.is_idle:
                self.drop(key)


class _Held(NamedTuple):
    lock: asyncio.Lock
    holders: list[None]


class WorkflowLocks:
    """One lock for each workflow id that somebody works on."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str], _Held] = {}

    def __call__(self, namespace_id: str, workflow_id: str) -> "WorkflowLock":
        """The lock of a workflow id, for `async with`."""
        return WorkflowLock(self._held, (namespace_id, workflow_id))


class WorkflowLock:
    """Who has it is the only one to read or change the runs of a workflow id."""

    __slots__ = ("_all", "_held", "_key")

    def __init__(self, all_held: dict[tuple[str, str], _Held], key: tuple[str, str]) -> None:
        self._all = all_held
        self._key = key
        held = all_held.get(key)
        if held is None:
            held = all_held[key] = _Held(asyncio.Lock(), [])
        self._held = held
        held.holders.append(None)

    async def __aenter__(self) -> None:
        try:
            await self._held.lock.acquire()
        except BaseException:
            self._let_go()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._held.lock.release()
        self._let_go()

    def _let_go(self) -> None:
        self._held.holders.pop()
        if not self._held.holders and self._all.get(self._key) is self._held:
            del self._all[self._key]
