"""Histories with their events, for the job that reads them: some thousand runs, and as many copies as a size needs.

Each run has one activity: eleven events in four batches, as the server writes them. A copy is the same runs with other
ids; DuckDB writes it straight into the lake.
"""

import base64
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import zstandard
from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.common.v1 import ActivityType, WorkflowType
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import History, HistoryEvent
from temporalio.api.taskqueue.v1 import TaskQueue

from benchmarks.pipeline_data import entry_of
from fairlead.history.shard.journal import event_digest
from fairlead.journal import HistoryRecord, SegmentName, VersionItem
from fairlead.journal.records import Kind, encode_records
from fairlead.journal.segments import COMPRESSION_LEVEL, OpenSegment
from fairlead.pipeline.lake import Lake

RUNS = 2_500
BATCHES_A_RUN = 4
ROWS = RUNS * BATCHES_A_RUN
TYPES = 12
STARTED_US = 1_760_000_000_000_000
SEED = 1
COMPLETED = 2
# Rows of one batch of the lake: those of some minutes of a busy server.
ROWS_A_BATCH = 1_000_000
_IDS = ("workflow_id", "run_id", "tree_id", "branch_id")
_ROWS_A_GROUP = 1 << 18


def write_runs(journal: Path, *, runs: range = range(RUNS), later_s: int = 0) -> None:
    """Write a journal of one cluster, with payloads; `later_s` is when the runs start, counted from `STARTED_US`."""
    random = Random(SEED)
    folder = journal / "alone"
    folder.mkdir(parents=True)
    records = [record for number in runs for record in _run(number, random, later_s)]
    compress = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL, write_checksum=True).compress
    segment = OpenSegment.create(folder, SegmentName(Kind.HISTORY, "host", 0))
    if segment is None:
        raise FileExistsError(f"{folder} has a journal already")
    for first in range(0, len(records), ROWS // 10):
        segment.append(compress(encode_records(records[first : first + ROWS // 10])))
    segment.sync()
    segment.seal()


def add_copies(base: Lake, lake: Lake, copies: range) -> None:
    """Add copies of a base lake's rows to another lake."""
    (part,) = base.table("history").glob("batch=*/cluster=*/day=*")
    at_once = ROWS_A_BATCH // ROWS
    with duckdb.connect(config={"threads": 2, "preserve_insertion_order": False}) as database, lake.locked():
        database.execute("SET enable_progress_bar = false")
        for first in range(copies.start, copies.stop, at_once):
            staged = lake.stage("history")
            folder = staged / part.parent.name / part.name
            folder.mkdir(parents=True)
            changed = ", ".join(f"{name} || '-' || copy AS {name}" for name in _IDS)
            rows = (
                f"SELECT rows.* REPLACE ({changed}) FROM read_parquet('{part}/*.parquet', hive_partitioning = false) "  # noqa: S608 - our own names
                f"AS rows, range({first}, {min(first + at_once, copies.stop)}) AS copies(copy)"
            )
            database.execute(
                f"COPY ({rows}) TO '{folder / 'part-0.parquet'}' "
                f"(FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1, ROW_GROUP_SIZE {_ROWS_A_GROUP})"
            )
            lake.commit("history", staged, [entry_of(database, staged, f"{base.root.name}-{first}")])


def _run(number: int, random: Random, later_s: int) -> Iterator[HistoryRecord]:
    events = list(_events(number, random, later_s))
    for first, last in ((1, 2), (3, 5), (6, 8), (9, 11)):
        batch = events[first - 1 : last]
        yield HistoryRecord(
            batch[-1].event_time.ToMicroseconds(),
            *("namespace", f"workflow-{number}", f"run-{number}", f"run-{number}", f"branch-{number}"),
            *(first, last, 0),
            [VersionItem(last, 0)],
            4 * number + first,
            COMPLETED if last == len(events) else 1,
            [event.event_type for event in batch],
            [event_digest(event) for event in batch],
            payload=base64.b64encode(History(events=batch).SerializeToString()).decode(),
        )


def _events(number: int, random: Random, later_s: int) -> Iterator[HistoryEvent]:
    """Events of a workflow with one activity, from its start to its end."""
    kind, queue = number % TYPES, TaskQueue(name=f"queue-{number % 3}")
    time_us = STARTED_US + later_s * 1_000_000 + number * 1_000
    steps: Sequence[tuple[str, dict[str, Any]]] = (
        ("WORKFLOW_EXECUTION_STARTED", {"workflow_type": WorkflowType(name=f"Type{kind}"), "task_queue": queue}),
        ("WORKFLOW_TASK_SCHEDULED", {"task_queue": queue, "attempt": 1}),
        ("WORKFLOW_TASK_STARTED", {"scheduled_event_id": 2, "identity": "worker"}),
        ("WORKFLOW_TASK_COMPLETED", {"scheduled_event_id": 2, "started_event_id": 3}),
        (
            "ACTIVITY_TASK_SCHEDULED",
            {"activity_id": "1", "activity_type": ActivityType(name=f"step{kind}"), "task_queue": queue},
        ),
        ("ACTIVITY_TASK_STARTED", {"scheduled_event_id": 5, "attempt": 1 + (random.random() < 0.1)}),
        ("ACTIVITY_TASK_COMPLETED", {"scheduled_event_id": 5, "started_event_id": 6}),
        ("WORKFLOW_TASK_SCHEDULED", {"task_queue": queue, "attempt": 1}),
        ("WORKFLOW_TASK_STARTED", {"scheduled_event_id": 8, "identity": "worker"}),
        ("WORKFLOW_TASK_COMPLETED", {"scheduled_event_id": 8, "started_event_id": 9}),
        ("WORKFLOW_EXECUTION_COMPLETED", {"workflow_task_completed_event_id": 10}),
    )
    for event_id, (name, attributes) in enumerate(steps, 1):
        time_us += round(random.expovariate(1 / 20_000))
        moment = Timestamp()
        moment.FromMicroseconds(time_us)
        event = HistoryEvent(event_id=event_id, event_time=moment, event_type=EventType.Value(f"EVENT_TYPE_{name}"))
        field = getattr(event, f"{name.lower()}_event_attributes")
        field.MergeFrom(type(field)(**attributes))
        yield event
