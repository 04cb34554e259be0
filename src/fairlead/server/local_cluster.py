"""A cluster of matching hosts in one process."""

import asyncio
import random
import time
from typing import Self

from fairlead.journal import TaskJournal
from fairlead.matching.client import MatchingClient
from fairlead.matching.operator_client import OperatorClient
from fairlead.matching.task_starter import Starter, start_plainly
from fairlead.membership.ring import RemoteRing
from fairlead.rpc.hosts.local import LocalNetwork
from fairlead.server.host import Host
from fairlead.settings import DynamicSettings
from fairlead.storage.memory.tasks import MemoryStore
from fairlead.storage.tasks import TaskStore
from fairlead.telemetry import Metrics


class LocalCluster:
    """Several hosts of the matching service in one process on one store: for tests and benchmarks.

    async with LocalCluster(hosts=3) as cluster:
        await cluster.client().add(task_queue, task)
    """

    def __init__(
        self,
        *,
        hosts: int = 1,
        store: TaskStore | None = None,
        settings: DynamicSettings | None = None,
        start: Starter = start_plainly,
        journal: TaskJournal | None = None,
    ) -> None:
        """The caller closes `store`; the default is a new store in memory."""
        self.store = store or MemoryStore()
        self.settings = settings or DynamicSettings()
        self.metrics = Metrics()
        self.hosts: dict[str, Host] = {}
        self._names = [f"host-{number}" for number in range(hosts)]
        self._start = start
        self._journal = journal
        self._network = LocalNetwork()
        self._caller = self._network.caller()
        self._ring = RemoteRing(self._caller, self._names, clock=time.time)

    async def __aenter__(self) -> Self:
        for name in self._names:
            await self.start_host(name)
        # Refresh all hosts: each host has notified the earlier ones, but they may not have refreshed yet.
        await asyncio.gather(*(host.membership.refresh() for host in self.hosts.values()))
        await self._ring.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._ring.close()
        for name in list(self.hosts):
            await self.stop_host(name)

    def client(self) -> MatchingClient:
        """New client with its own caches, shared with no other client."""
        return MatchingClient(self._caller, self._ring, settings=self.settings, clock=time.time, random=random.random)

    def operator(self) -> OperatorClient:
        """New client for operators' calls."""
        return OperatorClient(self._caller, self._ring, random=random.random)

    async def start_host(self, name: str) -> None:
        """Start a host and let it join the ring."""
        host = Host(
            name,
            store=self.store,
            caller=self._caller,
            settings=self.settings,
            metrics=self.metrics,
            start=self._start,
            journal=self._journal,
        )
        self._network.register(name, host.handlers)
        host.start()
        await host.join()
        self.hosts[name] = host

    async def stop_host(self, name: str, *, hand_over_s: float = 0.0) -> None:
        """Stop a host in the same order as `Server.stop`."""
        host = self.hosts.pop(name)
        if await host.leave():
            await asyncio.sleep(hand_over_s)
        await host.close()
        self._network.unregister(name)
