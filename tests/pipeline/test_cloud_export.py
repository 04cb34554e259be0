"""A file that Temporal Cloud exported enters the lake once: complete, or into the quarantine."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from temporalio.api.export.v1 import WorkflowExecution, WorkflowExecutions
from temporalio.api.history.v1 import History, HistoryEvent

from fairlead.cli.pipeline.command import pipeline
from fairlead.core.errors import FixRequest
from fairlead.pipeline.job import JobContext
from fairlead.pipeline.jobs import histories, ingest, reconcile
from fairlead.pipeline.lake import Lake
from fairlead.pipeline.schemas import SOURCE
from fairlead.pipeline.sources import run_records
from fairlead.pipeline.sources.cloud import NoExports, file_name, find_exports, namespace_of
from fairlead.pipeline.sources.cloud_decoder import read_export
from tests.history.recordings import NAMES, load
from tests.pipeline import histories_oracle as oracle
from tests.pipeline.histories_world import Writer
from tests.pipeline.histories_world import histories as random_histories
from tests.pipeline.journals import history_records, write_segment

HOUR = Path("temporal-workflow-history/export/shop.acct/2026/01/31/17/00")


def exported(*runs: list[HistoryEvent]) -> bytes:
    items = [WorkflowExecution(history=History(events=events)) for events in runs]
    return WorkflowExecutions(items=items).SerializeToString()


def put(bucket: Path, name: str, content: bytes, hour: Path = HOUR) -> Path:
    (bucket / hour).mkdir(parents=True, exist_ok=True)
    path = bucket / hour / name
    path.write_bytes(content)
    return path


def read(path: Path) -> list[dict[str, Any]]:
    schema = to_arrow_schema(SOURCE["history"])
    batches = read_export(path, name="file", cluster="cloud", namespace="shop", schema=schema)
    rows: list[dict[str, Any]] = pa.Table.from_batches(batches, schema=schema).to_pylist()
    return rows


def test_the_namespace_is_in_the_path() -> None:
    assert namespace_of(Path("/b/temporal-workflow-history/export/shop.acct/2026/01/31/17/00/a3642624")) == "shop.acct"
    assert namespace_of(Path("/shop.acct/2026/01/31/17/00/a3642624")) == "shop.acct"
    assert namespace_of(Path("/shop.acct/2026/01/31/a3642624")) == "shop.acct"
    assert namespace_of(Path("/2025/2026/01/31/17/00/a3642624")) == "2025"
    assert namespace_of(Path("/elsewhere/mine/a3642624")) == "mine"


def test_a_file_has_the_same_name_whichever_folder_of_the_bucket_is_given(tmp_path: Path) -> None:
    put(tmp_path, "a", exported(load("hello")))
    put(tmp_path, ".hidden", b"")
    [one] = find_exports(tmp_path, cluster="cloud")
    [same] = find_exports(tmp_path / HOUR, cluster="cloud")
    assert one == same
    assert one.name == "shop.acct!2026!01!31!17!00!a"
    long = file_name(Path("/shop/2026/01") / ("x" * 250), Path("/shop"))
    assert len(long) < 200
    assert long != file_name(Path("/shop/2026/02") / ("x" * 250), Path("/shop"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(NoExports, match="there is no file"):
        find_exports(tmp_path / "empty", cluster="cloud")


@given(st.data(), random_histories())
def test_a_truncated_or_changed_file_gives_a_fault_or_complete_histories(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, events: list[HistoryEvent]
) -> None:
    path = tmp_path_factory.getbasetemp() / "export"
    content = bytearray(exported(events, events))
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        del content[place:]
    else:
        content[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    rows = read(path)
    assert rows
    if rows[-1]["fault"] is None:
        assert all(row["run_id"] and row["workflow_id"] for row in rows)
        assert [row["last_event_id"] for row in rows if row["items"][-1]["event_id"] != row["last_event_id"]] == []


def test_files_outside_of_dated_folders_are_distinguished_by_their_full_path(tmp_path: Path) -> None:
    for place in ("mine", "mine/old/shop", "mine/new/shop"):
        put(tmp_path, "a", exported(load("hello")), hour=Path(place))
    names = [file.name for file in find_exports(tmp_path / "mine", cluster="cloud")]
    assert sorted(names) == ["mine!a", "mine!new!shop!a", "mine!old!shop!a"]


def test_a_truncated_export_is_distinguished_from_another_kind_of_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    whole = exported(load("hello"), load("signals"))
    faults = {}
    for name, content in {
        "cut": whole[:-3],
        "cut in its length": whole + b"\x0a",
        "empty": b"",
        "text": b'{"items": []}',
        "another message": load("hello")[0].SerializeToString(),
        "too long": b"\x0a" + b"\xff" * 9 + b"\x01",
        "not from its beginning": exported(load("hello")[2:]),
        "with a gap": exported(load("hello")[:2] + load("hello")[3:]),
        "without events": exported([]),
    }.items():
        path.write_bytes(content)
        faults[name] = read(path)[-1]["fault"]
    assert faults == {
        "cut": "cut_export",
        "cut in its length": "cut_export",
        "empty": "no_export",
        "text": "no_export",
        "another message": "no_export",
        "too long": "no_export",
        "not from its beginning": "no_run",
        "with a gap": "no_run",
        "without events": "no_run",
    }


def test_a_reset_run_has_its_own_id_and_versions_have_batches_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reset run keeps the first execution run id: two runs of one export must not be merged."""
    base, reset = Writer(), load("reset")
    base.begin("order-1", "run-1")
    base.version = 12
    for _ in range(5):
        base.add("TIMER_STARTED", timer_id="1")
    path = tmp_path / "file"
    path.write_bytes(exported(reset, base.events))
    monkeypatch.setattr(run_records, "EVENTS_MAX", 3)
    rows = read(path)
    [made] = {
        event.workflow_task_failed_event_attributes.new_run_id
        for event in reset
        if event.workflow_task_failed_event_attributes.new_run_id
    }
    first = reset[0].workflow_execution_started_event_attributes.original_execution_run_id
    assert made != first
    assert {row["run_id"] for row in rows} == {made, "run-1"}
    ranges = [(row["first_event_id"], row["last_event_id"], row["version"]) for row in rows if row["run_id"] == "run-1"]
    assert ranges == [(1, 1, 0), (2, 4, 12), (5, 6, 12)]
    assert rows[-1]["items"] == [{"event_id": 1, "version": 0}, {"event_id": 6, "version": 12}]
    assert [row["position"] for row in rows] == list(range(len(rows)))


def test_exports_are_ingested_once_with_and_without_a_journal(spark: SparkSession, tmp_path: Path) -> None:
    """One file comes twice, one run is in two files, and one damaged file is replaced."""
    bucket, lake = tmp_path / "bucket", Lake(tmp_path / "lake")
    runs = {name: load(name) for name in NAMES if name != "child_abandoned-child"}
    names = sorted(runs)
    put(bucket, "first", exported(*(runs[name] for name in names[:40])))
    # Delivery is at least once: the last runs of the first file come again.
    second = exported(*(runs[name] for name in names[35:]))
    bad = put(bucket, "second", second[:-5])
    alone = JobContext(spark=spark, lake=lake, options={"cloud_export": bucket})
    summary = ingest.run(alone)
    assert summary.alarm is not None
    assert "second can't be read and went into quarantine: the file ends within a history" in summary.alarm
    assert (summary.findings["segments"], summary.findings["quarantined_in_all"]) == (1, 1)

    bad.write_bytes(second)
    write_segment(tmp_path / "journal", history_records(3), kind="history")
    context = JobContext(
        spark=spark, lake=lake, journal=tmp_path / "journal", options={"cloud_export": bucket, "cloud_cluster": "cloud"}
    )
    again = ingest.run(context)
    assert again.alarm is None
    assert (again.findings["segments"], again.findings["segments_known"]) == (2, 1)
    assert again.findings["quarantined_in_all"] == 0
    none = ingest.run(context)
    assert none.rows == {"task": 0, "history": 0}

    judged = reconcile.run(JobContext(spark=spark, lake=lake, namespace="shop.acct"))
    assert judged.findings["verdicts"] == {"agreed": len(runs)}, judged.findings
    histories.run(JobContext(spark=spark, lake=lake, namespace="shop.acct"))
    rows = {(row.workflow_id, row.run_id): row.asDict() for row in lake.read_derived(spark, "workflows").collect()}
    assert len(rows) == len(runs)
    for name, events in runs.items():
        started = events[0].workflow_execution_started_event_attributes
        run_id = [each.workflow_task_failed_event_attributes.new_run_id for each in events if name == "reset"]
        row = rows[started.workflow_id, next(filter(None, run_id), started.original_execution_run_id)]
        reported = oracle.workflow_row(oracle.as_json(events), row["run_id"])
        assert {column: row[column] for column in reported} == reported, name
        assert (row["cluster"], row["namespace_id"]) == ("cloud", "shop.acct")


def test_without_any_source_nothing_is_ingested(spark: SparkSession, tmp_path: Path) -> None:
    for arguments, said in {
        (): "Missing option '--journal' or '--cloud-export'",
        ("--cloud-export", str(tmp_path / "none")): "does not exist",
    }.items():
        refused = CliRunner().invoke(pipeline, ["ingest", "--lake", str(tmp_path / "lake"), *arguments])
        assert refused.exit_code == 2
        assert said in refused.output
    with pytest.raises(FixRequest, match="needs --journal"):
        ingest.run(JobContext(spark=spark, lake=Lake(tmp_path / "lake"), options={"cloud_export": None}))
    assert not (tmp_path / "lake").exists()
