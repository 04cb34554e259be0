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
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa
from google.protobuf.message import DecodeError
from temporalio.api.enums.v1 import EventType
from temporalio.api.export.v1 import WorkflowExecution
from temporalio.api.history.v1 import History, HistoryEvent

from fairlead.pipeline.sources.decoder import fault_row
from fairlead.pipeline.sources.faults import Fault, Faulty
from fairlead.pipeline.sources.run_records import ReadRun, records_of

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
            for record in records_of(_run(history.events, namespace)):
                items = [{"event_id": item.event_id, "version": item.version} for item in record.items]
                origin = {"segment": name, "position": position, "cluster": cluster}
                rows.append(msgspec.structs.asdict(record) | {"items": items} | origin)
                position += 1
                size_bytes += len(record.payload or "")
            if len(rows) >= ROWS_AT_ONCE or size_bytes >= BYTES_AT_ONCE:
                yield pa.RecordBatch.from_pylist(rows, schema=schema)
                rows, size_bytes = [], 0
    except Faulty as faulty:
        yield fault_row(faulty, schema, segment=name, cluster=cluster, position=position)
    else:
        yield pa.RecordBatch.from_pylist(rows, schema=schema)


def _run(events: Sequence[HistoryEvent], namespace: str) -> ReadRun:
    """Return the run of these events; raise `Faulty` if they are not a run from its first event on."""
    if not events or events[0].event_type != EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
        raise Faulty(Fault.NO_RUN)
    started = events[0].workflow_execution_started_event_attributes
    run_id = started.original_execution_run_id
    for event in events:
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED:
            # Only a reset sets `new_run_id`.
            run_id = event.workflow_task_failed_event_attributes.new_run_id or run_id
    if not run_id or not started.workflow_id:
        raise Faulty(Fault.NO_RUN)
    return ReadRun(namespace, started.workflow_id, run_id, events)


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
