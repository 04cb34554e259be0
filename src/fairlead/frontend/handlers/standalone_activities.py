"""Methods for standalone activities: start, poll, describe, cancel, terminate, delete, and control by operators.

Control requests may have a workflow id: then they apply to an activity of that workflow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import temporalio.api.workflowservice.v1 as api
from temporalio.api.common.v1 import WorkflowExecution

from fairlead.api.errors import InvalidArgument
from fairlead.frontend.gateway.deadlines import HISTORY_WAIT_S_MAX, wait_s
from fairlead.frontend.handlers import controls
from fairlead.frontend.validation.standalone_activity import check_activity, check_requester, check_start, check_update

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from fairlead.api.namespaces import Namespace
    from fairlead.frontend.gateway.context import Frontend, Handler
    from fairlead.rpc import Call

    End: TypeAlias = api.RequestCancelActivityExecutionRequest | api.TerminateActivityExecutionRequest
    Control: TypeAlias = (
        api.PauseActivityExecutionRequest
        | api.UnpauseActivityExecutionRequest
        | api.ResetActivityExecutionRequest
        | api.UpdateActivityExecutionOptionsRequest
    )

DIFFERENCES = (
    "A standalone activity is deleted before the response, not some time later.",
    "A rejected request does not count as a state transition of a standalone activity.",
)


async def start(frontend: Frontend, request: api.StartActivityExecutionRequest, _: Call) -> bytes:
    """Start an activity."""
    namespace = await frontend.namespaces.find(request.namespace)
    check_start(frontend, namespace, request)
    return await frontend.history.call("StartActivityExecution", namespace.id, request.activity_id, request)


async def poll(frontend: Frontend, request: api.PollActivityExecutionRequest, call: Call) -> bytes:
    """Wait for the end of an activity."""
    namespace = await frontend.namespaces.find(request.namespace)
    check_activity(frontend, request)
    return await frontend.waiting_history.call(
        "PollActivityExecution",
        namespace.id,
        request.activity_id,
        request,
        timeout_s=wait_s(call, HISTORY_WAIT_S_MAX),
    )


async def describe(frontend: Frontend, request: api.DescribeActivityExecutionRequest, call: Call) -> bytes:
    """Describe an activity, now or as soon as it has changed."""
    namespace = await frontend.namespaces.find(request.namespace)
    check_activity(frontend, request)
    if request.long_poll_token and not request.run_id:
        raise InvalidArgument("run id is required when long poll token is provided")
    return await frontend.waiting_history.call(
        "DescribeActivityExecution",
        namespace.id,
        request.activity_id,
        request,
        timeout_s=wait_s(call, HISTORY_WAIT_S_MAX),
    )


async def request_cancel(frontend: Frontend, request: api.RequestCancelActivityExecutionRequest, _: Call) -> bytes:
    """Request the cancellation of an activity."""
    return await _end("RequestCancelActivityExecution", frontend, request)


async def terminate(frontend: Frontend, request: api.TerminateActivityExecutionRequest, _: Call) -> bytes:
    """Terminate an activity."""
    return await _end("TerminateActivityExecution", frontend, request)


async def delete(frontend: Frontend, request: api.DeleteActivityExecutionRequest, _: Call) -> bytes:
    """Delete an activity."""
    namespace = await frontend.namespaces.find(request.namespace)
    check_activity(frontend, request)
    return await frontend.history.call("DeleteActivityExecution", namespace.id, request.activity_id, request)


async def pause(frontend: Frontend, request: api.PauseActivityExecutionRequest, call: Call) -> Message | bytes:
    """Pause an activity: begin no further attempts."""
    namespace = await _checked(frontend, request)
    if request.workflow_id:
        of_workflow = api.PauseActivityRequest(
            namespace=request.namespace,
            execution=_execution(request),
            identity=request.identity,
            reason=request.reason,
            id=request.activity_id,
        )
        await controls.pause_activity(frontend, of_workflow, call)
        return api.PauseActivityExecutionResponse()
    return await frontend.history.call("PauseActivityExecution", namespace.id, request.activity_id, request)


async def unpause(frontend: Frontend, request: api.UnpauseActivityExecutionRequest, call: Call) -> Message | bytes:
    """Unpause an activity."""
    namespace = await _checked(frontend, request)
    if request.workflow_id:
        of_workflow = api.UnpauseActivityRequest(
            namespace=request.namespace,
            execution=_execution(request),
            identity=request.identity,
            id=request.activity_id,
            jitter=request.jitter,
        )
        await controls.unpause_activity(frontend, of_workflow, call)
        return api.UnpauseActivityExecutionResponse()
    return await frontend.history.call("UnpauseActivityExecution", namespace.id, request.activity_id, request)


async def reset(frontend: Frontend, request: api.ResetActivityExecutionRequest, call: Call) -> Message | bytes:
    """Reset an activity: count its attempts from 1 again."""
    namespace = await _checked(frontend, request)
    if request.workflow_id:
        of_workflow = api.ResetActivityRequest(
            namespace=request.namespace,
            execution=_execution(request),
            identity=request.identity,
            id=request.activity_id,
            reset_heartbeat=request.reset_heartbeat,
            keep_paused=request.keep_paused,
            jitter=request.jitter,
            restore_original_options=request.restore_original_options,
        )
        await controls.reset_activity(frontend, of_workflow, call)
        return api.ResetActivityExecutionResponse()
    return await frontend.history.call("ResetActivityExecution", namespace.id, request.activity_id, request)


async def update_options(
    frontend: Frontend, request: api.UpdateActivityExecutionOptionsRequest, call: Call
) -> Message | bytes:
    """Change the timeouts, the retry policy, the priority or the task queue."""
    namespace = await _checked(frontend, request)
    check_update(request)
    if request.workflow_id:
        of_workflow = api.UpdateActivityOptionsRequest(
            namespace=request.namespace,
            execution=_execution(request),
            identity=request.identity,
            id=request.activity_id,
            activity_options=request.activity_options if request.HasField("activity_options") else None,
            update_mask=request.update_mask if request.HasField("update_mask") else None,
            restore_original=request.restore_original,
        )
        answer = await controls.update_activity_options(frontend, of_workflow, call)
        options = api.UpdateActivityOptionsResponse.FromString(answer).activity_options
        return api.UpdateActivityExecutionOptionsResponse(activity_options=options)
    return await frontend.history.call("UpdateActivityExecutionOptions", namespace.id, request.activity_id, request)


async def _end(method: str, frontend: Frontend, request: End) -> bytes:
    namespace = await _checked(frontend, request)
    return await frontend.history.call(method, namespace.id, request.activity_id, request)


async def _checked(frontend: Frontend, request: End | Control) -> Namespace:
    """The namespace of a request whose ids are valid."""
    namespace = await frontend.namespaces.find(request.namespace)
    check_requester(frontend, request)
    return namespace


def _execution(request: Control) -> WorkflowExecution:
    return WorkflowExecution(workflow_id=request.workflow_id, run_id=request.run_id)


METHODS: dict[str, Handler] = {
    "StartActivityExecution": start,
    "PollActivityExecution": poll,
    "DescribeActivityExecution": describe,
    "RequestCancelActivityExecution": request_cancel,
    "TerminateActivityExecution": terminate,
    "DeleteActivityExecution": delete,
    "PauseActivityExecution": pause,
    "UnpauseActivityExecution": unpause,
    "ResetActivityExecution": reset,
    "UpdateActivityExecutionOptions": update_options,
}
