"""Procrastinate on PostgreSQL: 50 jobs at the same time."""

import asyncio

import procrastinate
from runs import AT_ONCE, Tally, add_in_tasks, arguments, end

what, address, tasks = arguments()
app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=address, min_size=10, max_size=20))
tally = Tally(tasks)


@app.task(name="noop")
async def noop() -> None:
    tally.count()


async def main() -> None:
    async with app.open_async():
        if what == "add":
            await app.schema_manager.apply_schema_async()
            await add_in_tasks(tasks, noop.defer_async)
            return
        await app.run_worker_async(concurrency=AT_ONCE, wait=False, install_signal_handlers=False)
        end()


asyncio.run(main())
