"""Decodes a file that Temporal Cloud exported into Arrow batches. Runs in Python workers.

An export lacks some fields of the journal. They are filled as follows:

- `namespace_id`: the namespace's name.
- `run_id`: the new run of the last reset, else the original run id, which resets keep.
- `tree_id`, `branch_id`: the run id. An export has the whole run, including the events that a reset took from its base.
- batches: up to `EVENTS_MAX` consecutive events of one version.
- `task_id`, `time_us`: those of the batch's last event.
- `status`: running; in the last batch, the status after the last event.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa
from google.protobuf.message import DecodeError
from temporalio.api.enums.v1 import EventType
from temporalio.api.export.v1 import WorkflowExecution
from temporalio.api.history.v1 import History, HistoryEvent

from fairlead.history.shard.journal import to_record
from fairlead.history.shard.stream_rows import Streamed, StreamRow
from fairlead.pipeline.kernels.histories.statuses import CLOSED_BY, RUNNING, next_run_id
from fairlead.pipeline.sources.decoder import Fault, Faulty, check_times, fault_row
from fairlead.settings.static.journal import JournalPayloads

# Maximum number of events in one record.
EVENTS_MAX = 1_000
# Maximum bytes of one history: more than ten times Temporal Cloud's limit.
HISTORY_BYTES_MAX = 1 << 30
# Rows and payload bytes after which an output batch is emitted.
ROWS_AT_ONCE = 500
BYTES_AT_ONCE = 16 << 20

# The tag of `WorkflowExecutions.items`: field 1, length-delimited.
_ITEM = b"\x0a"
_VARINT_BYTES_MAX = 10


def read_export(path: Path, *, name: str, cluster: str, namespace: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file; a last row reports the fault of a faulty file, whose other rows must not be used."""
    rows: list[dict[str, Any]] = []
    position = size_bytes = 0
    try:
        for history in _histories(path):
            for record in records_of(history.events, namespace=namespace):
                rows.append(record | {"segment": name, "position": position, "cluster": cluster})
                position += 1
                size_bytes += len(record["payload"])
            if len(rows) >= ROWS_AT_ONCE or size_bytes >= BYTES_AT_ONCE:
                yield pa.RecordBatch.from_pylist(rows, schema=schema)
                rows, size_bytes = [], 0
    except Faulty as faulty:
        yield fault_row(faulty, schema, segment=name, cluster=cluster, position=position)
    else:
        yield pa.RecordBatch.from_pylist(rows, schema=schema)


def records_of(events: Sequence[HistoryEvent], *, namespace: str) -> Iterator[dict[str, Any]]:
    """Yield the journal records of one exported run."""
    run_id = _run_id(events)
    workflow_id = events[0].workflow_execution_started_event_attributes.workflow_id
    last = events[-1]
    times = [event.event_time.ToMicroseconds() for event in events]
    check_times(min(times), max(times))
    items: tuple[tuple[int, int], ...] = ()
    for part in _parts(events):
        end = part[-1]
        before = items[:-1] if items and items[-1][1] == end.version else items
        if before and before[-1][1] > end.version:
            raise Faulty(Fault.NO_RUN)
        items = (*before, (end.event_id, end.version))
        is_last = end is last
        row = StreamRow(
            *(namespace, workflow_id, run_id, run_id, run_id),
            *(part[0].event_id, end.event_id, end.version),
            items=items,
            status=CLOSED_BY.get(last.event_type, RUNNING) if is_last else RUNNING,
            new_run_id=(next_run_id(last) or "") if is_last else "",
            time_us=end.event_time.ToMicroseconds(),
        )
        payload = History(events=part).SerializeToString()
        record = msgspec.structs.asdict(to_record(Streamed(end.task_id, row, payload), payloads=JournalPayloads.WHOLE))
        yield record | {"items": [{"event_id": event_id, "version": version} for event_id, version in items]}


def _parts(events: Sequence[HistoryEvent]) -> Iterator[list[HistoryEvent]]:
    for _, row in groupby(events, key=lambda event: event.version):
        while part := list(islice(row, EVENTS_MAX)):
            yield part


def _run_id(events: Sequence[HistoryEvent]) -> str:
    """Return the run id of these events; raise `Faulty` if they do not begin with the first event of a run."""
    if not events or events[0].event_type != EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
        raise Faulty(Fault.NO_RUN)
    if any(event.event_id != place for place, event in enumerate(events, 1)):
        raise Faulty(Fault.NO_RUN)
    started = events[0].workflow_execution_started_event_attributes
    run_id = started.original_execution_run_id
    for event in events:
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED:
            # Only a reset sets `new_run_id`.
            run_id = event.workflow_task_failed_event_attributes.new_run_id or run_id
    if not run_id or not started.workflow_id:
        raise Faulty(Fault.NO_RUN)
    return run_id


def _histories(path: Path) -> Iterator[History]:
    """Yield one history at a time, so that a file need not fit into memory."""
    with path.open("rb") as file:
        count = 0
        while tag := file.read(1):
            if tag != _ITEM:
                raise Faulty(Fault.NO_EXPORT)
            size_bytes = _read_varint(file)
            if size_bytes > HISTORY_BYTES_MAX:
                raise Faulty(Fault.NO_EXPORT)
            item = file.read(size_bytes)
            if len(item) < size_bytes:
                raise Faulty(Fault.CUT_EXPORT)
            try:
                yield WorkflowExecution.FromString(item).history
            except DecodeError:
                raise Faulty(Fault.NO_EXPORT) from None
            count += 1
    if not count:
        raise Faulty(Fault.NO_EXPORT)


def _read_varint(file: BinaryIO) -> int:
    value = 0
    for place in range(_VARINT_BYTES_MAX):
        byte = file.read(1)
        if not byte:
            raise Faulty(Fault.CUT_EXPORT)
        value |= (byte[0] & 0x7F) << 7 * place
        if byte[0] < 0x80:
            return value
    raise Faulty(Fault.NO_EXPORT)
