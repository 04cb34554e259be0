"""The cluster that a scenario has for itself: all hosts in this process, on one store that is thrown away."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory

from fairlead.cli.bench.link import Link, new_link
from fairlead.cli.bench.scenarios import Scenario
from fairlead.cli.bench.server_counts import ServerCounts, server_counts
from fairlead.cluster.local import LocalNetwork
from fairlead.cluster.ring import RemoteRing
from fairlead.core.partitions import TaskList
from fairlead.matching.starting import Starter, start_plainly
from fairlead.server import LocalCluster, open_store
from fairlead.settings import DynamicSettings
from fairlead.settings.static import MemoryConfig, SqliteConfig


class StoreKind(StrEnum):
    """Where the tasks of a scenario are kept."""

    MEMORY = "memory"
    SQLITE = "sqlite"


@dataclass(frozen=True, slots=True)
class OwnCluster:
    """A cluster and a way to reach it."""

    link: Link
    _cluster: LocalCluster

    def counts(self, task_list: TaskList) -> ServerCounts:
        """What its hosts have counted until now."""
        return server_counts([self._cluster.metrics.snapshot()], task_list)


@asynccontextmanager
async def own_cluster(scenario: Scenario, settings: DynamicSettings, kind: StoreKind) -> AsyncIterator[OwnCluster]:
    """Start the hosts of a scenario; they are gone, with all that they stored, when this ends."""
    with TemporaryDirectory(prefix="fairlead-bench-") as folder:
        store = await open_store(
            MemoryConfig() if kind is StoreKind.MEMORY else SqliteConfig(Path(folder) / "fairlead.db")
        )
        try:
            cluster = LocalCluster(
                hosts=scenario.hosts, store=store, settings=settings, start=_starter(scenario.start_s)
            )
            async with cluster:
                # A caller from outside: what the hosts ask each other is not the load's.
                network = LocalNetwork()
                for name, host in cluster.hosts.items():
                    network.register(name, host.handlers)
                caller = network.caller()
                ring = RemoteRing(caller, list(cluster.hosts), clock=time.time)
                await ring.open()
                try:
                    yield OwnCluster(new_link(caller, ring, settings, clients=scenario.hosts), cluster)
                finally:
                    await ring.close()
        finally:
            await store.close()


def _starter(start_s: float) -> Starter:
    """Starts tasks, and takes so long for each."""
    if start_s == 0:
        return start_plainly

    async def start_slowly(payload: bytes, _identity: str, _worker: bytes) -> bytes:
        await asyncio.sleep(start_s)
        return payload

    return start_slowly
