"""What workers say of activities: by the token of the task, or by the ids of the activity."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import temporalio.api.workflowservice.v1 as api

from fairlead.frontend.checks import blob_size_max, check_identity, check_run_id
from fairlead.frontend.oversize import (
    CANCEL_DETAILS_TOO_LARGE,
    FAILURE_TOO_LARGE,
    HEARTBEAT_TOO_LARGE,
    RESULT_TOO_LARGE,
    too_large,
)
from fairlead.frontend.task_tokens import WithToken, read_token
from fairlead.history.refusals import invalid, not_found
from fairlead.history.tokens import ActivityTaskToken

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from temporalio.api.failure.v1 import Failure

    from fairlead.frontend.context import Frontend, Handler
    from fairlead.history.namespaces import Namespace
    from fairlead.rpc import Call

    ById: TypeAlias = (
        api.RecordActivityTaskHeartbeatByIdRequest
        | api.RespondActivityTaskCompletedByIdRequest
        | api.RespondActivityTaskFailedByIdRequest
        | api.RespondActivityTaskCanceledByIdRequest
    )


async def heartbeat(frontend: Frontend, request: api.RecordActivityTaskHeartbeatRequest, _: Call) -> Message | bytes:
    """The activity is alive."""
    token, namespace = await _activity(frontend, request)
    if request.details.ByteSize() > blob_size_max(frontend, namespace):
        await _fail(frontend, token, request, HEARTBEAT_TOO_LARGE)
        return api.RecordActivityTaskHeartbeatResponse(cancel_requested=True)
    return await frontend.history.call("RecordActivityTaskHeartbeat", token.namespace_id, token.workflow_id, request)


async def complete(frontend: Frontend, request: api.RespondActivityTaskCompletedRequest, _: Call) -> Message | bytes:
    """The activity has a result."""
    token, namespace = await _activity(frontend, request)
    check_identity(frontend, request.identity)
    if request.result.ByteSize() > blob_size_max(frontend, namespace):
        await _fail(frontend, token, request, RESULT_TOO_LARGE)
        return api.RespondActivityTaskCompletedResponse()
    return await frontend.history.call("RespondActivityTaskCompleted", token.namespace_id, token.workflow_id, request)


async def fail(frontend: Frontend, request: api.RespondActivityTaskFailedRequest, _: Call) -> Message | bytes:
    """An attempt of the activity has failed."""
    token, namespace = await _activity(frontend, request)
    if request.HasField("failure") and not request.failure.HasField("application_failure_info"):
        raise invalid("Failure must have ApplicationFailureInfo.")
    check_identity(frontend, request.identity)
    failures = _shrink(frontend, namespace, request)
    answer = await frontend.history.call("RespondActivityTaskFailed", token.namespace_id, token.workflow_id, request)
    return api.RespondActivityTaskFailedResponse(failures=failures) if failures else answer


async def cancel(frontend: Frontend, request: api.RespondActivityTaskCanceledRequest, _: Call) -> Message | bytes:
    """The activity has ended because it was asked to."""
    token, namespace = await _activity(frontend, request)
    check_identity(frontend, request.identity)
    if request.details.ByteSize() > blob_size_max(frontend, namespace):
        await _fail(frontend, token, request, CANCEL_DETAILS_TOO_LARGE)
        return api.RespondActivityTaskCanceledResponse()
    return await frontend.history.call("RespondActivityTaskCanceled", token.namespace_id, token.workflow_id, request)


async def heartbeat_by_id(
    frontend: Frontend, request: api.RecordActivityTaskHeartbeatByIdRequest, _: Call
) -> Message | bytes:
    """The activity is alive."""
    namespace = await frontend.namespaces.find(request.namespace)
    place = _place(request)
    if request.details.ByteSize() > blob_size_max(frontend, namespace):
        await _fail_by_id(frontend, namespace, request, HEARTBEAT_TOO_LARGE)
        return api.RecordActivityTaskHeartbeatByIdResponse(cancel_requested=True)
    return await frontend.history.call("RecordActivityTaskHeartbeatById", namespace.id, place, request)


async def complete_by_id(
    frontend: Frontend, request: api.RespondActivityTaskCompletedByIdRequest, _: Call
) -> Message | bytes:
    """The activity has a result."""
    namespace = await frontend.namespaces.find(request.namespace)
    place = _place(request)
    check_identity(frontend, request.identity)
    if request.result.ByteSize() > blob_size_max(frontend, namespace):
        await _fail_by_id(frontend, namespace, request, RESULT_TOO_LARGE)
        return api.RespondActivityTaskCompletedByIdResponse()
    return await frontend.history.call("RespondActivityTaskCompletedById", namespace.id, place, request)


async def fail_by_id(frontend: Frontend, request: api.RespondActivityTaskFailedByIdRequest, _: Call) -> Message | bytes:
    """An attempt of the activity has failed."""
    namespace = await frontend.namespaces.find(request.namespace)
    place = _place(request)
    check_identity(frontend, request.identity)
    failures = _shrink(frontend, namespace, request)
    answer = await frontend.history.call("RespondActivityTaskFailedById", namespace.id, place, request)
    return api.RespondActivityTaskFailedByIdResponse(failures=failures) if failures else answer


async def cancel_by_id(
    frontend: Frontend, request: api.RespondActivityTaskCanceledByIdRequest, _: Call
) -> Message | bytes:
    """The activity has ended because it was asked to."""
    namespace = await frontend.namespaces.find(request.namespace)
    place = _place(request)
    check_identity(frontend, request.identity)
    if request.details.ByteSize() > blob_size_max(frontend, namespace):
        await _fail_by_id(frontend, namespace, request, CANCEL_DETAILS_TOO_LARGE)
        return api.RespondActivityTaskCanceledByIdResponse()
    return await frontend.history.call("RespondActivityTaskCanceledById", namespace.id, place, request)


async def _activity(frontend: Frontend, request: WithToken) -> tuple[ActivityTaskToken, Namespace]:
    token, namespace = await read_token(frontend, request)
    if not isinstance(token, ActivityTaskToken):
        raise not_found("invalid activityID or activity already timed out or invoking workflow is completed")
    return token, namespace


def _place(request: ById) -> str:
    """By which id the shard is found: the workflow's, or the activity's own where it stands alone."""
    if not request.activity_id:
        raise invalid("ActivityId is not set on request.")
    check_run_id(request.run_id)
    place = request.workflow_id or request.activity_id
    if "\0" in place:
        raise not_found(f"workflow not found for ID: {place}")
    return place


def _shrink(
    frontend: Frontend,
    namespace: Namespace,
    request: api.RespondActivityTaskFailedRequest | api.RespondActivityTaskFailedByIdRequest,
) -> list[Failure]:
    """Take out of the request what is too large; what the worker is told of it."""
    limit = blob_size_max(frontend, namespace)
    failures: list[Failure] = []
    if request.HasField("last_heartbeat_details") and request.last_heartbeat_details.ByteSize() > limit:
        failures.append(too_large(HEARTBEAT_TOO_LARGE))
        request.ClearField("last_heartbeat_details")
    if request.failure.ByteSize() > limit:
        request.failure.CopyFrom(too_large(FAILURE_TOO_LARGE, request.failure))
        failures.append(request.failure)
    return failures


async def _fail(
    frontend: Frontend,
    token: ActivityTaskToken,
    request: (
        api.RecordActivityTaskHeartbeatRequest
        | api.RespondActivityTaskCompletedRequest
        | api.RespondActivityTaskCanceledRequest
    ),
    message: str,
) -> None:
    failed = api.RespondActivityTaskFailedRequest(
        task_token=request.task_token,
        namespace=request.namespace,
        identity=request.identity,
        failure=too_large(message),
    )
    await frontend.history.call("RespondActivityTaskFailed", token.namespace_id, token.workflow_id, failed)


async def _fail_by_id(frontend: Frontend, namespace: Namespace, request: ById, message: str) -> None:
    failed = api.RespondActivityTaskFailedByIdRequest(
        namespace=request.namespace,
        workflow_id=request.workflow_id,
        run_id=request.run_id,
        activity_id=request.activity_id,
        identity=request.identity,
        failure=too_large(message),
    )
    await frontend.history.call("RespondActivityTaskFailedById", namespace.id, _place(request), failed)


METHODS: dict[str, Handler] = {
    "RecordActivityTaskHeartbeat": heartbeat,
    "RespondActivityTaskCompleted": complete,
    "RespondActivityTaskFailed": fail,
    "RespondActivityTaskCanceled": cancel,
    "RecordActivityTaskHeartbeatById": heartbeat_by_id,
    "RespondActivityTaskCompletedById": complete_by_id,
    "RespondActivityTaskFailedById": fail_by_id,
    "RespondActivityTaskCanceledById": cancel_by_id,
}
