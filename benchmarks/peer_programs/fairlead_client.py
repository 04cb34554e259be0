"""Fairlead's public client: 50 polls at the same time."""

import asyncio

import uvloop
from runs import AT_ONCE, Tally, add_in_tasks, arguments, end

from fairlead.client import connect

what, address, tasks = arguments()
tally = Tally(tasks)


async def main() -> None:
    async with connect(address) as client:
        if what == "add":
            await add_in_tasks(tasks, lambda: client.add("noops", b"x" * 100))
            return

        async def work() -> None:
            while not tally.is_done.is_set():
                if await client.poll("noops", timeout_s=5) is not None:
                    tally.count()

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))
        end()


uvloop.run(main())
