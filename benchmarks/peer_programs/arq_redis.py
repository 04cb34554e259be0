"""arq on Redis: 50 jobs at the same time."""

import asyncio

from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker
from runs import AT_ONCE, Tally, add_in_tasks, arguments, end

what, address, tasks = arguments()
settings = RedisSettings.from_dsn(address)
tally = Tally(tasks)


async def noop(_: dict) -> None:
    tally.count()
    if tally.is_done.is_set():
        end()


async def add() -> None:
    pool = await create_pool(settings)
    await add_in_tasks(tasks, lambda: pool.enqueue_job("noop"))


if what == "add":
    asyncio.run(add())
else:
    asyncio.set_event_loop(asyncio.new_event_loop())
    Worker(
        [noop], redis_settings=settings, max_jobs=AT_ONCE, keep_result=0, poll_delay=0.05, queue_read_limit=AT_ONCE * 5
    ).run()
