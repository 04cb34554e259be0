"""Commit as fast as possible, and print what was acknowledged, until the process is killed.

The output is `opening 0`, then lines of a word and a number. `committed N`: all of `everything(N)` is durable.
`completing N` precedes the completion of a range of tasks, `completed N` follows it; likewise `deleting`, `deleted`.
Tasks of the matching service are written to the same file in the same transactions.
"""

import asyncio
import os
import random
import sys
from itertools import count
from pathlib import Path

from fairlead.core.fairness import Level
from fairlead.core.partitions import TaskType
from fairlead.storage.commit import Commit
from fairlead.storage.history import HistoryStore, RunKey, TaskKey
from fairlead.storage.sqlite import SqliteStore
from fairlead.storage.tasks import Levels, QueueId, StoredTask
from tests.storage.history.writes import NAMESPACE, SHARD, everything, task

QUEUE = QueueId("namespace", "beside", TaskType.WORKFLOW)
DRAINED = "drained"
CALLERS = 30
# Numbers of this child begin above those of all earlier children.
NUMBERS_A_CHILD = 1_000_000


def say(what: str, number: int) -> None:
    os.write(sys.stdout.fileno(), f"{what} {number}\n".encode())


async def fill(store: HistoryStore, range_id: int, numbers: "count[int]") -> None:
    while True:
        number = next(numbers)
        await store.commit(SHARD, range_id, everything(number))
        say("committed", number)


async def delete(store: HistoryStore, range_id: int, numbers: "count[int]", chance: random.Random) -> None:
    while True:
        number = next(numbers)
        await store.commit(SHARD, range_id, everything(number)._replace(tasks=[]))
        await asyncio.sleep(0.01 * chance.random())
        say("deleting", number)
        run_id = f"run-{number}"
        key = RunKey(NAMESPACE, f"order {number}", run_id)
        await store.delete_run(SHARD, range_id, key, branches=[(run_id, "main")])
        say("deleted", number)


async def drain(store: HistoryStore, range_id: int, numbers: "count[int]", chance: random.Random) -> None:
    while True:
        number = next(numbers)
        await store.commit(SHARD, range_id, Commit(tasks=[task(number, queue=DRAINED)]))
        say("drained", number)
        if chance.random() < 0.3:
            say("completing", number)
            await store.complete_tasks(SHARD, range_id, DRAINED, TaskKey(0, number))
            say("completed", number)


async def match(store: SqliteStore, numbers: "count[int]") -> None:
    lease = await store.take_lease(QUEUE)
    while True:
        level = Level(next(numbers), 1)
        await store.append(QUEUE, lease.range_id, 3, [StoredTask(level, "", 1.0, b"")], Levels(Level(0, 0), level))
        say("matched", level.pass_number)


async def main(file: Path, seed: int) -> None:
    chance = random.Random(seed)
    say("opening", 0)
    store = await SqliteStore.open(file)
    history = store.history
    range_id = (await history.take_shard(SHARD)).range_id
    first = range_id * NUMBERS_A_CHILD
    numbers = count(first)
    callers = [fill(history, range_id, numbers) for _ in range(CALLERS)]
    await asyncio.gather(
        *callers,
        delete(history, range_id, numbers, chance),
        drain(history, range_id, count(first), chance),
        match(store, count(first)),
    )


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
