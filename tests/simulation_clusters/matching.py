"""A stand-in for matching, one a cluster: it keeps tasks through crashes, and offers them until history says no.

The real one is simulated in tests/simulation. Here it would only cost steps: what matters is that a task that history
has handed over is offered to some worker at least once, and that history is asked each time.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import cast

from fairlead.core.partitions import TaskList, TaskType
from fairlead.matching.client import MatchingClient
from fairlead.matching.messages import NewTask, StickyWorkerGone, TaskListKind
from fairlead.matching.starting import NotStarted

# A task that can't be started now is offered again after so long.
AGAIN_S = 1.5

Start = Callable[[bytes], Awaitable[bytes | NotStarted]]


class Tasks:
    """What waits in one cluster: this outlives its crashes, as a store does."""

    def __init__(self) -> None:
        self._waiting: dict[TaskType, deque[bytes]] = {TaskType.WORKFLOW: deque(), TaskType.ACTIVITY: deque()}
        self._refused: deque[tuple[float, TaskType, bytes]] = deque()
        self._news = {kind: asyncio.Event() for kind in self._waiting}

    def as_client(self) -> MatchingClient:
        """What history needs of it is there."""
        return cast("MatchingClient", self)

    async def add(
        self, task_list: TaskList, task: NewTask, *, kind: TaskListKind = TaskListKind.NORMAL, timeout_s: float = 0.0
    ) -> None:
        """Keep a task; no worker here has a queue of its own."""
        del timeout_s
        if kind is TaskListKind.STICKY:
            raise StickyWorkerGone("nobody polls it")
        self._waiting[task_list.type].append(task.payload)
        self._news[task_list.type].set()

    async def poll(self, kind: TaskType, start: Start, *, timeout_s: float) -> bytes | None:
        """The next task that history lets start; None if there is none within `timeout_s`."""
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
            # Here until it is known what became of it, whoever crashes meanwhile.
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
