"""An owner of one shard that commits small batches, and its replication stream."""

import asyncio
from collections.abc import Iterable

from temporalio.api.history.v1 import History, HistoryEvent

from fairlead.core.versions import VersionHistory
from fairlead.history.shard.journal import HistoryJournal
from fairlead.history.shard.stream import JOURNALED, REPLICATION, ShardStream
from fairlead.history.shard.stream_rows import StreamRow, progress_row
from fairlead.history.state import ActivityProgress, RunIdentity, RunState, encode
from fairlead.history.state.pending import PendingActivity
from fairlead.storage.commit import BatchWrite, Commit, RunWrite
from fairlead.storage.history import HistoryStore, RunKey, TaskKey

SHARD = 0
VERSION = 1
NAMESPACE_ID = "namespace-id"


class Owner:
    """The owner of a shard until another takes it over."""

    def __init__(
        self, store: HistoryStore, *, remotes: Iterable[str] = ("b",), journal: HistoryJournal | None = None
    ) -> None:
        self.store = store
        self.remotes = frozenset(remotes)
        self.range_id = 0
        self.next_id = 0
        self.is_lost = False
        # The ids of all committed rows, and of those to replicate to other clusters.
        self.committed: list[int] = []
        self.ours: list[int] = []
        self._runs: dict[str, RunState] = {}
        self._db_versions: dict[str, int] = {}
        self.stream = ShardStream(
            SHARD,
            store=store,
            journal=journal,
            remotes=lambda: self.remotes,
            range_id=lambda: self.range_id,
            next_id=lambda: self.next_id,
            on_lost=self._lose,
            shards=1,
        )

    def _lose(self) -> None:
        self.is_lost = True

    async def open(self) -> "Owner":
        """Take over the shard."""
        lease = await self.store.take_shard(SHARD)
        self.range_id = lease.range_id
        self.next_id = lease.range_id << 24
        self.stream.open(lease.levels.get(REPLICATION), lease.levels.get(JOURNALED))
        return self

    async def commit(
        self,
        workflow_id: str = "w",
        *,
        after_s: float = 0.0,
        fails: bool = False,
        origin: str = "",
        version: int = VERSION,
        padding: int = 0,
    ) -> int:
        """Write another event of a workflow's only run: its row gets its position at once, and is written some time
        later.
        """
        task_id = self._take_id()
        run_id = f"run-{workflow_id}"
        state = self._state(workflow_id)
        event_id = state.next_event_id
        state.next_event_id += 1
        state.versions = VersionHistory.from_pairs([(event_id, version)])
        event = HistoryEvent(event_id=event_id, version=version, task_id=task_id, worker_may_ignore=True)
        payload = History(events=[event]).SerializeToString() + _padding(padding)
        items = ((event_id, version),)
        row = StreamRow(
            *(NAMESPACE_ID, workflow_id, run_id, run_id, "branch", event_id, event_id, version, items, 1, "", task_id),
            origin=origin,
        )
        task = self.stream.assign(task_id, row, payload)
        await asyncio.sleep(after_s)
        if fails:
            self.stream.not_written([task_id])
            return task_id
        commit = Commit(
            runs=[self._run_write(workflow_id, state)],
            batches=[BatchWrite(run_id, "branch", event_id, event_id, version, task_id, payload)],
            tasks=[task],
        )
        await self.store.commit(SHARD, self.range_id, commit)
        self.committed.append(task_id)
        if row.is_ours:
            self.ours.append(task_id)
        self.stream.written([task_id])
        return task_id

    async def progress(self, workflow_id: str, attempt: int) -> int:
        """Record progress of an activity without an event."""
        task_id = self._take_id()
        state = self._state(workflow_id)
        state.activities[1] = PendingActivity(1, VERSION, 0, "a", "a", "q", 0, 0, 0, 0, None, b"", 0)
        state.live.activities[1] = ActivityProgress(attempt=attempt)
        task = self.stream.assign(task_id, progress_row(self.key(workflow_id), state, now_ns=0), b"")
        await self.store.commit(SHARD, self.range_id, Commit(runs=[self._run_write(workflow_id, state)], tasks=[task]))
        self.stream.written([task_id])
        return task_id

    def key(self, workflow_id: str) -> RunKey:
        """The only run of a workflow."""
        return RunKey(NAMESPACE_ID, workflow_id, f"run-{workflow_id}")

    async def read(
        self, cluster: str = "b", after_id: int = -1, *, rows: int = 1000, size: int = 1 << 20, wait_s: float = 0.0
    ) -> tuple[list[int], int]:
        """The ids of the next rows for a cluster, and the id up to which there are no others."""
        found, through = await self.stream.read(cluster, after_id, rows_max=rows, bytes_max=size, wait_s=wait_s)
        return [streamed.task_id for streamed in found], through

    async def left(self) -> list[int]:
        """The stored rows."""
        page = await self.store.read_tasks(SHARD, REPLICATION, after=TaskKey(-1, -1), until_ns=None, limit=100_000)
        return [task_id for (_, task_id), _ in page]

    def _take_id(self) -> int:
        self.next_id += 1
        return self.next_id - 1

    def _state(self, workflow_id: str) -> RunState:
        run_id = f"run-{workflow_id}"
        if workflow_id not in self._runs:
            self._runs[workflow_id] = RunState(RunIdentity(NAMESPACE_ID, workflow_id, run_id, run_id, "branch"))
        return self._runs[workflow_id]

    def _run_write(self, workflow_id: str, state: RunState) -> RunWrite:
        before = self._db_versions.get(workflow_id)
        self._db_versions[workflow_id] = (before or 0) + 1
        return RunWrite(
            NAMESPACE_ID, workflow_id, f"run-{workflow_id}", encode(state), before, state.next_event_id, 1, VERSION
        )


def _padding(size: int) -> bytes:
    """An unknown field of the message that adds `size` bytes."""
    if not size:
        return b""
    length = bytearray()
    rest = size
    while rest > 0x7F:
        length.append(rest & 0x7F | 0x80)
        rest >>= 7
    length.append(rest)
    return b"\xfa\x01" + bytes(length) + bytes(size)
