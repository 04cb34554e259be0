"""Producers and workers that run while a test restarts or moves servers."""

import asyncio
from typing import Self

from fairlead.core.partitions import TaskQueueId
from fairlead.matching.client import MatchingClient
from fairlead.matching.messages import NewTask

POLL_S = 1.0


class Traffic:
    """Adds and polls tasks until the block ends, and then until all acknowledged tasks have been taken.

    The end raises the exception of a failed request.
    """

    def __init__(self, client: MatchingClient, task_queue: TaskQueueId, *, pairs: int) -> None:
        self._client = client
        self._task_queue = task_queue
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
        """Wait until this number of further tasks has been added, and as many taken."""
        added, taken = len(self.added) + tasks, len(self.taken) + tasks
        while len(self.added) < added or len(self.taken) < taken:
            self._moved.clear()
            await self._moved.wait()

    async def _produce(self, producer: int) -> None:
        number = 0
        while not self._is_over:
            payload = b"%d-%d" % (producer, number)
            await self._client.add(self._task_queue, NewTask(3, "", 1.0, payload))
            self.added.add(payload)
            self._moved.set()
            number += 1
            await asyncio.sleep(0.001)

    async def _work(self) -> None:
        # A task may arrive twice, but must arrive.
        while not self._is_over or not self.added <= self.taken:
            answer = await self._client.poll(self._task_queue, "worker", timeout_s=POLL_S)
            if answer.task is not None:
                self.taken.add(answer.task)
                self._moved.set()
