"""Activities that stand alone, by their ids: started, waited for, described, ended, and controlled by operators.

The requests by which operators control them may name a workflow: then they are about one of its activities.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import temporalio.api.workflowservice.v1 as api
from temporalio.api.common.v1 import WorkflowExecution

from fairlead.frontend import controls
from fairlead.frontend.check_activity import check_activity, check_requester, check_start, check_update
from fairlead.frontend.deadlines import HISTORY_WAIT_S_MAX, wait_s
from fairlead.history.refusals import invalid

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from fairlead.frontend.context import Frontend, Handler
    from fairlead.rpc import Call

    End: TypeAlias = api.RequestCancelActivityExecutionRequest | api.TerminateActivityExecutionRequest
    Control: TypeAlias = (
        api.PauseActivityExecutionRequest
        | api.UnpauseActivityExecutionRequest
        | api.ResetActivityExecutionRequest
        | api.UpdateActivityExecutionOptionsRequest
    )

DIFFERENCES = (
    "An activity that stands alone and is deleted is gone when the answer comes, not some time after it.",
    "A step of an activity that stands alone that was refused does not count as one of its state transitions.",
)


async def start(frontend: Frontend, request: api.StartActivityExecutionRequest, _: Call) -> bytes:
    """Start an activity."""
    namespace = await frontend.namespaces.find(request.namespace)
    check_start(frontend, namespace, request)
    return await frontend.history.call("StartActivityExecution", namespace.id, request.activity_id, request)


async def poll(frontend: Frontend, request: api.PollActivityExecutionRequest, call: Call) -> bytes:
    """Wait for how an activity ends."""
    namespace = await frontend.namespaces.find(request.namespace)
    check_activity(frontend, request)
    return await frontend.history.call(
        "PollActivityExecution",
        namespace.id,
        request.activity_id,
        request,
        timeout_s=wait_s(call, HISTORY_WAIT_S_MAX),
    )


async def describe(frontend: Frontend, request: api.DescribeActivityExecutionRequest, call: Call) -> bytes:
    """What there is to know of an activity, now or as soon as there is more."""
    namespace = await frontend.namespaces.find(request.namespace)
    check_activity(frontend, request)
    if request.long_poll_token and not request.run_id:
        raise invalid("run id is required when long poll token is provided")
    return await frontend.history.call(
        "DescribeActivityExecution",
        namespace.id,
        request.activity_id,
        request,
        timeout_s=wait_s(call, HISTORY_WAIT_S_MAX),
    )


async def request_cancel(frontend: Frontend, request: api.RequestCancelActivityExecutionRequest, _: Call) -> bytes:
    """Ask for an activity to be ended."""
    return await _end("RequestCancelActivityExecution", frontend, request)


async def terminate(frontend: Frontend, request: api.TerminateActivityExecutionRequest, _: Call) -> bytes:
    """End an activity."""
    return await _end("TerminateActivityExecution", frontend, request)


async def delete(frontend: Frontend, request: api.DeleteActivityExecutionRequest, _: Call) -> bytes:
    """Leave nothing of an activity."""
    namespace = await frontend.namespaces.find(request.namespace)
    check_activity(frontend, request)
    return await frontend.history.call("DeleteActivityExecution", namespace.id, request.activity_id, request)


async def pause(frontend: Frontend, request: api.PauseActivityExecutionRequest, call: Call) -> Message | bytes:
    """Have no further attempt begin."""
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
    return await _control("PauseActivityExecution", frontend, request)


async def unpause(frontend: Frontend, request: api.UnpauseActivityExecutionRequest, call: Call) -> Message | bytes:
    """Go on."""
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
    return await _control("UnpauseActivityExecution", frontend, request)


async def reset(frontend: Frontend, request: api.ResetActivityExecutionRequest, call: Call) -> Message | bytes:
    """Begin anew, with the first attempt."""
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
    return await _control("ResetActivityExecution", frontend, request)


async def update_options(
    frontend: Frontend, request: api.UpdateActivityExecutionOptionsRequest, call: Call
) -> Message | bytes:
    """Change the timeouts, the retry policy, the priority or the task queue."""
    if request.workflow_id:
        of_workflow = api.UpdateActivityOptionsRequest(
            namespace=request.namespace,
            execution=_execution(request),
            identity=request.identity,
            id=request.activity_id,
            activity_options=request.activity_options,
            update_mask=request.update_mask if request.HasField("update_mask") else None,
            restore_original=request.restore_original,
        )
        answer = await controls.update_activity_options(frontend, of_workflow, call)
        options = api.UpdateActivityOptionsResponse.FromString(answer).activity_options
        return api.UpdateActivityExecutionOptionsResponse(activity_options=options)
    check_update(request)
    return await _control("UpdateActivityExecutionOptions", frontend, request)


async def _end(method: str, frontend: Frontend, request: End) -> bytes:
    namespace = await frontend.namespaces.find(request.namespace)
    check_requester(frontend, request)
    return await frontend.history.call(method, namespace.id, request.activity_id, request)


async def _control(method: str, frontend: Frontend, request: Control) -> bytes:
    namespace = await frontend.namespaces.find(request.namespace)
    check_requester(frontend, request)
    return await frontend.history.call(method, namespace.id, request.activity_id, request)


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
