"""Kills a job at random moments, again and again, and lets it finish at last."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import duckdb

CHILD = Path(__file__).with_name("killed_child.py")


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


def kill_again_and_again(
    job: str, journal: Path, folder: Path, *, times: int, within_s: float, seed: int
) -> list[Path]:
    """Kill the job so often, each time at a random moment, and let it finish at last. All the lakes that it filled.

    A job that was done before its moment came was not killed: then it begins again with a new lake.
    """
    chance = random.Random(seed)
    lakes = [folder / "lake-0"]
    kills = 0
    while kills < times:
        child = start(job, journal, lakes[-1])
        time.sleep(chance.uniform(0, within_s))
        # Only Python: Java notices that it is alone, as it does in real life.
        child.kill()
        kills += child.wait() == -signal.SIGKILL
        assert child.stdout is not None
        if "done" in child.stdout.read():
            lakes.append(folder / f"lake-{len(lakes)}")
        child.stdout.close()
    finish(job, journal, lakes[-1])
    return lakes


def table(lake: Path, name: str) -> list[tuple[object, ...]]:
    """All rows of a table as an engine sees them that knows nothing of Spark or of us."""
    with duckdb.connect() as connection:
        files = f"{lake}/{name}/*/*/*/*.parquet"
        columns = "* EXCLUDE (batch)"
        query = (
            f"SELECT {columns} FROM read_parquet('{files}', hive_partitioning=true) ORDER BY cluster, segment, position"
        )
        return connection.execute(query).fetchall()
