"""The frontend of one host: where SDKs connect, and how they are let go."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

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

from fairlead.cluster.calls import Answer, Caller, Method, Request
from fairlead.core.partitions import PartitionConfig
from fairlead.frontend import OPERATOR_SERVICE, WORKFLOW_SERVICE, Frontend, add_services
from fairlead.history.client import CALL_TIMEOUT_S, HistoryClient
from fairlead.history.stream_messages import PullRequest
from fairlead.matching.messages import POLL, BacklogReport, PollAnswer
from fairlead.replication.endpoint import Endpoint
from fairlead.rpc import RpcServer
from fairlead.telemetry import Metrics

T = TypeVar("T")

# What is still under way when all that wait are answered are short calls.
DRAIN_S_MAX = 2.0
# So soon those who wait for news of a run or an activity are told that there are none.
NO_WAIT_S = 0.1
_WAIT_FOR_NEWS = frozenset(("GetWorkflowExecutionHistory", "PollActivityExecution", "DescribeActivityExecution"))

_NO_TASK = PollAnswer(
    None, PartitionConfig(version=0, read=1, write=1), BacklogReport(0, tasks=0, age_s=0.0, adds_per_s=0.0, wait_s=0.0)
)


class Drain:
    """Calls that wait for long; once the frontend lets SDKs go, they wait no more, and get another answer instead."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Task[Any]] = set()
        # Those that were told to end.
        self._ended: set[asyncio.Task[Any]] = set()
        self._has_begun = False

    async def wait(self, ask: Callable[[], Awaitable[T]], instead: Callable[[], Awaitable[T]]) -> T:
        """What `ask` gives, or `instead` where that takes too long."""
        waiting = asyncio.current_task()
        if self._has_begun or waiting is None:
            return await instead()
        self._waiting.add(waiting)
        try:
            return await ask()
        except asyncio.CancelledError:
            # Unless somebody else has cancelled it as well: then nobody waits for an answer.
            if waiting not in self._ended or waiting.uncancel() != 0:
                raise
        finally:
            self._waiting.discard(waiting)
            self._ended.discard(waiting)
        return await instead()

    def begin(self) -> None:
        """Answer all that wait, and all that come."""
        self._has_begun = True
        self._ended |= self._waiting
        for waiting in self._waiting:
            waiting.cancel()


class DrainingCaller:
    """Asks other hosts. Once it drains, polls are taken back where they wait, and answered empty."""

    def __init__(self, caller: Caller, drain: Drain) -> None:
        self._caller = caller
        self._drain = drain

    async def call(self, host: str, method: Method[Request, Answer], request: Request, *, timeout_s: float) -> Answer:
        """Ask `host`."""

        async def ask() -> Answer:
            return await self._caller.call(host, method, request, timeout_s=timeout_s)

        async def answer_empty() -> Answer:
            return cast(Answer, _NO_TASK)

        return await (self._drain.wait(ask, answer_empty) if method.name == POLL.name else ask())


class DrainingHistory(HistoryClient):
    """Asks the history service. Once it drains, who waits for news is told that there are none yet.

    An error would not do: SDKs take it for the outcome of a call that has waited for longer than they try again.
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
        """Have the operation `name` carried out."""

        async def ask(within_s: float) -> bytes:
            return await self._client.call(name, namespace_id, workflow_id, request, timeout_s=within_s)

        if name in _WAIT_FOR_NEWS:
            return await self._drain.wait(lambda: ask(timeout_s), lambda: ask(min(timeout_s, NO_WAIT_S)))
        if isinstance(request, UpdateWorkflowExecutionRequest | PollWorkflowExecutionUpdateRequest):
            return await self._drain.wait(lambda: ask(timeout_s), lambda: _not_yet(request))
        return await ask(timeout_s)

    async def call_shard(self, name: str, shard_id: int, request: msgspec.Struct, *, timeout_s: float) -> bytes:
        """Have it carried out in a shard; another cluster that waits for news of it is told that there are none."""

        async def ask(asked: msgspec.Struct) -> bytes:
            return await self._client.call_shard(name, shard_id, asked, timeout_s=timeout_s)

        if isinstance(request, PullRequest):
            at_once = msgspec.structs.replace(request, wait_s=0.0)
            return await self._drain.wait(lambda: ask(request), lambda: ask(at_once))
        return await ask(request)


async def _not_yet(request: UpdateWorkflowExecutionRequest | PollWorkflowExecutionUpdateRequest) -> bytes:
    """What an update is answered with that has not come far enough in time: clients ask again."""
    stage = UpdateWorkflowExecutionLifecycleStage.UPDATE_WORKFLOW_EXECUTION_LIFECYCLE_STAGE_ADMITTED
    if isinstance(request, PollWorkflowExecutionUpdateRequest):
        return PollWorkflowExecutionUpdateResponse(update_ref=request.update_ref, stage=stage).SerializeToString()
    reference = UpdateRef(workflow_execution=request.workflow_execution, update_id=request.request.meta.update_id)
    return UpdateWorkflowExecutionResponse(update_ref=reference, stage=stage).SerializeToString()


class FrontendServer:
    """Serves a frontend by gRPC, with health and reflection."""

    def __init__(
        self,
        frontend: Frontend,
        *,
        listen: str,
        drain: Drain,
        metrics: Metrics,
        log: FilteringBoundLogger,
        endpoint: Endpoint | None = None,
    ) -> None:
        """`drain` has the calls of the frontend that wait; `endpoint` answers other clusters, if there may be any."""
        self._rpc = RpcServer(listen, log=log)
        self._frontend = frontend
        self._health = add_services(self._rpc, frontend, metrics)
        if endpoint is not None:
            endpoint.add_to(self._rpc)
        self._drain = drain
        self._is_draining = False

    def bind(self) -> str:
        """Take the address, and say which it is."""
        self._frontend.address = self._rpc.bind()
        return self._frontend.address

    async def start(self) -> None:
        """Let SDKs in."""
        await self._rpc.start()

    def set_able(self, *, is_able: bool) -> None:
        """Tell those who ask for the health whether this frontend is able to serve."""
        if not self._is_draining:
            for service in ("", WORKFLOW_SERVICE, OPERATOR_SERVICE):
                self._health.set_serving(service, is_serving=is_able)

    async def stop(self, grace_s: float) -> None:
        """Let nobody in, answer those that wait, and let other calls end for up to `grace_s` or `DRAIN_S_MAX`."""
        self._is_draining = True
        self._health.close()
        self._rpc.drain()
        self._drain.begin()
        await self._rpc.stop(min(grace_s, DRAIN_S_MAX))
