"""The clients of a simulated cluster: producers that add tasks, workers that poll, and an operator."""

import asyncio
from dataclasses import dataclass
from random import Random

from fairlead.core.errors import FairleadError
from fairlead.core.partitions import PartitionConfig, TaskQueueId
from fairlead.matching.client import MatchingClient
from fairlead.matching.messages import NewTask
from fairlead.matching.operator_client import OperatorClient
from fairlead.simulations.virtual_loop import Process
from tests.simulators.matching.history import History
from tests.simulators.matching.transcript import Transcript

ADDS_AT_ONCE_MAX = 60
PARTITIONS_MAX = 5


@dataclass(slots=True)
class Producer:
    """Adds tasks in waves; sometimes adds a task again after a failure, although the server may have stored it."""

    name: str
    client: MatchingClient
    task_queue: TaskQueueId
    history: History
    transcript: Transcript
    random: Random
    tasks_max: int
    is_stopped: bool = False

    async def run(self) -> None:
        """Add tasks until `tasks_max` or `is_stopped`; then wait for the responses."""
        async with asyncio.TaskGroup() as adds:
            gate = asyncio.Semaphore(ADDS_AT_ONCE_MAX)
            per_s = self._draw_rate()
            for number in range(self.tasks_max):
                if self.random.random() < 0.05:
                    per_s = self._draw_rate()
                await asyncio.sleep(self.random.expovariate(per_s))
                await gate.acquire()
                if self.is_stopped:
                    return
                adding = adds.create_task(self._add(f"{self.name}.{number}"))
                adding.add_done_callback(lambda _: gate.release())

    def _draw_rate(self) -> float:
        return self.random.choice([3.0, 8.0, 15.0, 40.0])

    async def _add(self, name: str) -> None:
        task = NewTask(
            priority=self.random.choice([3, 3, 3, 1, 5]),
            fairness_key=self.random.choice(["", "a", "a", "a", f"k{self.random.randrange(20)}"]),
            weight=self.random.choice([1.0, 1.0, 0.5, 10.0]),
            payload=name.encode(),
            created_s=1_700_000_000.0,
        )
        while not self.is_stopped:
            try:
                answer = await self.client.add(self.task_queue, task, timeout_s=self.random.choice([1.0, 5.0, 10.0]))
            except FairleadError as failure:
                self.transcript.note(self.name, f"failed to add {name} : {type(failure).__name__} {failure}")
                if self.random.random() < 0.5:
                    return
            else:
                self.history.acknowledge(name, f"{self.name}", is_started=answer.is_started)
                if self.random.random() > 0.02:
                    return
            await asyncio.sleep(self.random.uniform(0.1, 3.0))


@dataclass(slots=True)
class Worker:
    """Polls for one task at a time, with pauses; cancels some of its polls."""

    name: str
    client: MatchingClient
    task_queue: TaskQueueId
    history: History
    transcript: Transcript
    random: Random
    is_restless: bool = True
    is_paused: bool = False
    is_stopped: bool = False
    polls: int = 0

    async def run(self) -> None:
        """Poll until `is_stopped`."""
        while not self.is_stopped:
            if self.is_paused:
                await asyncio.sleep(0.2)
                continue
            task = await self._poll()
            if task is not None:
                self.history.deliver(task.decode(), self.name)
                await asyncio.sleep(self.random.expovariate(50.0))

    async def _poll(self) -> bytes | None:
        self.polls += 1
        identity = f"{self.name}:{self.polls}"
        timeout_s = self.random.choice([0.2, 2.0, 5.0]) if self.is_restless else 5.0
        patience_s = self.random.uniform(0.0, 1.0) if self.is_restless and self.random.random() < 0.1 else None
        try:
            async with asyncio.timeout(patience_s):
                answer = await self.client.poll(self.task_queue, identity, timeout_s=timeout_s)
        except TimeoutError:
            self.transcript.note(self.name, f"gave up {identity}")
            return None
        except FairleadError as failure:
            self.transcript.note(self.name, f"failed to poll as {identity}: {type(failure).__name__} {failure}")
            await asyncio.sleep(0.05)
            return None
        return answer.task


@dataclass(slots=True)
class Operator:
    """Changes the number of partitions as an operator: up in one step, down in two phases."""

    process: Process
    client: OperatorClient
    task_queue: TaskQueueId
    transcript: Transcript
    random: Random
    is_busy: bool
    is_careless: bool = False
    is_stopped: bool = False

    async def run(self) -> None:
        """Change the number of partitions at random times, until `is_stopped`."""
        while not self.is_stopped:
            await asyncio.sleep(self.random.uniform(0.1, 0.5 if self.is_busy else 2.0))
            config = await self._describe()
            if config is None:
                continue
            if self.is_careless and config.read > 1 and self.random.random() < 0.5:
                count = self.random.randint(1, config.read)
                await self._update(read=count, write=count, force=True)
            elif config.read > 1 and self.random.random() < 0.6:
                await self.lower(self.random.randint(1, config.write), tries=self.random.randint(1, 20))
            else:
                count = self.random.randint(config.write, max(config.write, PARTITIONS_MAX))
                await self._update(read=max(count, config.read), write=count)

    async def lower(self, count: int, *, tries: int) -> bool:
        """Lower the number of partitions to `count`: first write, then read, with up to `tries` attempts."""
        config = await self._describe()
        if config is None or not await self._update(read=config.read, write=min(count, config.write)):
            return False
        for _ in range(tries):
            if self.is_stopped:
                return False
            if await self._update(read=count, write=count):
                return True
            await asyncio.sleep(self.random.uniform(0.0, 0.3))
        return False

    async def _describe(self) -> PartitionConfig | None:
        try:
            return (await self.client.explain(self.task_queue, timeout_s=3.0)).config
        except FairleadError as failure:
            self.transcript.note("operator", f"failed to describe: {type(failure).__name__} {failure}")
            return None

    async def _update(self, *, read: int, write: int, force: bool = False) -> bool:
        try:
            answer = await self.client.update(self.task_queue, read=read, write=write, force=force, timeout_s=5.0)
        except FairleadError as failure:
            self.transcript.note("operator", f"failed to set {read}/{write}: {type(failure).__name__} {failure}")
            return False
        self.transcript.note("operator", f"{answer.before} is now {answer.after}")
        return True
