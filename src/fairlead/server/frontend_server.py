"""The frontend's gRPC server on one host, and the draining of its waiting calls."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec
from google.protobuf.message import Message
from structlog.typing import FilteringBoundLogger
from temporalio.api.enums.v1 import UpdateWorkflowExecutionLifecycleStage
from temporalio.api.update.v1 import UpdateRef
from temporalio.api.workflowservice.v1 import (
    PollWorkflowExecutionUpdateRequest,
    PollWorkflowExecutionUpdateResponse,
    UpdateWorkflowExecutionRequest,
    UpdateWorkflowExecutionResponse,
)

from fairlead.console.backend import Backend
from fairlead.console.sampler import Sampler
from fairlead.core.partitions import PartitionConfig
from fairlead.frontend import OPERATOR_SERVICE, WORKFLOW_SERVICE, Frontend, add_services, answerers
from fairlead.history.client import CALL_TIMEOUT_S, HistoryClient
from fairlead.history.messages.stream import PullRequest
from fairlead.matching.messages import POLL, BacklogReport, PollResponse
from fairlead.rpc import RpcServer
from fairlead.rpc.hosts.caller import Caller, Method, Request, Response
from fairlead.server.web import http_endpoints
from fairlead.settings.dynamic.connections import CONNECTION_AGE_GRACE, CONNECTION_AGE_MAX
from fairlead.settings.dynamic.quotas import MESSAGE_MEMORY
from fairlead.settings.static.config import DEFAULTS, StaticConfig
from fairlead.telemetry import Metrics

if TYPE_CHECKING:
    # Not imported at run time: only clusters with remote clusters, or servers that skip time, load these modules.
    from fairlead.replication.admission import ClusterAdmission
    from fairlead.replication.endpoint import Endpoint
    from fairlead.time_skipping import Skipper

T = TypeVar("T")

# Seconds for open calls to end at stop: the long polls are already answered, and all other calls are short.
DRAIN_S_MAX = 2.0
# Timeout in seconds with which draining repeats a long poll for a run or an activity.
NO_WAIT_S = 0.1
_WAIT_FOR_NEWS = frozenset(
    (
        "GetWorkflowExecutionHistory",
        "PollActivityExecution",
        "DescribeActivityExecution",
        "PollWorkflowExecutionTimeSkipping",
    )
)

_NO_TASK = PollResponse(
    None, PartitionConfig(version=0, read=1, write=1), BacklogReport(0, tasks=0, age_s=0.0, adds_per_s=0.0, wait_s=0.0)
)


class Drain:
    """Tracks long polls of the frontend. When draining begins, each poll is cancelled and gets another response."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Task[Any]] = set()
        # Polls that draining cancelled.
        self._ended: set[asyncio.Task[Any]] = set()
        self._has_begun = False

    async def wait(self, ask: Callable[[], Awaitable[T]], instead: Callable[[], Awaitable[T]]) -> T:
        """Result of `ask`, or of `instead` if draining begins before `ask` ends."""
        waiting = asyncio.current_task()
        if self._has_begun or waiting is None:
            return await instead()
        self._waiting.add(waiting)
        try:
            return await ask()
        except asyncio.CancelledError:
            # If the caller has cancelled the poll too, nobody waits for a response: stay cancelled.
            if waiting not in self._ended or waiting.uncancel() != 0:
                raise
        finally:
            self._waiting.discard(waiting)
            self._ended.discard(waiting)
        return await instead()

    def begin(self) -> None:
        """Answer all waiting polls now, and each later poll as soon as it arrives."""
        self._has_begun = True
        self._ended |= self._waiting
        for waiting in self._waiting:
            waiting.cancel()


class DrainingCaller:
    """Calls other hosts. While draining, it cancels waiting polls at the other host and answers them empty."""

    def __init__(self, caller: Caller, drain: Drain) -> None:
        self._caller = caller
        self._drain = drain

    async def call(
        self, host: str, method: Method[Request, Response], request: Request, *, timeout_s: float
    ) -> Response:
        """Call `method` at `host`."""

        async def ask() -> Response:
            return await self._caller.call(host, method, request, timeout_s=timeout_s)

        async def answer_empty() -> Response:
            return cast(Response, _NO_TASK)

        return await (self._drain.wait(ask, answer_empty) if method.name == POLL.name else ask())


class DrainingHistory(HistoryClient):
    """Calls the history service. While draining, its long polls get the response "nothing new yet".

    It returns no error, because an SDK that has waited beyond its retry limit would take an error for the outcome.
    """

    def __init__(self, client: HistoryClient, drain: Drain) -> None:
        self._client = client
        self._drain = drain

    async def call(
        self,
        name: str,
        namespace_id: str,
        workflow_id: str,
        request: Message | msgspec.Struct,
        *,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> bytes:
        """Carry out the operation `name`."""

        async def ask(within_s: float) -> bytes:
            return await self._client.call(name, namespace_id, workflow_id, request, timeout_s=within_s)

        if name in _WAIT_FOR_NEWS:
            return await self._drain.wait(lambda: ask(timeout_s), lambda: ask(min(timeout_s, NO_WAIT_S)))
        if isinstance(request, UpdateWorkflowExecutionRequest | PollWorkflowExecutionUpdateRequest):
            return await self._drain.wait(lambda: ask(timeout_s), lambda: _not_yet(request))
        return await ask(timeout_s)

    def call_shard(
        self, name: str, shard_id: int, request: msgspec.Struct, *, timeout_s: float
    ) -> Coroutine[Any, Any, bytes]:
        """Carry out the operation in a shard; while draining, a waiting pull gets the rows that are there."""
        ask = partial(self._client.call_shard, name, shard_id, timeout_s=timeout_s)
        if isinstance(request, PullRequest):
            at_once = msgspec.structs.replace(request, wait_s=0.0)
            return self._drain.wait(lambda: ask(request), lambda: ask(at_once))
        return ask(request)


async def _not_yet(request: UpdateWorkflowExecutionRequest | PollWorkflowExecutionUpdateRequest) -> bytes:
    """Response to an update that hasn't reached the awaited stage in time; clients poll again."""
    stage = UpdateWorkflowExecutionLifecycleStage.UPDATE_WORKFLOW_EXECUTION_LIFECYCLE_STAGE_ADMITTED
    if isinstance(request, PollWorkflowExecutionUpdateRequest):
        return PollWorkflowExecutionUpdateResponse(update_ref=request.update_ref, stage=stage).SerializeToString()
    reference = UpdateRef(workflow_execution=request.workflow_execution, update_id=request.request.meta.update_id)
    return UpdateWorkflowExecutionResponse(update_ref=reference, stage=stage).SerializeToString()


class FrontendServer:
    """Serves a frontend over gRPC, with health and reflection, and over HTTP."""

    def __init__(
        self,
        frontend: Frontend,
        *,
        listen: str,
        listens: bool,
        drain: Drain,
        metrics: Metrics,
        log: FilteringBoundLogger,
        endpoint: "Endpoint | None" = None,
        skipper: "Skipper | None" = None,
        config: StaticConfig = DEFAULTS,
        tls: ssl.SSLContext | None = None,
        http_tls: ssl.SSLContext | None = None,
        admission: "ClusterAdmission | None" = None,
        backend: Backend | None = None,
    ) -> None:
        """`drain` tracks the frontend's waiting calls; `endpoint` answers other clusters, None without such clusters.

        With a `skipper`, the server skips time and also offers Temporal's TestService. Without `listens`, another
        process accepts the connections. The console of the web page reads the `backend`.
        """
        self._rpc = RpcServer(
            listen,
            listens=listens,
            log=log,
            tls=tls,
            memory_bytes_max=lambda: frontend.settings.get(MESSAGE_MEMORY),
            ages_s=lambda: (frontend.settings.get(CONNECTION_AGE_MAX), frontend.settings.get(CONNECTION_AGE_GRACE)),
        )
        self._frontend = frontend
        table = answerers(frontend, metrics)
        self._health = add_services(self._rpc, table, has_reflection=frontend.gate is None)
        self._http = http_endpoints(config, frontend, table, metrics=metrics, log=log, tls=http_tls, backend=backend)
        self._sampler = None if backend is None else Sampler(metrics, backend.series)
        if endpoint is not None:
            endpoint.add_to(self._rpc, admission)
        if skipper is not None:
            from fairlead.time_skipping import add_test_service  # noqa: PLC0415 - see above

            add_test_service(self._rpc, skipper)
        self._skipper = skipper
        self._drain = drain
        self._is_draining = False

    def bind(self) -> str:
        """Bind the socket and return its address."""
        self._frontend.address = self._rpc.bind()
        for endpoint in self._http.values():
            endpoint.bind()
        return self._frontend.address

    @property
    def http_address(self) -> str | None:
        """Address of the HTTP API; None without one."""
        return self._http["http"].bind() if "http" in self._http else None

    @property
    def ui_address(self) -> str | None:
        """Address of the web page; None without one."""
        return self._http["ui"].bind() if "ui" in self._http else None

    async def start(self) -> None:
        """Start to accept calls of SDKs, and HTTP."""
        await self._rpc.start()
        for endpoint in self._http.values():
            endpoint.start()
        if self._sampler is not None:
            self._sampler.start()

    @property
    def rpc(self) -> RpcServer:
        """The gRPC server."""
        return self._rpc

    def set_able(self, *, is_able: bool) -> None:
        """Report to health checks whether this frontend can serve."""
        if not self._is_draining:
            for service in ("", WORKFLOW_SERVICE, OPERATOR_SERVICE):
                self._health.set_serving(service, is_serving=is_able)

    async def stop(self, grace_s: float) -> None:
        """Accept no more calls, answer long polls, and wait for other calls up to `grace_s` or `DRAIN_S_MAX`."""
        self._is_draining = True
        self._health.close()
        self._rpc.drain()
        for endpoint in self._http.values():
            endpoint.drain()
        self._drain.begin()
        if self._skipper is not None:
            await self._skipper.close()
        if self._sampler is not None:
            await self._sampler.stop()
        within_s = min(grace_s, DRAIN_S_MAX)
        await asyncio.gather(self._rpc.stop(within_s), *(endpoint.stop(within_s) for endpoint in self._http.values()))
