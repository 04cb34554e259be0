"""One simulated cluster: real history, namespaces and replication over a store that survives crashes."""

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, TypeVar
from uuid import UUID

from google.protobuf.message import Message

from fairlead.api.clusters import Clusters
from fairlead.api.namespaces import Namespaces
from fairlead.core.errors import FairleadError
from fairlead.core.partitions import Partition, TaskType
from fairlead.core.versions import ClusterVersions
from fairlead.history.service import HistoryService
from fairlead.matching.task_starter import NotStarted
from fairlead.replication.endpoint import Endpoint
from fairlead.replication.failover import Failover
from fairlead.replication.namespaces import NamespaceSync
from fairlead.replication.repair import Repairs
from fairlead.replication.service import Replication
from fairlead.rpc.hosts.caller import CallLost, Unreachable
from fairlead.settings import DynamicSettings
from fairlead.simulations.virtual_loop import Process
from fairlead.telemetry import Metrics
from tests.simulators.matching.network import SimNetwork, running_loop
from tests.simulators.matching.transcript import Transcript
from tests.simulators.replication.matching import Tasks
from tests.simulators.replication.remotes import SimRemote, handlers_of
from tests.simulators.replication.store import CommitWatch, HostStore, SeededFaults, WatchedHistory

Response = TypeVar("Response")

SECOND_NS = 1_000_000_000
BEGIN_NS = 1_700_000_000 * SECOND_NS
CALL_S = 5.0
REFRESH_S = 1.0


class OneHostRing:
    """A ring of one host."""

    def __init__(self, host: str) -> None:
        self.hosts = (host,)

    def route(self, _partition: Partition) -> str:
        """Always this host."""
        return self.hosts[0]

    def on_change(self, _listener: Callable[[], None]) -> None:
        """Do nothing: the ring never changes."""

    async def refresh(self) -> None:
        """Do nothing: the ring never changes."""


class Life:
    """The in-memory part of a cluster, between its start and its crash."""

    def __init__(self, cluster: "Cluster", process: Process) -> None:
        self.process = process
        self.store = HostStore(cluster.store)
        self.waiting: dict[asyncio.Future[Any], None] = {}
        store = self.store.as_store()
        self.clusters = Clusters(cluster.name, cluster.versions, cluster.others)
        self.namespaces = Namespaces(store, clock=running_loop().time, refresh_s=REFRESH_S)
        caller = cluster.network.caller(process)
        ring = OneHostRing(cluster.name)
        settings = DynamicSettings()
        metrics = Metrics()
        self.history = HistoryService(
            cluster.name,
            store=store,
            caller=caller,
            ring=ring,
            settings=settings,
            shards=cluster.shards,
            namespaces=self.namespaces,
            matching=cluster.tasks.as_client(),
            metrics=metrics,
            clock_ns=cluster.now_ns,
            new_id=cluster.new_id,
            uniform=cluster.random.random,
            clusters=self.clusters,
        )
        remotes = {other: SimRemote(cluster.name, other, caller) for other in cluster.others}
        self.replication = Replication(
            cluster.name,
            clusters=self.clusters,
            remotes=remotes.__getitem__,
            history=self.history.client,
            store=store,
            ring=ring,
            settings=settings,
            metrics=metrics,
            clock_ns=cluster.now_ns,
            uniform=cluster.random.random,
        )
        self.sync = NamespaceSync(
            clusters=self.clusters, remotes=remotes.__getitem__, namespaces=self.namespaces, metrics=metrics
        )
        self.failover = Failover(
            clusters=self.clusters,
            remotes=remotes.__getitem__,
            namespaces=self.namespaces,
            history=self.history.client,
            shards=cluster.shards,
            clock_ns=cluster.now_ns,
        )
        self.endpoint = Endpoint(
            clusters=self.clusters,
            history=self.history.client,
            cluster_id=cluster.name,
            shards=cluster.shards,
            namespaces=self.sync.answer,
            fail_over=self.failover.fail_over,
            on_nudge=self.sync.pull,
            repair=Repairs(
                clusters=self.clusters,
                remotes=remotes.__getitem__,
                history=self.history.client,
                random=cluster.random.random,
            ).repair,
            dead_letters=self.replication.dead_letters,
        )

    async def open(self) -> None:
        """Load the state from the store."""
        await _insist(self.namespaces.open)
        await self.history.open()
        self.sync.open()
        self.replication.open()


class Cluster:
    """The part of a cluster that survives crashes, and its current `Life` while it is up."""

    def __init__(
        self,
        name: str,
        *,
        names: list[str],
        versions: ClusterVersions,
        shards: int,
        network: SimNetwork,
        watch: CommitWatch,
        transcript: Transcript,
        random: Random,
        skew_s: float,
    ) -> None:
        self.name = name
        self.others = [other for other in names if other != name]
        self.versions = versions
        self.shards = shards
        self.network = network
        self.random = random
        self.faults = SeededFaults(name, Random(random.random()), transcript)
        self.store = WatchedHistory(name, self.faults, watch)
        self.tasks = Tasks()
        self._transcript = transcript
        self._skew_ns = int(skew_s * SECOND_NS)
        self.life: Life | None = None
        self._lives: list[Life] = []
        self._is_starting = False

    def now_ns(self) -> int:
        """The time of this cluster's clock, which differs from those of the others."""
        return BEGIN_NS + self._skew_ns + int(running_loop().time() * SECOND_NS)

    def new_id(self) -> str:
        """A unique id."""
        return str(UUID(int=self.random.getrandbits(128)))

    @property
    def is_up(self) -> bool:
        """Whether the cluster responds to calls."""
        return self.life is not None

    async def start(self) -> None:
        """Start a new life from the store."""
        if self.life is not None or self._is_starting:
            return
        self._is_starting = True
        self.faults.live()
        process = Process(self.name)
        self._transcript.note(self.name, "starts")
        try:
            self.life = await running_loop().spawn(process, self._boot(process), f"boot {self.name}")
        finally:
            self._is_starting = False
        self._transcript.note(self.name, "is up")

    async def _boot(self, process: Process) -> Life:
        life = Life(self, process)
        self._lives.append(life)
        await life.open()
        self.network.attach(process, handlers_of(life.endpoint))
        return life

    def crash(self) -> None:
        """Kill the current life without any cleanup."""
        life, self.life = self.life, None
        if life is None:
            return
        self._transcript.note(self.name, "crashes")
        life.process.is_killed = True
        self.network.detach(life.process)
        for future in list(life.waiting):
            if not future.done():
                future.set_exception(CallLost(f"{self.name} has crashed"))

    def end(self) -> None:
        """End the run: all work of this cluster stops."""
        for life in self._lives:
            life.store.is_over = True

    async def call(self, name: str, namespace_id: str, workflow_id: str, request: Message) -> bytes:
        """Call the history service, as the frontend of this cluster does."""
        return await self.ask(
            lambda life: life.history.client.call(name, namespace_id, workflow_id, request, timeout_s=CALL_S)
        )

    async def poll(self, kind: TaskType, identity: str, *, timeout_s: float) -> bytes | None:
        """The next task for a worker of this cluster."""

        async def start(payload: bytes) -> bytes | NotStarted:
            return await self.ask(lambda life: life.history.start_task(payload, identity))

        return await self.tasks.poll(kind, start, timeout_s=timeout_s)

    async def ask(self, work: Callable[[Life], Coroutine[Any, Any, Response]]) -> Response:
        """Run `work` inside the current life; raise `CallLost` if that life ends first."""
        life = self.life
        if life is None:
            raise Unreachable(f"{self.name} is down")
        answer: asyncio.Future[Response] = running_loop().create_future()
        life.waiting[answer] = None

        def notify(done: "asyncio.Task[Response]") -> None:
            failure = None if done.cancelled() else done.exception()
            if answer.done():
                return
            if done.cancelled():
                answer.set_exception(CallLost(f"{self.name} has cancelled it"))
            elif failure is not None:
                answer.set_exception(failure)
            else:
                answer.set_result(done.result())

        running_loop().spawn(life.process, work(life), f"asked {self.name}").add_done_callback(notify)
        try:
            return await answer
        finally:
            life.waiting.pop(answer, None)


async def _insist(work: Callable[[], Coroutine[Any, Any, Response]]) -> Response:
    """Retry until it succeeds: the store may be failing."""
    while True:
        try:
            return await work()
        except FairleadError:
            await asyncio.sleep(0.2)
