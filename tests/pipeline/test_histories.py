"""The tables of runs and activities agree with a second, plain evaluation of the same events."""

import random
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from temporalio.api.enums.v1 import TimeoutType
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent

from fairlead.core.versions import BranchTree, VersionHistory
from fairlead.pipeline.job import JobContext
from fairlead.pipeline.jobs import histories, ingest
from fairlead.pipeline.kernels.histories import ActivityRow, Record, WorkflowRow, current_branch, flatten_runs
from fairlead.pipeline.kernels.reconcile.copies import merge_branches
from fairlead.pipeline.lake import Lake
from fairlead.pipeline.schemas_histories import ACTIVITIES, ACTIVITY_TYPES, FLATTENED, RECORDS, WORKFLOW_TYPES
from tests.history.recordings import NAMES, load
from tests.pipeline import histories_oracle as oracle
from tests.pipeline.histories_world import Record as Journaled
from tests.pipeline.histories_world import Writer, go_on, open_part, records_of, reset_of
from tests.pipeline.histories_world import histories as random_histories
from tests.pipeline.journals import write_segment

EPOCH = date(1970, 1, 1).toordinal()
Rows = dict[str, dict[str, Any]]


def flat(records: list[Journaled], *, rows_a_batch: int = 3) -> Rows:
    """The kernel's row of each run, with the input in an order and in batches that Spark might use."""
    from base64 import b64decode

    ordered = sorted(records, key=lambda each: (each["tree_id"], each["run_id"], each["first_event_id"]))
    rows = [
        {
            **each,
            "cluster": "alpha",
            "item_ids": [item["event_id"] for item in each["items"]],
            "item_versions": [item["version"] for item in each["items"]],
            "payload": b64decode(each["payload"]) if "payload" in each else None,
        }
        for each in ordered
    ]
    schema = to_arrow_schema(RECORDS)
    batches = [
        pa.RecordBatch.from_pylist([{name: row[name] for name in RECORDS.names} for row in part], schema=schema)
        for part in (rows[begin : begin + rows_a_batch] for begin in range(0, len(rows), rows_a_batch))
    ]
    answers = flatten_runs(iter(batches), schema=to_arrow_schema(FLATTENED))
    return {row["run_id"]: row for answer in answers for row in answer.to_pylist()}


def check(row: dict[str, Any], events: list[HistoryEvent], run_id: str = "run-1") -> None:
    """The kernel's row equals that of the second implementation."""
    plain = oracle.as_json(events)
    assert row["problem"] is None
    assert {name: row[name] for name in WorkflowRow._fields} == oracle.workflow_row(plain, run_id)
    assert row["activity_rows"] == oracle.activity_rows(plain)
    assert row["workflow_task_rows"] == oracle.workflow_tasks(plain)
    counted = {(each["day"], each["kind"]): each["actions"] for each in row["action_rows"]}
    expected = oracle.actions(plain, run_id)
    assert counted == {(day.toordinal() - EPOCH, kind): actions for (day, kind), actions in expected.items()}


def test_the_columns_are_the_fields_of_the_rows() -> None:
    assert tuple(FLATTENED.names[4:-5]) == WorkflowRow._fields
    assert tuple(ACTIVITIES.names[5:]) == ActivityRow._fields


@pytest.mark.sim
@given(st.data(), random_histories())
def test_a_run_is_read_the_same_in_any_order_of_its_records(data: st.DataObject, events: list[HistoryEvent]) -> None:
    """Batches may be cut anywhere, repeated, cut differently, and have payloads or not."""
    cuts = st.sets(st.integers(1, len(events)))
    records = records_of(events, cuts=data.draw(cuts))
    again = records_of(events, cuts=data.draw(cuts))
    bare = records_of(events, cuts=data.draw(cuts), has_payloads=False)
    more = data.draw(st.lists(st.sampled_from([*again, *bare])))
    rows_a_batch = data.draw(st.integers(1, 5))
    check(flat([*records, *more], rows_a_batch=rows_a_batch)["run-1"], events)


@pytest.mark.sim
@given(st.data(), random_histories())
def test_only_the_events_of_the_current_branch_count(data: st.DataObject, events: list[HistoryEvent]) -> None:
    fork = data.draw(st.integers(1, open_part(events)))
    writer = Writer(events[:fork], version=12)
    writer.add("WORKFLOW_EXECUTION_SIGNALED", signal_name="won")
    go_on(data.draw, writer)
    cuts = data.draw(st.sets(st.integers(1, len(events)))) | {fork}
    lost = records_of(events, cuts=cuts)
    won = records_of(writer.events, cuts=cuts, branch_id="branch-2", from_event_id=fork + 1)
    check(flat([*lost, *won])["run-1"], writer.events)


@pytest.mark.sim
@given(st.data(), random_histories())
def test_a_reset_run_begins_with_the_events_of_its_base(data: st.DataObject, events: list[HistoryEvent]) -> None:
    shared = data.draw(st.integers(1, open_part(events)))
    writer = reset_of(events[:shared], base_run_id="run-1", run_id="run-2")
    go_on(data.draw, writer)
    cuts = data.draw(st.sets(st.integers(1, len(writer.events)))) | {shared}
    base = records_of(events, cuts=cuts)
    own = records_of(writer.events, run_id="run-2", tree_id="run-1", cuts=cuts, from_event_id=shared + 1)
    rows = flat([*base, *own])
    check(rows["run-1"], events, "run-1")
    check(rows["run-2"], writer.events, "run-2")
    assert rows["run-2"]["reset_from_run_id"] == "run-1"
    # Without the first batch, the events that the run shares with its base are unknown.
    if len(own) > 1:
        assert flat([*base, *own[1:]])["run-2"]["problem"] == "incomplete"
    assert flat(own)["run-2"]["problem"] == "incomplete"


@given(st.lists(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 9)), min_size=1, max_size=4), min_size=1))
def test_the_current_branch_is_chosen_like_in_the_core(raw: list[list[tuple[int, int]]]) -> None:
    """Both choose the same current branch, among branches that don't contradict each other."""
    histories_ = []
    for parts in raw:
        event_id, pairs = 0, list[tuple[int, int]]()
        for step, version in sorted(parts, key=lambda part: part[1]):
            event_id += step
            if pairs and pairs[-1][1] == version:
                pairs.pop()
            pairs.append((event_id, version))
        histories_.append(VersionHistory.from_pairs(pairs))
    lines, _refused = merge_branches(histories_)
    try:
        expected = BranchTree.restore(lines).current
    except Exception:  # noqa: BLE001 - no tree has such branches
        return
    records = [
        Record("run", 1, line.last.event_id, 0, [i for i, _ in line.items], [v for _, v in line.items], 0, 1, 0, None)
        for line in lines
    ]
    random.Random(0).shuffle(records)
    assert tuple(current_branch(records)) == expected.to_pairs()


def test_missing_events_are_reported_and_not_guessed() -> None:
    writer = Writer()
    writer.begin("order-1", "run-1")
    for _ in range(6):
        writer.add("TIMER_STARTED", timer_id="1")
    events = writer.events
    whole = records_of(events, cuts=[2, 4])
    assert flat(whole[:1] + whole[2:])["run-1"]["problem"] == "incomplete"
    assert flat(whole[1:])["run-1"]["problem"] == "incomplete"
    bare = records_of(events, cuts=[2, 4], has_payloads=False)
    assert flat([whole[0], bare[1], whole[2]])["run-1"]["problem"] == "no_payloads"
    assert flat([*whole, *bare])["run-1"]["problem"] is None
    damaged = whole[1] | {"payload": "////"}
    assert flat([whole[0], damaged, whole[2]])["run-1"]["problem"] == "unreadable"


def test_a_run_whose_version_history_does_not_reach_its_events_is_incomplete_and_harms_no_other() -> None:
    events = {}
    for run_id in ("run-1", "run-2"):
        writer = Writer()
        writer.begin("order-1", run_id)
        writer.add("TIMER_STARTED", timer_id="1")
        events[run_id] = writer.events
    (short,) = records_of(events["run-1"])
    short["items"] = [{"event_id": short["last_event_id"] - 1, "version": short["version"]}]
    rows = flat([short, *records_of(events["run-2"], run_id="run-2", tree_id="run-2")])
    assert {run_id: row["problem"] for run_id, row in rows.items()} == {"run-1": "incomplete", "run-2": None}


def test_a_timeout_of_an_unknown_kind_is_reported_as_such() -> None:
    writer = Writer()
    writer.begin("order-1", "run-1")
    scheduled = writer.add("ACTIVITY_TASK_SCHEDULED", activity_id="1").event_id
    late = Failure(message="late")
    late.timeout_failure_info.timeout_type = TimeoutType.ValueType(99)
    writer.add("ACTIVITY_TASK_TIMED_OUT", scheduled_event_id=scheduled, failure=late)
    (activity,) = flat(records_of(writer.events))["run-1"]["activity_rows"]
    assert (activity["outcome"], activity["timeout_type"]) == ("timed_out", "unknown")


def test_long_messages_are_cut() -> None:
    writer = Writer()
    writer.begin("order-1", "run-1")
    writer.add("WORKFLOW_EXECUTION_FAILED", failure=Failure(message="x" * 10_000))
    assert len(flat(records_of(writer.events))["run-1"]["failure_message"]) == 500


def interpolated(values: list[float], share: float) -> object:
    """The percentile as docs/pipeline.md defines it, computed by numpy."""
    return pytest.approx(float(np.percentile(values, share * 100))) if values else None


def test_the_recorded_histories_are_written_as_tables(spark: SparkSession, tmp_path: Path) -> None:
    """Histories of the reference server go through journal, lake and job; the summaries were counted by hand."""
    chance = random.Random(5)
    recorded = {name: load(name) for name in NAMES if name != "reset"}
    records: list[Journaled] = []
    for name, events in recorded.items():
        cuts = chance.sample(range(1, len(events) + 1), k=len(events) // 2)
        # Outlines, which lack the data of payloads, give the same tables.
        is_outlined = chance.random() < 0.5
        records += records_of(events, run_id=name, workflow_id=name, cuts=cuts, is_outlined=is_outlined)
    chance.shuffle(records)
    doubled = chance.sample(records, 50)
    hello = recorded["hello"]
    bare = records_of(hello, run_id="bare", workflow_id="bare", has_payloads=False)
    half = records_of(hello, run_id="half", workflow_id="half", cuts=[2])[1:]
    for number, part in enumerate((records, doubled, bare + half)):
        write_segment(tmp_path / "journal", part, kind="history", number=number)
    lake = Lake(tmp_path / "lake")
    context = JobContext(spark=spark, lake=lake, journal=tmp_path / "journal")
    ingest.run(context)
    summary = histories.run(context)

    plain = {name: oracle.as_json(events) for name, events in recorded.items()}
    rows = {row["run_id"]: row.asDict() for row in lake.read_derived(spark, "workflows").collect()}
    for name, read in plain.items():
        expected = {"cluster": "alpha", "namespace_id": "shop", "workflow_id": name, "run_id": name}
        assert rows.pop(name) == expected | oracle.workflow_row(read, name), name
    assert not rows
    found = lake.read_derived(spark, "activities").orderBy("run_id", "scheduled_event_id").collect()
    activities = [
        {
            "cluster": "alpha",
            "namespace_id": "shop",
            "workflow_id": name,
            "run_id": name,
            "workflow_type": oracle.workflow_row(events, name)["workflow_type"],
            **row,
        }
        for name, events in sorted(plain.items())
        for row in oracle.activity_rows(events)
    ]
    assert [row.asDict() for row in found] == activities
    assert len(activities) > 20
    assert (summary.rows["workflows"], summary.rows["activities"]) == (len(plain), len(activities))
    assert summary.findings["runs_without_payloads"] == 1
    assert summary.findings["runs_incomplete"] == 1
    assert "journal: {payloads: true}" in summary.findings["hint"]
    assert summary.alarm is None
    check_types(lake, spark, [oracle.workflow_row(read, name) for name, read in plain.items()], activities)


def check_types(lake: Lake, spark: SparkSession, runs: list[dict[str, Any]], activities: list[dict[str, Any]]) -> None:
    """Check the summaries by type, which were counted by hand."""
    by_type = lake.read_derived(spark, "activity_types")
    assert by_type.columns == ACTIVITY_TYPES.names
    for row in by_type.collect():
        those = [
            each
            for each in activities
            if (each["activity_type"], each["task_list"]) == (row.activity_type, row.task_list)
        ]
        assert row.scheduled == len(those)
        for outcome in ("completed", "failed", "timed_out", "canceled", "open", "abandoned"):
            assert row[outcome] == sum(each["outcome"] == outcome for each in those)
        assert row.retries == sum(each["retries"] or 0 for each in those)
        for name in ("queue_wait_s", "run_s", "total_s"):
            values = [each[name] for each in those if each[name] is not None]
            assert [row[f"{name}_p{share}"] for share in (50, 95, 99)] == [
                interpolated(values, share / 100) for share in (50, 95, 99)
            ]
        failures = Counter(each["failure_type"] or each["retried_failure_type"] for each in those)
        del failures[None]
        reported = {each["failure_type"]: each["count"] for each in row.failure_types or []}
        assert reported == dict(failures)
    by_workflow = lake.read_derived(spark, "workflow_types")
    assert by_workflow.columns == WORKFLOW_TYPES.names
    for row in by_workflow.collect():
        those = [
            each for each in runs if (each["workflow_type"], each["task_list"]) == (row.workflow_type, row.task_list)
        ]
        assert row.runs == len(those)
        assert row.failed == sum(each["status"] == "failed" for each in those)
        assert row.events_max == max(each["events"] for each in those)
        durations = [each["duration_s"] for each in those if each["duration_s"] is not None]
        assert row.duration_s_p95 == interpolated(durations, 0.95)
    assert sum(row.runs for row in by_workflow.collect()) == len(runs)


def test_runs_since_a_time_are_listed_with_all_their_events(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    old, new = Writer(), Writer()
    old.begin("old", "old")
    new.begin("new", "new")
    new.add("TIMER_STARTED", wait_us=3_600_000_000, timer_id="1")
    records = [*records_of(old.events, run_id="old"), *records_of(new.events, run_id="new", cuts=[1])]
    write_segment(tmp_path / "journal", records, kind="history")
    context = JobContext(spark=spark, lake=lake, journal=tmp_path / "journal")
    ingest.run(context)
    since_us = new.events[-1].event_time.ToMicroseconds()
    summary = histories.run(JobContext(spark=spark, lake=lake, since_us=since_us))
    expected = {"workflows": 1, "activities": 0, "workflow_types": 1, "activity_types": 0, "failures": 0}
    assert summary.rows == expected | {"waits": 0, "history_traffic": 0, "actions": 0}
    assert [(row.run_id, row.events) for row in lake.read_derived(spark, "workflows").collect()] == [("new", 2)]
