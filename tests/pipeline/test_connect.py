"""The same jobs through a real Spark Connect server give the same tables."""

import json
import subprocess
import sys
from pathlib import Path

import duckdb
from pyspark.sql import SparkSession

from fairlead.pipeline.job import JobContext
from fairlead.pipeline.jobs import ingest, reconcile, traffic
from fairlead.pipeline.lake import Lake
from tests.pipeline import kills
from tests.pipeline.journals import write_journal
from tests.pipeline.servers import connect_server

DERIVED = ("traffic", "verdicts", "pairs", "repair_plan")


def through(master: str, job: str, journal: Path, lake: Path) -> "subprocess.CompletedProcess[str]":
    arguments: list[str | Path] = [
        "pipeline",
        job,
        "--master",
        master,
        # The server has another working directory: a relative path must not reach it.
        "--journal",
        journal.name,
        "--lake",
        lake.name,
        "-o",
        "json",
    ]
    command = [sys.executable, "-m", "fairlead", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=journal.parent)


def derived(lake: Path, table: str) -> list[tuple[object, ...]]:
    with duckdb.connect() as connection:
        return connection.execute(f"SELECT * FROM read_parquet('{lake}/{table}/*.parquet') ORDER BY ALL").fetchall()


def test_jobs_give_the_same_tables_through_spark_connect(spark: SparkSession, tmp_path: Path) -> None:
    journal, here, there = tmp_path / "journal", tmp_path / "here", tmp_path / "there"
    write_journal(journal)
    with connect_server(tmp_path) as master:
        done = {job: through(master, job, journal, there) for job in ("ingest", "traffic", "reconcile", "stream")}
    refused = done.pop("stream")
    assert refused.returncode == 2
    assert refused.stderr == "fairlead: stream does not run through Spark Connect: give another --master\n"
    # Exit code 3: the job has findings.
    assert [one.stderr for one in done.values() if one.returncode not in (0, 3)] == []
    lake = Lake(here)
    for module in (ingest, traffic, reconcile):
        summary = module.run(JobContext(spark, lake, journal=journal))
        assert json.loads(done[summary.job].stdout)["rows"] == summary.rows
        assert sum(summary.rows.values()) > 0
    for table in ("task", "history"):
        assert kills.table(there, table) == kills.table(here, table)
    for table in DERIVED:
        assert derived(there, table) == derived(here, table)
