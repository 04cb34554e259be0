"""The links that signals return: to an event, or to a request whose event has no id yet."""

from typing import Any

from temporalio.api.common.v1 import WorkflowType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    SignalWithStartWorkflowExecutionRequest,
    SignalWithStartWorkflowExecutionResponse,
    SignalWorkflowExecutionRequest,
)

from tests.sdk.programs.signals import HeldAtFirst
from tests.sdk.programs.starts import Waits
from tests.sdk.stage import NAMESPACE, NO_ONE, Handle, Stage, execution, program


async def _signal(stage: Stage, label: str, **fields: Any) -> None:
    request = SignalWorkflowExecutionRequest(
        namespace=NAMESPACE, workflow_execution=execution(stage.id()), signal_name="say", identity="raw", **fields
    )
    stage.note(label, await stage.outcome(stage.service.signal_workflow_execution(request)))


@program
async def signal_links_of_an_idle_workflow(stage: Stage) -> None:
    handle = await stage.start(Waits.run, queue=NO_ONE)
    await _signal(stage, "without a request id")
    await _signal(stage, "first", request_id="first")
    await _signal(stage, "second", request_id="second")
    await _signal(stage, "first again", request_id="first")
    stage.note("described", (await stage.describe(stage.id())).workflow_extended_info.request_id_infos)
    await handle.terminate()


@program
async def signal_links_while_a_task_runs(stage: Stage) -> Any:
    handle = await stage.start(HeldAtFirst.run, 0)
    await stage.reached("first task")
    await _signal(stage, "buffered", request_id="buffered")
    await _signal(stage, "buffered again", request_id="buffered")
    stage.note("described", (await stage.describe(stage.id())).workflow_extended_info.request_id_infos)
    await handle.terminate()
    stage.open("first task")


async def _signal_with_start(stage: Stage, label: str, **fields: Any) -> SignalWithStartWorkflowExecutionResponse:
    request = SignalWithStartWorkflowExecutionRequest(
        namespace=NAMESPACE,
        workflow_id=stage.id(),
        workflow_type=WorkflowType(name="Waits"),
        task_queue=TaskQueue(name=NO_ONE),
        signal_name="say",
        identity="raw",
        **fields,
    )
    response = await stage.service.signal_with_start_workflow_execution(request)
    stage.saw(stage.id(), response.run_id)
    stage.note(label, response)
    return response


@program
async def signal_with_start_links(stage: Stage) -> None:
    await _signal_with_start(stage, "begins", request_id="begins")
    await _signal_with_start(stage, "begins again", request_id="begins")
    await _signal_with_start(stage, "signals", request_id="signals")
    await _signal_with_start(stage, "without a request id")
    handle: Handle = stage.client.get_workflow_handle(stage.id())
    await handle.terminate()
