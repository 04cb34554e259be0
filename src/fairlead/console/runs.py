"""Reads one run: its description, its first and its last events."""

from typing import Final

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import WorkflowExecutionStatus
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import (
    DescribeWorkflowExecutionRequest,
    DescribeWorkflowExecutionResponse,
    GetWorkflowExecutionHistoryRequest,
    GetWorkflowExecutionHistoryResponse,
    GetWorkflowExecutionHistoryReverseRequest,
    GetWorkflowExecutionHistoryReverseResponse,
)

from fairlead.console.context import Context

# Events from which a timeline is drawn.
TIMELINE_EVENTS: Final = 1_000
# Statuses of open runs.
RUNNING: Final = frozenset(("Running", "Paused"))


def status_name(status: int) -> str:
    """The name of a status as queries have it, such as TimedOut."""
    name = WorkflowExecutionStatus.Name(WorkflowExecutionStatus.ValueType(status))
    return "".join(word.capitalize() for word in name.removeprefix("WORKFLOW_EXECUTION_STATUS_").split("_"))


async def describe(context: Context, namespace: str, workflow_id: str, run: str) -> DescribeWorkflowExecutionResponse:
    """Describe a run; without an id, the latest one."""
    asked = DescribeWorkflowExecutionRequest(
        namespace=namespace, execution=WorkflowExecution(workflow_id=workflow_id, run_id=run)
    )
    return await context.call("DescribeWorkflowExecution", asked, DescribeWorkflowExecutionResponse)


async def read_events(
    context: Context, namespace: str, execution: WorkflowExecution, limit: int = TIMELINE_EVENTS
) -> list[HistoryEvent]:
    """The first events of a run."""
    found: list[HistoryEvent] = []
    asked = GetWorkflowExecutionHistoryRequest(
        namespace=namespace, execution=execution, maximum_page_size=min(limit, 500)
    )
    while True:
        answer = await context.call("GetWorkflowExecutionHistory", asked, GetWorkflowExecutionHistoryResponse)
        found += answer.history.events
        if not answer.next_page_token or len(found) >= limit:
            return found
        asked.next_page_token = answer.next_page_token


async def read_last_events(
    context: Context, namespace: str, execution: WorkflowExecution, count: int, token: bytes = b""
) -> tuple[list[HistoryEvent], bytes]:
    """The last events of a run, the newest first, and the token of the ones before."""
    asked = GetWorkflowExecutionHistoryReverseRequest(
        namespace=namespace, execution=execution, maximum_page_size=count, next_page_token=token
    )
    answer = await context.call("GetWorkflowExecutionHistoryReverse", asked, GetWorkflowExecutionHistoryReverseResponse)
    return [*answer.history.events], answer.next_page_token
