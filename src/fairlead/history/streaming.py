"""The stream of a shard's committed events: a row with every commit that writes some, read on in order by several.

The row is in the same commit as its events, in the shard's queue `replication`. The journal reads all rows, other
clusters those of namespaces that they share. A row is deleted only when everybody has it: the journal on its disk, each
other cluster by its own word. After a crash some are read again, under the same task id, and none is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from fairlead.core.errors import FairleadError
from fairlead.history.hydrating import Hydration
from fairlead.history.stream_rows import RecentRows, Streamed, StreamRow, decode_row, encode_row
from fairlead.storage.history_contract import TASKS_COMPLETED_MAX, HistoryStore, LeaseLost, TaskKey, TaskWrite
from fairlead.telemetry import get_log

if TYPE_CHECKING:
    from fairlead.history.journaling import HistoryJournal
    from fairlead.history.namespaces import Namespace

REPLICATION = "replication"
# A queue without tasks. Its level is how far the journal has come where other clusters have yet to.
JOURNALED = "journaled"

# Rows and bytes of events that one shard has written to the journal at a time, and reads at a time.
ROWS_AT_ONCE_MAX = 2_000
BYTES_AT_ONCE_MAX = 1 << 20
# What has just been written is kept until everybody has it, of all shards together; what comes beyond is read again.
RECENT_BYTES_MAX = 32 << 20
RECENT_BYTES_A_SHARD_MIN = 64 << 10
RECENT_ROWS_A_SHARD_MAX = 5_000
# Rows that are counted in the store for who is far behind, and how long that holds.
ROWS_COUNTED_MAX = 10_000
COUNT_S = 10.0
RETRY_S = 1.0
# What all have is deleted this often, and so often it is noted how far the journal has come.
DELETE_S = 1.0
NOTE_S = 5.0
# A shard that is let go of has so long to journal its last events. What is left is for its next owner.
LAST_ROWS_S_MAX = 3.0
UNKNOWN = -1

_log = get_log("history.stream")


def _is_batch(row: StreamRow) -> bool:
    return row.is_batch


def _is_ours(row: StreamRow) -> bool:
    return row.is_ours


class ShardStream:
    """The rows of one shard, from the commit that makes them to the journal and the other clusters.

    Ids are taken in order but commits end in any: nothing is read past one that is under way, for it would be
    forgotten.
    """

    def __init__(
        self,
        shard_id: int,
        *,
        store: HistoryStore,
        journal: HistoryJournal | None,
        remotes: Callable[[], frozenset[str]] = frozenset,
        range_id: Callable[[], int],
        next_id: Callable[[], int],
        on_lost: Callable[[], None],
        shards: int,
    ) -> None:
        """`next_id` is that which the next row will have at least; `remotes` are the clusters to wait for."""
        self._shard_id = shard_id
        self._store = store
        self._journal = journal
        self._remotes = remotes
        self._range_id = range_id
        self._next_id = next_id
        self._on_lost = on_lost
        # In the order of their ids: the first is the lowest.
        self._under_way: dict[int, Streamed] = {}
        self._recent = RecentRows(
            bytes_max=max(RECENT_BYTES_MAX // shards, RECENT_BYTES_A_SHARD_MIN), rows_max=RECENT_ROWS_A_SHARD_MAX
        )
        # The highest ids there may be, of any row and of one that other clusters may have to hear of; and the highest
        # of a row that was seen.
        self._last_row_id = UNKNOWN
        self._last_our_id = UNKNOWN
        self._seen_id = UNKNOWN
        # All up to these are journaled, with other clusters, deleted, and noted to be journaled.
        self._journaled_id = UNKNOWN
        self._acks: dict[str, int] = {}
        self._deleted_id = UNKNOWN
        self._noted_id = UNKNOWN
        self._noted_s = 0.0
        self._counted: tuple[float, int, int] = (0.0, 0, 0)
        self._look = asyncio.Event()
        self._is_idle = asyncio.Event()
        # Set, and replaced by another, when there may be something new for other clusters.
        self._news = asyncio.Event()
        self._is_closed = False
        self._journaling: asyncio.Task[None] | None = None
        self._deleting: asyncio.Task[None] | None = None

    def open(self, level: TaskKey | None, journaled: TaskKey | None = None) -> None:
        """Take up what is there above `level`; up to `journaled` the journal has it."""
        if level is not None:
            self._deleted_id = level.task_id
        self._journaled_id = self._noted_id = max(self._deleted_id, UNKNOWN if journaled is None else journaled.task_id)
        self._recent.from_id = self._next_id()
        # Whoever was the owner before has written nothing above.
        self._last_row_id = self._last_our_id = self._next_id() - 1
        if self._journal is not None:
            self._look.set()
            self._journaling = asyncio.create_task(self._journal_forever(self._journal))

    async def close(self, *, is_lost: bool) -> None:
        """Journal what there is, unless the shard is lost, and stop. Who reads is answered."""
        self._is_closed = True
        self._tell()
        journaling = self._journaling
        if journaling is not None and not is_lost and not journaling.done():
            self._is_idle.clear()
            self._look.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_ROWS_S_MAX):
                    await self._is_idle.wait()
        tasks = [task for task in (journaling, self._deleting) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if not is_lost:
            with suppress(FairleadError):
                await self._note_journaled()
                await self._delete()

    def wants(self, namespace: Namespace) -> bool:
        """Whether anybody is to hear of what is written in a namespace."""
        return self._journal is not None or (namespace.is_global and not self._remotes().isdisjoint(namespace.clusters))

    # The commits

    def place(self, task_id: int, row: StreamRow, payload: bytes) -> TaskWrite:
        """A row that is about to be written with its batch; to be told of by `written` or `not_written`."""
        self._under_way[task_id] = Streamed(task_id, row, payload)
        self._last_row_id = self._seen_id = task_id
        if row.is_ours:
            self._last_our_id = task_id
        return TaskWrite(REPLICATION, 0, task_id, encode_row(row))

    def written(self, task_ids: Sequence[int]) -> None:
        """The rows are durable."""
        # Whether there is one for other clusters among them, or that they have held up.
        is_news = self._last_our_id >= self._ceiling()
        for task_id in task_ids:
            self._recent.add(self._under_way.pop(task_id))
        self._look.set()
        if is_news:
            self._tell()

    def not_written(self, task_ids: Sequence[int]) -> None:
        """The rows were not written, and will not be."""
        for task_id in task_ids:
            self._under_way.pop(task_id, None)
        self._look.set()
        self._tell()

    @property
    def last_id(self) -> int:
        """Every row for other clusters that is durable or under way has at most this id."""
        return self._last_our_id

    def _ceiling(self) -> int:
        """All rows below it are durable."""
        return next(iter(self._under_way), self._next_id())

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    # Other clusters

    async def read(
        self,
        cluster: str,
        after_id: int,
        *,
        rows_max: int,
        bytes_max: int,
        wait_s: float,
        wanted: Callable[[StreamRow], bool] = _is_ours,
    ) -> tuple[list[Streamed], int]:
        """The next rows for another cluster after an id, and the id up to which there are no others for it.

        Where there is none it waits for one. `wanted` is asked of rows that were written here only.
        """
        loop = asyncio.get_running_loop()
        end_s = loop.time() + wait_s
        through = after_id
        while True:
            news = self._news
            before = through
            rows, through = await self._page(
                before,
                rows_max=rows_max,
                bytes_max=bytes_max,
                wanted=lambda row: row.is_ours and wanted(row),
            )
            if rows:
                return rows, through
            if self._acks.get(cluster, UNKNOWN) >= before:
                # It need not come back for what is not for it.
                self.acknowledge(cluster, through)
            if through < self._ceiling() - 1 and not self._is_closed:
                continue
            left_s = end_s - loop.time()
            if left_s <= 0 or self._is_closed:
                return [], through
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await news.wait()

    def acknowledge(self, cluster: str, through_id: int) -> None:
        """Another cluster has all rows up to an id, as it says itself."""
        self._acks[cluster] = through_id
        if self._deletable_id() > self._deleted_id and (self._deleting is None or self._deleting.done()):
            self._deleting = asyncio.create_task(self._delete_later())

    def acknowledged(self, cluster: str) -> int:
        """Up to where another cluster has all that is for it."""
        ack_id = self._acks.get(cluster, UNKNOWN)
        return max(ack_id, self._ceiling() - 1) if ack_id >= self._last_our_id else ack_id

    @property
    def acks(self) -> dict[str, int]:
        """Up to where each of the other clusters has all that is for it."""
        return {cluster: self.acknowledged(cluster) for cluster in self._remotes()}

    async def count_behind(self, after_id: int) -> int:
        """How many rows there are for other clusters after an id; of those that are not in memory, about."""
        if after_id >= self._last_our_id:
            return 0
        count = self._recent.count_after(after_id)
        if after_id >= min(self._recent.from_id, self._ceiling()) - 1:
            return count
        now_s = asyncio.get_running_loop().time()
        counted_s, counted_from, stored = self._counted
        if now_s - counted_s > COUNT_S or after_id < counted_from:
            page = await self._store.read_tasks(
                self._shard_id, REPLICATION, after=TaskKey(0, after_id), until_ns=None, limit=ROWS_COUNTED_MAX
            )
            stored = sum(1 for (_, task_id), _ in page if task_id < self._recent.from_id)
            self._counted = (now_s, after_id, stored)
        return count + stored

    # The journal

    async def _journal_forever(self, journal: HistoryJournal) -> None:
        try:
            while True:
                await self._look.wait()
                self._look.clear()
                try:
                    while await self._journal_some(journal):
                        pass
                except LeaseLost:
                    self._on_lost()
                    return
                except Exception as failure:  # noqa: BLE001 - nobody else would hear of it, or go on
                    _log.warning("events can't be journaled", shard=self._shard_id, error=str(failure) or repr(failure))
                    await asyncio.sleep(RETRY_S)
                    self._look.set()
                else:
                    if not self._under_way:
                        self._is_idle.set()
        finally:
            self._is_idle.set()

    async def _journal_some(self, journal: HistoryJournal) -> bool:
        """Write the next rows, if there are any, and delete what all have; whether there were."""
        before = self._journaled_id
        async with journal.readers:
            rows, through = await self._page(
                before, rows_max=ROWS_AT_ONCE_MAX, bytes_max=BYTES_AT_ONCE_MAX, wanted=_is_batch
            )
        if rows:
            await journal.write(rows)
        self._journaled_id = through
        await self._delete()
        now_s = asyncio.get_running_loop().time()
        if now_s - self._noted_s >= NOTE_S:
            self._noted_s = now_s
            await self._note_journaled()
        return through > before

    async def _note_journaled(self) -> None:
        """Note how far it has come, where rows are kept for others that it would journal again after a crash."""
        through = min(self._journaled_id, self._seen_id)
        if self._journal is not None and self._deleted_id < through and self._noted_id < through:
            await self._store.complete_tasks(self._shard_id, self._range_id(), JOURNALED, TaskKey(0, through))
            self._noted_id = through

    # Both

    async def _page(
        self, after_id: int, *, rows_max: int, bytes_max: int, wanted: Callable[[StreamRow], bool]
    ) -> tuple[list[Streamed], int]:
        """The first wanted rows after an id, and the id up to which there are no others."""
        hydration = Hydration(self._shard_id, self._store, bytes_max=bytes_max)
        stored_to = min(self._ceiling(), self._recent.from_id)
        if after_id < min(stored_to, self._last_row_id + 1) - 1:
            page = await self._store.read_tasks(
                self._shard_id, REPLICATION, after=TaskKey(0, after_id), until_ns=None, limit=rows_max
            )
            rows = [(task_id, decode_row(stored)) for (_, task_id), stored in page if task_id < stored_to]
            self._seen_id = max([self._seen_id, *(task_id for task_id, _ in rows[-1:])])
            through = rows[-1][0] if rows and len(page) >= rows_max else stored_to - 1
            return await hydration.from_store([one for one in rows if wanted(one[1])], through)
        recent, through = self._recent.between(
            max(after_id, stored_to - 1), self._ceiling(), rows_max=rows_max, bytes_max=bytes_max, wanted=wanted
        )
        return await hydration.from_memory(recent), through

    def _deletable_id(self) -> int:
        """Up to here everybody has all, and nothing is under way."""
        through = min(self._ceiling() - 1, self._seen_id)
        if self._journal is not None:
            through = min(through, self._journaled_id)
        return min([through, *(self.acknowledged(cluster) for cluster in self._remotes())])

    async def _delete_later(self) -> None:
        while self._deletable_id() > self._deleted_id:
            await asyncio.sleep(DELETE_S)
            try:
                await self._delete()
            except LeaseLost:
                self._on_lost()
                return
            except FairleadError as failure:
                _log.warning("rows that all have can't be deleted", shard=self._shard_id, error=str(failure))

    async def _delete(self) -> None:
        through = self._deletable_id()
        if through <= self._deleted_id:
            return
        self._recent.forget_through(through)
        gone = TASKS_COMPLETED_MAX
        while gone >= TASKS_COMPLETED_MAX:
            gone = await self._store.complete_tasks(self._shard_id, self._range_id(), REPLICATION, TaskKey(0, through))
        self._deleted_id = max(self._deleted_id, through)
