"""From the bytes of a file that Temporal Cloud exported to Arrow batches. Runs in Python workers.

What the journal knows and an export does not has a stand-in:

- `namespace_id`: the namespace's name.
- `run_id`: that of the run's last reset, else that of the run which was first started; resets keep the latter.
- `tree_id`, `branch_id`: the run id. An export has all of a run, also what a reset shared with its base.
- the batches: as many events of one version in a row as fit into the bounds below.
- `task_id`: that of the batch's last event; `time_us`: the time of that event.
- `status`: running, and after the last batch what the last event made of it.
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

from fairlead.history.journaling import to_record
from fairlead.history.stream_rows import Streamed, StreamRow
from fairlead.pipeline.kernels.histories.statuses import CLOSED_BY, RUNNING, next_run_id
from fairlead.pipeline.sources.decoding import Fault, Faulty, fault_row

# Of one record.
EVENTS_MAX = 1_000
# Of one history: more than ten times what Temporal Cloud lets one have.
HISTORY_BYTES_MAX = 1 << 30
# What is answered with at once.
ROWS_AT_ONCE = 500
BYTES_AT_ONCE = 16 << 20

# The tag of `WorkflowExecutions.items`: field 1, of a length that follows.
_ITEM = b"\x0a"
_VARINT_BYTES_MAX = 10


def read_export(path: Path, *, name: str, cluster: str, namespace: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a file; of a faulty one a last row says so, and what came before is not to be used."""
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
    """The records of the journal that one exported run comes to."""
    run_id = _run_id(events)
    workflow_id = events[0].workflow_execution_started_event_attributes.workflow_id
    last = events[-1]
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
        record = msgspec.structs.asdict(to_record(Streamed(end.task_id, row, payload), with_payload=True))
        yield record | {"items": [{"event_id": event_id, "version": version} for event_id, version in items]}


def _parts(events: Sequence[HistoryEvent]) -> Iterator[list[HistoryEvent]]:
    for _, row in groupby(events, key=lambda event: event.version):
        while part := list(islice(row, EVENTS_MAX)):
            yield part


def _run_id(events: Sequence[HistoryEvent]) -> str:
    """The run that these events are of; `Faulty` if they are not all of a run from its first event on."""
    if not events or events[0].event_type != EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
        raise Faulty(Fault.NO_RUN)
    if any(event.event_id != place for place, event in enumerate(events, 1)):
        raise Faulty(Fault.NO_RUN)
    started = events[0].workflow_execution_started_event_attributes
    run_id = started.original_execution_run_id
    for event in events:
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED:
            # Empty, but of a task that a reset failed.
            run_id = event.workflow_task_failed_event_attributes.new_run_id or run_id
    if not run_id or not started.workflow_id:
        raise Faulty(Fault.NO_RUN)
    return run_id


def _histories(path: Path) -> Iterator[History]:
    """One history after the other, so that a file may be larger than the memory."""
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
