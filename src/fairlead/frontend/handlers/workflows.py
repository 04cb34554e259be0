"""Clients' requests about one workflow: validated here, and handled by the history service that owns its shard."""

from __future__ import annotations

from typing import TYPE_CHECKING

from temporalio.api.enums.v1 import HistoryEventFilterType, QueryRejectCondition, ResetReapplyType

from fairlead.api.errors import InvalidArgument
from fairlead.frontend.gateway.deadlines import HISTORY_WAIT_S_MAX, QUERY_WAIT_S_MAX, wait_s
from fairlead.frontend.handlers import controls, update_with_start
from fairlead.frontend.validation.common import check_blob, check_execution, check_length, check_links, check_loadable
from fairlead.frontend.validation.start import check_signal_with_start, check_start
from fairlead.frontend.validation.update import check_update
from fairlead.history.client import CALL_TIMEOUT_S
from fairlead.settings import Scope
from fairlead.settings.dynamic.limits import HISTORY_MAX_PAGE_SIZE

if TYPE_CHECKING:
    import temporalio.api.workflowservice.v1 as api

    from fairlead.api.namespaces import Namespace
    from fairlead.frontend.gateway.context import Frontend, Handler
    from fairlead.rpc import Call

# Maximum number of events in a page of history, even if a request or the settings allow more.
HISTORY_PAGE_EVENTS_MAX = 256

TERMINATE_REASON = "terminated by user via frontend"
TERMINATE_IDENTITY = "frontend-service"


async def start(frontend: Frontend, request: api.StartWorkflowExecutionRequest, _: Call) -> bytes:
    """Start a workflow."""
    namespace = await frontend.namespaces.find_registered(request.namespace)
    check_start(frontend, namespace, request)
    return await frontend.history.call("StartWorkflowExecution", namespace.id, request.workflow_id, request)


async def signal_with_start(frontend: Frontend, request: api.SignalWithStartWorkflowExecutionRequest, _: Call) -> bytes:
    """Signal a workflow; start it first if it is not running."""
    namespace = await frontend.namespaces.find_registered(request.namespace)
    check_signal_with_start(frontend, namespace, request)
    return await frontend.history.call("SignalWithStartWorkflowExecution", namespace.id, request.workflow_id, request)


async def signal(frontend: Frontend, request: api.SignalWorkflowExecutionRequest, _: Call) -> bytes:
    """Signal a running workflow."""
    namespace = await frontend.namespaces.find(request.namespace)
    check_execution(request, "workflow_execution")
    if not request.signal_name:
        raise InvalidArgument("SignalName is not set on request.")
    check_length(frontend, request.signal_name, "SignalName length exceeds limit.")
    check_length(frontend, request.request_id, "RequestId length exceeds limit.")
    check_links(request.links, len(request.links))
    workflow_id = request.workflow_execution.workflow_id
    check_blob(frontend, namespace, request.input, request, workflow_id)
    return await frontend.history.call("SignalWorkflowExecution", namespace.id, workflow_id, request)


async def request_cancel(frontend: Frontend, request: api.RequestCancelWorkflowExecutionRequest, _: Call) -> bytes:
    """Request the cancellation of a workflow."""
    namespace = await frontend.namespaces.find(request.namespace)
    check_execution(request, "workflow_execution")
    check_links(request.links, len(request.links))
    workflow_id = request.workflow_execution.workflow_id
    return await frontend.history.call("RequestCancelWorkflowExecution", namespace.id, workflow_id, request)


async def terminate(frontend: Frontend, request: api.TerminateWorkflowExecutionRequest, _: Call) -> bytes:
    """Terminate a workflow."""
    namespace = await frontend.namespaces.find(request.namespace)
    check_execution(request, "workflow_execution")
    check_links(request.links, len(request.links))
    # Defaults that show that a user terminated the workflow, not the server.
    request.reason = request.reason or TERMINATE_REASON
    request.identity = request.identity or TERMINATE_IDENTITY
    workflow_id = request.workflow_execution.workflow_id
    return await frontend.history.call("TerminateWorkflowExecution", namespace.id, workflow_id, request)


async def delete(frontend: Frontend, request: api.DeleteWorkflowExecutionRequest, _: Call) -> bytes:
    """Delete a run; a running one is terminated first."""
    namespace = await frontend.namespaces.find(request.namespace)
    check_execution(request, "workflow_execution")
    workflow_id = request.workflow_execution.workflow_id
    return await frontend.history.call("DeleteWorkflowExecution", namespace.id, workflow_id, request)


async def reset(frontend: Frontend, request: api.ResetWorkflowExecutionRequest, _: Call) -> bytes:
    """Reset a workflow: begin a new run from a point in the history of another run."""
    namespace = await frontend.namespaces.find(request.namespace)
    if not request.request_id:
        raise InvalidArgument("RequestId is not set on request.")
    check_length(frontend, request.request_id, "RequestId length exceeds limit.")
    check_execution(request, "workflow_execution")
    kind = request.reset_reapply_type or ResetReapplyType.RESET_REAPPLY_TYPE_ALL_ELIGIBLE
    if kind not in ResetReapplyType.values():
        raise InvalidArgument(f"unknown reset reapply type: {kind}")
    request.reset_reapply_type = kind
    workflow_id = request.workflow_execution.workflow_id
    return await frontend.history.call("ResetWorkflowExecution", namespace.id, workflow_id, request)


async def describe(frontend: Frontend, request: api.DescribeWorkflowExecutionRequest, _: Call) -> bytes:
    """Describe a run."""
    namespace = await frontend.namespaces.find(request.namespace)
    check_execution(request, "execution")
    workflow_id = request.execution.workflow_id
    return await frontend.history.call("DescribeWorkflowExecution", namespace.id, workflow_id, request)


async def get_history(frontend: Frontend, request: api.GetWorkflowExecutionHistoryRequest, call: Call) -> bytes:
    """Get a page of a run's events; with `wait_new_event`, wait for a new event."""
    namespace = await frontend.namespaces.find(request.namespace)
    check_execution(request, "execution")
    request.maximum_page_size = _page_size(frontend, namespace, request.maximum_page_size)
    request.history_event_filter_type = (
        request.history_event_filter_type or HistoryEventFilterType.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT
    )
    timeout_s = wait_s(call, HISTORY_WAIT_S_MAX) if request.wait_new_event else CALL_TIMEOUT_S
    return await frontend.waiting_history.call(
        "GetWorkflowExecutionHistory", namespace.id, request.execution.workflow_id, request, timeout_s=timeout_s
    )


async def get_history_reverse(
    frontend: Frontend, request: api.GetWorkflowExecutionHistoryReverseRequest, _: Call
) -> bytes:
    """Get a page of a run's events in reverse order."""
    namespace = await frontend.namespaces.find(request.namespace)
    check_execution(request, "execution")
    request.maximum_page_size = _page_size(frontend, namespace, request.maximum_page_size)
    workflow_id = request.execution.workflow_id
    return await frontend.history.call("GetWorkflowExecutionHistoryReverse", namespace.id, workflow_id, request)


async def query(frontend: Frontend, request: api.QueryWorkflowRequest, call: Call) -> bytes:
    """Query a run; a worker answers."""
    namespace = await frontend.namespaces.find(request.namespace)
    check_execution(request, "execution")
    if not request.HasField("query"):
        raise InvalidArgument("WorkflowQuery is not set on request.")
    if not request.query.query_type:
        raise InvalidArgument("QueryType is not set on request.")
    request.query_reject_condition = request.query_reject_condition or QueryRejectCondition.QUERY_REJECT_CONDITION_NONE
    check_blob(frontend, namespace, request.query.query_args, request, request.execution.workflow_id)
    return await frontend.history.call(
        "QueryWorkflow",
        namespace.id,
        request.execution.workflow_id,
        request,
        timeout_s=wait_s(call, QUERY_WAIT_S_MAX),
    )


async def update(frontend: Frontend, request: api.UpdateWorkflowExecutionRequest, call: Call) -> bytes:
    """Send an update to a workflow, and wait until it reaches the requested stage."""
    namespace = await frontend.namespaces.find(request.namespace)
    check_update(frontend, request)
    return await frontend.waiting_history.call(
        "UpdateWorkflowExecution",
        namespace.id,
        request.workflow_execution.workflow_id,
        request,
        timeout_s=wait_s(call, HISTORY_WAIT_S_MAX),
    )


async def poll_update(frontend: Frontend, request: api.PollWorkflowExecutionUpdateRequest, call: Call) -> bytes:
    """Wait for the outcome of an earlier update."""
    namespace = await frontend.namespaces.find(request.namespace)
    if not request.HasField("update_ref"):
        raise InvalidArgument("UpdateRef is not set on request.")
    execution = request.update_ref.workflow_execution
    check_loadable(execution.workflow_id, execution.run_id)
    return await frontend.waiting_history.call(
        "PollWorkflowExecutionUpdate",
        namespace.id,
        execution.workflow_id,
        request,
        timeout_s=wait_s(call, HISTORY_WAIT_S_MAX),
    )


async def reset_sticky(frontend: Frontend, request: api.ResetStickyTaskQueueRequest, _: Call) -> bytes:
    """Reset a run's sticky task queue: the next workflow task goes to any worker."""
    namespace = await frontend.namespaces.find(request.namespace)
    check_execution(request, "execution")
    workflow_id = request.execution.workflow_id
    return await frontend.history.call("ResetStickyTaskQueue", namespace.id, workflow_id, request)


def _page_size(frontend: Frontend, namespace: Namespace, asked: int) -> int:
    wanted = asked if asked > 0 else frontend.settings.get(HISTORY_MAX_PAGE_SIZE, Scope(namespace.id))
    return min(wanted, HISTORY_PAGE_EVENTS_MAX)


METHODS: dict[str, Handler] = {
    "StartWorkflowExecution": start,
    "SignalWithStartWorkflowExecution": signal_with_start,
    "SignalWorkflowExecution": signal,
    "RequestCancelWorkflowExecution": request_cancel,
    "TerminateWorkflowExecution": terminate,
    "DeleteWorkflowExecution": delete,
    "ResetWorkflowExecution": reset,
    "DescribeWorkflowExecution": describe,
    "GetWorkflowExecutionHistory": get_history,
    "GetWorkflowExecutionHistoryReverse": get_history_reverse,
    "QueryWorkflow": query,
    "UpdateWorkflowExecution": update,
    "PollWorkflowExecutionUpdate": poll_update,
    "ResetStickyTaskQueue": reset_sticky,
    **update_with_start.METHODS,
    **controls.METHODS,
}

DIFFERENCES = (
    (
        "If an activity is reset during an attempt, that attempt may still complete, fail or heartbeat. Temporal's "
        "server rejects this for every attempt but the first, and waits until the attempt times out."
    ),
    (
        "The description of a closed workflow has nothing pending or paused; Temporal's server still shows the "
        "work that was pending or paused at its end."
    ),
    (
        "The description of a workflow maps each request id to its event in the history. For a signal-with-start that "
        "started the workflow, this is event 1; Temporal's server has event 2. For an update that joined another one, "
        "it is the update's own event; Temporal's server describes it as buffered."
    ),
    (
        "A workflow task that a worker completes without a build id or binary checksum adds no reset point, and the "
        "deprecated search attribute BinaryChecksums is not set."
    ),
    "All run ids are UUIDs of version 7; Temporal's server uses other versions for some runs.",
)
