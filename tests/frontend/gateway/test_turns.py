"""Calls that may wait for long take fair turns like all others, until they begin to wait."""

import asyncio
import uuid
from typing import Any

import pytest
import temporalio.api.workflowservice.v1 as api
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from temporalio.api.common.v1 import ActivityType, WorkflowExecution, WorkflowType
from temporalio.api.enums.v1 import UpdateWorkflowExecutionLifecycleStage
from temporalio.api.query.v1 import WorkflowQuery
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.update.v1 import Input, Meta, Request, WaitPolicy
from temporalio.service import WorkflowService

from fairlead.aio import admission
from fairlead.testing import FairleadServer
from tests.frontend.served import serving

EXECUTION = WorkflowExecution(workflow_id="run")
QUEUE = TaskQueue(name="queue")
STAGE = UpdateWorkflowExecutionLifecycleStage.UPDATE_WORKFLOW_EXECUTION_LIFECYCLE_STAGE_COMPLETED
UPDATE = api.UpdateWorkflowExecutionRequest(
    workflow_execution=EXECUTION,
    wait_policy=WaitPolicy(lifecycle_stage=STAGE),
    request=Request(meta=Meta(update_id="update"), input=Input(name="update")),
)


def start(workflow_id: str = "run") -> api.StartWorkflowExecutionRequest:
    return api.StartWorkflowExecutionRequest(
        workflow_id=workflow_id,
        workflow_type=WorkflowType(name="Any"),
        task_queue=QUEUE,
        request_id=str(uuid.uuid4()),
    )


def update_with_start() -> api.ExecuteMultiOperationRequest:
    operation = api.ExecuteMultiOperationRequest.Operation
    update = api.UpdateWorkflowExecutionRequest()
    update.CopyFrom(UPDATE)
    update.workflow_execution.workflow_id = "multi"
    return api.ExecuteMultiOperationRequest(
        operations=[operation(start_workflow=start("multi")), operation(update_workflow=update)]
    )


# Calls that wait for a worker that never comes.
WAITING: dict[str, Message] = {
    "get_workflow_execution_history": api.GetWorkflowExecutionHistoryRequest(
        execution=EXECUTION,
        wait_new_event=True,
        history_event_filter_type=2,  # type: ignore[arg-type] # the close event
    ),
    "query_workflow": api.QueryWorkflowRequest(execution=EXECUTION, query=WorkflowQuery(query_type="query")),
    "update_workflow_execution": UPDATE,
    "execute_multi_operation": update_with_start(),
    "poll_activity_execution": api.PollActivityExecutionRequest(activity_id="activity"),
}


@pytest.mark.parametrize(
    ("method", "request_of"),
    [
        ("GetWorkflowExecutionHistory", api.GetWorkflowExecutionHistoryRequest),
        ("QueryWorkflow", api.QueryWorkflowRequest),
        ("UpdateWorkflowExecution", api.UpdateWorkflowExecutionRequest),
        ("ExecuteMultiOperation", api.ExecuteMultiOperationRequest),
        ("PollWorkflowExecutionUpdate", api.PollWorkflowExecutionUpdateRequest),
        ("DescribeActivityExecution", api.DescribeActivityExecutionRequest),
        ("PollActivityExecution", api.PollActivityExecutionRequest),
    ],
)
async def test_a_call_that_may_wait_for_long_waits_for_its_turn(
    method: str, request_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "TURN_S_MAX", 60.0)
    async with serving() as served:
        turns = served.frontend.admission
        # All places are taken by other namespaces.
        taken = [turns.try_begin(f"namespace {number}") for number in range(100)]
        call = asyncio.ensure_future(getattr(served.workflow, method)(request_of(namespace="default")))
        async with asyncio.timeout(10):
            while not turns.waiting:
                assert not call.done()
                await asyncio.sleep(0.01)
        for number in taken:
            turns.end(number)
        # Requests without content are invalid, or find no history service.
        with pytest.raises(Exception, match="StatusCode"):
            await call
        assert not turns._begun


@pytest.mark.parametrize("method", WAITING)
async def test_a_call_that_waits_for_a_worker_has_ended_its_turn(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "TURN_S_MAX", 60.0)
    config = {"frontend.callsAtOnce": 1, "history.tasksAtOnce": 100}
    async with FairleadServer.start(other_namespaces=["other"], dynamic_config=config) as server:
        service: WorkflowService = (await server.connect()).workflow_service
        for request in (start(), start_activity()):
            name = "start_workflow_execution" if hasattr(request, "workflow_id") else "start_activity_execution"
            await getattr(service, name)(in_namespace("default", request))
        # Two namespaces call, so the number of calls at once is bounded.
        await service.describe_namespace(api.DescribeNamespaceRequest(namespace="other"))
        waiting = asyncio.ensure_future(getattr(service, method)(in_namespace("default", WAITING[method])))
        try:
            async with asyncio.timeout(20):
                for _ in range(3):
                    # The call needs some time until it waits; each of these calls needs the only place.
                    await asyncio.sleep(0.1)
                    await service.describe_namespace(api.DescribeNamespaceRequest(namespace="other"))
            assert not waiting.done()
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)


def start_activity() -> api.StartActivityExecutionRequest:
    return api.StartActivityExecutionRequest(
        activity_id="activity",
        activity_type=ActivityType(name="Any"),
        task_queue=QUEUE,
        request_id=str(uuid.uuid4()),
        start_to_close_timeout=Duration(seconds=60),
    )


def in_namespace(namespace: str, request: Any) -> Any:
    copy = type(request)()
    copy.CopyFrom(request)
    copy.namespace = namespace
    for operation in getattr(copy, "operations", ()):
        (
            operation.start_workflow if operation.HasField("start_workflow") else operation.update_workflow
        ).namespace = namespace
    return copy
