"""Workers' requests about activities, by task token or by ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import temporalio.api.workflowservice.v1 as api

from fairlead.api.errors import InvalidArgument, NotFound
from fairlead.api.tokens import ActivityTaskToken
from fairlead.frontend.handlers.oversize import (
    CANCEL_DETAILS_TOO_LARGE,
    FAILURE_TOO_LARGE,
    HEARTBEAT_TOO_LARGE,
    RESULT_TOO_LARGE,
    too_large,
)
from fairlead.frontend.handlers.task_tokens import TaskKind, WithToken, read_token
from fairlead.frontend.validation.common import check_identity, check_run_id, failure_size_kept, is_too_large

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from temporalio.api.failure.v1 import Failure

    from fairlead.api.namespaces import Namespace
    from fairlead.frontend.gateway.context import Frontend, Handler
    from fairlead.rpc import Call

    ById: TypeAlias = (
        api.RecordActivityTaskHeartbeatByIdRequest
        | api.RespondActivityTaskCompletedByIdRequest
        | api.RespondActivityTaskFailedByIdRequest
        | api.RespondActivityTaskCanceledByIdRequest
    )


async def heartbeat(frontend: Frontend, request: api.RecordActivityTaskHeartbeatRequest, _: Call) -> Message | bytes:
    """Record a heartbeat of an activity."""
    token, namespace = await _activity(frontend, request)
    if is_too_large(frontend, namespace, request.details, request, token.workflow_id):
        await _fail(frontend, token, request, HEARTBEAT_TOO_LARGE)
        return api.RecordActivityTaskHeartbeatResponse(cancel_requested=True)
    return await frontend.history.call("RecordActivityTaskHeartbeat", token.namespace_id, token.workflow_id, request)


async def complete(frontend: Frontend, request: api.RespondActivityTaskCompletedRequest, _: Call) -> Message | bytes:
    """Complete an activity."""
    token, namespace = await _activity(frontend, request)
    check_identity(frontend, request.identity)
    if is_too_large(frontend, namespace, request.result, request, token.workflow_id):
        await _fail(frontend, token, request, RESULT_TOO_LARGE)
        return api.RespondActivityTaskCompletedResponse()
    return await _end(frontend, "RespondActivityTaskCompleted", token, request)


async def fail(frontend: Frontend, request: api.RespondActivityTaskFailedRequest, _: Call) -> Message | bytes:
    """Fail an attempt of an activity."""
    token, namespace = await _activity(frontend, request)
    if request.HasField("failure") and not request.failure.HasField("application_failure_info"):
        raise InvalidArgument("Failure must have ApplicationFailureInfo.")
    check_identity(frontend, request.identity)
    failures = _shrink(frontend, namespace, request, token.workflow_id)
    answer = await _end(frontend, "RespondActivityTaskFailed", token, request)
    return api.RespondActivityTaskFailedResponse(failures=failures) if failures else answer


async def cancel(frontend: Frontend, request: api.RespondActivityTaskCanceledRequest, _: Call) -> Message | bytes:
    """Cancel an activity after a cancel request."""
    token, namespace = await _activity(frontend, request)
    check_identity(frontend, request.identity)
    if is_too_large(frontend, namespace, request.details, request, token.workflow_id):
        await _fail(frontend, token, request, CANCEL_DETAILS_TOO_LARGE)
        return api.RespondActivityTaskCanceledResponse()
    return await _end(frontend, "RespondActivityTaskCanceled", token, request)


async def heartbeat_by_id(
    frontend: Frontend, request: api.RecordActivityTaskHeartbeatByIdRequest, _: Call
) -> Message | bytes:
    """Record a heartbeat of an activity, by id."""
    namespace = await frontend.namespaces.find(request.namespace)
    routing_id = _routing_id(request)
    if is_too_large(frontend, namespace, request.details, request, routing_id):
        await _fail_by_id(frontend, namespace, request, HEARTBEAT_TOO_LARGE)
        return api.RecordActivityTaskHeartbeatByIdResponse(cancel_requested=True)
    return await frontend.history.call("RecordActivityTaskHeartbeatById", namespace.id, routing_id, request)


async def complete_by_id(
    frontend: Frontend, request: api.RespondActivityTaskCompletedByIdRequest, _: Call
) -> Message | bytes:
    """Complete an activity, by id."""
    namespace = await frontend.namespaces.find(request.namespace)
    routing_id = _routing_id(request)
    check_identity(frontend, request.identity)
    if is_too_large(frontend, namespace, request.result, request, routing_id):
        await _fail_by_id(frontend, namespace, request, RESULT_TOO_LARGE)
        return api.RespondActivityTaskCompletedByIdResponse()
    return await frontend.history.call("RespondActivityTaskCompletedById", namespace.id, routing_id, request)


async def fail_by_id(frontend: Frontend, request: api.RespondActivityTaskFailedByIdRequest, _: Call) -> Message | bytes:
    """Fail an attempt of an activity, by id."""
    namespace = await frontend.namespaces.find(request.namespace)
    routing_id = _routing_id(request)
    check_identity(frontend, request.identity)
    failures = _shrink(frontend, namespace, request, routing_id)
    answer = await frontend.history.call("RespondActivityTaskFailedById", namespace.id, routing_id, request)
    return api.RespondActivityTaskFailedByIdResponse(failures=failures) if failures else answer


async def cancel_by_id(
    frontend: Frontend, request: api.RespondActivityTaskCanceledByIdRequest, _: Call
) -> Message | bytes:
    """Cancel an activity after a cancel request, by id."""
    namespace = await frontend.namespaces.find(request.namespace)
    routing_id = _routing_id(request)
    check_identity(frontend, request.identity)
    if is_too_large(frontend, namespace, request.details, request, routing_id):
        await _fail_by_id(frontend, namespace, request, CANCEL_DETAILS_TOO_LARGE)
        return api.RespondActivityTaskCanceledByIdResponse()
    return await frontend.history.call("RespondActivityTaskCanceledById", namespace.id, routing_id, request)


async def _end(frontend: Frontend, name: str, token: ActivityTaskToken, request: Message) -> bytes:
    """Pass the end of an attempt to history, with a waiting poll of the run's sticky task queue, if there is one."""
    return await frontend.history.call(
        name, token.namespace_id, token.workflow_id, request, sticky_task_queue=token.sticky_task_queue
    )


async def _activity(frontend: Frontend, request: WithToken) -> tuple[ActivityTaskToken, Namespace]:
    token, namespace = await read_token(frontend, request, TaskKind.ACTIVITY)
    if not isinstance(token, ActivityTaskToken):
        raise NotFound("invalid activityID or activity already timed out or invoking workflow is completed")
    return token, namespace


def _routing_id(request: ById) -> str:
    """The id that selects the shard: the workflow id, or the activity id for a standalone activity."""
    if not request.activity_id:
        raise InvalidArgument("ActivityId is not set on request.")
    check_run_id(request.run_id)
    routing_id = request.workflow_id or request.activity_id
    if "\0" in routing_id:
        raise NotFound(f"workflow not found for ID: {routing_id}")
    return routing_id


def _shrink(
    frontend: Frontend,
    namespace: Namespace,
    request: api.RespondActivityTaskFailedRequest | api.RespondActivityTaskFailedByIdRequest,
    workflow_id: str,
) -> list[Failure]:
    """Remove fields that are too large from the request; returns the failures for the response to the worker."""
    failures: list[Failure] = []
    if request.HasField("last_heartbeat_details") and is_too_large(
        frontend, namespace, request.last_heartbeat_details, request, workflow_id
    ):
        failures.append(too_large(HEARTBEAT_TOO_LARGE))
        request.ClearField("last_heartbeat_details")
    if is_too_large(frontend, namespace, request.failure, request, workflow_id):
        limit = failure_size_kept(frontend, namespace)
        request.failure.CopyFrom(too_large(FAILURE_TOO_LARGE, request.failure, bytes_max=limit))
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
    await frontend.history.call("RespondActivityTaskFailedById", namespace.id, _routing_id(request), failed)


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
