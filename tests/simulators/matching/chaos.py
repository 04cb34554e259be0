"""Faults of the matching simulation: the seed decides which happen and when; all are repaired at the end."""

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from tests.simulators.matching import network as networks
from tests.simulators.matching import store as stores
from tests.simulators.matching.clients import Worker
from tests.simulators.matching.cluster import Cluster
from tests.simulators.matching.history import History
from tests.simulators.matching.network import SimNetwork, Weather
from tests.simulators.matching.settings import draw_change, draw_source
from tests.simulators.matching.store import SeededFaults, StoreWeather
from tests.simulators.matching.transcript import Transcript

# Minimum number of hosts that stay up, so that calls can be answered.
UP_MIN = 1


class Chaos:
    """Injects one fault after another, several at a time, for a given duration."""

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
        lose_counts: Callable[[], None] | None = None,
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
            self._switch_source,
            self._pause_workers,
            self._pause_workers,
        ]
        if lose_counts is not None:
            self._lose_stored_counts = lose_counts
            self._kinds += [self._lose_counts, self._lose_counts]
        # Some kinds of faults happen often with this seed, some never.
        self._weights = [random.choice([0.0, 1.0, 1.0, 4.0]) for _ in self._kinds]
        if not any(self._weights):
            self._weights[0] = 1.0
        self._gap_s = random.choice([0.5, 1.5, 4.0])
        # Fault rates of history, the store and the network, apart from the injected faults.
        self._usual_history = {"refused": random.choice([0.0, 0.0, 0.2]), "slow": random.choice([0.0, 0.1])}
        self._usual_store = StoreWeather(slow=random.choice([0.0, 0.1, 0.3]), slow_s_max=random.choice([0.2, 1.0]))
        self._usual_network = Weather(slow=random.choice([0.0, 0.02, 0.1]), slow_s_max=random.choice([0.1, 1.0]))

        if is_shrinking:
            # Few other faults: new tasks arrive at empty partitions, and appends are slow.
            self._weights = [float(kind in {self._change_settings, self._switch_source}) for kind in self._kinds]
            self._usual_store = StoreWeather(append_slow=0.5, slow_s_max=2.0)
            self._usual_history = {"refused": 0.8, "slow": 0.0}

    async def run(self, duration_s: float) -> None:
        """Inject faults for `duration_s`, then wait until all are repaired."""
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
        """Cut one host off from the store. The others consider it dead; it notices that only later."""
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

    async def _switch_source(self) -> None:
        """Switch the source of the partition counts between the settings and the database."""
        self._cluster.change_settings(draw_source(self._random))

    async def _lose_counts(self) -> None:
        """Lose the stored partition counts: the next owner of the root starts from the counts in the settings."""
        self._lose_stored_counts()
        await self._crash()

    async def _pause_workers(self) -> None:
        """Stop all polls for a while: tasks build a backlog, and new tasks arrive while it is dispatched."""
        for worker in self._workers:
            worker.is_paused = True
        await self._pause(0.5, 4.0)
        for worker in self._workers:
            worker.is_paused = False

    async def _pause(self, s_min: float, s_max: float) -> None:
        await asyncio.sleep(self._random.uniform(s_min, s_max))
