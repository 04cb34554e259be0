"""The viewer's access to the server: every call is made with the viewer's own rights."""

import random
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeVar

from google.protobuf.message import Message
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    DescribeNamespaceResponse,
    ListNamespacesRequest,
    ListNamespacesResponse,
)

from fairlead.authorization.claims import Principal
from fairlead.authorization.gate import MESSAGE, NOBODY
from fairlead.authorization.host_methods import HOST_METHODS
from fairlead.authorization.methods import OPERATOR_SERVICE, WORKFLOW_SERVICE, MethodAccess, access_of
from fairlead.console.backend import Backend
from fairlead.console.series import Point, SeriesName
from fairlead.console.view import workflow_method
from fairlead.core.errors import FairleadError
from fairlead.frontend.http import HttpApi
from fairlead.http import Request
from fairlead.matching.operator_client import OperatorClient
from fairlead.rpc import Code, RpcStatus
from fairlead.rpc.certificate import PeerCertificate
from fairlead.rpc.hosts.caller import Method

R = TypeVar("R", bound=Message)
HostRequest = TypeVar("HostRequest")
HostResponse = TypeVar("HostResponse")

# Seconds that a call to another host may take.
HOST_TIMEOUT_S: Final = 5.0
# Number of namespaces that the page offers.
NAMESPACES_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class Credentials:
    """The part of a viewer's request that identifies the viewer; see `WithCredentials`."""

    metadata: Mapping[str, str]
    peer: str
    certificate: PeerCertificate | None = None


@dataclass(frozen=True, slots=True)
class _AdmittedCaller:
    """Calls hosts with the viewer's rights instead of this host's."""

    backend: Backend
    credentials: Credentials

    async def call(
        self, host: str, method: Method[HostRequest, HostResponse], request: HostRequest, *, timeout_s: float
    ) -> HostResponse:
        if self.backend.admit is not None:
            await self.backend.admit(self.credentials, method.name, request)
        return await self.backend.caller.call(host, method, request, timeout_s=timeout_s)


@dataclass(slots=True)
class Context:
    """One viewer of one view. `request` carries the viewer's credentials in its headers."""

    backend: Backend
    api: HttpApi
    request: Request
    principal: Principal = NOBODY
    now_s: float = field(default_factory=time.time)
    # True for a sample of a live view: a forbidden call fails early, so that it is not logged and audited every two
    # seconds.
    is_sample: bool = False

    @property
    def credentials(self) -> Credentials:
        """The viewer's credentials."""
        return Credentials(self.request.headers, self.request.peer)

    async def call(self, name: str, request: Message, answer: type[R], *, service: str = WORKFLOW_SERVICE) -> R:
        """Call a method of Temporal's API as the viewer; raises `RpcStatus`."""
        if self.is_sample:
            await self.require(access_of(service, name), getattr(request, "namespace", ""))
        return answer.FromString(await self.api.call(f"/{service}/{name}", request, self.request))

    async def call_operator(self, name: str, request: Message, answer: type[R]) -> R:
        """Call a method of Temporal's OperatorService as the viewer; raises `RpcStatus`."""
        return await self.call(name, request, answer, service=OPERATOR_SERVICE)

    @property
    def operators(self) -> OperatorClient:
        """The client of `fairlead admin` for task queues and the ring, with the viewer's rights."""
        caller = _AdmittedCaller(self.backend, self.credentials)
        return OperatorClient(caller, self.backend.ring, random=random.random)

    async def ask_host(
        self,
        host: str,
        method: Method[HostRequest, HostResponse],
        request: HostRequest,
        *,
        timeout_s: float = HOST_TIMEOUT_S,
    ) -> HostResponse:
        """Call a method of `fairlead admin` at a host, with the viewer's rights; raises `FairleadError`."""
        caller = _AdmittedCaller(self.backend, self.credentials)
        return await caller.call(host, method, request, timeout_s=timeout_s)

    def identifying_headers(self) -> tuple[str, ...]:
        """The headers that tell viewers apart: those of the gate, and those that calls of the API forward."""
        gate, headers = self.backend.gate, self.request.headers
        own = () if gate is None else (headers.get(gate.header, ""), headers.get(gate.extras_header, ""))
        return (*own, *self.api.identifying_headers(self.request))

    async def may(self, access: MethodAccess, namespace: str = "") -> bool:
        """Whether the viewer may call a method; asks quietly, so that nothing is logged or audited."""
        gate = self.backend.gate
        return gate is None or await gate.allows(self.credentials, access, namespace)

    async def may_ask_hosts(self, name: str = "matching.Describe") -> bool:
        """Whether the viewer may call a method of `fairlead admin`, such as matching.Describe."""
        return await self.may(HOST_METHODS[name])

    async def require(self, access: MethodAccess, namespace: str = "") -> None:
        """Raise `RpcStatus` unless the viewer may call a method, for data that is read from memory.

        A refusal is logged and audited, but not every two seconds for a live view.
        """
        if await self.may(access, namespace):
            return
        if not self.is_sample:
            with suppress(FairleadError):
                await self.enforce(access, namespace)
        raise RpcStatus(Code.PERMISSION_DENIED, MESSAGE)

    async def enforce(self, access: MethodAccess, namespace: str = "") -> None:
        """Raise unless the viewer may call a method; a refusal is logged and audited."""
        gate = self.backend.gate
        if gate is not None and not await self.may(access, namespace):
            await gate.admit(self.credentials, access, namespace)

    async def namespaces(self) -> list[str]:
        """Names of the namespaces that the viewer may list; empty without that right."""
        if not await self.may(workflow_method("ListNamespaces")):
            return []
        asked = ListNamespacesRequest(page_size=NAMESPACES_MAX)
        found = await self.call("ListNamespaces", asked, ListNamespacesResponse)
        return sorted(one.namespace_info.name for one in found.namespaces)

    async def namespace_id(self, name: str) -> str:
        """The id of a namespace, which names its task queues between hosts."""
        asked = DescribeNamespaceRequest(namespace=name)
        return (await self.call("DescribeNamespace", asked, DescribeNamespaceResponse)).namespace_info.id

    def points(self, name: SeriesName, *, span_s: float = 3_600.0) -> list[Point]:
        """Points of a time series of this host. The view checks first that the viewer may see them (`require`)."""
        return self.backend.series.points(name, span_s=span_s, now_s=self.now_s)

    def identity(self) -> str:
        """The name of the viewer in events."""
        return f"{self.principal.name or 'anonymous'}@console"
