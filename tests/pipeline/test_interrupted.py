"""Ctrl-C, as a terminal sends it: to the command and all that it started. It ends in order, and nothing stays."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.processes import MARK, left_behind
from tests.pipeline.writing import write_journal

ENDED_S_MAX = 300.0


def is_starting(mark: str, _lake: Path) -> bool:
    return any("java" in command for command in left_behind(mark))


def is_working(_mark: str, lake: Path) -> bool:
    return (lake / "_staging" / "batches").is_dir()


@pytest.mark.parametrize("is_time", [is_starting, is_working])
def test_interrupted_it_ends_and_leaves_nothing_running(tmp_path: Path, is_time: Callable[[str, Path], bool]) -> None:
    journal, lake, mark = tmp_path / "journal", tmp_path / "lake", os.urandom(4).hex()
    write_journal(journal)
    process = subprocess.Popen(
        [sys.executable, "-m", "fairlead", "pipeline", "ingest", "--journal", journal, "--lake", lake],
        env={**os.environ, MARK: mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        while not is_time(mark, lake):
            assert process.poll() is None
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=ENDED_S_MAX)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out, err.strip()) == (130, "", "")
    deadline_s = time.monotonic() + ENDED_S_MAX
    while left_behind(mark) and time.monotonic() < deadline_s:
        time.sleep(0.2)
    assert left_behind(mark) == []
    # The lake has nothing that was half done.
    assert not list(lake.glob("*/batch=*")) or list(lake.glob("*/batch=*/_batch.json"))
