"""A fake history service: starts each task at most once, and records the tasks acknowledged, started and delivered."""

import asyncio
from random import Random

from fairlead.matching.task_starter import NotStarted
from fairlead.rpc.hosts.caller import CallLost
from tests.simulators.matching.store import apart
from tests.simulators.matching.transcript import Transcript

DELAY_S_MIN, DELAY_S_MAX = 0.0005, 0.01
SLOW_S_MAX = 1.5


class History:
    """A fake history service that all hosts reach over a separate network.

    `refused` is the share of starts that are rejected for now, `lost` the share whose response is lost, `slow` the
    share that takes long.
    """

    def __init__(self, random: Random, transcript: Transcript) -> None:
        self._random = random
        self._transcript = transcript
        self._is_over = False
        self.trouble()
        # The time of each task's first acknowledgement to a producer, of its start, and of its delivery to a worker.
        self.acknowledged: dict[str, float] = {}
        self.started: dict[str, float] = {}
        self.delivered: dict[str, float] = {}
        # Whether the faults are over: then no response is lost and no worker leaves, so every started task must be
        # delivered.
        self.is_at_peace = False
        self.started_at_peace: list[str] = []

    def stop(self) -> None:
        """End the run: all further calls fail at once."""
        self._is_over = True

    async def start(self, payload: bytes, identity: str, _worker: bytes) -> bytes | NotStarted:
        """See `fairlead.matching.task_starter.Starter`."""
        if self._is_over:
            raise CallLost("the simulation is over")
        outcome: bytes | NotStarted = await apart(self._start(payload.decode(), identity), "history.start")
        return outcome

    async def _start(self, task: str, identity: str) -> bytes | NotStarted:
        await asyncio.sleep(self._draw_delay_s())
        outcome = self._decide(task, identity)
        is_lost = self._lost > 0 and self._random.random() < self._lost
        await asyncio.sleep(self._draw_delay_s())
        if is_lost:
            self._transcript.note("history", f"the response to {identity} about {task} is lost")
            raise CallLost(f"start of {task}: simulated")
        return outcome

    def trouble(self, *, refused: float = 0.0, lost: float = 0.0, slow: float = 0.0) -> None:
        """Set the shares of starts that fail from now on."""
        self._refused, self._lost, self._slow = refused, lost, slow

    def _draw_delay_s(self) -> float:
        delay_s = self._random.uniform(DELAY_S_MIN, DELAY_S_MAX)
        if self._slow > 0 and self._random.random() < self._slow:
            delay_s += self._random.uniform(0.0, SLOW_S_MAX)
        return delay_s

    def _decide(self, task: str, identity: str) -> bytes | NotStarted:
        if task in self.started:
            self._transcript.note("history", f"start of {task} by {identity}: gone")
            return NotStarted.GONE
        if self._refused > 0 and self._random.random() < self._refused:
            self._transcript.note("history", f"start of {task} by {identity}: refused")
            return NotStarted.REFUSED
        if self.is_at_peace:
            self.started_at_peace.append(task)
        self.started[task] = asyncio.get_running_loop().time()
        self._transcript.note("history", f"start of {task} by {identity}: started")
        return task.encode()

    def acknowledge(self, task: str, producer: str, *, is_started: bool) -> None:
        """A producer got the response that the task is stored or started."""
        self.acknowledged.setdefault(task, asyncio.get_running_loop().time())
        self._transcript.note(producer, f"{task} is acknowledged" + (" as started" if is_started else ""))
        if is_started and task not in self.started:
            self._transcript.violate(producer, f"got the response that {task} is started, but it is not")

    def deliver(self, task: str, worker: str) -> None:
        """A worker got the task."""
        now_s = asyncio.get_running_loop().time()
        if task not in self.started:
            self._transcript.violate(worker, f"got {task} , which was never started")
        if task in self.delivered:
            self._transcript.violate(worker, f"got {task} , which another worker got before")
        self.delivered.setdefault(task, now_s)
        self._transcript.note(worker, f"got {task}")
