"""The client of the history service for a frontend that may drain."""

from collections.abc import Coroutine
from functools import partial
from typing import Any

import msgspec
from google.protobuf.message import Message
from temporalio.api.enums.v1 import UpdateWorkflowExecutionLifecycleStage
from temporalio.api.update.v1 import UpdateRef
from temporalio.api.workflowservice.v1 import (
    PollWorkflowExecutionUpdateRequest,
    PollWorkflowExecutionUpdateResponse,
    UpdateWorkflowExecutionRequest,
    UpdateWorkflowExecutionResponse,
)

from fairlead.aio.drain import Drain
from fairlead.history.client import CALL_TIMEOUT_S, HistoryClient
from fairlead.history.messages.stream import PullRequest

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


class DrainingClient(HistoryClient):
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
        sticky_task_queue: str = "",
    ) -> bytes:
        """Carry out the operation `name`."""

        async def ask(within_s: float) -> bytes:
            return await self._client.call(
                name, namespace_id, workflow_id, request, timeout_s=within_s, sticky_task_queue=sticky_task_queue
            )

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
