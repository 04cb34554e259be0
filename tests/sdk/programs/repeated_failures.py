"""The retry intervals of workflow tasks and activities that fail every time."""

import asyncio
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.api.command.v1 import Command, ScheduleNexusOperationCommandAttributes
from temporalio.api.common.v1 import WorkerVersionStamp, WorkflowType
from temporalio.api.enums.v1 import CommandType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    PollWorkflowTaskQueueRequest,
    PollWorkflowTaskQueueResponse,
    RespondWorkflowTaskCompletedRequest,
    SignalWithStartWorkflowExecutionRequest,
    SignalWorkflowExecutionRequest,
)
from temporalio.common import RetryPolicy

from tests.history.reference_programs import SOON
from tests.sdk.stage import NAMESPACE, Handle, Stage, execution, program

# Bounds the attempts of an activity without a backoff in 2 s: the reference makes 3, an unbounded server 500.
_ATTEMPTS_MAX = 40


@activity.defn
async def fails_again_and_again() -> None:
    raise RuntimeError("again")


@workflow.defn
class RetriesWithoutBackoff:
    @workflow.run
    async def run(self) -> None:
        policy = RetryPolicy(initial_interval=timedelta(microseconds=1), backoff_coefficient=1)
        await workflow.execute_activity(fails_again_and_again, start_to_close_timeout=SOON, retry_policy=policy)


@workflow.defn
class ContinuesAtOnce:
    @workflow.run
    async def run(self, times: int) -> str:
        if times:
            workflow.continue_as_new(times - 1)
        return "done"


@program
async def command_refused_again(stage: Stage) -> Any:
    """When a worker's commands are refused twice, the second workflow task stays started until it times out."""
    queue = f"{stage.name}-queue"
    handle = await stage.start("Unknown", queue=queue)
    await _answer_with_unknown_endpoint(stage, queue, "first")
    await _answer_with_unknown_endpoint(stage, queue, "second")
    stage.note("pending", (await stage.describe(handle.id)).pending_workflow_task)
    return await _terminated(stage, handle)


@program
async def command_refused_with_a_signal_between(stage: Stage) -> Any:
    """A signal starts a new series of attempts, and the first failure of each series is written to the history."""
    queue = f"{stage.name}-queue"
    handle = await stage.start("Unknown", queue=queue)
    await _answer_with_unknown_endpoint(stage, queue, "first")
    await handle.signal("go")
    await _answer_with_unknown_endpoint(stage, queue, "second")
    stage.note("pending", (await stage.describe(handle.id)).pending_workflow_task)
    return await _terminated(stage, handle)


@program
async def signals_while_a_workflow_is_closing(stage: Stage) -> Any:
    """A close that missed a signal is tried again: meanwhile the workflow gets no other signal."""
    queue = f"{stage.name}-queue"
    handle = await stage.start("Unknown", queue=queue)
    end = Command(command_type=CommandType.COMMAND_TYPE_COMPLETE_WORKFLOW_EXECUTION)
    end.complete_workflow_execution_command_attributes.SetInParent()

    async def signal(label: str) -> None:
        request = SignalWorkflowExecutionRequest(
            namespace=NAMESPACE, workflow_execution=execution(handle.id), signal_name=label, identity="raw"
        )
        stage.note(f"signal {label}", await stage.outcome(stage.service.signal_workflow_execution(request)))

    async def respond(task: PollWorkflowTaskQueueResponse, label: str, *commands: Command) -> None:
        request = RespondWorkflowTaskCompletedRequest(
            namespace=NAMESPACE,
            task_token=task.task_token,
            identity="a-worker",
            commands=commands,
            worker_version_stamp=WorkerVersionStamp(build_id="the-build"),
        )
        stage.note(label, await stage.outcome(stage.service.respond_workflow_task_completed(request)))

    task = await _poll(stage, queue)
    await signal("in the first task")
    await respond(task, "first", end)
    await signal("before the second task")
    task = await _poll(stage, queue)
    await signal("in the second task")
    with_start = SignalWithStartWorkflowExecutionRequest(
        namespace=NAMESPACE,
        workflow_id=handle.id,
        workflow_type=WorkflowType(name="Unknown"),
        task_queue=TaskQueue(name=queue),
        signal_name="with start",
        identity="raw",
        request_id="with start",
    )
    stage.note("with start", await stage.outcome(stage.service.signal_with_start_workflow_execution(with_start)))
    await respond(task, "second")
    await signal("after the second task")
    task = await _poll(stage, queue)
    await signal("in the third task")
    await respond(task, "third", end)
    task = await _poll(stage, queue)
    await respond(task, "last", end)
    return await stage.outcome(handle.result())


@program
async def activity_without_backoff(stage: Stage) -> Any:
    handle = await stage.start(RetriesWithoutBackoff.run)
    await stage.until_activity(lambda pending: pending.attempt > 1)
    await asyncio.sleep(2)
    attempts = (await stage.describe(handle.id)).pending_activities[0].attempt
    stage.note("has few attempts", 2 <= attempts <= _ATTEMPTS_MAX)
    return await _terminated(stage, handle)


@program
async def runs_that_continue_at_once(stage: Stage) -> Any:
    return await stage.run(ContinuesAtOnce.run, 3)


async def _answer_with_unknown_endpoint(stage: Stage, queue: str, label: str) -> None:
    task = await _poll(stage, queue)
    command = Command(
        command_type=CommandType.COMMAND_TYPE_SCHEDULE_NEXUS_OPERATION,
        schedule_nexus_operation_command_attributes=ScheduleNexusOperationCommandAttributes(
            endpoint="no-such-endpoint", service="service", operation="operation"
        ),
    )
    stage.note(f"{label} attempt", task.attempt)
    request = RespondWorkflowTaskCompletedRequest(
        namespace=NAMESPACE, task_token=task.task_token, identity="a-worker", commands=[command]
    )
    stage.note(label, await stage.outcome(stage.service.respond_workflow_task_completed(request)))


async def _poll(stage: Stage, queue: str) -> PollWorkflowTaskQueueResponse:
    request = PollWorkflowTaskQueueRequest(
        namespace=NAMESPACE, task_queue=TaskQueue(name=queue), identity="a-worker", binary_checksum="a-build"
    )
    task = await stage.service.poll_workflow_task_queue(request)
    assert task.task_token, "no workflow task came"
    return task


async def _terminated(stage: Stage, handle: Handle) -> Any:
    await handle.terminate("enough")
    return await stage.outcome(handle.result())
