"""Pausing and unpausing of workflows."""

import asyncio
from datetime import timedelta

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from temporalio import activity, workflow
from temporalio.api.common.v1 import Priority, WorkflowExecution
from temporalio.api.enums.v1 import EventType, WorkflowExecutionStatus
from temporalio.api.query.v1 import WorkflowQuery
from temporalio.api.workflow.v1 import VersioningOverride, WorkflowExecutionOptions
from temporalio.api.workflowservice.v1 import (
    DescribeWorkflowExecutionRequest,
    PauseWorkflowExecutionRequest,
    QueryWorkflowRequest,
    UnpauseWorkflowExecutionRequest,
    UpdateWorkflowExecutionOptionsRequest,
    UpdateWorkflowExecutionOptionsResponse,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from fairlead.testing import FairleadServer

PAUSED = WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_PAUSED
ALLOWED = {"frontend.WorkflowPauseEnabled": True}


@activity.defn
async def work() -> str:
    """An activity with nothing to do."""
    return "done"


@workflow.defn
class Steps:
    """Waits for a signal, and then for an activity."""

    def __init__(self) -> None:
        self.is_told = False

    @workflow.run
    async def run(self) -> str:
        await workflow.wait_condition(lambda: self.is_told)
        return await workflow.execute_activity(work, start_to_close_timeout=timedelta(seconds=10))

    @workflow.signal
    def go(self) -> None:
        self.is_told = True


async def pause(client: Client, request_id: str = "") -> None:
    request = PauseWorkflowExecutionRequest(
        namespace="default", workflow_id="w", identity="operator", reason="lunch", request_id=request_id
    )
    await client.workflow_service.pause_workflow_execution(request)


async def unpause(client: Client) -> None:
    request = UnpauseWorkflowExecutionRequest(namespace="default", workflow_id="w", identity="operator", reason="back")
    await client.workflow_service.unpause_workflow_execution(request)


async def kinds(client: Client) -> list[str]:
    events = (await client.get_workflow_handle("w").fetch_history()).events
    return [EventType.Name(event.event_type).removeprefix("EVENT_TYPE_") for event in events]


async def test_a_paused_workflow_does_nothing_until_it_is_unpaused() -> None:
    async with FairleadServer.start(dynamic_config=ALLOWED) as server:
        client = await server.connect()
        handle = await client.start_workflow(Steps.run, id="w", task_queue="q")
        await pause(client, "once")
        # The workflow task, which no worker has started, is failed.
        expected = ["WORKFLOW_EXECUTION_STARTED", "WORKFLOW_TASK_SCHEDULED", "WORKFLOW_TASK_FAILED"]
        assert await kinds(client) == [*expected, "WORKFLOW_EXECUTION_PAUSED"]
        await pause(client, "once")
        with pytest.raises(RPCError, match=r"workflow is already paused\."):
            await pause(client, "twice")
        await handle.signal(Steps.go)
        # The SDK does not know the status PAUSED yet.
        described = await client.workflow_service.describe_workflow_execution(
            DescribeWorkflowExecutionRequest(namespace="default", execution=WorkflowExecution(workflow_id="w"))
        )
        assert described.workflow_execution_info.status == PAUSED
        assert described.workflow_extended_info.pause_info.reason == "lunch"
        assert (await client.count_workflows("ExecutionStatus='Paused'")).count == 1
        query = QueryWorkflowRequest(
            namespace="default", execution=WorkflowExecution(workflow_id="w"), query=WorkflowQuery(query_type="q")
        )
        answer = await client.workflow_service.query_workflow(query)
        assert answer.query_rejected.status == PAUSED
        async with Worker(
            client, task_queue="q", workflows=[Steps], activities=[work], workflow_runner=UnsandboxedWorkflowRunner()
        ):
            # Only time can show that the worker gets no task.
            await asyncio.sleep(0.5)
            assert (await kinds(client))[4:] == ["WORKFLOW_EXECUTION_SIGNALED"]
            await unpause(client)
            assert await handle.result() == "done"
        with pytest.raises(RPCError, match="workflow execution already completed"):
            await unpause(client)


async def test_pausing_is_disabled_by_default() -> None:
    async with FairleadServer.start() as server:
        client = await server.connect()
        await client.start_workflow(Steps.run, id="w", task_queue="q")
        with pytest.raises(RPCError, match="workflow pause is not enabled for namespace: default") as raised:
            await pause(client)
        assert raised.value.status is RPCStatusCode.UNIMPLEMENTED
        with pytest.raises(RPCError, match=r"workflow is not paused\."):
            await unpause(client)


async def test_an_event_is_written_only_if_options_differ() -> None:
    async with FairleadServer.start() as server:
        client = await server.connect()
        handle = await client.start_workflow(Steps.run, id="w", task_queue="q")

        async def update(path: str, options: WorkflowExecutionOptions) -> UpdateWorkflowExecutionOptionsResponse:
            return await client.workflow_service.update_workflow_execution_options(
                UpdateWorkflowExecutionOptionsRequest(
                    namespace="default",
                    workflow_execution=WorkflowExecution(workflow_id="w"),
                    workflow_execution_options=options,
                    update_mask=FieldMask(paths=[path]),
                    identity="operator",
                )
            )

        urgent = WorkflowExecutionOptions(priority=Priority(priority_key=1, fairness_key="k"))
        for _ in range(2):
            answer = await update("priority", urgent)
            assert answer.workflow_execution_options == urgent
        answer = await update("priority.priority_key", WorkflowExecutionOptions(priority=Priority(priority_key=4)))
        assert answer.workflow_execution_options.priority == Priority(priority_key=4, fairness_key="k")
        override = WorkflowExecutionOptions(versioning_override=VersioningOverride(auto_upgrade=True))
        answer = await update("versioning_override", override)
        assert answer.workflow_execution_options.versioning_override.auto_upgrade
        info = (await handle.describe()).raw_description.workflow_execution_info
        assert info.versioning_info.versioning_override.auto_upgrade
        assert info.priority.priority_key == 4
        answer = await update("versioning_override", WorkflowExecutionOptions())
        assert not answer.workflow_execution_options.HasField("versioning_override")
        assert (await kinds(client))[2:] == ["WORKFLOW_EXECUTION_OPTIONS_UPDATED"] * 4
        with pytest.raises(RPCError, match="versioning_override doesn't support partial updates"):
            await update("versioning_override.auto_upgrade", override)
