"""Polls and responses of workers: polls go to matching, responses to history, by the task token."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

import temporalio.api.workflowservice.v1 as api
from temporalio.api.enums.v1 import QueryResultType
from temporalio.api.query.v1 import WorkflowQueryResult
from temporalio.api.taskqueue.v1 import PollerInfo

from fairlead.api.errors import InvalidArgument, NotFound
from fairlead.api.tokens import QueryTaskToken, WorkflowTaskToken
from fairlead.api.worker_deployments import list_of, version_in, version_of
from fairlead.core.partitions import RESERVED_PREFIX, TaskQueueId, TaskType
from fairlead.frontend.gateway.deadlines import poll_wait_s
from fairlead.frontend.handlers import activity_tasks
from fairlead.frontend.handlers.oversize import BLOB_TOO_LARGE, FAILURE_TOO_LARGE, too_large
from fairlead.frontend.handlers.task_tokens import TaskKind, read_token
from fairlead.frontend.validation.common import (
    STICKY,
    check_identity,
    check_length,
    check_task_queue,
    check_versioning,
    failure_size_kept,
    is_too_large,
)
from fairlead.history.messages.matching_tasks import NO_SDK, Sdk, with_sdk
from fairlead.matching.messages import QueueKind

if TYPE_CHECKING:
    from temporalio.api.deployment.v1 import WorkerDeploymentOptions
    from temporalio.api.taskqueue.v1 import PollerScalingDecision

    from fairlead.api.namespaces import Namespace
    from fairlead.frontend.gateway.context import Frontend, Handler
    from fairlead.rpc import Call

    Poll = TypeVar("Poll", api.PollWorkflowTaskQueueRequest, api.PollActivityTaskQueueRequest)

_QUERY_FAILED = QueryResultType.QUERY_RESULT_TYPE_FAILED

NO_TASK = b""


async def poll_workflow_task(frontend: Frontend, request: api.PollWorkflowTaskQueueRequest, call: Call) -> bytes:
    """Wait for a workflow task.

    The task from matching is the whole response: history made it when it started the task.
    """
    namespace = await frontend.namespaces.find(request.namespace)
    timeout_s = poll_wait_s(call)
    check_identity(frontend, request.identity)
    check_versioning(request.worker_version_capabilities, _deployment_options(request), request.task_queue)
    check_task_queue(frontend, request)
    task, decision = await _poll(frontend, namespace, request, TaskType.WORKFLOW, timeout_s, worker=_worker(request))
    if decision is None:
        return task
    # Parsers merge concatenated protobuf messages.
    return task + api.PollWorkflowTaskQueueResponse(poller_scaling_decision=decision).SerializeToString()


async def poll_activity_task(frontend: Frontend, request: api.PollActivityTaskQueueRequest, call: Call) -> bytes:
    """Wait for an activity task."""
    namespace = await frontend.namespaces.find(request.namespace)
    timeout_s = poll_wait_s(call)
    check_task_queue(frontend, request)
    check_identity(frontend, request.identity)
    check_versioning(request.worker_version_capabilities, _deployment_options(request), request.task_queue)
    metadata = request.task_queue_metadata
    rate_per_s = metadata.max_tasks_per_second.value if metadata.HasField("max_tasks_per_second") else None
    worker = _worker(request, Sdk(call.metadata.get("client-name", ""), call.metadata.get("client-version", "")))
    task, decision = await _poll(
        frontend, namespace, request, TaskType.ACTIVITY, timeout_s, worker=worker, rate_per_s=rate_per_s
    )
    if decision is None:
        return task
    return task + api.PollActivityTaskQueueResponse(poller_scaling_decision=decision).SerializeToString()


async def complete_workflow_task(
    frontend: Frontend, request: api.RespondWorkflowTaskCompletedRequest, _: Call
) -> bytes:
    """Pass a worker's commands to history."""
    token, namespace = await read_token(frontend, request, TaskKind.WORKFLOW_TASK)
    check_identity(frontend, request.identity)
    sticky = request.sticky_attributes.worker_task_queue
    options = _deployment_options(request)
    check_versioning(request.worker_version_stamp, options, sticky)
    is_versioned = options is not None and version_in(options) is not None
    if request.versioning_behavior and not is_versioned and not request.HasField("deployment"):
        raise InvalidArgument(
            "versioning behavior cannot be specified without deployment options being set with versioned mode"
        )
    if sticky.name:
        check_length(frontend, sticky.name, "taskQueue length exceeds limit")
        if sticky.name.startswith(RESERVED_PREFIX):
            raise InvalidArgument(f"task queue name cannot start with reserved prefix {RESERVED_PREFIX}")
    if not isinstance(token, WorkflowTaskToken):
        raise NotFound("Workflow task not found.")
    for query_id in request.query_results:
        result = request.query_results[query_id]
        if is_too_large(frontend, namespace, result.answer, request, token.workflow_id):
            result.CopyFrom(WorkflowQueryResult(result_type=_QUERY_FAILED, error_message=BLOB_TOO_LARGE))
    return await frontend.history.call("RespondWorkflowTaskCompleted", token.namespace_id, token.workflow_id, request)


async def fail_workflow_task(frontend: Frontend, request: api.RespondWorkflowTaskFailedRequest, _: Call) -> bytes:
    """Fail a workflow task: the worker could not process it."""
    token, namespace = await read_token(frontend, request, TaskKind.WORKFLOW_TASK)
    check_identity(frontend, request.identity)
    if not isinstance(token, WorkflowTaskToken):
        raise NotFound("Workflow task not found.")
    if is_too_large(frontend, namespace, request.failure, request, token.workflow_id):
        limit = failure_size_kept(frontend, namespace)
        request.failure.CopyFrom(too_large(FAILURE_TOO_LARGE, request.failure, bytes_max=limit))
    return await frontend.history.call("RespondWorkflowTaskFailed", token.namespace_id, token.workflow_id, request)


async def complete_query(frontend: Frontend, request: api.RespondQueryTaskCompletedRequest, _: Call) -> bytes:
    """Pass a worker's response to a query to history."""
    token, namespace = await read_token(frontend, request, TaskKind.QUERY)
    if not isinstance(token, QueryTaskToken):
        raise NotFound("query task not found, or already expired")
    if is_too_large(frontend, namespace, request.query_result, request, token.workflow_id):
        request = api.RespondQueryTaskCompletedRequest(
            task_token=request.task_token,
            namespace=request.namespace,
            completed_type=_QUERY_FAILED,
            error_message=BLOB_TOO_LARGE,
        )
    return await frontend.history.call("RespondQueryTaskCompleted", token.namespace_id, token.workflow_id, request)


def _deployment_options(
    request: (
        api.PollWorkflowTaskQueueRequest | api.PollActivityTaskQueueRequest | api.RespondWorkflowTaskCompletedRequest
    ),
) -> WorkerDeploymentOptions | None:
    return request.deployment_options if request.HasField("deployment_options") else None


async def _poll(
    frontend: Frontend,
    namespace: Namespace,
    request: Poll,
    kind: TaskType,
    timeout_s: float,
    *,
    worker: bytes,
    rate_per_s: float | None = None,
) -> tuple[bytes, PollerScalingDecision | None]:
    """The serialized response, empty without a task, and the suggestion for a worker that scales its polls."""
    queue = request.task_queue
    task_queue = TaskQueueId(namespace.id, queue.name, kind)
    version = version_of(worker)
    # A sticky task queue belongs to one worker, so it is not split by version.
    if version is not None and queue.kind != STICKY:
        await frontend.deployments.register(task_queue, version)
        task_queue = list_of(task_queue, version)
    began_s = frontend.clock()
    forward = partial(
        frontend.matching.poll,
        task_queue,
        request.identity,
        kind=QueueKind.STICKY if queue.kind == STICKY else QueueKind.NORMAL,
        rate_per_s=rate_per_s,
        worker=worker,
    )
    if queue.kind == STICKY and frontend.sticky_polls is not None:
        poll = frontend.sticky_polls.wait(task_queue, request.identity, worker, timeout_s=timeout_s, forward=forward)
    else:
        poll = forward(timeout_s=timeout_s)
    if request.worker_instance_key:
        answer = await frontend.open_polls.wait((namespace.id, request.worker_instance_key), poll)
    else:
        answer = await poll
    if answer is None or answer.task is None:
        return NO_TASK, None
    now_s = frontend.clock()
    decision = frontend.poll_scaling.decide(task_queue, answer.report, waited_s=now_s - began_s, now_s=now_s)
    return answer.task, decision


def _worker(request: Poll, sdk: Sdk = NO_SDK) -> bytes:
    """A serialized PollerInfo of the worker, for starting its tasks and for describing pollers."""
    has_options, has_version = request.HasField("deployment_options"), request.HasField("worker_version_capabilities")
    worker = PollerInfo(
        worker_version_capabilities=request.worker_version_capabilities if has_version else None,
        deployment_options=request.deployment_options if has_options else None,
    )
    return with_sdk(worker, sdk).SerializeToString()


METHODS: dict[str, Handler] = {
    "PollWorkflowTaskQueue": poll_workflow_task,
    "PollActivityTaskQueue": poll_activity_task,
    "RespondWorkflowTaskCompleted": complete_workflow_task,
    "RespondWorkflowTaskFailed": fail_workflow_task,
    "RespondQueryTaskCompleted": complete_query,
    **activity_tasks.METHODS,
}
DIFFERENCES = (
    (
        "If a command names a namespace that does not exist, the workflow task fails, and its event has the reason. "
        "Temporal's server returns NOT_FOUND to the worker, so that the task times out."
    ),
    (
        "If a command schedules an activity without a task queue, the activity gets the workflow's task queue; "
        "Temporal's server rejects the command."
    ),
    (
        "If a task token names an activity whose event the run does not have yet, Fairlead returns NOT_FOUND; "
        "Temporal's server returns UNKNOWN."
    ),
    (
        "After ten consecutive attempts of a workflow task that a worker has failed with RespondWorkflowTaskFailed, "
        "each further attempt waits: one millisecond at first, then twice as long each time, up to ten seconds. "
        "Temporal's server starts each attempt at once."
    ),
    (
        "After ten attempts, an activity waits at least for a minimum backoff, which its retry policy can't shorten: "
        "one millisecond at first, doubled each time, up to one second. Temporal's server makes about one attempt "
        "per second."
    ),
)
