"""Producers and workers that go on while something happens to the servers."""

import asyncio
from typing import Self

from fairlead.core.partitions import TaskList
from fairlead.matching.client import MatchingClient
from fairlead.matching.messages import NewTask

POLL_S = 1.0


class Traffic:
    """Adds tasks and takes them until its end, when all that were acknowledged have been taken.

    A request that fails is raised there.
    """

    def __init__(self, client: MatchingClient, task_list: TaskList, *, pairs: int) -> None:
        self._client = client
        self._task_list = task_list
        self._pairs = pairs
        self._group = asyncio.TaskGroup()
        self._moved = asyncio.Event()
        self._is_over = False
        self.added: set[bytes] = set()
        self.taken: set[bytes] = set()

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        for number in range(self._pairs):
            self._group.create_task(self._produce(number))
            self._group.create_task(self._work())
        return self

    async def __aexit__(self, *failure: object) -> None:
        self._is_over = True
        await self._group.__aexit__(*failure)  # type: ignore[arg-type]

    async def more(self, tasks: int) -> None:
        """Wait until so many more have been added, and as many taken."""
        added, taken = len(self.added) + tasks, len(self.taken) + tasks
        while len(self.added) < added or len(self.taken) < taken:
            self._moved.clear()
            await self._moved.wait()

    async def _produce(self, producer: int) -> None:
        number = 0
        while not self._is_over:
            payload = b"%d-%d" % (producer, number)
            await self._client.add(self._task_list, NewTask(3, "", 1.0, payload))
            self.added.add(payload)
            self._moved.set()
            number += 1
            await asyncio.sleep(0.001)

    async def _work(self) -> None:
        # A task may come twice, and must not come never.
        while not self._is_over or not self.added <= self.taken:
            answer = await self._client.poll(self._task_list, "worker", timeout_s=POLL_S)
            if answer.task is not None:
                self.taken.add(answer.task)
                self._moved.set()
