"""Durability of acknowledged appends: a process is killed at random moments, and its file is opened again."""

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
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fairlead.core.fairness import LEVEL_ZERO, Level
from fairlead.storage.sqlite import SqliteStore
from fairlead.storage.tasks import StoredTask
from tests.depth import IS_DEEP
from tests.patience import PATIENCE_S
from tests.storage import kill_child
from tests.storage.kill_child import DRAINED, KEPT, PRIORITY

KILLS = 60 if IS_DEEP else 20
START_S_MAX = PATIENCE_S


@dataclass
class Said:
    """The children's output so far, and whether the last child had started when it was killed."""

    kept: list[Level] = field(default_factory=list)
    drained: list[Level] = field(default_factory=list)
    deleting: Level = LEVEL_ZERO
    deleted: Level = LEVEL_ZERO

    def hear(self, output: bytes) -> None:
        # The kill may cut off the last line; an append whose line is incomplete does not count as acknowledged.
        for line in output.decode().split("\n")[:-1]:
            what, pass_number, task_id = line.split()
            level = Level(int(pass_number), int(task_id))
            if what == "appended-kept":
                self.kept.append(level)
            elif what == "appended-drained":
                self.drained.append(level)
            elif what == "deleting":
                self.deleting = max(self.deleting, level)
            elif what == "deleted":
                self.deleted = max(self.deleted, level)


def run_and_kill(file: Path, chance: random.Random) -> bytes:
    """Start a child and kill it shortly after it opens the file or after its first append; returns its output."""
    command = [sys.executable, kill_child.__file__, str(file), str(chance.randrange(2**32))]
    mark, after_s = (b"opening", 0.1 * chance.random()) if chance.random() < 0.3 else (b"app", 0.12 * chance.random())
    output = b""
    kill_s = time.monotonic() + START_S_MAX
    has_begun = False
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:  # noqa: S603 - our own script
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
    return output


async def check(file: Path, said: Said, *, after: Level) -> Level:
    """Check all tasks above a level, and return the highest stored level."""
    store = await SqliteStore.open(file)
    lease = await store.take_lease(KEPT)
    rows = await read_all(store, after)
    stored = {row.level for row in rows}
    lost = {level for level in said.kept if level > after} - stored
    assert not lost, f"acknowledged and gone: {sorted(lost)}"
    check_whole_appends(rows)
    if PRIORITY in lease.levels:
        assert lease.levels[PRIORITY].max_level == max([*stored, after]), "M is saved with each append"

    drained = await store.take_lease(DRAINED)
    left = await store.read(DRAINED, PRIORITY, after=LEVEL_ZERO, limit=100_000)
    lost = {level for level in said.drained if level > said.deleting} - {row.level for row in left}
    assert not lost, f"acknowledged, not deleted, and gone: {sorted(lost)}"
    assert all(row.level > said.deleted for row in left), "a delete was acknowledged, and its tasks are there"
    assert await store.count(DRAINED, drained.range_id) == len(left)
    if PRIORITY in drained.levels:
        assert said.deleted <= drained.levels[PRIORITY].ack_level <= max(said.deleting, said.deleted)
    await store.close()
    return max([*stored, after])


async def read_all(store: SqliteStore, after: Level) -> list[StoredTask]:
    rows: list[StoredTask] = []
    while page := await store.read(KEPT, PRIORITY, after=rows[-1].level if rows else after, limit=5000):
        rows += page
    return rows


def check_whole_appends(rows: list[StoredTask]) -> None:
    """Each stored append has all of its tasks, acknowledged or not."""
    found: dict[bytes, int] = defaultdict(int)
    for row in rows:
        size, first_id, _ = row.payload.split(b" ", 2)
        found[size + b" from " + first_id] += 1
    assert {append: count for append, count in found.items() if count != int(append.split()[0])} == {}


@pytest.mark.sim
def test_every_append_acknowledged_before_a_kill_is_stored_after_it(tmp_path: Path) -> None:
    """FL-50: kill -9 in the middle of group commits, at 20 random moments; `make sim` kills it 60 times."""
    seed = int(os.environ.get("FAIRLEAD_KILL_SEED") or random.SystemRandom().randrange(2**32))
    print(f"replay with FAIRLEAD_KILL_SEED={seed}")  # noqa: T201 - shown when the test fails
    chance = random.Random(seed)
    file = tmp_path / "tasks.db"
    said = Said()
    highest = LEVEL_ZERO
    for _ in range(KILLS):
        said.hear(run_and_kill(file, chance))
        highest = asyncio.run(check(file, said, after=highest))
        with closing(sqlite3.connect(file)) as connection, connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        connection.close()
    # Check the writes of all children again: a later crash must not lose what an earlier child wrote.
    assert asyncio.run(check(file, said, after=LEVEL_ZERO)) == highest
    assert len(said.kept) > KILLS
    assert said.deleted > LEVEL_ZERO
    print(f"{KILLS} kills, {len(said.kept) + len(said.drained)} acknowledged appends")  # noqa: T201
