"""Kills a job repeatedly at random moments, and lets the last run finish."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

CHILD = Path(__file__).with_name("killed_child.py")
# Segments per batch; a low number gives many commits, between which a kill can come.
BATCH_SEGMENTS = 3
# Estimated duration of a commit in seconds, used until the first commit was seen.
COMMIT_S = 0.5
POLL_S = 0.01


@contextmanager
def begun(job: str, journal: Path, lake: Path) -> Iterator["subprocess.Popen[str]"]:
    """Run the job in its own process; the block begins when the work has begun and kills the process at its end."""
    child = subprocess.Popen(
        [sys.executable, CHILD, job, journal, lake, str(BATCH_SEGMENTS)],
        # Files that killed processes leave behind are deleted with the test's folder.
        env=os.environ | {"TMPDIR": str(lake.parent)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "begun\n"
            yield child
        finally:
            # Kill only Python: Java notices the loss and exits, as in production.
            child.kill()


def kill_again_and_again(
    job: str, journal: Path, folder: Path, *, finish: Callable[[Path], object], times: int, batches: int, seed: int
) -> list[Path]:
    """Kill the job `times` times at random moments, then finish it in this process; returns all lakes that it filled.

    The moments are spread over the commits of `batches` batches and over the time between commits. When all batches are
    committed nothing is left to interrupt, so the job starts again with a new lake.
    """
    chance = random.Random(seed)
    lakes = [folder / "lake-0"]
    kills = 0
    while kills < times:
        with begun(job, journal, lakes[-1]) as child:
            _wait_for_a_moment(child, lakes[-1], batches, chance)
        kills += child.returncode == -signal.SIGKILL
        if child.returncode == 0 or committed(lakes[-1]) >= batches:
            lakes.append(folder / f"lake-{len(lakes)}")
    finish(lakes[-1])
    return lakes


def _wait_for_a_moment(child: "subprocess.Popen[str]", lake: Path, batches: int, chance: random.Random) -> None:
    begun_s, before = time.monotonic(), committed(lake)
    goal = chance.randrange(before, batches)
    while committed(lake) < goal and child.poll() is None:
        time.sleep(POLL_S)
    commits = committed(lake) - before
    time.sleep(chance.uniform(0, (time.monotonic() - begun_s) / commits if commits else COMMIT_S))


def committed(lake: Path) -> int:
    """The number of batches committed to the tables."""
    return sum(1 for _ in lake.glob("*/batch=*"))


def table(lake: Path, name: str) -> list[tuple[object, ...]]:
    """All rows of a table, read by an engine that knows nothing of Spark or Fairlead."""
    with duckdb.connect() as connection:
        files = f"{lake}/{name}/*/*/*/*.parquet"
        columns = "* EXCLUDE (batch)"
        query = (
            f"SELECT {columns} FROM read_parquet('{files}', hive_partitioning=true) ORDER BY cluster, segment, position"
        )
        return connection.execute(query).fetchall()
