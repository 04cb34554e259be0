"""The jobs that need only histories, on exports of running servers, agree with a plain evaluation of their events."""

from collections import Counter, defaultdict
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession
from temporalio.api.history.v1 import HistoryEvent

from fairlead.pipeline.job import JobContext
from fairlead.pipeline.jobs import histories, ingest, report
from fairlead.pipeline.lake import Lake
from tests.cli.processes import run
from tests.pipeline import histories_oracle as oracle
from tests.pipeline.public_export.test_export import orders, working
from tests.pipeline.test_export import fetched
from tests.sdk.servers import DATABASE, serving

WINDOW_US = 1_000_000
TABLES = (
    "workflows", "activities", "workflow_types", "activity_types", "waits", "history_traffic", "failures", "actions",
)  # fmt: skip
Runs = dict[str, list[HistoryEvent]]
Row = dict[str, Any]


async def export(journal: Path, cluster: str, *source: str) -> None:
    done = await run("export", *source, "--journal", str(journal), "--cluster", cluster, "--namespace", "default")
    assert (done.code, done.err) == (0, "")


async def of_servers(folder: Path) -> Runs:
    """Export a server of each kind, Fairlead's also from its store; returns the histories of the reference server."""
    found: dict[str, Runs] = {}
    for kind in ("reference", "fairlead"):
        place = folder / kind
        place.mkdir()
        with serving(kind, place) as address:
            async with working(address) as client:
                await orders(client)
                found[kind] = await fetched(client)
            await export(folder / "journal", kind, "--from", address, "--rate", "1000")
            if kind == "fairlead":
                await export(folder / "journal", "store", "--db", str(place / DATABASE))
    return found["reference"]


@pytest.fixture
async def runs(tmp_path: Path) -> Runs:
    return await of_servers(tmp_path)


def test_the_tables_of_an_export_agree_with_the_histories_of_its_server(
    runs: Runs, spark: SparkSession, tmp_path: Path
) -> None:
    """One test for all tables and servers, because each run of the jobs on Spark takes many seconds."""
    lake = Lake(tmp_path / "lake")
    options = {"window_s": WINDOW_US / 1e6}
    context = JobContext(spark=spark, lake=lake, journal=tmp_path / "journal", options=options)
    assert ingest.run(context).alarm is None
    summary = histories.run(context)
    assert (summary.alarm, summary.findings["runs_incomplete"]) == (None, 0)
    tables = {name: rows_of(spark, lake, name) for name in TABLES}
    for name, by_cluster in tables.items():
        assert by_cluster["fairlead"] == by_cluster["store"], name
    told = {name: by_cluster["reference"] for name, by_cluster in tables.items()}
    plain = {run_id: oracle.as_json(events) for run_id, events in runs.items()}
    check_rows(told, plain)
    check_tasks(told, plain)
    check_failures(told["failures"], plain)
    expected = sum((oracle.actions(events, run_id) for run_id, events in plain.items()), Counter[tuple[date, str]]())
    assert {(row["day"], row["kind"]): row["actions"] for row in told["actions"]} == dict(expected)
    assert {"workflow_start", "workflow_reset", "activity"} <= {row["kind"] for row in told["actions"]}
    report.run(JobContext(spark=spark, lake=lake))
    page = (lake.root / "report.html").read_text()
    for shown in ("Waits for workers", "Failures", "Declined", "Actions that Temporal Cloud would bill"):
        assert shown in page


def rows_of(spark: SparkSession, lake: Lake, name: str) -> dict[str, list[Row]]:
    """The rows of a table by cluster, in an order that does not depend on Spark."""
    rows = [row.asDict(recursive=True) for row in lake.read_derived(spark, name).collect()]
    found: dict[str, list[Row]] = {cluster: [] for cluster in ("reference", "fairlead", "store")}
    for row in sorted(rows, key=str):
        found[row.pop("cluster")].append(row)
    return found


def check_rows(told: dict[str, list[Row]], plain: dict[str, list[oracle.Event]]) -> None:
    rows = {row["run_id"]: row for row in told["workflows"]}
    assert rows.keys() == plain.keys()
    for run_id, events in plain.items():
        expected = oracle.workflow_row(events, run_id)
        assert {name: rows[run_id][name] for name in expected} == expected
        assert rows[run_id]["build_id"]
    activities = [row for events in plain.values() for row in oracle.activity_rows(events)]
    shown = [{name: row[name] for name in activities[0]} for row in told["activities"]]
    assert sorted(shown, key=str) == sorted(activities, key=str)


def window_of(time_us: int | None) -> int | None:
    return None if time_us is None else time_us // WINDOW_US * WINDOW_US


def check_tasks(told: dict[str, list[Row]], plain: dict[str, list[oracle.Event]]) -> None:
    waits: defaultdict[tuple[Any, ...], list[float]] = defaultdict(list)
    traffic: Counter[tuple[Any, ...]] = Counter()
    for events in plain.values():
        workflow_type = oracle.workflow_row(events, "")["workflow_type"]
        tasks = [(1, workflow_type, 1, row) for row in oracle.workflow_tasks(events)]
        tasks += [(2, row["activity_type"], row["attempt"], row) for row in oracle.activity_rows(events)]
        for task_type, name, attempt, row in tasks:
            queue = (row["task_list"], task_type)
            scheduled, started = (
                None if row[key] is None else row[key] // WINDOW_US * WINDOW_US
                for key in ("scheduled_us", "started_us")
            )
            traffic[*queue, scheduled, "added"] += 1
            if started is not None:
                traffic[*queue, started, "started"] += 1
                traffic[*queue, started, "retries"] += attempt - 1
                if attempt == 1:
                    wait_s = (row["started_us"] - row["scheduled_us"]) / 1e6
                    waits[*queue, name, row["build_id"], scheduled].append(wait_s)
    names = ("task_list", "task_type", "type", "build_id", "window_us")
    shown = {tuple(row[name] for name in names): row for row in told["waits"]}
    assert shown.keys() == waits.keys()
    for key, values in waits.items():
        row = shown[key]
        expected = [float(np.percentile(values, share)) for share in (50, 95, 99)]
        assert row["tasks"] == len(values)
        assert [row[f"wait_s_p{share}"] for share in (50, 95, 99)] == pytest.approx(expected)
    counted = {
        (row["task_list"], row["task_type"], row["window_us"], name): row[name]
        for row in told["history_traffic"]
        for name in ("added", "started", "retries")
        if row[name]
    }
    assert counted == {key: count for key, count in traffic.items() if count}


def check_failures(shown: list[Row], plain: dict[str, list[oracle.Event]]) -> None:
    found: defaultdict[tuple[Any, ...], list[tuple[int, str]]] = defaultdict(list)
    for run_id, events in plain.items():
        workflow_id = oracle.said_in(events[0])["workflowId"]
        ended = oracle.workflow_row(events, run_id)
        ends = [("workflow", ended["workflow_type"], ended, "failure", ended["closed_us"])]
        for row in oracle.activity_rows(events):
            ends.append(("activity", row["activity_type"], row, "failure", row["closed_us"]))
            ends.append(("activity_retry", row["activity_type"], row, "retried_failure", row["started_us"]))
        for source, name, row, failure, at_us in ends:
            if row[f"{failure}_type"] is not None:
                message = oracle.message_class(row[f"{failure}_message"])
                found[source, name, row[f"{failure}_type"], message].append((at_us, workflow_id))
    assert {
        (row["source"], row["type"], row["failure_type"], row["message_class"]): (
            row["count"], row["first_us"], row["last_us"], row["workflow_ids"],
        )
        for row in shown
    } == {
        key: (len(cases), min(cases)[0], max(cases)[0], sorted({workflow_id for _, workflow_id in cases})[:5])
        for key, cases in found.items()
    }  # fmt: skip
    assert {row["source"] for row in shown} == {"workflow", "activity", "activity_retry"}
