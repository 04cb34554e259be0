"""One run of the simulation: a cluster with its users in trouble, then at peace, and what has become of the tasks."""

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from random import Random
from typing import Any, TypeVar

import structlog

from fairlead.cluster.wire import Errors
from fairlead.core.partitions import TaskList, TaskType
from fairlead.matching.backlog import AppendQueueFull
from fairlead.matching.engine import NotOwner
from fairlead.matching.messages import NotARoot, ScalerIsOn, StaleConfig
from fairlead.settings import Plain
from fairlead.storage.contract import LeaseLost, OutcomeUnknown, QueueId, StoreUnavailable
from tests.simulation.chaos import Chaos
from tests.simulation.checks import Checks
from tests.simulation.clients import Operator, Producer, Worker
from tests.simulation.cluster import Cluster
from tests.simulation.history import History
from tests.simulation.network import SimNetwork, running_loop
from tests.simulation.plants import PLANTS
from tests.simulation.settings import draw_settings
from tests.simulation.store import SeededFaults, WatchedStore
from tests.simulation.transcript import Transcript
from tests.simulation.virtual_loop import Process, VirtualLoop, run

# Those that cross between hosts as what they are.
ERRORS = (StaleConfig, ScalerIsOn, NotARoot, NotOwner, AppendQueueFull, StoreUnavailable, OutcomeUnknown, LeaseLost)
TASK_LIST = TaskList("shop", "orders", TaskType.ACTIVITY)
ROOT = QueueId(*TASK_LIST)
CHAOS_S_MIN, CHAOS_S_MAX = 10.0, 25.0
TASKS_MAX = 200
# Nothing that slows the drain down.
PEACE_SETTINGS: dict[str, Plain] = {
    "matching.fairnessKeyRps": 0.0,
    "matching.enableAdaptiveScaler": False,
    "matching.forwarderMaxOutstandingPolls": 1,
    "matching.forwarderMaxOutstandingPollsDown": 1000,
}
# When all is well again, so long may pass without any progress before what is left counts as lost: a few deletes, by
# which an owner that has lost its lease notices it.
DRAIN_QUIET_S_MAX = 60.0
# After the last trouble, so long until everybody knows who owns what.
SETTLE_S = 8.0
# What was on its way when the rate changed has been started by then.
RATE_CHANGE_S = 0.5
# The last polls are over by then.
WORKERS_END_S = 8.0
# A push that was lost is made again within so long.
LOST_PUSH_S = 4.0

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one seed."""

    seed: int
    plant: str | None
    violations: tuple[str, ...]
    transcript: tuple[str, ...]
    digest: str
    virtual_s: float
    steps: int
    acknowledged: int
    summary: str

    @property
    def replay(self) -> str:
        """The command that runs the same again."""
        plant = f" --plant {self.plant}" if self.plant else ""
        return f"python -m tests.simulation --seed {self.seed}{plant}"

    def report(self) -> str:
        """All that is wrong, and how to see it again."""
        return "\n".join([*self.violations, f"replay: {self.replay}"])


def is_shrinking(seed: int) -> bool:
    """Whether this is one of the runs in which partitions come and go all the time."""
    return seed % 5 == 4


def simulate(seed: int, plant: str | None = None) -> Outcome:
    """Run one seed to its end, with a bug planted or without."""
    is_shuffled = Random(f"{seed} loop").random() < 0.8
    order = Random(f"{seed} order") if is_shuffled else None
    with PLANTS[plant]() if plant else _nothing(), _caught_logs() as logged:
        world = World(seed)
        crash: list[str] = []
        loop: VirtualLoop | None = None
        try:
            _, loop = run(world.run(), order=order)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told with the seed
            crash = [f"the run ended with {type(error).__name__}: {error}"]
    violations = [*world.transcript.violations, *crash, *(loop.failures if loop else []), *logged]
    return Outcome(
        seed=seed,
        plant=plant,
        violations=tuple(violations),
        transcript=tuple(world.transcript),
        digest=world.transcript.digest(),
        virtual_s=world.ended_s,
        steps=loop.steps if loop else 0,
        acknowledged=len(world.history.acknowledged),
        summary=world.summary(),
    )


class World:
    """Everything there is in one run."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._loop: VirtualLoop | None = None
        self.ended_s = 0.0
        self.transcript = Transcript(lambda: 0.0 if self._loop is None else self._loop.time())
        self.history = History(self._random("history"), self.transcript)
        self.checks = Checks(self.transcript, self.history)
        self._faults = SeededFaults(self._random("store"), self.transcript)
        self._store = WatchedStore(self._faults, self.checks)
        self.checks.store = self._store
        self._network = SimNetwork(self._random("network"), self.transcript, Errors(ERRORS))
        self._network.watch_sent = self.checks.call_sent
        self._network.watch_ended = self.checks.call_ended
        shape = self._random("shape")
        # In some runs partitions come and go all the time, and little else happens.
        self._is_shrinking = is_shrinking(seed)
        self._is_scaler_on = not self._is_shrinking and shape.random() < 0.4
        settings = draw_settings(shape, is_scaler_on=self._is_scaler_on)
        self.checks.expect(settings)
        self._chaos_s = shape.uniform(CHAOS_S_MIN, CHAOS_S_MAX)
        self._workers_count = 8 if self._is_shrinking else shape.choice([1, 3, 8])
        self._producers_count = shape.choice([1, 2])
        # 0: as fast as they can.
        self._peace_rate_per_s = shape.choice([0.0, 0.0, 20.0])
        self._cluster = Cluster(
            [f"10.0.0.{number}:7240" for number in range(1, shape.choice([2, 3, 4, 5]) + 1)],
            store=self._store,
            watch=self.checks,
            network=self._network,
            history=self.history,
            transcript=self.transcript,
            random=self._random("cluster"),
            overrides=settings,
        )
        self.transcript.note("world", f"seed {seed}: {settings}")

    async def run(self) -> None:
        """From the first start to the last check."""
        self._loop = running_loop()
        try:
            await self._live()
        finally:
            self.ended_s = self._loop.time()
            self._cluster.end()
            self._network.stop()
            self.history.stop()

    async def _live(self) -> None:
        await asyncio.gather(*(self._cluster.start(name) for name in self._cluster.names))
        producers = [await self._producer(number) for number in range(self._producers_count)]
        workers = [await self._worker(number) for number in range(self._workers_count)]
        operator = await self._operator()
        if not self._is_scaler_on:
            self._run(operator.process, operator.run(), "operator")
        chaos = Chaos(
            self._cluster,
            network=self._network,
            faults=self._faults,
            history=self.history,
            workers=workers,
            transcript=self.transcript,
            random=self._random("chaos"),
            is_shrinking=self._is_shrinking,
        )
        await chaos.run(self._chaos_s)
        self.transcript.note("world", "peace")
        for producer in producers:
            producer.is_stopped = True
        operator.is_stopped = True
        self._cluster.change_settings(PEACE_SETTINGS | {"matching.overrideTaskListRps": self._peace_rate_per_s})
        peace_s, leases = running_loop().time(), self.checks.leases
        for name in self._cluster.down:
            await self._cluster.start(name)
        for worker in workers:
            worker.is_restless = worker.is_paused = False
        await asyncio.sleep(SETTLE_S)
        self.history.is_at_peace = True
        await self._drain()
        if self._peace_rate_per_s:
            since_s = peace_s + RATE_CHANGE_S
            self.checks.kept_rate(self._peace_rate_per_s, since_s=since_s, leases=self.checks.leases - leases)
        await self._look_at_partitions()
        for worker in workers:
            worker.is_stopped = True
        await asyncio.sleep(WORKERS_END_S)
        await self._end_with_one_partition(operator)
        self.checks.finish()

    async def _end_with_one_partition(self, operator: Operator) -> None:
        """All is empty: now every partition but the root can be removed, though the first to be told hear nothing."""
        operator.is_stopped = False
        for one, other in combinations(self._cluster.names, 2):
            self._network.cut(one, other)
        await self._run(operator.process, operator.lower(1, tries=1), "lower")
        self._network.mend_all()
        await asyncio.sleep(LOST_PUSH_S)
        if not await self._run(operator.process, operator.lower(1, tries=100), "lower"):
            self.transcript.violate("operator", "could not remove the partitions, though all of them are empty")

    async def _drain(self) -> None:
        """Wait until all is started, or nothing happens any more."""
        loop = running_loop()
        reached, since_s = (-1, -1), loop.time()
        while loop.time() - since_s < DRAIN_QUIET_S_MAX:
            stored = sum(len(self._store.stored(queue)) for queue in self._store.queues)
            if (len(self.history.started), stored) != reached:
                reached, since_s = (len(self.history.started), stored), loop.time()
            is_done = self.history.acknowledged.keys() <= self.history.started.keys()
            if is_done and not stored and loop.time() - since_s > 2.0:
                return
            await asyncio.sleep(1.0)

    async def _look_at_partitions(self) -> None:
        """All partitions that are read know the configuration that is stored, and count what the store holds."""
        _, _, operator = await self._cluster.client("auditor")
        description = await operator.describe(TASK_LIST, with_drain=True, timeout_s=10.0)
        self.checks.described(description, self._store.config(ROOT))

    async def _producer(self, number: int) -> Producer:
        name = f"p{number}"
        process, client, _ = await self._cluster.client(name)
        producer = Producer(
            name, client, TASK_LIST, self.history, self.transcript, self._random(name), tasks_max=TASKS_MAX
        )
        self._run(process, producer.run(), name)
        return producer

    async def _worker(self, number: int) -> Worker:
        name = f"w{number}"
        process, client, _ = await self._cluster.client(name)
        worker = Worker(name, client, TASK_LIST, self.history, self.transcript, self._random(name))
        self._run(process, worker.run(), name)
        return worker

    async def _operator(self) -> Operator:
        process, _, client = await self._cluster.client("operator")
        return Operator(
            process, client, TASK_LIST, self.transcript, self._random("operator"), is_busy=self._is_shrinking
        )

    def _run(self, process: Process, work: Coroutine[Any, Any, Answer], name: str) -> asyncio.Task[Answer]:
        return running_loop().spawn(process, work, name)

    def summary(self) -> str:
        """What happened in numbers, to see that enough does."""
        history, checks = self.history, self.checks
        return (
            f"{len(history.acknowledged)} acknowledged, {len(history.started)} started, {len(history.delivered)} "
            f"delivered, {checks.configs} configs, {checks.forwarded_tasks} tasks and {checks.forwarded_polls} polls "
            f"forwarded, {checks.polls_sent_down} polls sent down, {checks.stored} stored"
        )

    def _random(self, name: str) -> Random:
        """Randomness of its own for each part, so that a change of one does not change all others at once."""
        return Random(f"{self._seed} {name}")


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@contextmanager
def _caught_logs() -> Iterator[list[str]]:
    """An error that a service logs is one that should not happen: it counts."""
    errors: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            errors.append(f"logged: {self.format(record)}")

    collect = Collect(logging.ERROR)
    logging.getLogger("fairlead").addHandler(collect)
    try:
        with structlog.testing.capture_logs() as logs:
            yield errors
        errors += [f"logged: {entry}" for entry in logs if entry["log_level"] in {"error", "critical"}]
    finally:
        logging.getLogger("fairlead").removeHandler(collect)
