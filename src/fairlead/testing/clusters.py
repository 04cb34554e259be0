"""Several connected clusters, for tests of failovers."""

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from fairlead.testing.server import GRACE_S, FairleadServer

# Imported late, as in server.py: the sandbox of Temporal's SDK must not load a whole server.
if TYPE_CHECKING:
    from fairlead.replication.grpc_remote import GrpcRemote
    from fairlead.server import Server
    from fairlead.settings import Plain
    from fairlead.settings.static.config import StaticConfig

NAMESPACE = "shared"
INCREMENT = 10
RETENTION_S = 86_400
KNOWN_S_MAX = 15.0
_POLL_S = 0.02


class FairleadClusters:
    """Running clusters with a global namespace, each with one server, in the test's event loop.

    async with FairleadClusters.start("a", "b") as clusters:
        client = await clusters["a"].connect()
        await clusters.fail_over("b")

    Each cluster also has its own local namespace "default". `stop` and `restart` stop one cluster for a while; it keeps
    its data only with `folder`.
    """

    def __init__(self, configs: "Mapping[str, StaticConfig]", namespace: str, overrides: "Mapping[str, Plain]") -> None:
        """Call `start` instead of this constructor."""
        self.namespace = namespace
        self._configs = configs
        self._overrides = overrides
        self._servers: dict[str, Server] = {}

    def __getitem__(self, name: str) -> FairleadServer:
        """Cluster by its name."""
        return FairleadServer(str(self._configs[name].frontend_listen), self.namespace)

    def admin_address(self, name: str) -> str:
        """Address of a running cluster for `fairlead admin --address`."""
        return self._servers[name].address

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all clusters; the first one is active at the start."""
        return tuple(self._configs)

    async def fail_over(self, to: str, *, is_graceful: bool = True, asked: str | None = None) -> int:
        """Make `to` the active cluster; return the new failover version.

        The request goes to the cluster `asked`, by default to `to`. A failover that is not graceful works even if all
        other clusters are stopped.
        """
        from fairlead.replication.messages import FailOverRequest  # noqa: PLC0415

        request = FailOverRequest(self.namespace, to, is_graceful, KNOWN_S_MAX)
        async with self._remote(asked or to) as remote:
            return (await remote.fail_over(request)).failover_version

    async def restart(self, name: str) -> None:
        """Start a stopped cluster again, at the same address."""
        await self._start(name)

    async def stop(self, name: str) -> None:
        """Stop a cluster."""
        await self._servers.pop(name).stop()

    async def until_active(self, cluster: str) -> None:
        """Wait until every running cluster knows that `cluster` is the active one."""
        async with asyncio.timeout(KNOWN_S_MAX):
            for name in list(self._servers):
                while await self._active(name) != cluster:  # noqa: ASYNC110 - it is another process, as far as this knows
                    await asyncio.sleep(_POLL_S)

    @classmethod
    @asynccontextmanager
    async def start(
        cls,
        *names: str,
        namespace: str = NAMESPACE,
        folder: Path | str | None = None,
        journal: Path | str | None = None,
        dynamic_config: "Mapping[str, Plain] | None" = None,
    ) -> AsyncIterator[Self]:
        """Run clusters with these names until the block ends, with one global namespace.

        `folder` has each cluster's database; without it, all data is in memory. With `journal`, each cluster writes a
        journal to a subfolder of its name.
        """
        configs = _configs(
            names or ("a", "b"),
            None if folder is None else Path(folder),
            journal=None if journal is None else Path(journal),
        )
        clusters = cls(configs, namespace, dynamic_config or {})
        async with AsyncExitStack() as stack:
            for name in configs:
                await clusters._start(name)
                stack.push_async_callback(clusters._stop_if_running, name)
            await clusters._share()
            yield clusters

    async def _start(self, name: str) -> None:
        from fairlead.server import Server  # noqa: PLC0415

        server = Server(self._configs[name], overrides=dict(self._overrides))
        await server.start()
        self._servers[name] = server

    async def _stop_if_running(self, name: str) -> None:
        if name in self._servers:
            await self.stop(name)

    async def _share(self) -> None:
        """Register the global namespace in the first cluster, and wait until all clusters have it."""
        from google.protobuf.duration_pb2 import Duration  # noqa: PLC0415
        from temporalio.api.replication.v1 import ClusterReplicationConfig  # noqa: PLC0415
        from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest  # noqa: PLC0415

        client = await self[self.names[0]].connect()
        await client.workflow_service.register_namespace(
            RegisterNamespaceRequest(
                namespace=self.namespace,
                workflow_execution_retention_period=Duration(seconds=RETENTION_S),
                is_global_namespace=True,
                active_cluster_name=self.names[0],
                clusters=[ClusterReplicationConfig(cluster_name=name) for name in self.names],
            )
        )
        await self.until_active(self.names[0])

    async def _active(self, name: str) -> str:
        from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest  # noqa: PLC0415
        from temporalio.service import RPCError, RPCStatusCode  # noqa: PLC0415

        client = await self[name].connect()
        try:
            described = await client.workflow_service.describe_namespace(
                DescribeNamespaceRequest(namespace=self.namespace)
            )
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return ""
        return described.replication_config.active_cluster_name

    @asynccontextmanager
    async def _remote(self, name: str) -> "AsyncIterator[GrpcRemote]":
        from fairlead.replication.grpc_remote import GrpcRemote  # noqa: PLC0415

        remote = GrpcRemote(str(self._configs[name].frontend_listen), here="test")
        try:
            yield remote
        finally:
            await remote.close()


def _configs(names: Sequence[str], folder: Path | None, *, journal: Path | None) -> "dict[str, StaticConfig]":
    from fairlead.settings.static.config import (  # noqa: PLC0415
        Address,
        ClusterConfig,
        JournalConfig,
        MemoryConfig,
        RemoteClusterConfig,
        SqliteConfig,
        StaticConfig,
    )

    addresses = {name: Address("127.0.0.1", port) for name, port in zip(names, _free_ports(len(names)), strict=True)}
    increment = max(INCREMENT, len(addresses) + 1)
    remotes = {
        name: RemoteClusterConfig(number, str(address)) for number, (name, address) in enumerate(addresses.items(), 1)
    }
    return {
        name: StaticConfig(
            frontend_listen=address,
            listen=Address("127.0.0.1", 0),
            store=MemoryConfig() if folder is None else SqliteConfig(folder / f"{name}.db"),
            cluster=ClusterConfig(
                name,
                remotes[name].initial_version,
                increment,
                {other: remote for other, remote in remotes.items() if other != name},
            ),
            journal=None if journal is None else JournalConfig(journal),
            hand_over_s=0.0,
            grace_s=GRACE_S,
        )
        for name, address in addresses.items()
    }


def _free_ports(count: int) -> list[int]:
    """Find free ports, all bound at once so that they differ; each cluster needs the others' ports before it starts."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
