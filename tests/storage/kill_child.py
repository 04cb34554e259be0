"""Append and delete as fast as possible, and print what was acknowledged, until the process is killed.

The output is `opening`, then lines of three words: an operation, a pass, an id. `appended` names the last level of
an append that is stored completely (each task's payload holds the size of its append); `deleting` precedes a delete,
`deleted` follows it.
"""

import asyncio
import os
import random
import sys
from pathlib import Path

from fairlead.core.fairness import IdBlock, Level
from fairlead.core.partitions import TaskType
from fairlead.storage.sqlite import SqliteStore
from fairlead.storage.tasks import Levels, QueueId, StoredTask

KEPT = QueueId("namespace", "kept", TaskType.ACTIVITY)
DRAINED = QueueId("namespace", "drained", TaskType.ACTIVITY)
PRIORITY = 3
CALLERS = 30


def say(line: str) -> None:
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


async def append(store: SqliteStore, queue: QueueId, range_id: int, ids: IdBlock, chance: random.Random) -> Level:
    """Append one to five tasks with rising levels, and print them once they are durable."""
    taken = ids.take(chance.randint(1, 5))
    payload = f"{len(taken)} {taken[0]} ".encode() + bytes(chance.randrange(2000))
    tasks = [StoredTask(Level(task_id, task_id), f"tenant-{task_id % 7}", 1.0, payload) for task_id in taken]
    level = tasks[-1].level
    await store.append(queue, range_id, PRIORITY, tasks, Levels(Level(0, 0), level))
    say(f"appended-{queue.name} {level.pass_number} {level.task_id}")
    return level


async def fill(store: SqliteStore, range_id: int, ids: IdBlock, chance: random.Random) -> None:
    while True:
        await append(store, KEPT, range_id, ids, chance)


async def drain(store: SqliteStore, range_id: int, ids: IdBlock, chance: random.Random) -> None:
    while True:
        level = await append(store, DRAINED, range_id, ids, chance)
        if chance.random() < 0.3:
            say(f"deleting {level.pass_number} {level.task_id}")
            await store.delete_through(DRAINED, range_id, PRIORITY, through=level, limit=1000)
            say(f"deleted {level.pass_number} {level.task_id}")


async def main(file: Path, seed: int) -> None:
    chance = random.Random(seed)
    say("opening 0 0")
    store = await SqliteStore.open(file)
    kept = await store.take_lease(KEPT)
    drained = await store.take_lease(DRAINED)
    kept_ids, drained_ids = IdBlock(kept.range_id), IdBlock(drained.range_id)
    callers = [fill(store, kept.range_id, kept_ids, chance) for _ in range(CALLERS)]
    await asyncio.gather(*callers, drain(store, drained.range_id, drained_ids, chance))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
