"""A cluster in one process."""

import asyncio
import random
import time
from typing import Self

from fairlead.cluster.local import LocalNetwork
from fairlead.cluster.ring import RemoteRing
from fairlead.journal import TaskJournal
from fairlead.matching.client import MatchingClient
from fairlead.matching.operator_client import OperatorClient
from fairlead.matching.starting import Starter, start_plainly
from fairlead.server.host import Host
from fairlead.settings import DynamicSettings
from fairlead.storage.contract import TaskStore
from fairlead.storage.memory import MemoryStore
from fairlead.telemetry import Metrics


class LocalCluster:
    """Several hosts of the matching service in one process on one store: for tests and benchmarks.

    async with LocalCluster(hosts=3) as cluster:
        await cluster.client().add(task_list, task)
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
        """`store` is the caller's to close; without one, there is one in memory."""
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
        # Each has told those before it, who may not have looked yet.
        await asyncio.gather(*(host.membership.look() for host in self.hosts.values()))
        await self._ring.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._ring.close()
        for name in list(self.hosts):
            await self.stop_host(name)

    def client(self) -> MatchingClient:
        """A client of its own: what it learns, no other knows."""
        return MatchingClient(self._caller, self._ring, settings=self.settings, clock=time.time, random=random.random)

    def operator(self) -> OperatorClient:
        """A client for what operators ask."""
        return OperatorClient(self._caller, self._ring, random=random.random)

    async def start_host(self, name: str) -> None:
        """Let another host join."""
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
        """Let a host leave, as `Server.stop` does."""
        host = self.hosts.pop(name)
        if await host.leave():
            await asyncio.sleep(hand_over_s)
        await host.close()
        self._network.unregister(name)
