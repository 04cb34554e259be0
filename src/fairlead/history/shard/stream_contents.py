"""The contents of stream rows: batches and activity progress; read from the store if they are not in memory."""

from collections.abc import Sequence

from fairlead.history.messages.progress import NO_PROGRESS
from fairlead.history.shard.stream_rows import Streamed, StreamRow, progress_of
from fairlead.history.state import UnreadableState, decode
from fairlead.storage.history import HistoryStore
from fairlead.telemetry import get_log

# Maximum bytes of following batches of the same run that are read in advance: rows of one run often follow one another.
READ_ALONG_BYTES_MAX = 64 << 10

_log = get_log("history.stream")


class Hydration:
    """Adds the contents to the rows of a page. Of several progress rows of one run, keeps only the last."""

    def __init__(self, shard_id: int, store: HistoryStore, *, bytes_max: int) -> None:
        self._shard_id = shard_id
        self._store = store
        self._bytes_max = bytes_max
        # Batches that were read in advance, by tree id, branch id and first event id.
        self._ahead: dict[tuple[str, str, int], bytes] = {}
        self._ahead_bytes = 0

    async def from_memory(self, rows: Sequence[Streamed]) -> list[Streamed]:
        """Rows from memory, which contain their batches. Missing progress is read from the store."""
        kept = _last_of_each([(streamed.task_id, streamed.row) for streamed in rows])
        return [
            streamed
            if streamed.row.is_batch or streamed.payload
            else await self._with_progress(streamed.task_id, streamed.row)
            for streamed in rows
            if streamed.task_id in kept
        ]

    async def from_store(self, rows: Sequence[tuple[int, StreamRow]], through: int) -> tuple[list[Streamed], int]:
        """Stored rows with their contents, as many as fit, and the id up to which there are no further rows."""
        kept = _last_of_each(rows)
        ends = {(row.tree_id, row.branch_id): row.last_event_id for _, row in rows if row.is_batch}
        found: list[Streamed] = []
        size_bytes = 0
        for task_id, row in rows:
            if task_id not in kept:
                continue
            if row.is_batch:
                payload = await self._batch(row, through_event_id=ends[row.tree_id, row.branch_id])
                streamed = Streamed(task_id, row, payload)
            else:
                streamed = await self._with_progress(task_id, row)
            size_bytes += len(streamed.payload or b"")
            if found and size_bytes > self._bytes_max:
                return found, found[-1].task_id
            found.append(streamed)
        return found, through

    async def _batch(self, row: StreamRow, *, through_event_id: int) -> bytes | None:
        """The batch of a row; None if its run has been deleted."""
        tree_id, branch_id, first_id = row.tree_id, row.branch_id, row.first_event_id
        known = self._ahead.pop((tree_id, branch_id, first_id), None)
        if known is not None:
            self._ahead_bytes -= len(known)
            return known
        is_room = self._ahead_bytes < self._bytes_max
        batches = await self._store.read_branch(
            tree_id,
            branch_id,
            first_id,
            max(first_id, through_event_id) + 1 if is_room else first_id + 1,
            limit_bytes=READ_ALONG_BYTES_MAX if is_room else 1,
        )
        payload = None
        for batch in batches:
            if batch.first_event_id == first_id:
                payload = batch.payload
            else:
                self._ahead[tree_id, branch_id, batch.first_event_id] = batch.payload
                self._ahead_bytes += len(batch.payload)
        return payload

    async def _with_progress(self, task_id: int, row: StreamRow) -> Streamed:
        stored = await self._store.read_run(self._shard_id, row.namespace_id, row.workflow_id, row.run_id)
        if stored is None:
            return Streamed(task_id, row, None)
        try:
            progress = progress_of(decode(stored.state), row.items)
        except UnreadableState as wrong:
            _log.error("progress can't be read", run_id=row.run_id, error=str(wrong))
            return Streamed(task_id, row, None)
        # A backfill row is sent even without progress: it shows the cluster that the branch exists.
        return Streamed(task_id, row, NO_PROGRESS if progress is None and row.backfill_to else progress)


def _last_of_each(rows: Sequence[tuple[int, StreamRow]]) -> set[int]:
    """The ids of all batch rows, all backfill rows, and the last progress row of each run."""
    last = {(task_id if row.is_batch or row.backfill_to else row.run_id): task_id for task_id, row in rows}
    return set(last.values())
