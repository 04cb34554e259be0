"""Two clusters and several hosts that authenticate themselves, as real servers; and callers that can't."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from temporalio.api.operatorservice.v1 import AddOrUpdateRemoteClusterRequest
from temporalio.api.replication.v1 import ClusterReplicationConfig, NamespaceReplicationConfig
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    RegisterNamespaceRequest,
    UpdateNamespaceRequest,
)
from temporalio.client import Client, TLSConfig
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from fairlead.api.errors import ApiError
from fairlead.authorization.api_keys import new_key, store_key
from fairlead.authorization.messages import (
    CREATE_KEY,
    REVOKE_KEY,
    CreateKeyRequest,
    CreateKeyResponse,
    RevokeKeyRequest,
)
from fairlead.replication.grpc_remote import GrpcRemote
from fairlead.replication.messages import NamespacesRequest
from fairlead.rpc.hosts.credentials import Credentials, with_api_key
from fairlead.rpc.tls import ClientSide
from fairlead.server import Server
from fairlead.settings.static.authorization import AuthorizationConfig, CertificateGrant
from fairlead.settings.static.config import (
    Address,
    ClusterConfig,
    MemoryConfig,
    RemoteClusterConfig,
    SecurityConfig,
    SqliteConfig,
    StaticConfig,
)
from fairlead.settings.static.tls import ClientTls, Pem, ServerTls, TlsConfig, TlsGroup
from fairlead.storage.sqlite import SqliteStore
from tests.patience import until
from tests.ports import free_port
from tests.security.certificates import Authority
from tests.security.workflows import QUEUE, Greeting, worker

SECRET = "0123456789abcdef0123456789abcdef"  # noqa: S105 - of a test


def free_ports(count: int) -> list[int]:
    return [free_port() for _ in range(count)]


async def made_key(file: Path, **permission: str) -> str:
    """A key in a store that no server has open."""
    store = await SqliteStore.open(file)
    try:
        given = {"namespace": "", "role": "", **permission}
        key, text = new_key("", now_s=0.0, **given)  # type: ignore[arg-type]
        await store_key(store.history, key)
    finally:
        await store.close()
    return text


@dataclass
class Pair:
    authority: Authority
    addresses: dict[str, str]
    admin_keys: dict[str, str]
    configs: dict[str, StaticConfig]
    servers: dict[str, Server]

    async def restart(self, name: str, cluster: ClusterConfig) -> None:
        """Restart a cluster with another configuration of itself, at the same addresses and with the same store."""
        await self.servers[name].stop()
        self.configs[name] = replace(self.configs[name], cluster=cluster)
        self.servers[name] = Server(self.configs[name])
        await self.servers[name].start()

    async def stop(self, name: str) -> None:
        await self.servers[name].stop()

    async def client(self, cluster: str, namespace: str, key: str | None = None) -> Client:
        return await Client.connect(
            self.addresses[cluster],
            namespace=namespace,
            api_key=key or self.admin_keys[cluster],
            tls=TLSConfig(server_root_ca_cert=self.authority.certificate.read_bytes()),
        )

    async def key(self, cluster: str, namespace: str, role: str) -> str:
        """A new key, by the running server."""
        return await self._made(cluster, CreateKeyRequest("", namespace, role))

    async def cluster_key(self, cluster: str, caller: str) -> str:
        """A new key of another cluster, by the running server."""
        return await self._made(cluster, CreateKeyRequest(caller, cluster=caller))

    async def _made(self, cluster: str, request: CreateKeyRequest) -> str:
        guard = self.servers[cluster]._guard
        assert guard is not None
        [create] = [handle for method, handle in guard.handlers() if method is CREATE_KEY]
        made: CreateKeyResponse = await create(request)
        return made.key

    async def revoke(self, cluster: str, key: str) -> None:
        """Revoke a key with a call to the running server."""
        guard = self.servers[cluster]._guard
        assert guard is not None
        [revoke] = [handle for method, handle in guard.handlers() if method is REVOKE_KEY]
        await revoke(RevokeKeyRequest(key.split("_")[1]))

    @property
    def trust(self) -> ClientSide:
        return ClientSide(ClientTls(authorities=(Pem(self.authority.certificate),)))


@asynccontextmanager
async def pair(folder: Path, *, refresh_s: float = 60.0, by_certificate: bool = False) -> AsyncIterator[Pair]:
    """Clusters a and b over TLS, each with a key of the other, or known to it by its certificate.

    `refresh_s` is how often certificates are read.
    """
    authority = Authority(folder)
    issued = authority.issue("localhost")
    ports = dict(zip("ab", free_ports(2), strict=True))
    addresses = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
    files = {name: folder / f"{name}.db" for name in "ab"}
    admin = {name: await made_key(files[name], namespace="temporal-system", role="admin") for name in "ab"}
    of_other = {name: await made_key(files[other], cluster=name) for name, other in (("a", "b"), ("b", "a"))}
    proofs = {name: authority.issue(f"{name}.example", file=f"cluster-{name}") for name in "ab"}
    found = Pair(authority, addresses, admin, {}, {})
    async with AsyncExitStack() as stack:
        for number, (name, other) in enumerate((("a", "b"), ("b", "a")), 1):
            trusted = (Pem(authority.certificate),)
            proof = ServerTls(Pem(proofs[name].certificate), Pem(proofs[name].key)) if by_certificate else ServerTls()
            tls = TlsConfig(
                frontend=TlsGroup(
                    ServerTls(Pem(issued.certificate), Pem(issued.key), trusted if by_certificate else ())
                ),
                remotes={addresses[other]: TlsGroup(proof, ClientTls(authorities=trusted))},
                refresh_s=refresh_s,
            )
            grants = (CertificateGrant(f"{other}.example", cluster=other),) if by_certificate else ()
            found.configs[name] = StaticConfig(
                frontend_listen=Address("127.0.0.1", ports[name]),
                listen=Address("127.0.0.1", 0),
                store=SqliteConfig(files[name]),
                cluster=ClusterConfig(
                    name,
                    number,
                    remotes={other: RemoteClusterConfig(3 - number, addresses[other])},
                    api_keys={} if by_certificate else {addresses[other]: of_other[name]},
                    allowed_addresses=("127.0.0.1",),
                ),
                security=SecurityConfig(AuthorizationConfig(authorizer="default", certificates=grants), tls),
                hand_over_s=0.0,
                grace_s=1.0,
            )
            found.servers[name] = Server(found.configs[name])
            await found.servers[name].start()
            stack.push_async_callback(found.stop, name)
        yield found


def register(name: str, *clusters: str) -> RegisterNamespaceRequest:
    return RegisterNamespaceRequest(
        namespace=name,
        workflow_execution_retention_period=Duration(seconds=86_400),
        is_global_namespace=True,
        active_cluster_name="a",
        clusters=[ClusterReplicationConfig(cluster_name=each) for each in clusters],
    )


async def eventually(ask: Any) -> Any:
    """The result of a call that succeeds soon."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await ask()
            except RPCError:
                await asyncio.sleep(0.1)


async def test_clusters_replicate_forward_and_fail_over_with_keys_over_tls(tmp_path: Path) -> None:
    async with pair(tmp_path) as clusters:
        admin_a, admin_b = await clusters.client("a", "shared"), await clusters.client("b", "shared")
        await admin_a.workflow_service.register_namespace(register("shared", "a", "b"))

        asked = DescribeNamespaceRequest(namespace="shared")
        await eventually(lambda: admin_b.workflow_service.describe_namespace(asked))
        # A call to the passive cluster is forwarded with that cluster's credentials, not with the caller's key.
        async with worker(admin_a):
            found = await eventually(
                lambda: admin_b.execute_workflow(Greeting.run, "world", id="forwarded", task_queue=QUEUE)
            )
            assert found == "Hello, world!"
        # The other cluster soon has the events that the active one has written.
        history = await eventually(lambda: admin_b.get_workflow_handle("forwarded").describe())
        assert history.id == "forwarded"
        # Failover needs the role admin, and moves the namespace in both clusters.
        move = UpdateNamespaceRequest(
            namespace="shared", replication_config=NamespaceReplicationConfig(active_cluster_name="b")
        )
        writer = await clusters.client("b", "shared", key=await clusters.key("b", "shared", "writer"))
        with pytest.raises(RPCError) as refused:
            await writer.workflow_service.update_namespace(move)
        assert refused.value.status is RPCStatusCode.PERMISSION_DENIED
        await admin_b.workflow_service.update_namespace(move)
        async with worker(admin_b):
            # An attempt may start the workflow and lose its connection to the result while the clusters switch.
            found = await eventually(
                lambda: admin_a.execute_workflow(
                    Greeting.run,
                    "again",
                    id="after failover",
                    task_queue=QUEUE,
                    id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                )
            )
            assert found == "Hello, again!"
        # Without the role, nothing is forwarded.
        stranger = await clusters.client("b", "shared", key="fl_no_key")
        with pytest.raises(RPCError) as refused:
            await stranger.start_workflow(Greeting.run, "world", id="refused", task_queue=QUEUE)
        assert refused.value.status is RPCStatusCode.PERMISSION_DENIED


@dataclass
class Load:
    """Workflows that are started at both clusters, one after the other, until the end."""

    done: int = 0
    is_over: bool = False

    def has_done(self, goal: int, loads: list[asyncio.Task[None]]) -> bool:
        """Whether this number of workflows is done, or a load has failed."""
        return self.done >= goal or any(each.done() for each in loads)

    async def run(self, number: int, client_of: Callable[[], Client]) -> None:
        count = 0
        while not self.is_over:
            count += 1
            workflow_id = f"greeting-{number}-{count}"
            # A start may have arrived although its response is lost.
            await until(partial(self.greeted, workflow_id, client_of))
            self.done += 1

    async def greeted(self, workflow_id: str, client_of: Callable[[], Client]) -> bool:
        """Whether a workflow was started and is done; an attempt that failed is to be repeated."""
        client = client_of()
        try:
            handle = await client.start_workflow(
                *(Greeting.run, "world"),
                id=workflow_id,
                task_queue=QUEUE,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            )
        except WorkflowAlreadyStartedError:
            handle = client.get_workflow_handle(workflow_id)
        except RPCError as failed:
            if failed.status is RPCStatusCode.PERMISSION_DENIED and client is client_of():
                # The key was not replaced: its caller must not be refused.
                raise
            return False
        try:
            async with asyncio.timeout(20):
                assert await handle.result() == "Hello, world!"
        except (RPCError, TimeoutError):
            return False
        return True


async def test_failovers_under_load_while_certificates_and_keys_are_replaced(tmp_path: Path) -> None:
    """No call is refused to its rightful caller, and a revoked key is refused, while everything changes."""
    async with pair(tmp_path, refresh_s=0.5) as clusters:
        admins = {name: await clusters.client(name, "shared") for name in "ab"}
        await admins["a"].workflow_service.register_namespace(register("shared", "a", "b"))
        asked = DescribeNamespaceRequest(namespace="shared")
        await eventually(lambda: admins["b"].workflow_service.describe_namespace(asked))
        keys = {name: await clusters.key(name, "shared", "writer") for name in "ab"}
        writers = {name: await clusters.client(name, "shared", keys[name]) for name in "ab"}
        load = Load()
        async with worker(admins["a"]), worker(admins["b"]):
            loads = [
                asyncio.create_task(load.run(number, partial(writers.__getitem__, name)))
                for number, name in enumerate("abab")
            ]
            for active in "ba":
                goal = load.done + 6
                move = UpdateNamespaceRequest(
                    namespace="shared", replication_config=NamespaceReplicationConfig(active_cluster_name=active)
                )
                await eventually(partial(admins[active].workflow_service.update_namespace, move))
                clusters.authority.issue("localhost")
                old = dict(keys)
                for name in "ab":
                    keys[name] = await clusters.key(name, "shared", "writer")
                    writers[name] = await clusters.client(name, "shared", keys[name])
                    await clusters.revoke(name, old[name])
                await until(partial(load.has_done, goal, loads))
                assert not any(each.done() for each in loads), [each for each in loads if each.done()]
                for name in "ab":
                    # The revoked key must be refused after the next failover, too.
                    revoked = await clusters.client(name, "shared", old[name])
                    with pytest.raises(RPCError) as refused:
                        await revoked.start_workflow(Greeting.run, "world", id="refused", task_queue=QUEUE)
                    assert refused.value.status is RPCStatusCode.PERMISSION_DENIED
            load.is_over = True
            await asyncio.gather(*loads)


async def test_strangers_get_nothing_from_the_service_for_clusters(tmp_path: Path) -> None:
    async with pair(tmp_path) as clusters:
        wrong: list[Credentials] = [Credentials((), clusters.trust), with_api_key("fl_no_key", clusters.trust)]
        for credentials in wrong:
            remote = GrpcRemote(clusters.addresses["a"], here="b", credentials=credentials)
            for ask in (remote.info, partial(remote.namespaces, NamespacesRequest()), remote.nudge):
                with pytest.raises(ApiError, match="Request unauthorized"):
                    await ask()
            await remote.close()
        admin = await clusters.client("a", "default")
        asked = AddOrUpdateRemoteClusterRequest(frontend_address="192.0.2.1:80", enable_remote_cluster_connection=True)
        with pytest.raises(RPCError, match=r"not one to which this cluster may connect"):
            await admin.operator_service.add_or_update_remote_cluster(asked)


async def test_hosts_without_the_secret_are_refused(tmp_path: Path) -> None:
    """The host's own port is protected by a secret alone: without TLS, and without authorization of SDKs."""
    server = Server(
        StaticConfig(
            frontend_listen=Address("127.0.0.1", 0),
            listen=Address("127.0.0.1", 0),
            store=MemoryConfig(),
            security=SecurityConfig(secret=SECRET),
            hand_over_s=0.0,
            grace_s=0.0,
        )
    )
    await server.start()
    try:
        async with grpc.aio.insecure_channel(server.address) as channel:
            for path in ("/fairlead/history.Call", "/fairlead/matching.Poll", "/fairlead/cluster.Ring"):
                send: Any = channel.unary_unary(path, None, None)
                for metadata in ([], [("fairlead-internode-secret", "wrong")]):
                    with pytest.raises(grpc.aio.AioRpcError) as refused:
                        await send(b"", metadata=metadata, timeout=10)
                    # Requests of strangers are not decoded: a malformed one is refused like any other.
                    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    finally:
        await server.stop()
