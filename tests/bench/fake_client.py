"""A small fake of the matching client with known behaviour, so that the measurements are known in advance."""

import asyncio
from collections import deque
from dataclasses import dataclass

from fairlead.core.errors import RetryLater
from fairlead.core.partitions import PartitionConfig, TaskQueueId
from fairlead.matching.messages import AddResponse, BacklogReport, NewTask, PollResponse


class Refused(RetryLater):
    """An add or poll that the fake rejects."""


@dataclass
class FakeBehaviour:
    """Faults of the fake, by the number of the add (from 0), and the time that an add takes."""

    add_s: float = 0.0
    stall_at_s: float | None = None
    stall_s: float = 0.0
    lose: frozenset[int] = frozenset()
    repeat: frozenset[int] = frozenset()
    refuse: frozenset[int] = frozenset()
    refuse_but_keep: frozenset[int] = frozenset()
    refuse_polls: int = 0
    foreign: tuple[bytes, ...] = ()


class FakeClient:
    """Keeps tasks in order; a poll takes the first, or waits. Adds during the stall wait until it ends."""

    def __init__(self, behaviour: FakeBehaviour | None = None) -> None:
        self.behaviour = behaviour or FakeBehaviour()
        self.tasks: deque[bytes] = deque(self.behaviour.foreign)
        self.added: list[NewTask] = []
        self.adds_before_first_poll: int | None = None
        self.polls_in_flight_max = self._polls_in_flight = 0
        self.adds_in_flight_max = self._adds_in_flight = 0
        self.config = PartitionConfig(version=1, read=2, write=2)
        self._arrived = asyncio.Condition()
        self._begun_s = asyncio.get_running_loop().time()
        self._poll_refusals_left = self.behaviour.refuse_polls

    async def add(self, task_queue: TaskQueueId, task: NewTask, *, timeout_s: float) -> AddResponse:
        number = len(self.added)
        self.added.append(task)
        self._adds_in_flight += 1
        self.adds_in_flight_max = max(self.adds_in_flight_max, self._adds_in_flight)
        try:
            await asyncio.sleep(self._pause_s())
        finally:
            self._adds_in_flight -= 1
        does = self.behaviour
        if number in does.refuse:
            raise Refused(f"add {number}")
        if number not in does.lose:
            async with self._arrived:
                self.tasks.extend([task.payload] * (2 if number in does.repeat else 1))
                self._arrived.notify_all()
        if number in does.refuse_but_keep:
            raise Refused(f"add {number}")
        return AddResponse(is_started=number % 4 == 0, config=self.config, was_forwarded=number % 2 == 0)

    async def poll(self, task_queue: TaskQueueId, identity: str, *, timeout_s: float) -> PollResponse:
        if self.adds_before_first_poll is None:
            self.adds_before_first_poll = len(self.added)
        if self._poll_refusals_left:
            self._poll_refusals_left -= 1
            raise Refused("poll")
        self._polls_in_flight += 1
        self.polls_in_flight_max = max(self.polls_in_flight_max, self._polls_in_flight)
        try:
            async with asyncio.timeout(timeout_s), self._arrived:
                await self._arrived.wait_for(lambda: bool(self.tasks))
                payload = self.tasks.popleft()
        except TimeoutError:
            return PollResponse(None, self.config, _report())
        finally:
            self._polls_in_flight -= 1
        return PollResponse(payload, self.config, _report())

    def _pause_s(self) -> float:
        does, now_s = self.behaviour, asyncio.get_running_loop().time()
        if does.stall_at_s is None:
            return does.add_s
        begins_s = self._begun_s + does.stall_at_s
        ends_s = begins_s + does.stall_s
        return does.add_s + (ends_s - now_s if begins_s <= now_s < ends_s else 0.0)


def _report() -> BacklogReport:
    return BacklogReport(partition=1, tasks=0, age_s=0.0, adds_per_s=0.0, wait_s=0.0)
