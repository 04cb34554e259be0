"""The commands' output and exit codes. Bad input is tested in test_bad_input.py."""

import json
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import click
import pytest
from pyspark.sql import SparkSession

from fairlead.cli.pipeline import runner
from fairlead.cli.pipeline.command import JOBS, jobs_with_options, pipeline
from fairlead.cli.pipeline.runner import Run
from fairlead.cli.pipeline.times import Instant
from fairlead.core.errors import FixRequest
from fairlead.pipeline.job import JobContext, Summary
from fairlead.pipeline.jobs import ingest
from fairlead.pipeline.lake import NoSuchNamespace
from fairlead.report import Output
from tests.pipeline.command import run_pipeline
from tests.pipeline.journals import START_US, frames_of, task_records, write_journal, write_segment


def test_a_bad_segment_is_an_alarm(spark: SparkSession, tmp_path: Path) -> None:
    journal, lake = tmp_path / "journal", tmp_path / "lake"
    total = write_journal(journal)
    write_segment(journal, frames_of(task_records(500))[:-7], number=77)
    done = run_pipeline("ingest", "--journal", journal, "--lake", lake, "-o", "json", spark=spark)
    assert done.code == 3
    assert "went into quarantine: the segment ends within a frame" in done.err
    assert len(done.err.splitlines()) == 1
    answer = json.loads(done.out)
    assert (answer["job"], answer["rows"]) == ("ingest", {"task": total, "history": 40})

    again = run_pipeline("stream", "--once", "--journal", journal, "--lake", lake, spark=spark)
    # The alarm stays until the segment is resolved, regardless of which run found it.
    assert (again.code, len(again.err.splitlines())) == (3, 1)
    assert "went into quarantine: the segment ends within a frame" in again.err
    assert again.out.startswith("stream: task 0 rows, history 0 rows")


def test_the_help_names_every_job_without_spark() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from fairlead.cli.pipeline import pipeline\n"
        "answer = CliRunner().invoke(pipeline, ['--help']); print(answer.output); print('pyspark' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert all(name in said for name in (*JOBS, "all", "stream"))
    assert said.split()[-1] == "False"


def test_every_job_is_there_with_usable_defaults() -> None:
    context = click.Context(pipeline)
    for name in JOBS:
        command = pipeline.get_command(context, name)
        assert command is not None
        assert {"--lake", "--journal", "--master"} <= {option.opts[0] for option in command.params}


def test_times_are_days_instants_or_ages() -> None:
    instant = Instant()
    assert instant.convert("2026-01-01", None, None) == START_US
    assert instant.convert("2026-01-01T01:00+01:00", None, None) == START_US
    hour_us = instant.convert("60m", None, None) - instant.convert("2h", None, None)
    assert hour_us == pytest.approx(3_600_000_000, abs=1_000_000)
    assert instant.convert("9999-12-31T23:59:59.999999", None, None) == 253_402_300_800_000_000 - 1


def test_an_unknown_namespace_is_refused_with_a_list_of_the_known_ones(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runner, "open_session", lambda _plan: nullcontext(spark))
    write_segment(tmp_path / "journal", task_records(3, namespace_id="bank#tills:1.0"))
    ran: list[str] = []

    def job(context: JobContext) -> Summary:
        ran.append(str(context.namespace))
        return Summary("traffic", {}, {})

    def ask(namespace: str, *, jobs: dict[str, Run]) -> None:
        place = (tmp_path / "lake", tmp_path / "journal")
        request = runner.Request(*place, "local[2]", None, None, namespace, Output.JSON)
        runner.run_jobs(jobs, {}, request, is_one=False)

    # The namespace may be in the segments that `ingest` adds, so it can't be checked before.
    ask("bank", jobs={"ingest": ingest.run, "traffic": job})
    assert ran == ["bank"]
    with pytest.raises(NoSuchNamespace, match=r"it has bank: give the name or id of one of these"):
        ask("Bank of this name", jobs={"traffic": job})
    assert ran == ["bank"]


def test_the_results_before_a_failing_job_are_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runner, "open_session", lambda _plan: nullcontext())

    def refuse(_context: JobContext) -> Summary:
        raise FixRequest("not with this lake")

    jobs = {"first": lambda _context: Summary("first", {"table": 1}, {}), "second": refuse}
    request = runner.Request(tmp_path / "lake", None, "local[1]", None, None, None, Output.JSON)
    with pytest.raises(FixRequest, match="not with this lake"):
        runner.run_jobs(jobs, {}, request, is_one=False)
    assert [one["job"] for one in json.loads(capsys.readouterr().out)] == ["first"]


def test_an_option_of_all_is_passed_to_every_job_that_has_it() -> None:
    jobs, options = jobs_with_options({"window_s": 5.0})
    assert list(jobs) == list(JOBS)
    assert options["traffic"]["window_s"] == options["fairness"]["window_s"] == 5.0
    assert options["reconcile"]["grace"] == 600.0
    assert options["report"]["report"] is None


def test_the_command_all_has_each_option_of_every_job_once() -> None:
    command = pipeline.get_command(click.Context(pipeline), "all")
    assert command is not None
    flags = [flag for option in command.params for flag in option.opts]
    assert len(flags) == len(set(flags))
    assert {"--window", "--grace", "--report", "--settings-file", "--initial-version"} <= set(flags)
