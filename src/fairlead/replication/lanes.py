"""Applies received tasks: in order within a workflow id, in parallel across workflow ids, within limits."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from fairlead.history.messages.stream import ReplicationTask

# Number of tasks of one stream that are received and not applied.
TASKS_MAX = 2_000
# Bytes that a task counts in addition to its events.
TASK_BYTES = 500
# Number and bytes of tasks of one run that are applied together.
TOGETHER_MAX = 50
TOGETHER_BYTES_MAX = 256 << 10


class Room:
    """Limits that all streams of a host share: bytes in memory, and calls in flight."""

    def __init__(self, *, bytes_max: int, calls_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self.calls = asyncio.Semaphore(calls_max)
        self._has_room = asyncio.Event()
        self._has_room.set()

    def take(self, size: int) -> None:
        """Add bytes that are held in memory."""
        self.bytes += size
        if self.bytes >= self.bytes_max:
            self._has_room.clear()

    def give_back(self, size: int) -> None:
        """Release bytes."""
        self.bytes -= size
        if self.bytes < self.bytes_max:
            self._has_room.set()

    async def wait(self) -> None:
        """Wait until there is room for more."""
        await self._has_room.wait()


@dataclass(frozen=True, slots=True)
class Received:
    """A task, and the time at which it was written, on this host's monotonic clock: the clusters' clocks may differ."""

    task: ReplicationTask
    written_s: float

    @property
    def size(self) -> int:
        """Bytes of the task that count against the limit."""
        return len(self.task.events) + TASK_BYTES


class Lanes:
    """The tasks of one stream that are received and not applied."""

    def __init__(self, do: Callable[[Sequence[Received]], Awaitable[None]], *, room: Room) -> None:
        """`do` applies consecutive tasks of one run. It never raises: it makes a dead letter of a task that can't be
        applied.
        """
        self._do = do
        self._room = room
        # Sorted by task id.
        self._outstanding: dict[int, Received] = {}
        self._lanes: dict[tuple[str, str], deque[Received]] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._is_less = asyncio.Event()

    def __len__(self) -> int:
        return len(self._outstanding)

    @property
    def first(self) -> Received | None:
        """The task with the lowest id that is not applied."""
        return next(iter(self._outstanding.values()), None)

    def add(self, received: Received) -> None:
        """Apply a task after the earlier ones of the same workflow id."""
        task = received.task
        key = (task.namespace_id, task.workflow_id)
        self._outstanding[task.task_id] = received
        self._room.take(received.size)
        lane = self._lanes.get(key)
        if lane is not None:
            lane.append(received)
            return
        self._lanes[key] = deque((received,))
        running = asyncio.get_running_loop().create_task(self._run(key))
        self._running.add(running)
        running.add_done_callback(self._running.discard)

    async def wait_below(self, count: int) -> None:
        """Wait until fewer than `count` tasks are left."""
        while len(self._outstanding) >= count:
            self._is_less.clear()
            await self._is_less.wait()

    async def close(self) -> None:
        """Drop the remaining tasks."""
        for running in self._running:
            running.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        self._room.give_back(sum(received.size for received in self._outstanding.values()))
        self._outstanding.clear()
        self._lanes.clear()

    async def _run(self, key: tuple[str, str]) -> None:
        lane = self._lanes[key]
        while lane:
            together = _first_of_a_run(lane)
            await self._do(together)
            for received in together:
                lane.popleft()
                del self._outstanding[received.task.task_id]
                self._room.give_back(received.size)
            self._is_less.set()
        del self._lanes[key]


def _first_of_a_run(lane: Iterable[Received]) -> list[Received]:
    found: list[Received] = []
    size = 0
    for received in lane:
        size += received.size
        if found and (
            received.task.run_id != found[0].task.run_id or size > TOGETHER_BYTES_MAX or len(found) >= TOGETHER_MAX
        ):
            break
        found.append(received)
    return found
