"""Durability of acknowledged commits: a process is killed during commits, and its file is opened again."""

import asyncio
import os
import random
import select
import sqlite3
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import closing
from pathlib import Path

import pytest

from fairlead.core.fairness import LEVEL_ZERO
from fairlead.storage.history import HistoryStore, ListedRun, RunKey, TaskKey
from fairlead.storage.sqlite import SqliteStore
from tests.depth import IS_DEEP
from tests.patience import PATIENCE_S
from tests.storage.history import history_kill_child
from tests.storage.history.history_kill_child import DRAINED, QUEUE
from tests.storage.history.writes import NAMESPACE, SHARD, assert_whole_or_absent, read_all

KILLS = 20 if IS_DEEP else 10
START_S_MAX = PATIENCE_S
PROJECT = Path(__file__).parents[3]

Said = dict[str, set[int]]


def run_and_kill(file: Path, chance: random.Random) -> Said:
    """Start a child and kill it shortly after it opens the file or after its first commit; returns its output."""
    command = [sys.executable, "-m", history_kill_child.__name__, str(file), str(chance.randrange(2**32))]
    is_early = chance.random() < 0.2
    mark, after_s = (b"opening", 0.1 * chance.random()) if is_early else (b"committed", 0.15 * chance.random())
    output = b""
    kill_s = time.monotonic() + START_S_MAX
    has_begun = False
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=PROJECT) as child:  # noqa: S603 - our own script
        assert child.stdout is not None
        while (left_s := kill_s - time.monotonic()) > 0:
            if select.select([child.stdout], [], [], left_s)[0]:
                said = os.read(child.stdout.fileno(), 65536)
                assert said, f"the child ended by itself, with {child.wait()}"
                output += said
            if not has_begun and mark in output:
                has_begun = True
                kill_s = time.monotonic() + after_s
        child.kill()
        output += child.stdout.read()
    assert has_begun, f"the child said only {output!r} within {START_S_MAX} s"
    found: Said = defaultdict(set)
    # The kill may cut off the last line; a commit whose line is incomplete does not count as acknowledged.
    for line in output.decode().split("\n")[:-1]:
        what, number = line.split()
        found[what].add(int(number))
    return found


async def all_runs(store: HistoryStore) -> list[ListedRun]:
    runs: list[ListedRun] = []
    while page := await store.list_runs(SHARD, after=RunKey(*runs[-1][:3]) if runs else None, limit=1000):
        runs += page
    return runs


async def check(file: Path, said: Said) -> None:
    """Check the writes of one child: each acknowledged one is stored, and every stored one is complete."""
    store = await SqliteStore.open(file)
    history = store.history
    for number in said["committed"]:
        assert await assert_whole_or_absent(history, number), f"commit {number} was acknowledged and is gone"
    visible = {row.run_id for row in await history.list_visibility(NAMESPACE, limit=100_000)}
    runs = {run.run_id for run in await all_runs(history)}
    assert visible == runs, "a run and its visibility row are written and deleted together"
    # Unacknowledged commits are stored completely or not at all; the deleting child writes no tasks of its own.
    deleters = said["deleting"]
    highest = max([*said["committed"], *deleters, 0])
    for number in range(highest + 1, highest + 100):
        if f"run-{number}" in runs:
            assert len(await read_all(history, tree=f"run-{number}")) == 2
            assert await history.read_current(SHARD, NAMESPACE, f"order {number}") is not None
    for number in said["deleted"]:
        assert f"run-{number}" not in runs
        assert await read_all(history, tree=f"run-{number}") == []
        assert await history.read_current(SHARD, NAMESPACE, f"order {number}") is None

    lease = await history.take_shard(SHARD)
    left = {
        task.key.task_id
        for task in await history.read_tasks(SHARD, DRAINED, after=TaskKey(0, 0), until_ns=None, limit=100_000)
    }
    completing, completed = max(said["completing"], default=0), max(said["completed"], default=0)
    assert {number for number in said["drained"] if number > completing} <= left
    assert all(number > completed for number in left)
    assert completed <= lease.levels.get(DRAINED, TaskKey(0, 0)).task_id or not completed

    matched = {task.level.pass_number for task in await store.read(QUEUE, 3, after=LEVEL_ZERO, limit=100_000)}
    assert said["matched"] <= matched, "the matching service's tasks are in the same transactions"
    await store.close()


@pytest.mark.sim
def test_every_commit_acknowledged_before_a_kill_is_stored_completely_after_it(tmp_path: Path) -> None:
    """FL-50: kill -9 in the middle of commits, at 10 random moments; `make sim` kills it 20 times."""
    seed = int(os.environ.get("FAIRLEAD_KILL_SEED") or random.SystemRandom().randrange(2**32))
    print(f"replay with FAIRLEAD_KILL_SEED={seed}")  # noqa: T201 - shown when the test fails
    chance = random.Random(seed)
    file = tmp_path / "history.db"
    everything: Said = defaultdict(set)
    for _ in range(KILLS):
        said = run_and_kill(file, chance)
        asyncio.run(check(file, said))
        with closing(sqlite3.connect(file)) as connection, connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        connection.close()
        for what, numbers in said.items():
            everything[what] |= numbers
    # Check the writes of all children again: a later crash must not lose what an earlier child wrote.
    asyncio.run(check(file, everything))
    assert len(everything["committed"]) > 20 * KILLS
    assert everything["deleted"]
    assert everything["completed"]
    print(f"{KILLS} kills, {len(everything['committed'])} acknowledged commits")  # noqa: T201
