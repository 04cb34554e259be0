"""Kills a job at random moments, again and again, and lets it finish at last."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import duckdb

CHILD = Path(__file__).with_name("killed_child.py")
BEGIN_WAIT_S_MAX = 120.0


def start(job: str, journal: Path, lake: Path) -> "subprocess.Popen[str]":
    """The job in a process of its own, which has just begun with the work."""
    child = subprocess.Popen(
        [sys.executable, CHILD, job, journal, lake], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "begun\n"
    return child


def finish(job: str, journal: Path, lake: Path) -> float:
    """Run the job to its end; how long the work took."""
    child = start(job, journal, lake)
    begun_s = time.monotonic()
    assert child.stdout is not None
    with child.stdout:
        assert child.stdout.readline() == "done\n"
    took_s = time.monotonic() - begun_s
    assert child.wait(120) == 0
    return took_s


def kill_again_and_again(job: str, journal: Path, lake: Path, *, times: int, within_s: float, seed: int) -> int:
    """Kill the job so often, each time at a random moment; how often there was something left to kill."""
    chance = random.Random(seed)
    kills = 0
    for _ in range(times):
        child = start(job, journal, lake)
        time.sleep(chance.uniform(0, within_s))
        kills += child.poll() is None
        # Only Python: Java notices that it is alone, as it does in real life.
        os.kill(child.pid, 9)
        child.wait()
        assert child.stdout is not None
        child.stdout.close()
    return kills


def table(lake: Path, name: str) -> list[tuple[object, ...]]:
    """All rows of a table as an engine sees them that knows nothing of Spark or of us."""
    with duckdb.connect() as connection:
        files = f"{lake}/{name}/*/*/*/*.parquet"
        columns = "* EXCLUDE (batch)"
        query = (
            f"SELECT {columns} FROM read_parquet('{files}', hive_partitioning=true) ORDER BY cluster, segment, position"  # noqa: S608
        )
        return connection.execute(query).fetchall()
