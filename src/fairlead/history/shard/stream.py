"""The stream of a shard's committed events: one row for each batch, which the journal and other clusters read.

A row is written to the shard's queue `replication` in the same commit as its batch. The journal reads all rows; another
cluster reads the rows of the namespaces that it shares. A row is deleted when the journal has it on disk, and each
other cluster has acknowledged it. After a crash some rows are read again, with the same task ids, but no row is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from fairlead.aio.backoff import Backoff, jitter_of
from fairlead.api.errors import OutOfRange
from fairlead.core.errors import FairleadError, reported
from fairlead.history.shard.stream_contents import Hydration
from fairlead.history.shard.stream_rows import RecentRows, Streamed, StreamRow, decode_row, encode_row
from fairlead.storage.commit import TaskWrite
from fairlead.storage.history import TASKS_COMPLETED_MAX, HistoryStore, LeaseLost, TaskKey
from fairlead.telemetry import get_log

if TYPE_CHECKING:
    from fairlead.api.namespaces import Namespace
    from fairlead.history.shard.journal import HistoryJournal

REPLICATION = "replication"
# Name under which the store keeps the id of the last journaled row, as the level of a queue without tasks. It is saved
# while rows are kept for other clusters.
JOURNALED = "journaled"

# Number of rows, and bytes of events, that one shard reads and journals at a time.
ROWS_AT_ONCE_MAX = 2_000
BYTES_AT_ONCE_MAX = 1 << 20
# Bytes of recent rows in memory, of all shards together. Readers that are further behind read from the store.
RECENT_BYTES_MAX = 32 << 20
# Minimum bytes and maximum number of recent rows that one shard may keep.
RECENT_BYTES_A_SHARD_MIN = 64 << 10
RECENT_ROWS_A_SHARD_MAX = 5_000
# Maximum number of rows that are counted in the store for a cluster that is far behind, and seconds for which a count
# is reused.
ROWS_COUNTED_MAX = 10_000
COUNT_S = 10.0
# Seconds before the first retry after rows could not be journaled (doubled for each further retry), and the maximum.
RETRY_FIRST_S, RETRY_S_MAX = 0.1, 5.0
# Seconds between two deletions of rows that all readers have, and between two writes of the journaled level.
DELETE_S = 1.0
NOTE_S = 5.0
# Seconds for which a closing shard may journal its last rows; the next owner journals the rest.
LAST_ROWS_S_MAX = 3.0
UNKNOWN = -1

_log = get_log("history.stream")


def _is_batch(row: StreamRow) -> bool:
    return row.is_batch


def _is_ours(row: StreamRow) -> bool:
    return row.is_ours


class ShardStream:
    """The rows of one shard, from their commit until the journal and the other clusters have read them.

    Ids are taken in order, but commits end in any order. A reader never passes an id whose commit is in flight, because
    it would miss that row.
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
        """`next_id` returns a lower bound of the next row's id, `remotes` the clusters that acknowledge rows."""
        self._shard_id = shard_id
        self._store = store
        self._journal = journal
        self._remotes = remotes
        self._range_id = range_id
        self._next_id = next_id
        self._on_lost = on_lost
        # Rows whose commits are in flight, by id; the lowest id comes first.
        self._under_way: dict[int, Streamed] = {}
        self._recent = RecentRows(
            bytes_max=max(RECENT_BYTES_MAX // shards, RECENT_BYTES_A_SHARD_MIN), rows_max=RECENT_ROWS_A_SHARD_MAX
        )
        # Upper bounds of the ids of all rows, and of the rows for other clusters; and the highest id of a row that this
        # object has assigned or read.
        self._last_row_id = UNKNOWN
        self._last_our_id = UNKNOWN
        self._seen_id = UNKNOWN
        # Ids up to which all rows are journaled, acknowledged by each cluster, deleted, and stored as journaled.
        self._journaled_id = UNKNOWN
        self._acks: dict[str, int] = {}
        self._deleted_id = UNKNOWN
        self._noted_id = UNKNOWN
        self._noted_s = 0.0
        self._counted: tuple[float, int, int] = (0.0, 0, 0)
        self._wake = asyncio.Event()
        self._is_idle = asyncio.Event()
        # Set, and replaced by a new event, when there may be new rows for other clusters.
        self._news = asyncio.Event()
        # Set, and replaced by a new event, when a cluster has acknowledged rows.
        self._acknowledged = asyncio.Event()
        self._is_closed = False
        self._journaling: asyncio.Task[None] | None = None
        self._deleting: asyncio.Task[None] | None = None

    def open(self, level: TaskKey | None, journaled: TaskKey | None = None) -> None:
        """Start with the rows above `level`; the journal has the rows up to `journaled`."""
        if level is not None:
            self._deleted_id = level.task_id
        self._journaled_id = self._noted_id = max(self._deleted_id, UNKNOWN if journaled is None else journaled.task_id)
        self._recent.from_id = self._next_id()
        # The previous owner can't have written a row above these ids.
        self._last_row_id = self._last_our_id = self._next_id() - 1
        if self._journal is not None:
            self._wake.set()
            self._journaling = asyncio.create_task(self._journal_forever(self._journal))

    async def close(self, *, is_lost: bool) -> None:
        """Journal the remaining rows, unless the shard is lost, then stop. Waiting readers get an empty page."""
        self._is_closed = True
        self._notify()
        journaling = self._journaling
        if journaling is not None and not is_lost and not journaling.done():
            self._is_idle.clear()
            self._wake.set()
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
        """Whether the journal or another cluster reads the rows of a namespace."""
        return self._journal is not None or bool(self.readers_of(namespace))

    def readers_of(self, namespace: Namespace) -> frozenset[str]:
        """The other clusters that read the rows of a namespace."""
        return self._remotes().intersection(namespace.clusters) if namespace.is_global else frozenset()

    # The commits

    def assign(self, task_id: int, row: StreamRow, payload: bytes) -> TaskWrite:
        """The task for a row that will be written with its batch. Call `written` or `not_written` afterwards."""
        self._under_way[task_id] = Streamed(task_id, row, payload)
        self._last_row_id = self._seen_id = task_id
        if row.is_ours:
            self._last_our_id = task_id
        return TaskWrite(REPLICATION, 0, task_id, encode_row(row))

    def written(self, task_ids: Sequence[int]) -> None:
        """Record that the rows are durable."""
        # True if other clusters can read further now: one of these rows is for them, or blocked a later row.
        is_news = self._last_our_id >= self._ceiling()
        for task_id in task_ids:
            self._recent.add(self._under_way.pop(task_id))
        self._wake.set()
        if is_news:
            self._notify()

    def not_written(self, task_ids: Sequence[int]) -> None:
        """Forget rows whose commit failed: the store has none of them."""
        for task_id in task_ids:
            self._under_way.pop(task_id, None)
        self._wake.set()
        self._notify()

    @property
    def last_id(self) -> int:
        """An upper bound of the ids of all rows for other clusters, durable or in flight."""
        return self._last_our_id

    def _ceiling(self) -> int:
        """The lowest id that is in flight or not yet taken; all rows below it are durable."""
        return next(iter(self._under_way), self._next_id())

    def _notify(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    # Other clusters

    async def check_given(self, task_id: int) -> None:
        """Raise `OutOfRange` for an id that this shard never gave out: the reader has read a store before this one."""
        if task_id < self._next_id():
            return
        try:
            # Check the lease first: a host that is no longer the owner does not know the newest ids.
            await self._store.complete_tasks(self._shard_id, self._range_id(), REPLICATION)
        except LeaseLost:
            self._on_lost()
            raise
        raise OutOfRange(
            f"task id {task_id} is above the last one of shard {self._shard_id}, which is {self._next_id() - 1}: the "
            "shard's store was set up anew or restored from a backup; read from the beginning",
        )

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
        """The next rows for another cluster after an id, and the id up to which there are no further rows for it.

        If there is no row, waits for one. `wanted` filters the rows that were written in this cluster.
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
                # The skipped rows are not for this cluster, so they count as acknowledged.
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
        """Record that another cluster has acknowledged all rows up to an id."""
        self._acks[cluster] = through_id
        self._acknowledged.set()
        self._acknowledged = asyncio.Event()
        if self._deletable_id() > self._deleted_id and (self._deleting is None or self._deleting.done()):
            self._deleting = asyncio.create_task(self._delete_later())

    def acknowledged(self, cluster: str) -> int:
        """The id up to which another cluster has received all its rows."""
        ack_id = self._acks.get(cluster, UNKNOWN)
        return max(ack_id, self._ceiling() - 1) if ack_id >= self._last_our_id else ack_id

    async def until_acknowledged(self, *, wait_s: float) -> None:
        """Wait until any other cluster acknowledges rows, at most `wait_s`."""
        acknowledged = self._acknowledged
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await acknowledged.wait()

    @property
    def acks(self) -> dict[str, int]:
        """The id up to which each other cluster has received all its rows."""
        return {cluster: self.acknowledged(cluster) for cluster in self._remotes()}

    async def count_behind(self, after_id: int) -> int:
        """The number of rows for other clusters after an id; rows outside memory are estimated."""
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
        backoff = Backoff(RETRY_FIRST_S, RETRY_S_MAX, random=jitter_of(f"{self._shard_id}/journal"))
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                try:
                    while await self._journal_some(journal):
                        pass
                except LeaseLost:
                    self._on_lost()
                    return
                except Exception as failure:  # noqa: BLE001 - after any error the rows must still be journaled
                    _log.warning("events can't be journaled", shard=self._shard_id, **reported(failure))
                    await asyncio.sleep(backoff.next_s())
                    self._wake.set()
                else:
                    backoff.reset()
                    if not self._under_way:
                        self._is_idle.set()
        finally:
            self._is_idle.set()

    async def _journal_some(self, journal: HistoryJournal) -> bool:
        """Journal the next rows, and delete the rows that all readers have; return False if there were no rows."""
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
        """While rows are kept for other clusters, store the journaled level, so that a crash repeats few rows."""
        through = min(self._journaled_id, self._seen_id)
        if self._journal is not None and self._deleted_id < through and self._noted_id < through:
            await self._store.complete_tasks(self._shard_id, self._range_id(), JOURNALED, TaskKey(0, through))
            self._noted_id = through

    # Reading and deleting rows

    async def _page(
        self, after_id: int, *, rows_max: int, bytes_max: int, wanted: Callable[[StreamRow], bool]
    ) -> tuple[list[Streamed], int]:
        """The first wanted rows after an id, and the id up to which there are no other wanted rows."""
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
        """The id up to which all readers have received all rows, and no commit is in flight."""
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
            except Exception as failure:  # noqa: BLE001 - after any error the rows must still be deleted
                _log.warning("acknowledged stream rows can't be deleted", shard=self._shard_id, **reported(failure))

    async def _delete(self) -> None:
        through = self._deletable_id()
        if through <= self._deleted_id:
            return
        self._recent.forget_through(through)
        gone = TASKS_COMPLETED_MAX
        while gone >= TASKS_COMPLETED_MAX:
            gone = await self._store.complete_tasks(self._shard_id, self._range_id(), REPLICATION, TaskKey(0, through))
        self._deleted_id = max(self._deleted_id, through)
