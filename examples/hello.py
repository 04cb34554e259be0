"""Three tenants add tasks, and a worker takes them: `python examples/hello.py [HOST:PORT]`, with a server running."""
# ruff: noqa: T201 - it shows what it does

import asyncio
import sys

from fairlead.core.partitions import TaskList, TaskType
from fairlead.matching.messages import NewTask
from fairlead.server import connect

ADDRESS = "127.0.0.1:7240"
GREETINGS = TaskList("default", "greetings", TaskType.ACTIVITY)
WEIGHTS = {"acme": 5.0, "globex": 2.0, "initech": 1.0}  # By tenant: acme gets 5 of 8 while all have tasks waiting.


async def main(address: str = ADDRESS) -> None:
    """Say hello three times for every tenant."""
    async with connect(address) as client:
        for number in range(1, 4):
            for tenant, weight in WEIGHTS.items():
                payload = f"hello {number} from {tenant}".encode()
                await client.add(GREETINGS, NewTask(priority=3, fairness_key=tenant, weight=weight, payload=payload))
        for _ in range(3 * len(WEIGHTS)):
            answer = await client.poll(GREETINGS, "hello", timeout_s=5)
            print(answer.task.decode() if answer.task else "no task came")


asyncio.run(main(*sys.argv[1:2]))
