"""Clusters as a user starts them: each is a process with its own file, connected by wires."""

import asyncio
import itertools
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from google.protobuf.duration_pb2 import Duration
from temporalio.api.replication.v1 import ClusterReplicationConfig
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    DescribeNamespaceResponse,
    RegisterNamespaceRequest,
    UpdateNamespaceRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from fairlead.cli.admin.cluster import Cluster as Operated
from fairlead.cli.admin.cluster import connect as operate
from fairlead.core.errors import FairleadError
from fairlead.history.messages.stream import BranchesResponse, TreeRequest
from fairlead.history.service import TREE
from fairlead.replication.failover import FAIL_OVER
from fairlead.replication.messages import FailOverRequest
from fairlead.replication.puller import StreamStatus
from fairlead.replication.service import STATUS, StatusRequest, StatusResponse
from fairlead.rpc.hosts.caller import Method, Request, Response
from fairlead.testing.clusters import _free_ports
from tests.cli.processes import Done
from tests.cli.thread import run_in_thread
from tests.data_centers.meddler import Meddler
from tests.data_centers.wires import Cut, Wire

INCREMENT = 10
NAMESPACE = "shared"
RETENTION_S = 86_400
SHARDS = 3
READY_S_MAX = 90.0
STOP_S_MAX = 60.0
# Seconds to wait for background work and for a call: upper bounds, for a very busy machine.
WAIT_S_MAX = 90.0
ASK_S_MAX = 30.0
_CHECK_S = 0.05


class ClusterProcess:
    """One cluster of one server, at fixed addresses."""

    def __init__(self, name: str, *, initial_version: int, folder: Path, address: str, admin_address: str) -> None:
        self.name = name
        self.initial_version = initial_version
        self.address = address
        self.admin_address = admin_address
        self._folder = folder
        self._log = folder / f"{name}.log"
        self._process: Process | None = None
        self._arguments: list[str] = []

    def configure(self, remotes: Mapping[str, tuple[int, str]], *, shards: int, settings: Mapping[str, Any]) -> None:
        """Configure the other clusters: the initial version and the address of each."""
        config = {
            "frontend": {"listen": self.address},
            "listen": self.admin_address,
            "store": {"sqlite": {"file": f"{self.name}.db"}},
            "history": {"shards": shards},
            "log": {"level": "info", "format": "console"},
            "stop": {"handOver": "0s", "grace": "1s"},
            "journal": {"folder": str(self.journal)},
            "cluster": {
                "name": self.name,
                "initialVersion": self.initial_version,
                "increment": INCREMENT,
                "remotes": {
                    name: {"initialVersion": version, "address": address}
                    for name, (version, address) in remotes.items()
                },
            },
        }
        file = self._folder / f"{self.name}.yaml"
        # JSON is YAML.
        file.write_text(json.dumps(config))
        self._arguments = ["--config", str(file)]
        for key, value in settings.items():
            self._arguments += ["--dynamic-config-value", f"{key}={json.dumps(value)}"]

    @property
    def journal(self) -> Path:
        """The folder of its journals; the cluster has a subfolder with its name."""
        return self._folder / "journals"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start it, and wait until it is ready."""
        with self._log.open("ab") as log:
            self._process = process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "fairlead", "server", "start", *self._arguments), stdout=PIPE, stderr=log
            )
        assert process.stdout is not None
        async with asyncio.timeout(READY_S_MAX):
            ready = await process.stdout.readline()
        assert b"ready" in ready, self.log()

    async def kill(self) -> None:
        """Kill it with SIGKILL."""
        process = self._process
        if process is not None and process.returncode is None:
            process.kill()
            await process.communicate()

    async def stop(self) -> None:
        """Stop it like an operator, and check its exit code."""
        process = self._process
        assert process is not None
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(STOP_S_MAX):
            await process.communicate()
        assert process.returncode == 0, self.log()

    def log(self) -> str:
        """The log of all its processes."""
        return self._log.read_text()

    # --- requests

    async def connect(self, namespace: str = NAMESPACE, **options: Any) -> Client:
        """A client of the official SDK."""
        return await Client.connect(self.address, namespace=namespace, **options)

    async def admin(self, *arguments: str) -> Any:
        """The JSON output of `fairlead admin`."""
        done = await self.admin_done(*arguments)
        assert done.code == 0, done.err
        return json.loads(done.out)

    async def admin_done(self, *arguments: str) -> Done:
        """Exit code and output of `fairlead admin`."""
        return await run_in_thread("admin", *arguments, "--address", self.admin_address, "-o", "json")

    @asynccontextmanager
    async def operated(self) -> AsyncIterator[Operated]:
        """A call of the admin API, without a process for each."""
        async with operate(self.admin_address, timeout_s=ASK_S_MAX) as cluster:
            yield cluster

    async def ask(self, method: Method[Request, Response], request: Request) -> Response:
        async with self.operated() as cluster:
            return await cluster.ask(method, request, timeout_s=ASK_S_MAX)

    async def tree(self, workflow_id: str, run_id: str = "", *, namespace: str = NAMESPACE) -> BranchesResponse:
        """The branches of a run."""
        return await self.ask(TREE, TreeRequest(namespace, workflow_id, run_id))

    async def streams(self) -> tuple[StreamStatus, ...]:
        """Its replication status with respect to the others."""
        answer: StatusResponse = await self.ask(STATUS, StatusRequest())
        return answer.streams

    async def describe_namespace(self, namespace: str = NAMESPACE) -> DescribeNamespaceResponse | None:
        """The namespace, or None if it is unknown here."""
        client = await self.connect(namespace)
        try:
            return await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=namespace))
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return None


class World:
    """Clusters, and the wires between each two of them in each direction."""

    def __init__(self, clusters: Mapping[str, ClusterProcess], wires: Mapping[tuple[str, str], Wire]) -> None:
        self.clusters = clusters
        # By calling and called cluster.
        self.wires = wires

    def __getitem__(self, name: str) -> ClusterProcess:
        return self.clusters[name]

    @property
    def running(self) -> list[ClusterProcess]:
        return [cluster for cluster in self.clusters.values() if cluster.is_running]

    async def cut_off(self, name: str, how: Cut = Cut.DROP) -> None:
        """Cut off a cluster from all others; clients still reach it."""
        await asyncio.gather(*(wire.cut(how) for ends, wire in self.wires.items() if name in ends))

    def heal(self) -> None:
        """Heal all wires."""
        for wire in self.wires.values():
            wire.heal()

    async def share(self, namespace: str = NAMESPACE, *, active: str) -> None:
        """Register a namespace of all clusters at the one where it is active, and wait until all know it."""
        await register(await self[active].connect(), namespace, [active, *self.clusters])
        await self.until_active(active, namespace=namespace)

    async def update_active(self, to: str, *, asked: str, namespace: str = NAMESPACE) -> None:
        """Force a failover by the public API."""
        client = await self[asked].connect(namespace)
        request = UpdateNamespaceRequest(namespace=namespace)
        request.replication_config.active_cluster_name = to
        await client.workflow_service.update_namespace(request)

    async def fail_over(self, to: str, *, is_graceful: bool = False, namespace: str = NAMESPACE) -> int:
        """Fail over like `fairlead admin failover`, at the target cluster; returns the new version."""
        return await fail_over_at(self[to].admin_address, FailOverRequest(namespace, to, is_graceful, ASK_S_MAX))

    async def until_active(self, name: str, *, at: Sequence[str] = (), namespace: str = NAMESPACE) -> None:
        """Wait until these clusters know the namespace; by default all that run."""
        for cluster in [self[one] for one in at] or self.running:

            async def knows(asked: ClusterProcess = cluster) -> bool:
                described = await asked.describe_namespace(namespace)
                return described is not None and described.replication_config.active_cluster_name == name

            await until(knows, f"{namespace} active in {name} as {cluster.name} sees it")

    async def until_connected(self) -> None:
        """Wait until each cluster pulls all streams of every other cluster."""
        for cluster in self.running:

            async def pulls(asked: ClusterProcess = cluster) -> bool:
                streams = await asked.streams()
                sources = {stream.source for stream in streams if not stream.error}
                return sources == {other.name for other in self.running if other is not asked}

            await until(pulls, f"{cluster.name} connected")

    async def until_caught_up(self) -> None:
        """Wait until no cluster has anything left to apply."""
        for cluster in self.running:

            async def has_all(asked: ClusterProcess = cluster) -> bool:
                streams = await asked.streams()
                return not any(stream.lag_tasks or stream.outstanding or stream.error for stream in streams)

            await until(has_all, f"{cluster.name} caught up")

    async def dead_letters(self) -> int:
        """The number of dead letters."""
        return sum([stream.dead_letters for cluster in self.running for stream in await cluster.streams()])


async def fail_over_at(admin_address: str, request: FailOverRequest) -> int:
    """Request a failover like `fairlead admin failover`; returns the new version."""
    async with operate(admin_address, timeout_s=ASK_S_MAX) as cluster:
        answer = await cluster.ask(FAIL_OVER, request, timeout_s=2 * ASK_S_MAX)
    return answer.failover_version


async def register(client: Client, namespace: str, names: Sequence[str]) -> None:
    """A namespace of these clusters, active in the first of them."""
    await client.workflow_service.register_namespace(
        RegisterNamespaceRequest(
            namespace=namespace,
            workflow_execution_retention_period=Duration(seconds=RETENTION_S),
            is_global_namespace=True,
            active_cluster_name=names[0],
            clusters=[ClusterReplicationConfig(cluster_name=name) for name in dict.fromkeys(names)],
        )
    )


async def until(is_so: Callable[[], Awaitable[bool]], what: str, *, wait_s: float = WAIT_S_MAX) -> None:
    """Wait for a condition in another process; calls that fail are repeated."""
    failure: Exception | None = None
    try:
        async with asyncio.timeout(wait_s):
            while True:
                try:
                    if await is_so():
                        return
                    failure = None
                except (FairleadError, RPCError) as error:
                    failure = error
                await asyncio.sleep(_CHECK_S)
    except TimeoutError:
        raise AssertionError(f"waited {wait_s:g} s in vain for {what}; last failure: {failure!r}") from failure


@asynccontextmanager
async def clusters(
    folder: Path,
    *names: str,
    settings: Mapping[str, Any] | None = None,
    between: Mapping[tuple[str, str], Meddler] | None = None,
    astray: Mapping[tuple[str, str], str] | None = None,
) -> AsyncIterator[World]:
    """Run clusters during the block. Their initial versions are 1, 2, ... in this order.

    Both mappings are by calling and called cluster: `between` has a proxy at the end of the wire, before the called
    cluster; `astray` has the cluster to which a wire leads instead of the called one.
    """
    ports = iter(_free_ports(2 * len(names)))
    made = {
        name: ClusterProcess(
            name,
            initial_version=number,
            folder=folder,
            address=f"127.0.0.1:{next(ports)}",
            admin_address=f"127.0.0.1:{next(ports)}",
        )
        for number, name in enumerate(names, 1)
    }
    wires = {ends: Wire(made[(astray or {}).get(ends, ends[1])].address) for ends in itertools.permutations(names, 2)}
    for ends, standing in (between or {}).items():
        standing.stand_before(made[ends[1]].address)
        wires[ends] = Wire(standing.address)
    world = World(made, wires)
    try:
        for wire in wires.values():
            await wire.open()
        for cluster in made.values():
            cluster.configure(
                {
                    other.name: (other.initial_version, wires[cluster.name, other.name].address)
                    for other in made.values()
                    if other is not cluster
                },
                shards=SHARDS + cluster.initial_version - 1,
                settings=settings or {},
            )
        async with asyncio.TaskGroup() as starting:
            for cluster in made.values():
                starting.create_task(cluster.start())
        yield world
    finally:
        await asyncio.gather(*(cluster.kill() for cluster in made.values()))
        for wire in wires.values():
            await wire.close()
