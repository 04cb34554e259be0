"""Cancel and terminate: idle, in flight, before the first task, twice, after the end."""

import asyncio
from typing import Any

from temporalio import workflow
from temporalio.api.workflowservice.v1 import RequestCancelWorkflowExecutionRequest, TerminateWorkflowExecutionRequest

from tests.history.reference_programs import Hello, UntilCanceled
from tests.sdk.programs.signals import HeldAtFirst
from tests.sdk.programs.starts import Waits
from tests.sdk.stage import NAMESPACE, NO_ONE, Stage, execution, program

UNKNOWN_RUN = "11111111-1111-4111-8111-111111111111"


@workflow.defn
class IgnoresCancel:
    @workflow.run
    async def run(self) -> str:
        try:
            await workflow.wait_condition(lambda: False)
        except asyncio.CancelledError:
            return "not today"
        return "never"


@workflow.defn
class CleansUpSlowly:
    """After a cancel request it waits for a signal, so that a second request finds it open."""

    def __init__(self) -> None:
        self._may_end = False

    @workflow.signal
    def end(self) -> None:
        self._may_end = True

    @workflow.run
    async def run(self) -> None:
        try:
            await workflow.wait_condition(lambda: False)
        except asyncio.CancelledError:
            await workflow.wait_condition(lambda: self._may_end)
            raise


@program
async def cancel_idle(stage: Stage) -> Any:
    handle = await stage.start(UntilCanceled.run)
    await stage.idle(handle)
    await handle.cancel()
    return await stage.outcome(handle.result())


@program
async def cancel_ignored(stage: Stage) -> Any:
    handle = await stage.start(IgnoresCancel.run)
    await stage.idle(handle)
    await handle.cancel()
    return await stage.outcome(handle.result())


@program
async def cancel_twice(stage: Stage) -> Any:
    handle = await stage.start(CleansUpSlowly.run)
    await stage.idle(handle)
    await handle.cancel()
    await stage.idle(handle)
    stage.note("again", await stage.outcome(handle.cancel()))
    stage.note("canceling", await stage.describe(stage.id()))
    await handle.signal("end")
    return await stage.outcome(handle.result())


@program
async def cancel_before_the_first_task(stage: Stage) -> Any:
    queue = f"{stage.name}-queue"
    handle = await stage.start(Waits.run, queue=queue)
    await handle.cancel()
    async with stage.worker(queue, [Waits]):
        return await stage.outcome(handle.result())


@program
async def cancel_while_a_task_is_in_flight(stage: Stage) -> Any:
    handle = await stage.start(HeldAtFirst.run, 9)
    await stage.reached("first task")
    await handle.cancel()
    stage.open("first task")
    return await stage.outcome(handle.result())


@program
async def cancel_with_a_reason(stage: Stage) -> Any:
    handle = await stage.start(Waits.run)
    await stage.idle(handle)
    await stage.service.request_cancel_workflow_execution(
        RequestCancelWorkflowExecutionRequest(
            namespace=NAMESPACE,
            workflow_execution=execution(stage.id()),
            identity="raw",
            request_id="cancel-request",
            reason="no longer needed",
        )
    )
    return await stage.outcome(handle.result())


@program
async def cancel_refused(stage: Stage) -> None:
    handle = await stage.start(Hello.run, "x")
    await handle.result()
    stage.note("closed", await stage.outcome(handle.cancel()))
    stage.note("missing", await stage.outcome(stage.client.get_workflow_handle(stage.id("missing")).cancel()))
    for label, fields in {
        "no id": {},
        "bad run": {"workflow_execution": execution(stage.id(), "zzz")},
        "unknown run": {"workflow_execution": execution(stage.id(), UNKNOWN_RUN)},
        "unknown first run": {"workflow_execution": execution(stage.id()), "first_execution_run_id": UNKNOWN_RUN},
    }.items():
        bad = RequestCancelWorkflowExecutionRequest(namespace=NAMESPACE, **fields)  # type: ignore[arg-type]
        stage.note(label, await stage.outcome(stage.service.request_cancel_workflow_execution(bad)))


@program
async def terminate_idle(stage: Stage) -> Any:
    handle = await stage.start(Waits.run)
    await stage.idle(handle)
    await handle.terminate("detail", 2, reason="enough")
    return await stage.outcome(handle.result())


@program
async def terminate_before_the_first_task(stage: Stage) -> Any:
    handle = await stage.start(Waits.run, queue=NO_ONE)
    await handle.terminate()
    return await stage.outcome(handle.result())


@program
async def terminate_while_a_task_is_in_flight(stage: Stage) -> Any:
    handle = await stage.start(HeldAtFirst.run, 9)
    await stage.reached("first task")
    await handle.signal("say", "buffered")
    await handle.terminate(reason="while the task is started")
    stage.open("first task")
    return await stage.outcome(handle.result())


@program
async def terminate_refused(stage: Stage) -> None:
    handle = await stage.start(Hello.run, "x")
    await handle.result()
    stage.note("closed", await stage.outcome(handle.terminate()))
    stage.note("missing", await stage.outcome(stage.client.get_workflow_handle(stage.id("missing")).terminate()))
    running = await stage.start(Waits.run, suffix="running")
    await stage.idle(running)
    for label, fields in {
        "no id": {},
        "bad run": {"workflow_execution": execution(stage.id("running"), "zzz")},
        "unknown run": {"workflow_execution": execution(stage.id("running"), UNKNOWN_RUN)},
        "unknown first run": {
            "workflow_execution": execution(stage.id("running")),
            "first_execution_run_id": UNKNOWN_RUN,
        },
    }.items():
        bad = TerminateWorkflowExecutionRequest(namespace=NAMESPACE, **fields)  # type: ignore[arg-type]
        stage.note(label, await stage.outcome(stage.service.terminate_workflow_execution(bad)))
    await running.terminate()
