"""The commands: one clear line and an exit code for whatever is wrong, and nothing half-written."""

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from fairlead.cli.pipeline.command import JOBS, _defaults, pipeline
from fairlead.cli.pipeline.times import Instant
from tests.pipeline.writing import START_US, frames_of, task_records, write_journal, write_segment

# As `fairlead` is started, wherever it is installed.
PROGRAM = "from fairlead.cli import main; main.COMMANDS.setdefault('pipeline', 'fairlead.cli.pipeline'); main.main()"


def fairlead(*arguments: object, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, "pipeline", *map(str, arguments)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def refused(*arguments: object, status: int, **environment: str) -> str:
    """What it says, in one line, when it ends with that status."""
    done = fairlead(*arguments, **environment)
    assert (done.returncode, done.stdout) == (status, ""), done
    [line] = done.stderr.splitlines()
    assert line.startswith("fairlead: ")
    return line


def test_what_is_wrong_is_told_before_spark_starts(tmp_path: Path) -> None:
    journal, lake = tmp_path / "journal", tmp_path / "lake"
    assert "there is no journal" in refused("ingest", "--journal", journal, "--lake", lake, status=2)
    assert "Missing option '--lake'" in refused("ingest", "--journal", journal, status=2)
    write_segment(journal, task_records(3))
    common = ("ingest", "--journal", journal, "--lake")
    assert "--master 'nowhere'" in refused(*common, lake, "--master", "nowhere", status=2)
    assert "nothing answers" in refused(*common, lake, "--master", "spark://127.0.0.1:1", status=1)
    assert "other things than a lake" in refused(*common, journal, status=2)
    assert "is no time" in refused(*common, lake, "--since", "yesterday", status=2)
    assert "--since must be before" in refused(*common, lake, "--since", "1h", "--until", "2h", status=2)
    write_segment(journal, task_records(3), version=7)
    assert "schema version 7" in refused(*common, lake, status=2)
    assert not lake.exists()


def test_without_java_there_is_one_line(tmp_path: Path) -> None:
    write_segment(tmp_path / "journal", task_records(3))
    line = refused(
        "ingest",
        "--journal",
        tmp_path / "journal",
        "--lake",
        tmp_path / "lake",
        status=2,
        JAVA_HOME="/none",
        PATH="/none",
    )
    assert "Spark needs Java 17 or newer" in line
    assert not (tmp_path / "lake").exists()


def test_an_empty_journal_is_an_error_and_a_bad_segment_an_alarm(tmp_path: Path) -> None:
    journal, lake = tmp_path / "journal", tmp_path / "lake"
    (journal / "alpha").mkdir(parents=True)
    assert "nothing was sealed" in refused("ingest", "--journal", journal, "--lake", lake, status=2)

    total = write_journal(journal)
    write_segment(journal, frames_of(task_records(500))[:-7], number=77)
    done = fairlead("ingest", "--journal", journal, "--lake", lake, "-o", "json")
    assert done.returncode == 3
    assert "went into quarantine: it ends within a frame" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    answer = json.loads(done.stdout)
    assert (answer["job"], answer["rows"]) == ("ingest", {"task": total, "history": 40})

    again = fairlead("stream", "--once", "--journal", journal, "--lake", lake)
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout.startswith("stream: task 0 rows, history 0 rows")


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


def test_times_are_days_instants_or_so_long_ago() -> None:
    instant = Instant()
    assert instant.convert("2026-01-01", None, None) == START_US
    assert instant.convert("2026-01-01T01:00+01:00", None, None) == START_US
    hour_us = instant.convert("60m", None, None) - instant.convert("2h", None, None)
    assert hour_us == pytest.approx(3_600_000_000, abs=1_000_000)


def test_the_options_of_a_job_have_their_defaults_in_all() -> None:
    from types import ModuleType

    module = ModuleType("job")
    module.OPTIONS = [click.option("--window", "window_s", type=float, default=60), click.option("--name")]  # type: ignore[attr-defined]
    assert _defaults(module) == {"window_s": 60.0, "name": None}
