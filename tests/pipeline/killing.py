"""Kills a job at random moments, again and again, and lets it finish at last."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

CHILD = Path(__file__).with_name("killed_child.py")
# Few: many commits for a kill to come between.
BATCH_SEGMENTS = 3
# Until the first commit was seen: about as long as one takes.
COMMIT_S = 0.5
LOOK_S = 0.01


@contextmanager
def begun(job: str, journal: Path, lake: Path) -> Iterator["subprocess.Popen[str]"]:
    """The job in a process of its own, which has just begun with the work, and has ended when the block does."""
    child = subprocess.Popen(
        [sys.executable, CHILD, job, journal, lake, str(BATCH_SEGMENTS)],
        # What the killed leave behind goes with the test.
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
            # Only Python: Java notices that it is alone, as it does in real life.
            child.kill()


def kill_again_and_again(job: str, journal: Path, folder: Path, *, times: int, batches: int, seed: int) -> list[Path]:
    """Kill the job so often, each time at a random moment, and let it finish at last. All the lakes that it filled.

    The moments are spread over the commits of so many batches, and over the time between two. When the last of them is
    in, there is nothing left to disturb: then it begins again with a new lake.
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
    with begun(job, journal, lakes[-1]) as child:
        assert child.communicate()[0] == "done\n"
    assert child.returncode == 0
    return lakes


def _wait_for_a_moment(child: "subprocess.Popen[str]", lake: Path, batches: int, chance: random.Random) -> None:
    begun_s, before = time.monotonic(), committed(lake)
    goal = chance.randrange(before, batches)
    while committed(lake) < goal and child.poll() is None:
        time.sleep(LOOK_S)
    commits = committed(lake) - before
    time.sleep(chance.uniform(0, (time.monotonic() - begun_s) / commits if commits else COMMIT_S))


def committed(lake: Path) -> int:
    """The batches that are in the tables."""
    return sum(1 for _ in lake.glob("*/batch=*"))


def table(lake: Path, name: str) -> list[tuple[object, ...]]:
    """All rows of a table as an engine sees them that knows nothing of Spark or of us."""
    with duckdb.connect() as connection:
        files = f"{lake}/{name}/*/*/*/*.parquet"
        columns = "* EXCLUDE (batch)"
        query = (
            f"SELECT {columns} FROM read_parquet('{files}', hive_partitioning=true) ORDER BY cluster, segment, position"
        )
        return connection.execute(query).fetchall()
