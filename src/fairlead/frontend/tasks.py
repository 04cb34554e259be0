"""What workers ask for and answer: polls go to the matching service, answers to history, by the token of the task."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import temporalio.api.workflowservice.v1 as api
from temporalio.api.enums.v1 import QueryResultType
from temporalio.api.taskqueue.v1 import PollerInfo

from fairlead.core.partitions import RESERVED_PREFIX, TaskList, TaskType
from fairlead.frontend import activity_answers
from fairlead.frontend.checks import (
    STICKY,
    blob_size_max,
    check_identity,
    check_length,
    check_task_queue,
    check_versioning,
)
from fairlead.frontend.deadlines import poll_wait_s
from fairlead.frontend.oversize import BLOB_TOO_LARGE, FAILURE_TOO_LARGE, too_large
from fairlead.frontend.task_tokens import read_token
from fairlead.history.deployments import list_of, version_of
from fairlead.history.refusals import invalid, not_found
from fairlead.history.tokens import QueryTaskToken, WorkflowTaskToken
from fairlead.matching.messages import TaskListKind

if TYPE_CHECKING:
    from temporalio.api.deployment.v1 import WorkerDeploymentOptions

    from fairlead.frontend.context import Frontend, Handler
    from fairlead.history.namespaces import Namespace
    from fairlead.rpc import Call

    Poll = TypeVar("Poll", api.PollWorkflowTaskQueueRequest, api.PollActivityTaskQueueRequest)

NO_TASK = b""


async def poll_workflow_task(frontend: Frontend, request: api.PollWorkflowTaskQueueRequest, call: Call) -> bytes:
    """Wait for a workflow task. What matching brings is the answer: history made it when the task was started."""
    namespace = await frontend.namespaces.find(request.namespace)
    timeout_s = poll_wait_s(call)
    check_identity(frontend, request.identity)
    check_versioning(request.worker_version_capabilities, _deployment_options(request), request.task_queue)
    check_task_queue(frontend, request)
    return await _poll(frontend, namespace, request, TaskType.WORKFLOW, timeout_s, rate_per_s=None)


async def poll_activity_task(frontend: Frontend, request: api.PollActivityTaskQueueRequest, call: Call) -> bytes:
    """Wait for an activity task."""
    namespace = await frontend.namespaces.find(request.namespace)
    timeout_s = poll_wait_s(call)
    check_task_queue(frontend, request)
    check_identity(frontend, request.identity)
    check_versioning(request.worker_version_capabilities, _deployment_options(request), request.task_queue)
    metadata = request.task_queue_metadata
    rate_per_s = metadata.max_tasks_per_second.value if metadata.HasField("max_tasks_per_second") else None
    return await _poll(frontend, namespace, request, TaskType.ACTIVITY, timeout_s, rate_per_s=rate_per_s)


async def complete_workflow_task(
    frontend: Frontend, request: api.RespondWorkflowTaskCompletedRequest, _: Call
) -> bytes:
    """Take a worker's commands."""
    token, _namespace = await read_token(frontend, request)
    check_identity(frontend, request.identity)
    sticky = request.sticky_attributes.worker_task_queue
    check_versioning(request.worker_version_stamp, _deployment_options(request), sticky)
    if sticky.name:
        check_length(frontend, sticky.name, "taskQueue length exceeds limit")
        if sticky.name.startswith(RESERVED_PREFIX):
            raise invalid(f"task queue name cannot start with reserved prefix {RESERVED_PREFIX}")
    if not isinstance(token, WorkflowTaskToken):
        raise not_found("Workflow task not found.")
    return await frontend.history.call("RespondWorkflowTaskCompleted", token.namespace_id, token.workflow_id, request)


async def fail_workflow_task(frontend: Frontend, request: api.RespondWorkflowTaskFailedRequest, _: Call) -> bytes:
    """Take note that a worker could not make commands."""
    token, namespace = await read_token(frontend, request)
    check_identity(frontend, request.identity)
    if not isinstance(token, WorkflowTaskToken):
        raise not_found("Workflow task not found.")
    if request.failure.ByteSize() > blob_size_max(frontend, namespace):
        request.failure.CopyFrom(too_large(FAILURE_TOO_LARGE, request.failure))
    return await frontend.history.call("RespondWorkflowTaskFailed", token.namespace_id, token.workflow_id, request)


async def complete_query(frontend: Frontend, request: api.RespondQueryTaskCompletedRequest, _: Call) -> bytes:
    """Take a worker's answer to a query."""
    token, namespace = await read_token(frontend, request)
    if not isinstance(token, QueryTaskToken):
        raise not_found("query task not found, or already expired")
    if request.query_result.ByteSize() > blob_size_max(frontend, namespace):
        request = api.RespondQueryTaskCompletedRequest(
            task_token=request.task_token,
            namespace=request.namespace,
            completed_type=QueryResultType.QUERY_RESULT_TYPE_FAILED,
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
    rate_per_s: float | None,
) -> bytes:
    queue, worker = request.task_queue, _worker(request)
    task_list = TaskList(namespace.id, queue.name, kind)
    version = version_of(worker)
    # A worker's own task list is its own, whatever its version.
    if version is not None and queue.kind != STICKY:
        await frontend.deployments.register(task_list, version)
        task_list = list_of(task_list, version)
    poll = frontend.matching.poll(
        task_list,
        request.identity,
        timeout_s=timeout_s,
        kind=TaskListKind.STICKY if queue.kind == STICKY else TaskListKind.NORMAL,
        rate_per_s=rate_per_s,
        worker=worker,
    )
    if request.worker_instance_key:
        answer = await frontend.open_polls.wait((namespace.id, request.worker_instance_key), poll)
    else:
        answer = await poll
    return NO_TASK if answer is None or answer.task is None else answer.task


def _worker(request: Poll) -> bytes:
    """What a worker says of itself, for those who start its tasks, and for who wants to know the pollers."""
    has_options, has_version = request.HasField("deployment_options"), request.HasField("worker_version_capabilities")
    if not has_options and not has_version:
        return b""
    return PollerInfo(
        worker_version_capabilities=request.worker_version_capabilities if has_version else None,
        deployment_options=request.deployment_options if has_options else None,
    ).SerializeToString()


METHODS: dict[str, Handler] = {
    "PollWorkflowTaskQueue": poll_workflow_task,
    "PollActivityTaskQueue": poll_activity_task,
    "RespondWorkflowTaskCompleted": complete_workflow_task,
    "RespondWorkflowTaskFailed": fail_workflow_task,
    "RespondQueryTaskCompleted": complete_query,
    **activity_answers.METHODS,
}
