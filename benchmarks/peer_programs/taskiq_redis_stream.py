"""taskiq on a stream of Redis, whose messages are acknowledged: 50 tasks at the same time."""

import asyncio

from runs import AT_ONCE, Tally, add_in_tasks, arguments, end
from taskiq.api import run_receiver_task
from taskiq_redis import RedisStreamBroker

what, address, tasks = arguments()
broker = RedisStreamBroker(url=address)
tally = Tally(tasks)


@broker.task
async def noop() -> None:
    tally.count()


async def main() -> None:
    if what == "add":
        await broker.startup()
        await add_in_tasks(tasks, noop.kiq)
        return
    receiving = asyncio.create_task(run_receiver_task(broker, max_async_tasks=AT_ONCE, run_startup=True))
    while not tally.is_done.is_set():
        await asyncio.sleep(0.05)
    receiving.cancel()
    end()


asyncio.run(main())
