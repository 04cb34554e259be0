"""One run of the simulation: a cluster and its clients, first with faults, then without; no task may be lost."""

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from random import Random
from typing import Any, TypeVar

import structlog

from fairlead.core.partitions import TaskQueueId, TaskType
from fairlead.matching.engine import NotOwner
from fairlead.matching.messages import NotARoot, ScalerIsOn, StaleConfig
from fairlead.matching.partition.task_writer import AppendQueueFull
from fairlead.rpc.hosts.wire import Errors
from fairlead.settings import Plain
from fairlead.simulations.virtual_loop import Process, VirtualLoop, run
from fairlead.storage.tasks import LeaseLost, OutcomeUnknown, QueueId, StoreUnavailable
from tests.simulators.matching.chaos import Chaos
from tests.simulators.matching.checks import Checks
from tests.simulators.matching.clients import Operator, Producer, Worker
from tests.simulators.matching.cluster import Cluster
from tests.simulators.matching.history import History
from tests.simulators.matching.network import SimNetwork, running_loop
from tests.simulators.matching.plants import PLANTS
from tests.simulators.matching.settings import draw_settings
from tests.simulators.matching.store import SeededFaults, WatchedStore
from tests.simulators.matching.transcript import Transcript

# Errors that keep their class between hosts.
ERRORS = (StaleConfig, ScalerIsOn, NotARoot, NotOwner, AppendQueueFull, StoreUnavailable, OutcomeUnknown, LeaseLost)
TASK_QUEUE = TaskQueueId("shop", "orders", TaskType.ACTIVITY)
ROOT = QueueId(*TASK_QUEUE)
CHAOS_S_MIN, CHAOS_S_MAX = 10.0, 25.0
TASKS_MAX = 200
# Settings after the last fault: nothing slows the drain down.
PEACE_SETTINGS: dict[str, Plain] = {
    "matching.fairnessKeyRps": 0.0,
    "matching.enableAdaptiveScaler": False,
    "matching.enableGetNumberOfPartitionsFromCache": True,
    "matching.forwarderMaxOutstandingPolls": 1,
    "matching.forwarderMaxOutstandingPollsDown": 1000,
}
# Seconds without progress, after the last fault, until the remaining tasks count as lost: enough for a few deletes, by
# which an owner notices that it has lost its lease.
DRAIN_QUIET_S_MAX = 60.0
# Seconds after the last fault until all hosts know the owners of all partitions.
SETTLE_S = 8.0
# Seconds after a rate change until tasks that were in flight at the change are started.
RATE_CHANGE_S = 0.5
# Seconds until the workers' last polls are over.
WORKERS_END_S = 8.0
# Seconds until a lost push of the configuration is retried.
LOST_PUSH_S = 4.0

Response = TypeVar("Response")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one seed."""

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
        """The command that runs this seed again."""
        plant = f" --plant {self.plant}" if self.plant else ""
        return f"python -m tests.simulators.matching --seed {self.seed}{plant}"

    def report(self) -> str:
        """All violations, and the command to see them again."""
        return "\n".join([*self.violations, f"replay: {self.replay}"])


def is_shrinking(seed: int) -> bool:
    """Whether partitions are added and removed all the time in this run."""
    return seed % 5 == 4


def is_careless(seed: int) -> bool:
    """Whether partitions are removed by force and stored counts are lost: tasks may wait in uncounted partitions."""
    return seed % 5 == 2


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
        except Exception as error:  # noqa: BLE001 - any error is reported with the seed
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
    """All parts of one run."""

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
        # In some runs partitions are added and removed all the time, with few other faults.
        self._is_shrinking = is_shrinking(seed)
        self._is_scaler_on = not self._is_shrinking and shape.random() < 0.4
        self.checks.is_careless = is_careless(seed)
        self._losses = self._random("losses")
        settings = draw_settings(shape, is_scaler_on=self._is_scaler_on)
        self.checks.expect(settings)
        self._chaos_s = shape.uniform(CHAOS_S_MIN, CHAOS_S_MAX)
        self._workers_count = 8 if self._is_shrinking else shape.choice([1, 3, 8])
        self._producers_count = shape.choice([1, 2])
        # Tasks per second during the drain; 0 means unlimited.
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
        """Run all steps from the first start to the last check."""
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
            lose_counts=self._lose_counts if self.checks.is_careless else None,
        )
        await chaos.run(self._chaos_s)
        self.transcript.note("world", "the faults end")
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
            self.checks.check_rate(self._peace_rate_per_s, since_s=since_s, leases=self.checks.leases - leases)
        await self._check_partitions()
        for worker in workers:
            worker.is_stopped = True
        await asyncio.sleep(WORKERS_END_S)
        await self._end_with_one_partition(operator)
        self.checks.finish()

    async def _end_with_one_partition(self, operator: Operator) -> None:
        """Remove all partitions but the root. They are empty, but during the first attempt the network is cut."""
        operator.is_stopped = False
        for one, other in combinations(self._cluster.names, 2):
            self._network.cut(one, other)
        await self._run(operator.process, operator.lower(1, tries=1), "lower")
        self._network.mend_all()
        await asyncio.sleep(LOST_PUSH_S)
        if not await self._run(operator.process, operator.lower(1, tries=100), "lower"):
            self.transcript.violate("operator", "could not remove the partitions, although all of them are empty")

    async def _drain(self) -> None:
        """Wait until all tasks are started, or nothing changes any more."""
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

    async def _check_partitions(self) -> None:
        """Check that all read partitions use the stored configuration, and that their counts agree with the store."""
        _, _, operator = await self._cluster.client("auditor")
        description = await operator.describe(TASK_QUEUE, with_drain=True, timeout_s=10.0)
        self.checks.described(description, self._store.config(ROOT))

    def _lose_counts(self) -> None:
        """Lose the stored counts, or restore those of an older copy."""
        config = self._store.lose_config(ROOT, self._losses)
        self.transcript.note("store", f"loses the counts of {ROOT.name}, and now has {config}")

    async def _producer(self, number: int) -> Producer:
        name = f"p{number}"
        process, client, _ = await self._cluster.client(name)
        producer = Producer(
            name, client, TASK_QUEUE, self.history, self.transcript, self._random(name), tasks_max=TASKS_MAX
        )
        self._run(process, producer.run(), name)
        return producer

    async def _worker(self, number: int) -> Worker:
        name = f"w{number}"
        process, client, _ = await self._cluster.client(name)
        worker = Worker(name, client, TASK_QUEUE, self.history, self.transcript, self._random(name))
        self._run(process, worker.run(), name)
        return worker

    async def _operator(self) -> Operator:
        process, _, client = await self._cluster.client("operator")
        return Operator(
            process,
            client,
            TASK_QUEUE,
            self.transcript,
            self._random("operator"),
            is_busy=self._is_shrinking,
            is_careless=self.checks.is_careless,
        )

    def _run(self, process: Process, work: Coroutine[Any, Any, Response], name: str) -> asyncio.Task[Response]:
        return running_loop().spawn(process, work, name)

    def summary(self) -> str:
        """Counts of events in the run, to see that enough happened."""
        history, checks = self.history, self.checks
        return (
            f"{len(history.acknowledged)} acknowledged, {len(history.started)} started, {len(history.delivered)} "
            f"delivered, {checks.configs} configs, {checks.forwarded_tasks} tasks and {checks.forwarded_polls} polls "
            f"forwarded, {checks.polls_sent_down} polls sent down, {checks.stored} stored"
        )

    def _random(self, name: str) -> Random:
        """A separate random generator for each part, so that a change of one part does not change the others."""
        return Random(f"{self._seed} {name}")


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@contextmanager
def _caught_logs() -> Iterator[list[str]]:
    """Collect the errors that services log: each counts as a failure."""
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
