"""A fake matching service for each cluster: keeps tasks through crashes, and offers them until history drops them.

tests/simulators/matching simulates the real one; here it would only make runs longer. These checks only need every task
of history to be offered to a worker at least once, with a request to history each time.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import cast

from fairlead.core.partitions import TaskQueueId, TaskType
from fairlead.matching.client import MatchingClient
from fairlead.matching.messages import NewTask, QueueKind, StickyWorkerGone
from fairlead.matching.task_starter import NotStarted

# Seconds until a task that can't be started now is offered again.
AGAIN_S = 1.5

Start = Callable[[bytes], Awaitable[bytes | NotStarted]]


class Tasks:
    """The waiting tasks of one cluster; they survive its crashes, as in a store."""

    def __init__(self) -> None:
        self._waiting: dict[TaskType, deque[bytes]] = {TaskType.WORKFLOW: deque(), TaskType.ACTIVITY: deque()}
        self._refused: deque[tuple[float, TaskType, bytes]] = deque()
        self._news = {kind: asyncio.Event() for kind in self._waiting}

    def as_client(self) -> MatchingClient:
        """This object as a `MatchingClient`: it has the methods that history uses."""
        return cast("MatchingClient", self)

    def reserve(self, task_queue: TaskQueueId, task: NewTask, *, kind: QueueKind = QueueKind.NORMAL) -> None:
        """Reserve no poll: every task is added."""

    async def add(
        self, task_queue: TaskQueueId, task: NewTask, *, kind: QueueKind = QueueKind.NORMAL, timeout_s: float = 0.0
    ) -> None:
        """Keep a task; there are no sticky task queues here."""
        del timeout_s
        if kind is QueueKind.STICKY:
            raise StickyWorkerGone("no worker polls it")
        self._waiting[task_queue.type].append(task.payload)
        self._news[task_queue.type].set()

    async def poll(self, kind: TaskType, start: Start, *, timeout_s: float) -> bytes | None:
        """The next task that history lets start; None if no task starts within `timeout_s`."""
        answer = await self._start_next(kind, start)
        if answer is None:
            self._news[kind].clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._news[kind].wait()
            answer = await self._start_next(kind, start)
        return answer

    async def _start_next(self, kind: TaskType, start: Start) -> bytes | None:
        now_s = asyncio.get_running_loop().time()
        while self._refused and self._refused[0][0] <= now_s:
            _, kind_of, payload = self._refused.popleft()
            self._waiting[kind_of].append(payload)
        waiting = self._waiting[kind]
        while waiting:
            payload = waiting.popleft()
            # Keep the task until its outcome is known, so that a crash of a cluster does not lose it.
            kept = (now_s + AGAIN_S, kind, payload)
            self._refused.append(kept)
            answer = await start(payload)
            if answer is NotStarted.REFUSED:
                continue
            with suppress(ValueError):
                self._refused.remove(kept)
            if isinstance(answer, bytes):
                return answer
        return None
