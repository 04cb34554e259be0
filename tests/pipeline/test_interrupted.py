"""Ctrl-C, sent as by a terminal to the command and its children, or a killed Java, leaves no process or file behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.processes import MARK, left_behind, running
from tests.pipeline.journals import write_journal

ENDED_S_MAX = 300.0


def is_starting(mark: str, _lake: Path) -> bool:
    return any("java" in command for command in left_behind(mark))


def is_working(_mark: str, lake: Path) -> bool:
    return (lake / "_staging" / "batches").is_dir()


@contextmanager
def ingesting(folder: Path, mark: str) -> Iterator[subprocess.Popen[str]]:
    write_journal(folder / "journal")
    command = ["ingest", "--journal", str(folder / "journal"), "--lake", str(folder / "lake")]
    process = subprocess.Popen(
        [sys.executable, "-m", "fairlead", "pipeline", *command],
        env={**os.environ, MARK: mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("is_time", [is_starting, is_working])
def test_an_interrupted_job_ends_and_leaves_no_process_running(
    tmp_path: Path, is_time: Callable[[str, Path], bool]
) -> None:
    lake, mark = tmp_path / "lake", os.urandom(4).hex()
    with ingesting(tmp_path, mark) as process:
        while not is_time(mark, lake):
            assert process.poll() is None
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=ENDED_S_MAX)
    assert (process.returncode, out, err.strip()) == (130, "", "")
    check_nothing_is_left(mark, lake)


def test_a_killed_java_is_reported_in_one_line_and_leaves_no_process_running(tmp_path: Path) -> None:
    """The kernel kills Java like this when memory is short; Java's own heap limit does not prevent it."""
    lake, mark = tmp_path / "lake", os.urandom(4).hex()
    with ingesting(tmp_path, mark) as process:
        while not is_working(mark, lake):
            assert process.poll() is None
            time.sleep(0.05)
        for process_id, command in running(mark).items():
            if "SparkSubmit" in command:
                os.kill(process_id, signal.SIGKILL)
        out, err = process.communicate(timeout=ENDED_S_MAX)
    assert (process.returncode, out) == (1, "")
    assert err.count("\n") == 1, err
    assert "Java was killed" in err
    check_nothing_is_left(mark, lake)


def check_nothing_is_left(mark: str, lake: Path) -> None:
    deadline_s = time.monotonic() + ENDED_S_MAX
    while left_behind(mark) and time.monotonic() < deadline_s:
        time.sleep(0.2)
    assert left_behind(mark) == []
    # The lake has no half-written batch.
    assert not list(lake.glob("*/batch=*")) or list(lake.glob("*/batch=*/_batch.json"))
