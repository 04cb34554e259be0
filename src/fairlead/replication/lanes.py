"""Tasks that have come and are being taken in: in order within a workflow id, in parallel across, so many at a time."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from fairlead.history.stream_messages import ReplicationTask

# Tasks of one stream that may have come and not be done.
TASKS_MAX = 2_000
# What a task is counted with beside its events.
TASK_BYTES = 500
# Tasks of one run that are done together, and the bytes of them.
TOGETHER_MAX = 50
TOGETHER_BYTES_MAX = 256 << 10


class Room:
    """What all streams of a host together may hold in memory, and have under way."""

    def __init__(self, *, bytes_max: int, calls_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self.calls = asyncio.Semaphore(calls_max)
        self._has_room = asyncio.Event()
        self._has_room.set()

    def take(self, size: int) -> None:
        """So much more is held."""
        self.bytes += size
        if self.bytes >= self.bytes_max:
            self._has_room.clear()

    def give_back(self, size: int) -> None:
        """So much less."""
        self.bytes -= size
        if self.bytes < self.bytes_max:
            self._has_room.set()

    async def wait(self) -> None:
        """Until there is room for more."""
        await self._has_room.wait()


@dataclass(frozen=True, slots=True)
class Received:
    """A task, and when it was written: by this host's own running clock, whatever the clocks of the clusters say."""

    task: ReplicationTask
    written_s: float

    @property
    def size(self) -> int:
        """What it is counted with."""
        return len(self.task.events) + TASK_BYTES


class Lanes:
    """The tasks of one stream that have come and are not done."""

    def __init__(self, do: Callable[[Sequence[Received]], Awaitable[None]], *, room: Room) -> None:
        """`do` carries out tasks of one run that follow each other, to their end or to dead letters; it never fails."""
        self._do = do
        self._room = room
        # In the order of their ids.
        self._outstanding: dict[int, Received] = {}
        self._lanes: dict[tuple[str, str], deque[Received]] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._is_less = asyncio.Event()

    def __len__(self) -> int:
        return len(self._outstanding)

    @property
    def first(self) -> Received | None:
        """The one with the lowest id that is not done."""
        return next(iter(self._outstanding.values()), None)

    def add(self, received: Received) -> None:
        """Have a task done after those of the same workflow id that came before it."""
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
        """Until fewer than so many are left."""
        while len(self._outstanding) >= count:
            self._is_less.clear()
            await self._is_less.wait()

    async def close(self) -> None:
        """Give up what is left."""
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
