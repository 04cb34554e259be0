"""The rows of a shard's stream, one for each committed batch, and the recent rows in memory."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from fairlead.core.errors import GiveUp
from fairlead.core.versions import LOCAL_VERSION, MalformedHistory, VersionHistory
from fairlead.history.events import Batch
from fairlead.history.messages.progress import PROGRESS, encode_progress
from fairlead.history.state import RunState
from fairlead.storage.history import RunKey


class StreamRow(msgspec.Struct, array_like=True, frozen=True):
    """A committed batch of events, and its run after the commit. Add fields only at the end, with a default.

    `origin` is the cluster that first wrote the batch; empty for this cluster. If `first_event_id` is `PROGRESS`, there
    is no batch: the progress of the run's activities has changed, and is read when the row is sent.
    """

    namespace_id: str
    workflow_id: str
    run_id: str
    tree_id: str
    branch_id: str
    first_event_id: int
    last_event_id: int
    version: int
    items: tuple[tuple[int, int], ...]
    status: int
    new_run_id: str
    time_us: int
    origin: str = ""
    # Id of the request that started the run; set only in the row with the run's first event.
    start_request_id: str = ""
    # Whether other clusters had the namespace at the time of the commit.
    is_replicated: bool = False
    # Set only in a backfill row, which has no batch: the only cluster that reads the row, since it may lack the branch.
    backfill_to: str = ""

    @property
    def is_batch(self) -> bool:
        """Whether the row contains a batch of events."""
        return self.first_event_id != PROGRESS

    @property
    def is_ours(self) -> bool:
        """Whether this cluster must send the row to other clusters."""
        return not self.origin and (self.is_replicated or self.version != LOCAL_VERSION)


class UnreadableRow(GiveUp):
    """A row of a stream can't be decoded."""


encode_row = msgspec.msgpack.Encoder().encode
_decode_row = msgspec.msgpack.Decoder(StreamRow).decode


def decode_row(data: bytes) -> StreamRow:
    """The row that `encode_row` encoded."""
    try:
        return _decode_row(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
        raise UnreadableRow(
            f"a stream row of {len(data)} bytes can't be decoded ({wrong}): if a newer release wrote it, run that one"
        ) from None


class Streamed(NamedTuple):
    """A row with its id, and its batch or progress. The payload is None if the run was deleted."""

    task_id: int
    row: StreamRow
    payload: bytes | None


def stream_row(
    key: RunKey, state: RunState, batch: Batch, *, now_ns: int, origin: str = "", is_replicated: bool = False
) -> StreamRow:
    """The row of a batch that will be written."""
    identity, last_id = state.identity, batch.last_event_id
    return StreamRow(
        *(
            *key,
            identity.tree_id,
            identity.branch_id,
            batch.first_event_id,
            batch.last_event_id,
            state.version_at(last_id),
        ),
        items=() if state.versions is None else state.versions.truncate(last_id).to_pairs(),
        status=state.status,
        new_run_id=state.new_run_id,
        time_us=now_ns // 1000,
        origin=origin,
        start_request_id=state.live.start_request_id if batch.first_event_id == 1 else "",
        is_replicated=is_replicated,
    )


def progress_row(key: RunKey, state: RunState, *, now_ns: int) -> StreamRow:
    """The row of a run in which activities made progress without an event."""
    identity = state.identity
    return StreamRow(
        *(*key, identity.tree_id, identity.branch_id, PROGRESS, PROGRESS, state.last_version),
        items=() if state.versions is None else state.versions.to_pairs(),
        status=state.status,
        new_run_id=state.new_run_id,
        time_us=now_ns // 1000,
        is_replicated=True,
    )


def backfill_row(
    key: RunKey, state: RunState, branch_id: str, versions: VersionHistory, *, to: str, now_ns: int
) -> StreamRow:
    """The backfill row of a branch for a cluster that may lack it."""
    return StreamRow(
        *(*key, state.identity.tree_id, branch_id, PROGRESS, PROGRESS, versions.last.version),
        items=versions.to_pairs(),
        status=state.status,
        new_run_id=state.new_run_id,
        time_us=now_ns // 1000,
        is_replicated=True,
        backfill_to=to,
    )


def progress_of(state: RunState, items: tuple[tuple[int, int], ...]) -> bytes | None:
    """The progress of the activities scheduled on the branch `items`; None if it is empty or the branch has changed.

    Activities that were scheduled later have their own rows.
    """
    try:
        versions = VersionHistory.from_pairs(items)
    except MalformedHistory:
        return None
    last = versions.last
    if state.versions is None or last.event_id > state.versions.last.event_id:
        return None
    if state.versions.truncate(last.event_id) != versions:
        return None
    found = [
        (scheduled_id, state.activities[scheduled_id].version, progress)
        for scheduled_id, progress in state.live.activities.items()
        if scheduled_id in state.activities and scheduled_id <= last.event_id
    ]
    return encode_progress(found) if found else None


class RecentRows:
    """The recent rows in memory: all rows from `from_id` on, within the limits on memory."""

    def __init__(self, *, bytes_max: int, rows_max: int) -> None:
        self.from_id = 0
        self.bytes = 0
        self._bytes_max = bytes_max
        self._rows_max = rows_max
        self._ids: list[int] = []
        self._rows: list[Streamed] = []

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, streamed: Streamed) -> None:
        """Add a row that has become durable; rows come roughly in order."""
        task_id = streamed.task_id
        if task_id < self.from_id:
            return
        if not self._ids or task_id > self._ids[-1]:
            self._ids.append(task_id)
            self._rows.append(streamed)
        else:
            position = bisect_left(self._ids, task_id)
            self._ids.insert(position, task_id)
            self._rows.insert(position, streamed)
        self.bytes += len(streamed.payload or b"")
        if self.bytes > self._bytes_max or len(self._ids) > self._rows_max:
            self._make_room()

    def forget_through(self, task_id: int) -> None:
        """Drop the rows up to an id, because all readers have them."""
        if self._ids and self._ids[0] <= task_id:
            self._drop(bisect_right(self._ids, task_id))

    def between(
        self, after_id: int, end_id: int, *, rows_max: int, bytes_max: int, wanted: Callable[[StreamRow], bool]
    ) -> tuple[list[Streamed], int]:
        """The first wanted rows between two ids, and the id up to which there are no other wanted rows."""
        found: list[Streamed] = []
        size_bytes = 0
        for position in range(bisect_right(self._ids, after_id), bisect_left(self._ids, end_id)):
            streamed = self._rows[position]
            if not wanted(streamed.row):
                continue
            size = len(streamed.payload or b"")
            if found and (len(found) >= rows_max or size_bytes + size > bytes_max):
                return found, found[-1].task_id
            found.append(streamed)
            size_bytes += size
        return found, max(after_id, end_id - 1)

    def count_after(self, task_id: int) -> int:
        """The number of rows after an id that are for other clusters."""
        return sum(streamed.row.is_ours for streamed in self._rows[bisect_right(self._ids, task_id) :])

    def _make_room(self) -> None:
        # Drop an eighth more than necessary, so that the next row does not exceed the limit again.
        room = self._bytes_max * 7 // 8
        rows = self._rows_max * 7 // 8
        size, count = self.bytes, 0
        while count < len(self._rows) and (size > room or len(self._rows) - count > rows):
            size -= len(self._rows[count].payload or b"")
            count += 1
        self._drop(count)

    def _drop(self, count: int) -> None:
        self.bytes -= sum(len(streamed.payload or b"") for streamed in self._rows[:count])
        self.from_id = max(self.from_id, self._ids[count - 1] + 1)
        del self._ids[:count]
        del self._rows[:count]
