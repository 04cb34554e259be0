"""The hosts of a simulated cluster: each runs the real services; hosts start, stop, crash and are cut off."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from random import Random
from typing import Any

from fairlead.core.errors import RetryElsewhere, RetryLater
from fairlead.matching.client import MatchingClient
from fairlead.matching.engine import EngineTimes
from fairlead.matching.operator_client import OperatorClient
from fairlead.matching.service import MatchingService
from fairlead.membership.members import Clock, Membership, MembershipTimes
from fairlead.membership.ring import MemberRing, RemoteRing
from fairlead.rpc.hosts.caller import Caller
from fairlead.settings import Plain
from fairlead.settings.dynamic.matching import MAX_TASK_QUEUE_IDLE_TIME
from fairlead.simulations.virtual_loop import Process
from fairlead.telemetry import Metrics
from tests.simulators.matching.history import History
from tests.simulators.matching.network import SimNetwork, running_loop
from tests.simulators.matching.settings import ChangingSettings
from tests.simulators.matching.store import HostStore, OwnerWatch, WatchedStore
from tests.simulators.matching.transcript import Transcript

EPOCH_S = 1_700_000_000.0
CLOCK_SKEW_S_MAX = 0.05
TIMES = MembershipTimes(heartbeat_s=0.5, alive_s=2.0)
SWEEP_S = 1.0
# Seconds within which a stopping host must be gone, with any faults.
STOP_S_MAX = 60.0


@dataclass(slots=True, eq=False)
class Host:
    """One life of a host, from its start until it stops or crashes."""

    process: Process
    store: HostStore
    settings: ChangingSettings
    membership: Membership
    ring: MemberRing
    service: MatchingService
    is_stopping: bool = False

    @property
    def name(self) -> str:
        """The host's address."""
        return self.process.name


class Cluster:
    """All hosts, both running ones and those that can be started."""

    def __init__(
        self,
        names: list[str],
        *,
        store: WatchedStore,
        watch: OwnerWatch,
        network: SimNetwork,
        history: History,
        transcript: Transcript,
        random: Random,
        overrides: dict[str, Plain],
    ) -> None:
        self._store = store
        self._watch = watch
        self._network = network
        self._history = history
        self._transcript = transcript
        self._random = random
        self._overrides = overrides
        self._stores: list[HostStore] = []
        self.names = names
        self.up: dict[str, Host] = {}
        # Names of hosts that are starting or still stopping: they can't be started.
        self.busy: set[str] = set()
        self._clients: list[tuple[Process, ChangingSettings]] = []

    @property
    def down(self) -> list[str]:
        """The hosts that can be started."""
        return [name for name in self.names if name not in self.up and name not in self.busy]

    @property
    def steady(self) -> list[Host]:
        """The hosts that are up and not stopping."""
        return [host for host in self.up.values() if not host.is_stopping]

    async def start(self, name: str) -> None:
        """Start a host; it counts as up when it is in its own ring."""
        self.busy.add(name)
        process = Process(name)
        self._transcript.note(name, "starts")
        host = await running_loop().spawn(process, self._boot(process), f"boot {name}")
        self.busy.discard(name)
        self.up[name] = host
        self._transcript.note(name, "is up")

    async def _boot(self, process: Process) -> Host:
        store = HostStore(self._store, self._watch)
        self._stores.append(store)
        settings = ChangingSettings(overrides=self._overrides)
        clock = self._clock()
        membership = Membership(store.as_store(), process.name, clock=clock, times=TIMES)
        ring = MemberRing(membership, settings, clock=clock)
        service = MatchingService(
            process.name,
            store=store.as_store(),
            caller=self._network.caller(process),
            ring=ring,
            settings=settings,
            clock=clock,
            metrics=Metrics(),
            start=self._history.start,
            times=EngineTimes(idle_s=settings.get(MAX_TASK_QUEUE_IDLE_TIME), sweep_s=SWEEP_S, last_requests_s=2.0),
        )
        self._network.attach(process, service.handlers())
        service.start()
        ring.start()
        await _insist(membership.join)
        return Host(process, store, settings, membership, ring, service)

    def crash(self, host: Host) -> None:
        """Kill a host without any cleanup."""
        self._transcript.note(host.name, "crashes")
        host.process.is_killed = True
        self._network.detach(host.process)
        del self.up[host.name]

    async def stop(self, host: Host) -> None:
        """Stop a host gracefully: it leaves the ring and hands its partitions over."""
        self._transcript.note(host.name, "stops")
        host.is_stopping = True
        stopping = running_loop().spawn(host.process, _shut_down(host), f"stop {host.name}")
        done, _ = await asyncio.wait([stopping], timeout=STOP_S_MAX)
        if host.process.is_killed:
            return
        if not done:
            self._transcript.violate(host.name, f"has not stopped within {STOP_S_MAX} s")
            self.crash(host)
            return
        stopping.result()
        self._network.detach(host.process)
        # Tasks that the host left running end with its process.
        host.process.is_killed = True
        del self.up[host.name]
        self._transcript.note(host.name, "has stopped")

    def change_settings(self, changes: dict[str, Plain]) -> None:
        """Change the settings of all hosts and clients."""
        self._transcript.note("settings", f"{changes}")
        self._overrides |= changes
        for process, settings in [*((host.process, host.settings) for host in self.up.values()), *self._clients]:
            process.context().run(settings.change, self._overrides)

    async def client(self, name: str) -> tuple[Process, MatchingClient, OperatorClient]:
        """A client outside of the cluster, in its own process."""
        process = Process(name)
        settings = ChangingSettings(overrides=self._overrides)
        clock = self._clock()
        caller: Caller = self._network.caller(process)
        ring = RemoteRing(caller, self.names, clock=clock)
        await running_loop().spawn(process, _insist(ring.open), f"open {name}")
        self._clients.append((process, settings))
        client = MatchingClient(caller, ring, settings=settings, clock=clock, random=self._random.random)
        return process, client, OperatorClient(caller, ring, random=self._random.random)

    def end(self) -> None:
        """End the run: all further calls to the store fail."""
        for store in self._stores:
            store.stop()

    def _clock(self) -> Clock:
        skew_s = self._random.uniform(-CLOCK_SKEW_S_MAX, CLOCK_SKEW_S_MAX)
        loop = running_loop()
        return lambda: EPOCH_S + skew_s + loop.time()


async def _shut_down(host: Host) -> None:
    await host.membership.leave()
    await host.service.close()
    await host.ring.close()


async def _insist(do: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Retry until it succeeds."""
    while True:
        try:
            await do()
        except (RetryLater, RetryElsewhere):
            await asyncio.sleep(0.2)
        else:
            return
