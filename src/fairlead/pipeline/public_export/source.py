"""The server that an export reads: four read-only methods of Temporal's public API, paced and repeated."""

import asyncio
import random
import re
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar

from google.protobuf.message import DecodeError, Message
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    DescribeNamespaceResponse,
    GetWorkflowExecutionHistoryRequest,
    GetWorkflowExecutionHistoryResponse,
    GetWorkflowExecutionHistoryReverseRequest,
    GetWorkflowExecutionHistoryReverseResponse,
    ListWorkflowExecutionsRequest,
    ListWorkflowExecutionsResponse,
)

from fairlead.aio.backoff import Backoff
from fairlead.core.errors import FixRequest, GiveUp, RetryLater
from fairlead.pipeline.public_export.hints import handshake_hint
from fairlead.pipeline.public_export.pace import Pace
from fairlead.rpc.client import CallFailed, Channel, ChannelLimits, RemoteStatus
from fairlead.rpc.hosts.credentials import ANONYMOUS, AUTHORIZATION_HEADER, Credentials
from fairlead.rpc.limits import MIB
from fairlead.rpc.status import Code

SERVICE = "/temporal.api.workflowservice.v1.WorkflowService"
# Seconds until a call counts as failed.
CALL_S = 60.0
# Number of attempts of a call, and seconds between them, at first and at most: over three minutes in all.
ATTEMPTS_MAX = 12
# Number of attempts until the server has responded once: the address may be wrong.
FIRST_ATTEMPTS_MAX = 3
RETRY_FIRST_S = 0.2
RETRY_MAX_S = 30.0
RUNS_A_PAGE = 1_000
EVENTS_A_PAGE = 1_000
# Bytes of a message: servers allow pages of histories far above gRPC's default of 4 MiB.
MESSAGE_BYTES_MAX = 64 * MIB
LIMITS = ChannelLimits(
    message_bytes_max=MESSAGE_BYTES_MAX, receive_bytes_max=4 * MESSAGE_BYTES_MAX, connect_s_max=10.0, keepalive_s=30.0
)

# Failures that a repetition may mend. Reading changes nothing, so every call may be repeated.
_PASSING = frozenset(
    {Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED, Code.DEADLINE_EXCEEDED, Code.ABORTED, Code.INTERNAL, Code.UNKNOWN}
)
_HINTS = {
    Code.UNAUTHENTICATED: "give --api-key-file, FAIRLEAD_API_KEY or --tls-cert-path",
    Code.PERMISSION_DENIED: "give the credentials of a reader of this namespace: an API key or a certificate",
    Code.NOT_FOUND: "give the full name of an existing namespace; in Temporal Cloud it is NAME.ACCOUNT",
}

# The id becomes the name of a folder.
_PLAIN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")

R = TypeVar("R", bound=Message)


class SourceRefuses(FixRequest):
    """The server refuses the export: the address, the namespace or the credentials are wrong."""


class ReadAgain(RetryLater):
    """The server can't be reached, or is too busy, and stayed so for minutes."""


class CannotRead(GiveUp):
    """The server's response is not what Temporal's API describes."""


class SourceServer:
    """A namespace of a Temporal server; no method changes anything there."""

    def __init__(
        self, address: str, namespace: str, *, calls_per_s: float, credentials: Credentials = ANONYMOUS
    ) -> None:
        """Connect at the first call."""
        self.address = address
        self.namespace = namespace
        self.calls = 0
        self._attempts_max = FIRST_ATTEMPTS_MAX
        self._channel = Channel(address, limits=LIMITS, tls=credentials.channel_tls)
        self._has_tls = credentials.tls is not None
        self._has_key = any(name == AUTHORIZATION_HEADER for name, _ in credentials.headers)
        # Servers behind a gateway, like Temporal Cloud, find the namespace of a call by this header.
        self._metadata = (*credentials.headers, ("temporal-namespace", namespace))
        self._pace = Pace(calls_per_s, clock=asyncio.get_running_loop().time)

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()

    async def namespace_id(self) -> str:
        """The id of the namespace."""
        request = DescribeNamespaceRequest(namespace=self.namespace)
        response = await self._ask("DescribeNamespace", request, DescribeNamespaceResponse)
        namespace_id = response.namespace_info.id
        if not _PLAIN_ID.fullmatch(namespace_id):
            raise CannotRead(f"{self.address}: {namespace_id[:100]!r} can't be the id of namespace {self.namespace!r}")
        return namespace_id

    async def list_runs(self) -> AsyncIterator[Sequence[WorkflowExecutionInfo]]:
        """All runs that the server still has, open and closed, page by page."""
        request = ListWorkflowExecutionsRequest(namespace=self.namespace, page_size=RUNS_A_PAGE)
        while True:
            page = await self._ask("ListWorkflowExecutions", request, ListWorkflowExecutionsResponse)
            yield page.executions
            if not page.next_page_token:
                return
            request.next_page_token = page.next_page_token

    async def read_events(self, workflow_id: str, run_id: str) -> list[HistoryEvent] | None:
        """All events of a run; None if the server has deleted it."""
        request = GetWorkflowExecutionHistoryRequest(namespace=self.namespace, maximum_page_size=EVENTS_A_PAGE)
        request.execution.workflow_id, request.execution.run_id = workflow_id, run_id
        events: list[HistoryEvent] = []
        while True:
            page = await self._find("GetWorkflowExecutionHistory", request, GetWorkflowExecutionHistoryResponse)
            if page is None:
                return None
            events += page.history.events
            if not page.next_page_token:
                return events
            request.next_page_token = page.next_page_token

    async def read_newer(
        self, workflow_id: str, run_id: str, is_known: Callable[[HistoryEvent], bool]
    ) -> list[HistoryEvent] | None:
        """The events of a run after the last known one, read from its end; None if the server has deleted the run."""
        request = GetWorkflowExecutionHistoryReverseRequest(namespace=self.namespace, maximum_page_size=EVENTS_A_PAGE)
        request.execution.workflow_id, request.execution.run_id = workflow_id, run_id
        events: list[HistoryEvent] = []
        while True:
            name = "GetWorkflowExecutionHistoryReverse"
            page = await self._find(name, request, GetWorkflowExecutionHistoryReverseResponse)
            if page is None:
                return None
            for event in page.history.events:
                if is_known(event):
                    return events[::-1]
                events.append(event)
            if not page.next_page_token:
                return events[::-1]
            request.next_page_token = page.next_page_token

    async def _find(self, method: str, request: Message, response: type[R]) -> R | None:
        try:
            return await self._ask(method, request, response)
        except _NotFound:
            return None

    async def _ask(self, method: str, request: Message, response: type[R]) -> R:
        path, data = f"{SERVICE}/{method}", request.SerializeToString()
        backoff = Backoff(RETRY_FIRST_S, RETRY_MAX_S, random=random.random)
        attempt = 0
        while True:
            attempt += 1
            await self._pace.wait()
            self.calls += 1
            try:
                received = await self._channel.unary(path, data, timeout_s=CALL_S, metadata=self._metadata)
                self._attempts_max = ATTEMPTS_MAX
                return response.FromString(received)
            except CallFailed as failure:
                hint = None if isinstance(failure, RemoteStatus) else handshake_hint(failure.message)
                if hint is not None:
                    raise SourceRefuses(f"{self.address}: {failure.message}: {hint}") from None
                if failure.code not in _PASSING:
                    raise self._refusal(method, failure) from None
                if attempt >= self._attempts_max:
                    raise self._unreachable(method, attempt, failure) from None
            except DecodeError:
                raise CannotRead(f"{self.address}: the response of {method} is not a message of its API") from None
            await asyncio.sleep(backoff.next_s())

    def _unreachable(self, method: str, attempts: int, failure: CallFailed) -> ReadAgain:
        hint = "the next export continues from here"
        if self._attempts_max == FIRST_ATTEMPTS_MAX:
            hint = "check the address, and whether the server needs --tls"
            if self._has_tls:
                hint = "check the address; the server may require a certificate, or not trust that of --tls-cert-path"
        return ReadAgain(
            f"{self.address}: {method} failed {attempts} times, at last with {failure.code.name}: "
            f"{failure.message}: {hint}"
        )

    def _refusal(self, method: str, failure: CallFailed) -> SourceRefuses:
        hint = _HINTS.get(failure.code, "is this the gRPC address of a Temporal server?")
        if self._has_key and failure.code in {Code.UNAUTHENTICATED, Code.PERMISSION_DENIED}:
            hint = "the API key is wrong, has expired or was revoked, or its role can't read this namespace"
        kind = _NotFound if failure.code is Code.NOT_FOUND else SourceRefuses
        return kind(
            f"{self.address}, namespace {self.namespace!r}: {method} was refused with {failure.code.name}: "
            f"{failure.message}: {hint}"
        )


class _NotFound(SourceRefuses):
    """The server does not have the namespace or the run."""
