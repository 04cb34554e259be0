"""Two connected clusters with consoles, in a loop of their own."""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from google.protobuf.duration_pb2 import Duration
from temporalio.api.replication.v1 import ClusterReplicationConfig
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, RegisterNamespaceRequest
from temporalio.client import Client

from fairlead.settings.static.clusters import ClusterConfig, RemoteClusterConfig
from tests.console.loop_thread import LoopThread, loop_thread
from tests.console.web import Visitor, running_console
from tests.data_centers.wires import Wire
from tests.ports import free_port

NAMES = ("a", "b")
VERSIONS = {"a": 1, "b": 2}
NAMESPACE = "shared"
START_S_MAX = 60.0

T = TypeVar("T")


@dataclass
class TwoClusters:
    """Clusters a and b; `wires` lead to each of them from the other."""

    thread: LoopThread
    ports: dict[str, int] = field(default_factory=dict)
    visitors: dict[str, Visitor] = field(default_factory=dict)
    wires: dict[str, Wire] = field(default_factory=dict)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine where the clusters run."""
        return self.thread.run(work)

    def console(self, name: str) -> str:
        return f"http://127.0.0.1:{self.visitors[name].port}/console"

    async def client(self, name: str, namespace: str = NAMESPACE) -> Client:
        return await Client.connect(f"127.0.0.1:{self.ports[name]}", namespace=namespace)

    async def cut(self, *names: str) -> None:
        """Cut the connections to clusters."""
        for name in names or NAMES:
            await self.wires[name].cut()

    def heal(self) -> None:
        for wire in self.wires.values():
            wire.heal()

    async def active(self, name: str, namespace: str = NAMESPACE) -> str:
        """Where the namespace is active, as a cluster knows it; empty if it does not know the namespace yet."""
        client = await self.client(name, namespace)
        try:
            described = await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=namespace))
        except Exception:  # noqa: BLE001 - the caller asks again
            return ""
        return described.replication_config.active_cluster_name

    async def share(self, namespace: str) -> None:
        """Register a global namespace, active in a, and wait until b has it."""
        client = await self.client("a", namespace)
        await client.workflow_service.register_namespace(
            RegisterNamespaceRequest(
                namespace=namespace,
                workflow_execution_retention_period=Duration(seconds=86_400),
                is_global_namespace=True,
                active_cluster_name="a",
                clusters=[ClusterReplicationConfig(cluster_name=name) for name in NAMES],
            )
        )
        async with asyncio.timeout(START_S_MAX):
            while await self.active("b", namespace) != "a":  # noqa: ASYNC110 - it is another cluster
                await asyncio.sleep(0.02)


@contextmanager
def two_clusters(*, lake: Path | None = None) -> Iterator[TwoClusters]:
    """Run both clusters until the block ends; the console of a has the lake."""
    with loop_thread() as thread:
        clusters = TwoClusters(thread)
        stack = AsyncExitStack()
        try:
            clusters.run(_start(clusters, stack, lake))
            yield clusters
        finally:
            clusters.run(stack.aclose())


async def _start(clusters: TwoClusters, stack: AsyncExitStack, lake: Path | None) -> None:
    clusters.ports |= {name: free_port() for name in NAMES}
    for name in NAMES:
        clusters.wires[name] = await Wire(f"127.0.0.1:{clusters.ports[name]}").open()
        stack.push_async_callback(clusters.wires[name].close)
    for name, other in zip(NAMES, reversed(NAMES), strict=True):
        remote = RemoteClusterConfig(VERSIONS[other], clusters.wires[other].address)
        config = ClusterConfig(name, VERSIONS[name], 10, {other: remote})
        started = running_console(port=clusters.ports[name], cluster=config, lake=lake if name == "a" else None)
        _, clusters.visitors[name] = await stack.enter_async_context(started)
