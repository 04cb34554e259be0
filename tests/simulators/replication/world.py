"""One run of the simulation: clusters and their users, first with faults, then without; all clusters must agree."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from fairlead.api.namespaces import Namespace
from fairlead.core.partitions import TaskType
from fairlead.core.versions import ClusterVersions
from fairlead.replication.wire import ERRORS
from fairlead.simulations.virtual_loop import Process, VirtualLoop, run
from fairlead.storage.history import OPEN_STATUSES
from tests.simulators.matching.network import SimNetwork, running_loop
from tests.simulators.matching.transcript import Transcript
from tests.simulators.matching.world import _caught_logs, _nothing
from tests.simulators.replication import convergence, judge
from tests.simulators.replication.chaos import Chaos
from tests.simulators.replication.cluster import SECOND_NS, Cluster, Life
from tests.simulators.replication.people import Client, ClientRecord, Clusters, Worker
from tests.simulators.replication.plants import PLANTS
from tests.simulators.replication.reader import Snapshot, snapshot
from tests.simulators.replication.watcher import Watching

INCREMENT = 10
CHAOS_S_MIN, CHAOS_S_MAX = 6.0, 14.0
SKEW_S_MAX = 0.5
# Seconds without changes, after the last fault, until the state counts as settled: longer than all timeouts and
# retries.
QUIET_S = 16.0
SETTLE_S_MAX = 300.0
# Seconds within which all workflows must end; each of them waits only for events that will come.
END_S_MAX = 600.0
STEPS_MAX = 1_500_000
DIFFERENCES_MAX = 12


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one seed."""

    seed: int
    clusters: int
    plant: str | None
    violations: tuple[str, ...]
    transcript: tuple[str, ...]
    digest: str
    virtual_s: float
    steps: int
    events: int
    summary: str

    @property
    def replay(self) -> str:
        """The command that runs this seed again."""
        plant = f" --plant {self.plant}" if self.plant else ""
        return f"python -m tests.simulators.replication {self.seed} --clusters {self.clusters}{plant}"

    def report(self) -> str:
        """All violations, and the command to see them again."""
        return "\n".join([*self.violations, f"replay: {self.replay}"])


def clusters_of(seed: int) -> int:
    """The number of clusters in a run: mostly three, sometimes five."""
    return 5 if seed % 10 == 4 else 3


def simulate(seed: int, *, clusters: int | None = None, plant: str | None = None) -> Outcome:
    """Run one seed to its end, with a bug planted or without."""
    clusters = clusters or clusters_of(seed)
    order = Random(f"{seed} order") if Random(f"{seed} loop").random() < 0.8 else None
    with PLANTS[plant]() if plant else _nothing(), _caught_logs() as logged:
        world = World(seed, clusters)
        crash: list[str] = []
        loop: VirtualLoop | None = None
        try:
            _, loop = run(world.run(), order=order, steps_max=STEPS_MAX)
        except Exception as error:  # noqa: BLE001 - any error is reported with the seed
            crash = [f"the run ended with {type(error).__name__}: {error}"]
    return Outcome(
        seed=seed,
        clusters=clusters,
        plant=plant,
        violations=(*world.transcript.violations, *crash, *(loop.failures if loop else []), *logged),
        transcript=tuple(world.transcript),
        digest=world.transcript.digest(),
        virtual_s=world.ended_s,
        steps=loop.steps if loop else 0,
        events=world.watching.events,
        summary=world.summary(),
    )


class World:
    """All parts of one run."""

    def __init__(self, seed: int, count: int) -> None:
        self._seed = seed
        self._loop: VirtualLoop | None = None
        self.ended_s = 0.0
        self.transcript = Transcript(lambda: 0.0 if self._loop is None else self._loop.time())
        names = [chr(ord("a") + place) for place in range(count)]
        versions = ClusterVersions(INCREMENT, {name: place + 1 for place, name in enumerate(names)})
        self.watching = Watching(self.transcript, versions)
        self.record = ClientRecord()
        self._network = SimNetwork(self._random("network"), self.transcript, ERRORS)
        self._versions = versions
        self._clusters: dict[str, Cluster] = {}
        shape = self._random("shape")
        for name in names:
            self._clusters[name] = Cluster(
                name,
                names=names,
                versions=versions,
                # The number of shards differs between clusters.
                shards=shape.choice([1, 2]),
                network=self._network,
                watch=self.watching,
                transcript=self.transcript,
                random=self._random(name),
                skew_s=shape.uniform(-SKEW_S_MAX, SKEW_S_MAX),
            )
        self._namespaces = {f"namespace-{number}": f"name-{number}" for number in range(shape.choice([1, 1, 2]))}
        self._workflow_ids = [f"w{number}" for number in range(shape.choice([2, 3, 5]))]
        self._chaos_s = shape.uniform(CHAOS_S_MIN, CHAOS_S_MAX)
        self._clients_count = shape.choice([1, 2, 3])
        self._gap_s = shape.choice([0.3, 0.6])
        self._workers: list[Worker] = []
        self._clients: list[Client] = []
        self._chaos: Chaos | None = None

    async def run(self) -> None:
        """Run all steps from the first start to the last check."""
        self._loop = running_loop()
        try:
            await self._live()
        finally:
            self.ended_s = self._loop.time()
            for cluster in self._clusters.values():
                cluster.end()
            self._network.stop()

    async def _live(self) -> None:
        for cluster in self._clusters.values():
            await cluster.start()
        await self._create_namespaces()
        self._start_users()
        self._chaos = Chaos(
            self._clusters,
            network=self._network,
            workers=self._workers,
            namespaces=list(self._namespaces.values()),
            transcript=self.transcript,
            random=self._random("chaos"),
        )
        await self._chaos.run(self._chaos_s)
        self.transcript.note("world", "the faults end")
        for client in self._clients:
            client.is_stopped = True
        for worker in self._workers:
            worker.is_paused = True
        await self._settle()
        self._compare("with workflows open")
        for worker in self._workers:
            worker.is_paused, worker.is_ending = False, True
        await self._end()
        await self._settle()
        self._compare("at the end")
        self._finish()
        for worker in self._workers:
            worker.is_stopped = True
        await asyncio.sleep(3.0)

    async def _create_namespaces(self) -> None:
        """Create each namespace in its active cluster; replication copies it to the others."""
        shape = self._random("namespaces")
        for namespace_id, name in self._namespaces.items():
            active = shape.choice(list(self._clusters))
            namespace = Namespace(
                id=namespace_id,
                name=name,
                retention_ns=30 * 86_400 * SECOND_NS,
                is_global=True,
                active_cluster=active,
                clusters=tuple(self._clusters),
                failover_version=self._versions.next_version(to=active, current=0),
                config_version=1,
            )
            await self._clusters[active].ask(partial(_create, namespace=namespace))
        for cluster in self._clusters.values():
            for namespace_id in self._namespaces:
                await cluster.ask(partial(_wait_for, namespace_id=namespace_id))

    def _start_users(self) -> None:
        outside = Clusters(self._clusters)
        for name in self._clusters:
            worker = Worker(
                f"worker-{name}", name, outside, self.transcript, self._random(f"worker {name}"), self._workflow_ids
            )
            worker.namespaces = self._namespaces
            self._workers.append(worker)
            for number in range(2):
                self._spawn(worker.run(TaskType.WORKFLOW), f"{worker.name} {number}")
            self._spawn(worker.run(TaskType.ACTIVITY), f"{worker.name} activities")
        for number in range(self._clients_count):
            client = Client(
                f"client{number}",
                outside,
                self.record,
                self.transcript,
                self._random(f"client {number}"),
                namespaces=self._namespaces,
                workflow_ids=self._workflow_ids,
                gap_s=self._gap_s,
            )
            self._clients.append(client)
            self._spawn(client.run(), f"client{number}")

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        running_loop().spawn(Process(name), work, name)

    async def _settle(self) -> None:
        """Wait until nothing changes any more."""
        loop = running_loop()
        end_s = loop.time() + SETTLE_S_MAX
        seen, since_s = self._changes(), loop.time()
        while loop.time() - since_s < QUIET_S:
            if loop.time() > end_s:
                self.transcript.violate("world", f"the state still changes {SETTLE_S_MAX:.0f} s after the last fault")
                return
            await asyncio.sleep(1.0)
            if self._changes() != seen:
                seen, since_s = self._changes(), loop.time()

    async def _end(self) -> None:
        """Wait until all workflows have ended."""
        loop = running_loop()
        end_s = loop.time() + END_S_MAX
        while loop.time() < end_s:
            if not any(_has_open_runs(cluster) for cluster in self._clusters.values()):
                return
            await asyncio.sleep(2.0)
        left = [one for cluster in self._clusters.values() for one in _open_names(cluster)]
        self.transcript.violate(
            "world", f"{END_S_MAX:.0f} s after the last fault {len(left)} runs have not ended:\n  " + "\n  ".join(left)
        )

    def _changes(self) -> tuple[int, ...]:
        return tuple(cluster.store.commits for cluster in self._clusters.values())

    def _snapshots(self) -> dict[str, Snapshot]:
        return {name: snapshot(cluster.store) for name, cluster in self._clusters.items()}

    def _compare(self, when: str) -> None:
        found = list(convergence.differences(self._snapshots()))
        for one in found[:DIFFERENCES_MAX]:
            self.transcript.violate("world", f"{when}: {one}")
        if len(found) > DIFFERENCES_MAX:
            self.transcript.violate("world", f"{when}: {len(found) - DIFFERENCES_MAX} more differences")

    def _finish(self) -> None:
        snapshots = self._snapshots()
        for one in judge.alarms(snapshots):
            self.transcript.violate("reconcile", one)
        for held in snapshots.values():
            for one in (
                *convergence.lost(self.record.acknowledged, held),
                *convergence.twice_on_a_branch(held),
            ):
                self.transcript.violate("world", one)
            # One cluster is enough: all have the same data, or the differences are already reported.
            break
        for cluster in self._clusters.values():
            for key in cluster.store._metadata:
                if key.startswith("replication/dlq/"):
                    self.transcript.violate(cluster.name, f"has a dead letter: {key}")

    def summary(self) -> str:
        """Counts of events in the run, to see that enough happened."""
        lives = sum(len(cluster._lives) for cluster in self._clusters.values())
        runs = {
            key for cluster in self._clusters.values() for shard in cluster.store._shards.values() for key in shard.runs
        }
        return (
            f"{self.record.calls} calls, {self.record.refused} refused, {len(self.record.acknowledged)} signals and "
            f"updates, {len(runs)} runs, {self.watching.events} events, {len(self.watching.zombies)} zombies, "
            f"{lives} lives, {self._chaos.failovers if self._chaos else 0} failovers"
        )

    def _random(self, name: str) -> Random:
        """A separate random generator for each part, so that a change of one part does not change the others."""
        return Random(f"{self._seed} {name}")


async def _create(life: Life, namespace: Namespace) -> None:
    await life.namespaces.create(namespace)


async def _wait_for(life: Life, namespace_id: str) -> None:
    for _ in range(100):
        if life.namespaces.cached_id(namespace_id) is not None:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{life.process.name} does not know namespace {namespace_id}")


def _has_open_runs(cluster: Cluster) -> bool:
    shards = cluster.store._shards.values()
    return any(stored.status in OPEN_STATUSES for shard in shards for stored in shard.runs.values())


def _open_names(cluster: Cluster) -> list[str]:
    """The open runs of a cluster, according to its store."""
    return [f"{cluster.name}: {one}" for one in convergence.open_runs(snapshot(cluster.store))]
