"""Whole clusters of one host each in this process; they share a namespace and communicate by gRPC on loopback."""

import random
import time
from collections.abc import Sequence
from typing import Any

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import (
    GetWorkflowExecutionHistoryRequest,
    GetWorkflowExecutionHistoryResponse,
    StartWorkflowExecutionResponse,
)

from fairlead.api.clusters import Clusters
from fairlead.api.namespaces import Namespace, Namespaces
from fairlead.core.versions import ClusterVersions
from fairlead.history.service import HistoryService
from fairlead.matching.client import MatchingClient
from fairlead.replication.endpoint import Endpoint
from fairlead.replication.grpc_remote import GrpcRemote
from fairlead.replication.messages import FailOverRequest, FailOverResponse, NamespacesRequest, NamespacesResponse
from fairlead.replication.remote import Remote
from fairlead.replication.repair import Repairs
from fairlead.replication.service import Replication
from fairlead.rpc import RpcServer
from fairlead.rpc.hosts.local import LocalNetwork
from fairlead.server.host import Host, HostRing
from fairlead.settings import DynamicSettings
from fairlead.storage.history import HistoryStore
from fairlead.storage.memory.history import MemoryHistory
from fairlead.storage.memory.tasks import MemoryStore
from fairlead.telemetry import Metrics
from tests.history.shard_world import signal_request, start_request

VERSIONS = ClusterVersions(10, {"a": 1, "b": 2, "c": 3})
GLOBAL_NAMESPACE = Namespace(
    id="namespace-id",
    name="default",
    retention_ns=86_400 * 10**9,
    is_global=True,
    active_cluster="a",
    clusters=("a", "b", "c"),
    failover_version=1,
)


class OneCluster:
    """One host with history, a frontend endpoint, and replication from other clusters."""

    def __init__(self, name: str, others: Sequence[str], *, shards: int = 1, store: HistoryStore | None = None) -> None:
        self.name = name
        self.shards = shards
        self.store = store or MemoryHistory()
        self.cluster_id = f"id-{name}"
        self.clusters = Clusters(name, VERSIONS, others)
        self.addresses: dict[str, str] = {}
        self.metrics = Metrics()
        self.nudges: list[str] = []
        self._remotes: dict[str, GrpcRemote] = {}
        self._tasks = MemoryStore()
        self._port = 0

    async def open(self) -> "OneCluster":
        """Serve, at the previous address if there was one."""
        network = LocalNetwork()
        caller = network.caller()
        settings = DynamicSettings()
        host = f"host-{self.name}"
        ring = HostRing(host, store=self._tasks, caller=caller, settings=settings)
        self.namespaces = Namespaces(self.store, clock=time.time, refresh_s=0.5)
        matching = MatchingClient(caller, ring.view, settings=settings, clock=time.time, random=random.random)
        self.history = HistoryService(
            host,
            store=self.store,
            caller=caller,
            ring=ring.view,
            settings=settings,
            shards=self.shards,
            namespaces=self.namespaces,
            matching=matching,
            metrics=self.metrics,
            clusters=self.clusters,
        )
        self._host = Host(
            host,
            store=self._tasks,
            caller=caller,
            settings=settings,
            metrics=self.metrics,
            start=self.history.start_task,
            ring=ring,
        )
        self.replication = Replication(
            host,
            clusters=self.clusters,
            remotes=self.remote,
            history=self.history.client,
            store=self.store,
            ring=ring.view,
            settings=settings,
            metrics=self.metrics,
            clock_ns=time.time_ns,
        )
        for handlers in (self.history.handlers(), self.replication.handlers()):
            for method, handle in handlers:
                self._host.handlers.add(method, handle)
        self.caller, self.host = caller, host
        await self.namespaces.ensure(GLOBAL_NAMESPACE)
        await self.namespaces.open()
        network.register(host, self._host.handlers)
        self._host.start()
        await self._host.join()
        await self.history.open()
        self.repairs = Repairs(
            clusters=self.clusters, remotes=self.remote, history=self.history.client, random=random.random
        )
        self.endpoint = Endpoint(
            clusters=self.clusters,
            history=self.history.client,
            cluster_id=self.cluster_id,
            shards=self.shards,
            namespaces=_no_namespaces,
            fail_over=_fail_over,
            on_nudge=self._nudged,
            repair=self.repairs.repair,
            dead_letters=self.replication.dead_letters,
        )
        self._server = RpcServer(f"127.0.0.1:{self._port}")
        self.endpoint.add_to(self._server)
        self.address = await self._server.start()
        self._port = int(self.address.rpartition(":")[2])
        return self

    def connect(self, *others: "OneCluster") -> None:
        """Begin to pull from other clusters."""
        for other in others:
            self.addresses[other.name] = other.address
        self.replication.open()

    async def close(self) -> None:
        """Stop everything."""
        await self.replication.close()
        await self._server.stop(0)
        for remote in self._remotes.values():
            await remote.close()
        self._remotes.clear()
        await self._host.leave()
        await self.history.close()
        await self._host.membership.leave()
        await self._host.close()
        await self.namespaces.close()

    def remote(self, name: str) -> Remote:
        """Return another cluster."""
        if name not in self._remotes:
            self._remotes[name] = GrpcRemote(self.addresses[name], here=self.name)
        return self._remotes[name]

    async def call(self, name: str, workflow_id: str, request: Any) -> bytes:
        """Call the history service."""
        return await self.history.client.call(name, GLOBAL_NAMESPACE.id, workflow_id, request)

    async def begin(self, workflow_id: str, **fields: Any) -> str:
        """Start a workflow; returns its run id."""
        request = start_request(workflow_id, f"start-{workflow_id}", **fields)
        return StartWorkflowExecutionResponse.FromString(
            await self.call("StartWorkflowExecution", workflow_id, request)
        ).run_id

    async def signal(self, workflow_id: str, name: str) -> None:
        """Signal a workflow."""
        await self.call("SignalWorkflowExecution", workflow_id, signal_request(workflow_id, name))

    async def events(self, workflow_id: str) -> list[HistoryEvent]:
        """The whole history of the current run."""
        request = GetWorkflowExecutionHistoryRequest(
            namespace=GLOBAL_NAMESPACE.name, execution=WorkflowExecution(workflow_id=workflow_id)
        )
        answer = await self.call("GetWorkflowExecutionHistory", workflow_id, request)
        return list(GetWorkflowExecutionHistoryResponse.FromString(answer).history.events)

    async def _nudged(self, cluster: str) -> None:
        self.nudges.append(cluster)


def _no_namespaces(_request: NamespacesRequest) -> NamespacesResponse:
    return NamespacesResponse("digest of none")


async def _fail_over(request: FailOverRequest) -> FailOverResponse:
    return FailOverResponse(request.to, 2)
