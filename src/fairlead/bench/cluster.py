"""A cluster of its own for a scenario: all hosts in this process, on one temporary store."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory

from fairlead.bench.link import Link, new_link
from fairlead.bench.scenarios import Scenario
from fairlead.bench.server_counts import ServerCounts, server_counts
from fairlead.core.partitions import TaskQueueId
from fairlead.matching.task_starter import Starter, start_plainly
from fairlead.membership.ring import RemoteRing
from fairlead.rpc.hosts.local import LocalNetwork
from fairlead.server import LocalCluster, open_store
from fairlead.settings import DynamicSettings
from fairlead.settings.static.config import MemoryConfig, SqliteConfig


class StoreKind(StrEnum):
    """The store that holds the tasks of a scenario."""

    MEMORY = "memory"
    SQLITE = "sqlite"


@dataclass(frozen=True, slots=True)
class OwnCluster:
    """A cluster, and a link to it."""

    link: Link
    _cluster: LocalCluster

    def counts(self, task_queue: TaskQueueId) -> ServerCounts:
        """Return the counters of its hosts."""
        return server_counts([self._cluster.metrics.snapshot()], task_queue)


@asynccontextmanager
async def own_cluster(scenario: Scenario, settings: DynamicSettings, kind: StoreKind) -> AsyncIterator[OwnCluster]:
    """Start the hosts of a scenario; they stop and their store is removed at the end of the block."""
    with TemporaryDirectory(prefix="fairlead-bench-") as folder:
        store = await open_store(
            MemoryConfig() if kind is StoreKind.MEMORY else SqliteConfig(Path(folder) / "fairlead.db")
        )
        try:
            cluster = LocalCluster(
                hosts=scenario.hosts, store=store, settings=settings, start=_starter(scenario.start_s)
            )
            async with cluster:
                # A separate network for the load, so that its counts exclude the calls between the hosts.
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
    """Return a task starter that takes `start_s` for each task."""
    if start_s == 0:
        return start_plainly

    async def start_slowly(payload: bytes, _identity: str, _worker: bytes) -> bytes:
        await asyncio.sleep(start_s)
        return payload

    return start_slowly
