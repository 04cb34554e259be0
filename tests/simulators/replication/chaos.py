"""Faults in and between clusters: the seed decides which happen and when; all are repaired at the end."""

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from fairlead.core.errors import FairleadError
from fairlead.replication.messages import FailOverRequest
from tests.simulators.matching import network as networks
from tests.simulators.matching.network import SimNetwork, Weather
from tests.simulators.matching.transcript import Transcript
from tests.simulators.replication import store as stores
from tests.simulators.replication.cluster import Cluster
from tests.simulators.replication.people import Worker
from tests.simulators.replication.store import StoreWeather

FAILOVER_S = 6.0


class Chaos:
    """Injects one fault after another, several at a time, for a given duration."""

    def __init__(
        self,
        clusters: dict[str, Cluster],
        *,
        network: SimNetwork,
        workers: list[Worker],
        namespaces: list[str],
        transcript: Transcript,
        random: Random,
    ) -> None:
        self._clusters = clusters
        self._network = network
        self._workers = workers
        self._namespaces = namespaces
        self._transcript = transcript
        self._random = random
        self.failovers = 0
        self._kinds: list[Callable[[], Coroutine[Any, Any, None]]] = [
            self._fail_over,
            self._fail_over,
            self._fail_over_twice_at_once,
            self._fail_over_in_the_dark,
            self._crash,
            self._crash_at_a_write,
            self._crash_at_a_write,
            self._cut,
            self._isolate,
            self._bad_network,
            self._bad_store,
            self._move_shard,
            self._pause_workers,
        ]
        # Some kinds of faults happen often with this seed, some never; failovers always do.
        self._weights = [random.choice([0.0, 1.0, 1.0, 3.0]) for _ in self._kinds]
        self._weights[0] = max(self._weights[0], 1.0)
        self._gap_s = random.choice([0.4, 0.8, 1.5])
        self._usual_network = Weather(
            slow=random.choice([0.0, 0.1, 0.3]),
            slow_s_max=random.choice([0.2, 1.0]),
            repeated=random.choice([0.0, 0.1]),
        )
        self._usual_store = StoreWeather(slow=random.choice([0.0, 0.1]), slow_s_max=random.choice([0.05, 0.3]))

    async def run(self, duration_s: float) -> None:
        """Inject faults for `duration_s`, then wait until all are repaired."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + duration_s
        self._network.weather = self._usual_network
        for cluster in self._clusters.values():
            cluster.faults.weather = self._usual_store
        async with asyncio.TaskGroup() as group:
            while loop.time() < end_s:
                await asyncio.sleep(self._random.expovariate(1 / self._gap_s))
                group.create_task(self._random.choices(self._kinds, self._weights)[0]())
        self._network.mend_all()
        self._network.weather = networks.CALM
        for cluster in self._clusters.values():
            cluster.faults.weather = stores.CALM
            cluster.faults.live()
            await cluster.start()

    def _some(self) -> Cluster:
        return self._random.choice(list(self._clusters.values()))

    async def _fail_over(self) -> None:
        namespace = self._random.choice(self._namespaces)
        await self._ask_for_failover(namespace, self._some(), is_graceful=self._random.random() < 0.5)

    async def _fail_over_twice_at_once(self) -> None:
        namespace = self._random.choice(self._namespaces)
        one, other = self._random.sample(list(self._clusters.values()), 2)
        await asyncio.gather(
            self._ask_for_failover(namespace, one, is_graceful=self._random.random() < 0.3),
            self._ask_for_failover(namespace, other, is_graceful=self._random.random() < 0.3),
        )

    async def _fail_over_in_the_dark(self) -> None:
        """Cut a cluster off from all others, then make it active: both sides write."""
        cluster = self._some()
        for other in cluster.others:
            self._network.cut(cluster.name, other)
        self._transcript.note("network", f"{cluster.name} is cut off from all others")
        await self._pause(0.1, 1.0)
        await self._ask_for_failover(self._random.choice(self._namespaces), cluster, is_graceful=False)
        await self._pause(0.5, 5.0)
        for other in cluster.others:
            self._network.mend(cluster.name, other)
        self._transcript.note("network", f"{cluster.name} reaches the others again")

    async def _ask_for_failover(self, namespace: str, to: Cluster, *, is_graceful: bool) -> None:
        """Request a failover: a graceful one at any cluster, a forced one at the target."""
        at = self._some() if is_graceful else to
        how = f"{'graceful' if is_graceful else 'forced'} failover of {namespace} to {to.name}, asked at {at.name}"
        self._transcript.note("operator", how)
        timeout_s = self._random.choice([1.0, FAILOVER_S])
        request = FailOverRequest(namespace, to.name, is_graceful=is_graceful, timeout_s=timeout_s)
        try:
            answer = await at.ask(lambda life: life.failover.fail_over(request))
        except FairleadError as failure:
            self._transcript.note("operator", f"{how}: {type(failure).__name__}: {failure}")
        else:
            self.failovers += 1
            self._transcript.note("operator", f"{how}: {answer.active_cluster} at {answer.failover_version}")

    async def _crash(self) -> None:
        cluster = self._some()
        if cluster.is_up:
            cluster.crash()
            await self._restart(cluster)

    async def _crash_at_a_write(self) -> None:
        cluster = self._some()
        if not cluster.is_up:
            return
        died = asyncio.Event()

        def die() -> None:
            cluster.crash()
            died.set()

        # Count all writes, or only the writes of metadata (such as replication cursors).
        operation, writes = self._random.choice([("", self._random.randint(1, 15)), ("write_metadata", 1)])
        cluster.faults.die_in(writes, die, operation=operation, is_after=self._random.random() < 0.6)
        try:
            async with asyncio.timeout(5.0):
                await died.wait()
        except TimeoutError:
            return
        await self._restart(cluster)

    async def _restart(self, cluster: Cluster) -> None:
        await self._pause(0.05, 4.0)
        await cluster.start()

    async def _cut(self) -> None:
        one, other = self._random.sample(list(self._clusters), 2)
        self._transcript.note("network", f"{one} and {other} are cut off from each other")
        self._network.cut(one, other)
        await self._pause(0.5, 6.0)
        self._network.mend(one, other)

    async def _isolate(self) -> None:
        cluster = self._some()
        self._transcript.note("network", f"{cluster.name} is cut off from all others")
        for other in cluster.others:
            self._network.cut(cluster.name, other)
        await self._pause(0.5, 6.0)
        for other in cluster.others:
            self._network.mend(cluster.name, other)

    async def _bad_network(self) -> None:
        draw = self._random.choice
        self._network.weather = Weather(
            slow=draw([0.0, 0.1, 0.5]),
            slow_s_max=draw([0.1, 2.0]),
            request_lost=draw([0.0, 0.05, 0.3]),
            answer_lost=draw([0.0, 0.05, 0.3]),
            repeated=draw([0.0, 0.1, 0.4]),
        )
        self._transcript.note("network", f"{self._network.weather}")
        await self._pause(0.5, 5.0)
        self._network.weather = self._usual_network

    async def _bad_store(self) -> None:
        cluster, draw = self._some(), self._random.choice
        cluster.faults.weather = StoreWeather(
            slow=draw([0.0, 0.1, 0.5]),
            slow_s_max=draw([0.05, 0.5, 2.0]),
            unavailable=draw([0.0, 0.02, 0.2]),
            unknown=draw([0.0, 0.02, 0.1]),
        )
        self._transcript.note(cluster.name, f"{cluster.faults.weather}")
        await self._pause(0.5, 4.0)
        cluster.faults.weather = self._usual_store

    async def _move_shard(self) -> None:
        """Take a shard from its owner by a higher range id: the owner notices it at its next write."""
        cluster = self._some()
        shard_id = self._random.randrange(cluster.shards)
        shard = cluster.store._shards.get(shard_id)
        if shard is not None:
            self._transcript.note(cluster.name, f"shard {shard_id} is taken from it")
            shard.range_id += 1

    async def _pause_workers(self) -> None:
        """Stop all polls in one cluster for a while."""
        name = self._some().name
        chosen = [worker for worker in self._workers if worker.cluster == name]
        for worker in chosen:
            worker.is_paused = True
        await self._pause(0.5, 4.0)
        for worker in chosen:
            worker.is_paused = False

    async def _pause(self, s_min: float, s_max: float) -> None:
        await asyncio.sleep(self._random.uniform(s_min, s_max))
