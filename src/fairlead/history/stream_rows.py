"""The rows of a shard's stream: what is said of each batch that was written, and those of them that are in memory."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from fairlead.core.errors import GiveUp
from fairlead.core.versions import LOCAL_VERSION, MalformedHistory, VersionHistory
from fairlead.history.events import Batch
from fairlead.history.state import RunState
from fairlead.history.state.pending import ActivityProgress
from fairlead.storage.history_contract import RunKey

# Of a row that is not about a batch: the activities of its run have come further.
PROGRESS = 0


class StreamRow(msgspec.Struct, array_like=True, frozen=True):
    """A batch of events that was written, and its run after that. Fields are added at the end, with a default.

    `origin` is the cluster whose write it is, empty for this one. Where `first_event_id` is `PROGRESS` there is no
    batch: the progress of the run's activities changed, and is read when the row is sent.
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
    # Of a row with a run's first event: the request that the run began with.
    start_request_id: str = ""
    # Whether the namespace was shared with other clusters when it was written, whatever the version.
    is_shared: bool = False
    # Of a row without a batch that says that its line is here: the cluster that may not have it, and which it is for.
    announced_to: str = ""

    @property
    def is_batch(self) -> bool:
        """Whether events were written."""
        return self.first_event_id != PROGRESS

    @property
    def is_ours(self) -> bool:
        """Whether other clusters may have to hear of it from this one."""
        return not self.origin and (self.is_shared or self.version != LOCAL_VERSION)


class UnreadableRow(GiveUp):
    """A row of a stream is not what this code wrote."""


encode_row = msgspec.msgpack.Encoder().encode
_decode_row = msgspec.msgpack.Decoder(StreamRow).decode


def decode_row(data: bytes) -> StreamRow:
    """What `encode_row` made of it."""
    try:
        return _decode_row(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
        raise UnreadableRow(f"{len(data)} bytes are no row of a stream ({wrong}): is it of a newer release?") from None


# What progress is on its way: the event id and the version with which an activity was scheduled, and how far it is.
Activities = tuple[tuple[int, int, ActivityProgress], ...]
encode_progress = msgspec.msgpack.Encoder().encode
_decode_progress = msgspec.msgpack.Decoder(Activities).decode
NO_PROGRESS = encode_progress(())


class UnreadableProgress(GiveUp):
    """What came as the progress of activities is something else."""


def decode_progress(data: bytes) -> Activities:
    """What `encode_progress` made of it."""
    try:
        return _decode_progress(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
        raise UnreadableProgress(f"{len(data)} bytes are no progress of activities ({wrong})") from None


class Streamed(NamedTuple):
    """A row with its place in the queue, and the batch or the progress; None if its run is gone."""

    task_id: int
    row: StreamRow
    payload: bytes | None


def stream_row(
    key: RunKey, state: RunState, batch: Batch, *, now_ns: int, origin: str = "", is_shared: bool = False
) -> StreamRow:
    """What is said of a batch that is about to be written."""
    identity, last_id = state.identity, batch.last_event_id
    return StreamRow(
        *(*key, identity.tree_id, identity.branch_id, *batch[:2], state.version_at(last_id)),
        items=() if state.versions is None else state.versions.truncate(last_id).to_pairs(),
        status=state.status,
        new_run_id=state.new_run_id,
        time_us=now_ns // 1000,
        origin=origin,
        start_request_id=state.live.start_request_id if batch.first_event_id == 1 else "",
        is_shared=is_shared,
    )


def progress_row(key: RunKey, state: RunState, *, now_ns: int) -> StreamRow:
    """What is said when activities have come further without an event."""
    identity = state.identity
    return StreamRow(
        *(*key, identity.tree_id, identity.branch_id, PROGRESS, PROGRESS, state.last_version),
        items=() if state.versions is None else state.versions.to_pairs(),
        status=state.status,
        new_run_id=state.new_run_id,
        time_us=now_ns // 1000,
        is_shared=True,
    )


def announcement_row(
    key: RunKey, state: RunState, branch_id: str, line: VersionHistory, *, to: str, now_ns: int
) -> StreamRow:
    """What is said to a cluster that may not have a branch of a run."""
    return StreamRow(
        *(*key, state.identity.tree_id, branch_id, PROGRESS, PROGRESS, line.last.version),
        items=line.to_pairs(),
        status=state.status,
        new_run_id=state.new_run_id,
        time_us=now_ns // 1000,
        is_shared=True,
        announced_to=to,
    )


def progress_of(state: RunState, items: tuple[tuple[int, int], ...]) -> bytes | None:
    """How far the activities are that were scheduled on the line `items`; None if the run is on another one by now.

    Those that were scheduled later have a row of their own.
    """
    try:
        line = VersionHistory.from_pairs(items)
    except MalformedHistory:
        return None
    last = line.last
    if state.versions is None or last.event_id > state.versions.last.event_id:
        return None
    if state.versions.truncate(last.event_id) != line:
        return None
    found = [
        (scheduled_id, state.activities[scheduled_id].version, progress)
        for scheduled_id, progress in state.live.activities.items()
        if scheduled_id in state.activities and scheduled_id <= last.event_id
    ]
    return encode_progress(found) if found else None


class RecentRows:
    """The latest rows that were written: all of them from `from_id` on, as many as there is room for."""

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
        """Keep a row that is durable now; rows come roughly in order."""
        task_id = streamed.task_id
        if task_id < self.from_id:
            return
        if not self._ids or task_id > self._ids[-1]:
            self._ids.append(task_id)
            self._rows.append(streamed)
        else:
            place = bisect_left(self._ids, task_id)
            self._ids.insert(place, task_id)
            self._rows.insert(place, streamed)
        self.bytes += len(streamed.payload or b"")
        if self.bytes > self._bytes_max or len(self._ids) > self._rows_max:
            self._make_room()

    def forget_through(self, task_id: int) -> None:
        """Nobody will ask for these."""
        if self._ids and self._ids[0] <= task_id:
            self._drop(bisect_right(self._ids, task_id))

    def between(
        self, after_id: int, end_id: int, *, rows_max: int, bytes_max: int, wanted: Callable[[StreamRow], bool]
    ) -> tuple[list[Streamed], int]:
        """The first rows after an id and before another, and the id up to which there are no others."""
        found: list[Streamed] = []
        size_bytes = 0
        for place in range(bisect_right(self._ids, after_id), bisect_left(self._ids, end_id)):
            streamed = self._rows[place]
            if not wanted(streamed.row):
                continue
            size = len(streamed.payload or b"")
            if found and (len(found) >= rows_max or size_bytes + size > bytes_max):
                return found, found[-1].task_id
            found.append(streamed)
            size_bytes += size
        return found, max(after_id, end_id - 1)

    def count_after(self, task_id: int) -> int:
        """How many rows after an id other clusters have yet to hear of."""
        return sum(streamed.row.is_ours for streamed in self._rows[bisect_right(self._ids, task_id) :])

    def _make_room(self) -> None:
        # Some more than there must be, so that it is not done again with the next row.
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
