"""Workflows with their own clock, which skips time."""

import asyncio
from datetime import timedelta
from typing import Any

import temporalio.api.workflowservice.v1 as api
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from temporalio import activity, workflow
from temporalio.api.common.v1 import FastForwardConfig, TimeSkippingConfig, WorkflowExecution
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError

from tests.history.reference_programs import SOON
from tests.sdk.stage import MAIN, NAMESPACE, NO_ONE, Handle, Stage, program

DAY = timedelta(days=1)


@activity.defn
async def fails_once() -> str:
    if activity.info().attempt == 1:
        raise ApplicationError("not yet")
    return "worked"


@workflow.defn
class SkipsTime:
    """Performs the named actions in order; returns the days that each one took."""

    @workflow.run
    async def run(self, things: list[str]) -> list[int]:
        days = []
        for thing in things:
            begun = workflow.now()
            match thing:
                case "sleep":
                    await workflow.sleep(DAY)
                case "activity":
                    policy = RetryPolicy(initial_interval=3 * DAY)
                    await workflow.execute_activity(fails_once, start_to_close_timeout=SOON, retry_policy=policy)
                case "child":
                    child_id = f"{workflow.info().workflow_id}-child"
                    await workflow.execute_child_workflow(SkipsTime.run, ["sleep"], id=child_id)
                case "continue":
                    workflow.continue_as_new(["sleep"])
                case "wait":
                    await asyncio.Event().wait()
            days.append((workflow.now() - begun).days)
        return days


async def _start(stage: Stage, *things: str, suffix: str = MAIN, queue: str = "", **fields: Any) -> Handle:
    request = api.StartWorkflowExecutionRequest(
        **{
            "namespace": NAMESPACE,
            "workflow_id": stage.id(suffix),
            "request_id": suffix,
            "task_queue": TaskQueue(name=queue or stage.queue),
            "time_skipping_config": TimeSkippingConfig(enabled=True),
            **fields,
        }
    )
    request.workflow_type.name = "SkipsTime"
    request.input.payloads.extend(await stage.client.data_converter.encode([list(things)]))
    started = await stage.service.start_workflow_execution(request)
    stage.saw(stage.id(suffix), started.run_id)
    return stage.client.get_workflow_handle(stage.id(suffix), run_id=started.run_id)


async def _poll(stage: Stage, fast_forward_id: str, suffix: str = MAIN) -> Any:
    request = api.PollWorkflowExecutionTimeSkippingRequest(
        namespace=NAMESPACE,
        workflow_execution=WorkflowExecution(workflow_id=stage.id(suffix)),
        fast_forward_id=fast_forward_id,
    )
    return await stage.outcome(stage.service.poll_workflow_execution_time_skipping(request))


@program
async def time_skipped_by_timers(stage: Stage) -> Any:
    return await stage.outcome((await _start(stage, "sleep", "sleep")).result())


@program
async def time_skipped_by_a_backoff(stage: Stage) -> Any:
    return await stage.outcome((await _start(stage, "activity")).result())


@program
async def time_skipped_by_a_child(stage: Stage) -> Any:
    return await stage.outcome((await _start(stage, "sleep", "child")).result())


@program
async def time_skipped_by_the_next_run(stage: Stage) -> Any:
    return await stage.outcome((await _start(stage, "sleep", "continue")).result())


@program
async def time_skipped_to_a_run_timeout(stage: Stage) -> Any:
    return await stage.outcome((await _start(stage, "wait", workflow_run_timeout=Duration(seconds=90_000))).result())


@program
async def time_skipped_as_often_as_allowed(stage: Stage) -> Any:
    config = TimeSkippingConfig(enabled=True, max_session_skip_count=1)
    handle = await _start(stage, "sleep", "sleep", time_skipping_config=config)
    await stage.until(handle, "TIMER_FIRED")
    await stage.until(handle, "TIMER_STARTED", 2)
    await stage.idle(handle)
    await handle.terminate("enough")
    return await stage.outcome(handle.result())


@program
async def time_skipped_by_a_fast_forward(stage: Stage) -> Any:
    handle = await _start(stage, "sleep", "wait", time_skipping_config=TimeSkippingConfig(enabled=False))
    await stage.until(handle, "TIMER_STARTED")
    await stage.idle(handle)
    forward = FastForwardConfig(id="ahead", duration=Duration(seconds=100_000))
    request = api.UpdateWorkflowExecutionOptionsRequest(
        namespace=NAMESPACE,
        workflow_execution=WorkflowExecution(workflow_id=handle.id),
        update_mask=FieldMask(paths=["time_skipping_config"]),
    )
    request.workflow_execution_options.time_skipping_config.enabled = True
    request.workflow_execution_options.time_skipping_config.fast_forward_config.CopyFrom(forward)
    stage.note("updated", await stage.outcome(stage.service.update_workflow_execution_options(request)))
    stage.note("reached", await _poll(stage, "ahead"))
    stage.note("unknown", await _poll(stage, "other"))
    await stage.idle(handle)
    await handle.terminate("enough")
    stage.note("after the end", await _poll(stage, "ahead"))
    return await stage.outcome(handle.result())


@program
async def time_skipping_refused(stage: Stage) -> None:
    forward = FastForwardConfig(id="ahead", duration=Duration(seconds=10))
    for number, (label, config) in enumerate(
        {
            "off with a fast-forward": TimeSkippingConfig(enabled=False, fast_forward_config=forward),
            "without an id": TimeSkippingConfig(
                enabled=True, fast_forward_config=FastForwardConfig(duration=Duration(seconds=1))
            ),
            "no duration": TimeSkippingConfig(enabled=True, fast_forward_config=FastForwardConfig(id="x")),
            "a negative duration": TimeSkippingConfig(
                enabled=True, fast_forward_config=FastForwardConfig(id="x", duration=Duration(seconds=-1))
            ),
        }.items()
    ):
        start = _start(stage, "sleep", suffix=str(number), queue=NO_ONE, time_skipping_config=config)
        stage.note(label, await stage.outcome(start))
    for label, fast_forward_id in (("polled", "some"), ("without an id", "")):
        stage.note(f"{label}, unknown workflow", await _poll(stage, fast_forward_id, suffix="unknown"))
