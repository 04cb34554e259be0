"""The point to which a batch job resets a workflow: a run, and one of its workflow tasks."""

from collections.abc import AsyncIterator
from typing import NamedTuple

from temporalio.api.batch.v1 import BatchOperationReset
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType, ResetType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import (
    DescribeWorkflowExecutionRequest,
    DescribeWorkflowExecutionResponse,
    GetWorkflowExecutionHistoryRequest,
    GetWorkflowExecutionHistoryResponse,
    GetWorkflowExecutionHistoryReverseRequest,
    GetWorkflowExecutionHistoryReverseResponse,
)

from fairlead.api.errors import InvalidArgument
from fairlead.history.entities.batch_jobs.state import Target
from fairlead.history.shard.context import OperationContext

PAGE_EVENTS_MAX = 256
_SCHEDULED = EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED
_COMPLETED = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED


class ResetPoint(NamedTuple):
    """A run, and the event that ends the workflow task to which the run is reset."""

    run_id: str
    event_id: int


async def reset_point(context: OperationContext, operation: BatchOperationReset, target: Target) -> ResetPoint:
    """The point to which the operation resets the target."""
    options = operation.options
    match options.WhichOneof("target"):
        case "workflow_task_id":
            return ResetPoint(target.run_id, options.workflow_task_id)
        case "build_id":
            return await _of_build(context, target, options.build_id, current_run_only=options.current_run_only)
        case "first_workflow_task":
            return ResetPoint(target.run_id, await _task(context, target, is_last=False))
        case "last_workflow_task":
            return ResetPoint(target.run_id, await _task(context, target, is_last=True))
    is_last = operation.reset_type == ResetType.RESET_TYPE_LAST_WORKFLOW_TASK
    return ResetPoint(target.run_id, await _task(context, target, is_last=is_last))


async def _task(context: OperationContext, target: Target, *, is_last: bool) -> int:
    """The event that ends the first or last completed task; without one, the event after the first scheduled task."""
    scheduled_event_id = 0
    async for event in _events(context, target, is_reverse=is_last):
        if event.event_type == _COMPLETED:
            return event.event_id
        if event.event_type == _SCHEDULED and (is_last or not scheduled_event_id):
            scheduled_event_id = event.event_id
    if not scheduled_event_id:
        raise InvalidArgument("unable to find any scheduled or completed task")
    return scheduled_event_id + 1


async def _events(context: OperationContext, target: Target, *, is_reverse: bool) -> AsyncIterator[HistoryEvent]:
    history = context.services.history
    execution = WorkflowExecution(workflow_id=target.id, run_id=target.run_id)
    token = b""
    while True:
        answer: GetWorkflowExecutionHistoryResponse | GetWorkflowExecutionHistoryReverseResponse
        if is_reverse:
            reverse = GetWorkflowExecutionHistoryReverseRequest(
                execution=execution, maximum_page_size=PAGE_EVENTS_MAX, next_page_token=token
            )
            answer = GetWorkflowExecutionHistoryReverseResponse.FromString(
                await history.call("GetWorkflowExecutionHistoryReverse", context.namespace.id, target.id, reverse)
            )
        else:
            request = GetWorkflowExecutionHistoryRequest(
                execution=execution, maximum_page_size=PAGE_EVENTS_MAX, next_page_token=token
            )
            answer = GetWorkflowExecutionHistoryResponse.FromString(
                await history.call("GetWorkflowExecutionHistory", context.namespace.id, target.id, request)
            )
        for event in answer.history.events:
            yield event
        token = answer.next_page_token
        if not token:
            return


async def _of_build(context: OperationContext, target: Target, build_id: str, *, current_run_only: bool) -> ResetPoint:
    """The first task that a worker of the build completed, in this run or in an earlier run of the chain."""
    request = DescribeWorkflowExecutionRequest(execution=WorkflowExecution(workflow_id=target.id, run_id=target.run_id))
    answer = DescribeWorkflowExecutionResponse.FromString(
        await context.services.history.call("DescribeWorkflowExecution", context.namespace.id, target.id, request)
    )
    info = answer.workflow_execution_info
    for point in info.auto_reset_points.points:
        is_of_run = not point.run_id or point.run_id == info.execution.run_id
        if point.build_id == build_id and (is_of_run or not current_run_only):
            return ResetPoint(point.run_id or info.execution.run_id, point.first_workflow_task_completed_id)
    raise InvalidArgument(f"Can't find reset point for Build ID {build_id}")
