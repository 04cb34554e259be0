"""Turns the events of a run, as an API or an export returns them, into records of the journal.

Such events lack what a server's own journal has: the batches in which they were committed, and the tree of the run. So
a record has up to `EVENTS_MAX` consecutive events of one version, and the run is a tree of its own.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from temporalio.api.history.v1 import History, HistoryEvent

from fairlead.history.shard.journal import to_record
from fairlead.history.shard.stream_rows import Streamed, StreamRow
from fairlead.journal import HistoryRecord
from fairlead.pipeline.sources.faults import Fault, Faulty, check_times
from fairlead.pipeline.statuses import CLOSED_BY, RUNNING, next_run_id
from fairlead.settings.static.journal import JournalPayloads

# Maximum number of events in one record, and of their bytes unless a single event is larger.
EVENTS_MAX = 1_000
EVENTS_BYTES_MAX = 4 << 20


class ReadRun(NamedTuple):
    """Consecutive events of a run; `before` is its version history before the first of them.

    `namespace` is the name of the namespace, if it differs from the id. `status` is that of an open run.
    """

    namespace_id: str
    workflow_id: str
    run_id: str
    events: Sequence[HistoryEvent]
    before: tuple[tuple[int, int], ...] = ()
    namespace: str | None = None
    status: int = RUNNING


def records_of(run: ReadRun) -> Iterator[HistoryRecord]:
    """Yield the journal records of a run; raise `Faulty` if events are missing, or if no clock shows their times."""
    events, items = run.events, run.before
    first = items[-1][0] + 1 if items else 1
    if any(event.event_id != event_id for event_id, event in enumerate(events, first)):
        raise Faulty(Fault.NO_RUN)
    times = [event.event_time.ToMicroseconds() for event in events]
    check_times(min(times), max(times))
    for part in _parts(events):
        end = part[-1]
        items = with_item(items, end)
        is_last = end is events[-1]
        row = StreamRow(
            *(run.namespace_id, run.workflow_id, run.run_id, run.run_id, run.run_id),
            *(part[0].event_id, end.event_id, end.version),
            items=items,
            status=CLOSED_BY.get(end.event_type, run.status) if is_last else RUNNING,
            new_run_id=(next_run_id(end) or "") if is_last else "",
            time_us=end.event_time.ToMicroseconds(),
        )
        payload = History(events=part).SerializeToString()
        yield to_record(Streamed(end.task_id, row, payload), payloads=JournalPayloads.WHOLE, namespace=run.namespace)


def with_item(items: tuple[tuple[int, int], ...], end: HistoryEvent) -> tuple[tuple[int, int], ...]:
    """Return the version history after the event `end`; raise `Faulty` if its version is below the last one."""
    before = items[:-1] if items and items[-1][1] == end.version else items
    if before and before[-1][1] > end.version:
        raise Faulty(Fault.NO_RUN)
    return (*before, (end.event_id, end.version))


def _parts(events: Sequence[HistoryEvent]) -> Iterator[list[HistoryEvent]]:
    for _, row in groupby(events, key=lambda event: event.version):
        part: list[HistoryEvent] = []
        size_bytes = 0
        for event in row:
            if part and (len(part) >= EVENTS_MAX or size_bytes + event.ByteSize() > EVENTS_BYTES_MAX):
                yield part
                part, size_bytes = [], 0
            part.append(event)
            size_bytes += event.ByteSize()
        yield part
