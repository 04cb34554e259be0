"""What goes wrong, and when, as a seed decides; nothing of it lasts."""

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from tests.simulation import network as networks
from tests.simulation import store as stores
from tests.simulation.clients import Worker
from tests.simulation.cluster import Cluster
from tests.simulation.history import History
from tests.simulation.network import SimNetwork, Weather
from tests.simulation.settings import draw_change
from tests.simulation.store import SeededFaults, StoreWeather
from tests.simulation.transcript import Transcript

# So many hosts are up at least, so that somebody can answer.
UP_MIN = 1


class Chaos:
    """Lets one thing after another happen, several at a time, until it is told to end."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        network: SimNetwork,
        faults: SeededFaults,
        history: History,
        workers: list[Worker],
        transcript: Transcript,
        random: Random,
        is_shrinking: bool,
    ) -> None:
        self._workers = workers
        self._cluster = cluster
        self._network = network
        self._faults = faults
        self._history = history
        self._transcript = transcript
        self._random = random
        self._kinds: list[Callable[[], Coroutine[Any, Any, None]]] = [
            self._crash,
            self._crash,
            self._stop,
            self._start,
            self._cut,
            self._isolate_from_store,
            self._bad_network,
            self._bad_store,
            self._bad_store,
            self._bad_history,
            self._change_settings,
            self._pause_workers,
            self._pause_workers,
        ]
        # Each seed has its own character: some kinds happen often in it, some never.
        self._weights = [random.choice([0.0, 1.0, 1.0, 4.0]) for _ in self._kinds]
        if not any(self._weights):
            self._weights[0] = 1.0
        self._gap_s = random.choice([0.5, 1.5, 4.0])
        # What the store, the network and history are like when nothing special is the matter with them.
        self._usual_history = {"refused": random.choice([0.0, 0.0, 0.2]), "slow": random.choice([0.0, 0.1])}
        self._usual_store = StoreWeather(slow=random.choice([0.0, 0.1, 0.3]), slow_s_max=random.choice([0.2, 1.0]))
        self._usual_network = Weather(slow=random.choice([0.0, 0.02, 0.1]), slow_s_max=random.choice([0.1, 1.0]))

        if is_shrinking:
            # Little else happens: what comes meets partitions that are empty, and is stored slowly.
            self._weights = [float(kind == self._change_settings) for kind in self._kinds]
            self._usual_store = StoreWeather(append_slow=0.5, slow_s_max=2.0)
            self._usual_history = {"refused": 0.8, "slow": 0.0}

    async def run(self, duration_s: float) -> None:
        """Cause trouble for this long, then wait until what it has begun is over."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + duration_s
        self._network.weather, self._faults.weather = self._usual_network, self._usual_store
        self._history.trouble(**self._usual_history)
        async with asyncio.TaskGroup() as group:
            while loop.time() < end_s:
                await asyncio.sleep(self._random.expovariate(1 / self._gap_s))
                kind = self._random.choices(self._kinds, self._weights)[0]
                group.create_task(kind())
        self._network.mend_all()
        self._network.weather = networks.CALM
        self._faults.weather = stores.CALM
        self._history.trouble()

    async def _crash(self) -> None:
        steady = self._cluster.steady
        if len(steady) <= UP_MIN:
            return
        host = self._random.choice(steady)
        self._cluster.crash(host)
        await self._pause(0.1, 6.0)
        await self._start_named(host.name)

    async def _stop(self) -> None:
        steady = self._cluster.steady
        if len(steady) <= UP_MIN:
            return
        host = self._random.choice(steady)
        await self._cluster.stop(host)
        await self._pause(0.1, 6.0)
        await self._start_named(host.name)

    async def _start(self) -> None:
        down = self._cluster.down
        if down:
            await self._start_named(self._random.choice(down))

    async def _start_named(self, name: str) -> None:
        if name in self._cluster.down:
            await self._cluster.start(name)

    async def _cut(self) -> None:
        one, other = self._random.sample(self._cluster.names, 2)
        self._transcript.note("network", f"{one} and {other} are cut off from each other")
        self._network.cut(one, other)
        await self._pause(0.5, 5.0)
        self._network.mend(one, other)

    async def _isolate_from_store(self) -> None:
        """A host can't reach the store, and all else can: it is taken for dead, and does not know it at first."""
        steady = self._cluster.steady
        if not steady:
            return
        host = self._random.choice(steady)
        self._transcript.note(host.name, "is cut off from the store")
        host.store.is_cut_off = True
        await self._pause(0.5, 6.0)
        host.store.is_cut_off = False
        self._transcript.note(host.name, "reaches the store again")

    async def _bad_network(self) -> None:
        draw = self._random.choice
        self._network.weather = Weather(
            slow=draw([0.0, 0.05, 0.3]),
            slow_s_max=draw([0.1, 2.0]),
            request_lost=draw([0.0, 0.02, 0.1]),
            answer_lost=draw([0.0, 0.02, 0.1]),
            repeated=draw([0.0, 0.02, 0.2]),
        )
        self._transcript.note("network", f"{self._network.weather}")
        await self._pause(0.5, 6.0)
        self._network.weather = self._usual_network

    async def _bad_store(self) -> None:
        draw = self._random.choice
        self._faults.weather = StoreWeather(
            slow=draw([0.0, 0.1, 0.5]),
            append_slow=draw([0.0, 0.3]),
            slow_s_max=draw([0.05, 0.5, 3.0]),
            unavailable=draw([0.0, 0.05, 0.3]),
            unknown=draw([0.0, 0.05, 0.3]),
        )
        self._transcript.note("store", f"{self._faults.weather}")
        await self._pause(0.5, 6.0)
        self._faults.weather = self._usual_store

    async def _bad_history(self) -> None:
        draw = self._random.choice
        self._history.trouble(refused=draw([0.0, 0.05, 0.5]), lost=draw([0.0, 0.05, 0.2]), slow=draw([0.0, 0.1, 0.5]))
        await self._pause(0.5, 6.0)
        self._history.trouble(**self._usual_history)

    async def _change_settings(self) -> None:
        self._cluster.change_settings(draw_change(self._random))

    async def _pause_workers(self) -> None:
        """Nobody polls for a while, so that tasks have to wait, and new ones come while they are dispatched."""
        for worker in self._workers:
            worker.is_paused = True
        await self._pause(0.5, 4.0)
        for worker in self._workers:
            worker.is_paused = False

    async def _pause(self, s_min: float, s_max: float) -> None:
        await asyncio.sleep(self._random.uniform(s_min, s_max))
