"""Schedules as a client sees them right after creating or changing them."""

import asyncio
import time
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.common.v1 import Payload, SearchAttributes, WorkflowType
from temporalio.api.enums.v1 import ScheduleOverlapPolicy
from temporalio.api.schedule.v1 import (
    IntervalSpec,
    Schedule,
    ScheduleAction,
    SchedulePatch,
    ScheduleSpec,
    TriggerImmediatelyRequest,
)
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflow.v1 import NewWorkflowExecutionInfo
from temporalio.api.workflowservice.v1 import (
    CreateScheduleRequest,
    DeleteScheduleRequest,
    DescribeScheduleRequest,
    DescribeScheduleResponse,
    PatchScheduleRequest,
    UpdateScheduleRequest,
)

from tests.sdk.programs.runs import FailsForGood
from tests.sdk.programs.starts import Waits
from tests.sdk.stage import NAMESPACE, NO_ONE, Stage, program

_TRIES = 10
# Number of actions of a schedule that acts each second, after which their rate is measured.
_ACTIONS = 5


def _trigger(number: int) -> SchedulePatch:
    """Trigger an action now, with a distinct scheduled time: the workflow id contains that time in seconds."""
    return SchedulePatch(
        trigger_immediately=TriggerImmediatelyRequest(
            overlap_policy=ScheduleOverlapPolicy.SCHEDULE_OVERLAP_POLICY_ALLOW_ALL,
            scheduled_time=Timestamp(seconds=1_800_000_000 + number),
        )
    )


def _schedule(stage: Stage, **fields: Any) -> Schedule:
    action = NewWorkflowExecutionInfo(
        workflow_id=stage.id("action"),
        workflow_type=WorkflowType(name="Waits"),
        task_queue=TaskQueue(name=NO_ONE),
        workflow_execution_timeout=Duration(seconds=1),
        **fields,
    )
    return Schedule(
        spec=ScheduleSpec(interval=[IntervalSpec(interval=Duration(seconds=86_400))]),
        action=ScheduleAction(start_workflow=action),
    )


def _json(text: str, **metadata: bytes) -> Payload:
    return Payload(metadata={"encoding": b"json/plain", **metadata}, data=text.encode())


async def _create(stage: Stage, schedule_id: str, schedule: Schedule, patch: SchedulePatch | None = None) -> None:
    await stage.service.create_schedule(
        CreateScheduleRequest(
            namespace=NAMESPACE,
            schedule_id=schedule_id,
            schedule=schedule,
            identity="raw",
            request_id=f"{schedule_id} create",
            initial_patch=patch,
            search_attributes=SearchAttributes(indexed_fields={"CustomKeywordField": _json('"own"')}),
        )
    )


async def _described(stage: Stage, schedule_id: str) -> DescribeScheduleResponse:
    return await stage.service.describe_schedule(DescribeScheduleRequest(namespace=NAMESPACE, schedule_id=schedule_id))


async def _delete(stage: Stage, schedule_id: str) -> None:
    await stage.service.delete_schedule(DeleteScheduleRequest(namespace=NAMESPACE, schedule_id=schedule_id))


@program
async def schedule_shows_types_of_search_attributes(stage: Stage) -> None:
    attributes = SearchAttributes(
        indexed_fields={
            "CustomKeywordField": _json('"red"'),
            "CustomIntField": _json("5"),
            "CustomBoolField": _json("true", type=b"Bool"),
            "CustomKeywordListField": _json('["a","b"]'),
            "CustomDatetimeField": _json('"2026-01-01T00:00:00Z"'),
        }
    )
    await _create(stage, stage.id(), _schedule(stage, search_attributes=attributes))
    described = await _described(stage, stage.id())
    stage.note("action", described.schedule.action.start_workflow.search_attributes)
    stage.note("own", described.search_attributes)
    update = UpdateScheduleRequest(
        namespace=NAMESPACE,
        schedule_id=stage.id(),
        schedule=_schedule(
            stage, search_attributes=SearchAttributes(indexed_fields={"CustomKeywordField": _json('"blue"')})
        ),
        request_id="update",
    )
    await stage.service.update_schedule(update)
    described = await _described(stage, stage.id())
    stage.note("updated", described.schedule.action.start_workflow.search_attributes)
    await _delete(stage, stage.id())


@program
async def schedule_shows_the_action_of_its_creation(stage: Stage) -> None:
    counts = []
    for number in range(_TRIES):
        schedule_id = stage.id(f"{number}")
        await _create(stage, schedule_id, _schedule(stage), _trigger(number))
        info = (await _described(stage, schedule_id)).info
        counts.append((info.action_count, len(info.recent_actions)))
        await _delete(stage, schedule_id)
    stage.note("actions", counts)


@program
async def schedule_shows_the_action_of_a_trigger(stage: Stage) -> None:
    await _create(stage, stage.id(), _schedule(stage))
    counts = []
    for number in range(_TRIES):
        await stage.service.patch_schedule(
            PatchScheduleRequest(namespace=NAMESPACE, schedule_id=stage.id(), patch=_trigger(number))
        )
        info = (await _described(stage, stage.id())).info
        counts.append((info.action_count, len(info.recent_actions)))
    stage.note("actions", counts)
    await _delete(stage, stage.id())


@program
async def schedule_whose_workflows_fail(stage: Stage) -> None:
    """Failures do not make a schedule act more often, although all its actions are buffered."""
    schedule = _schedule(stage)
    action = schedule.action.start_workflow
    # The number of these workflows varies, so their ids don't belong to the program.
    action.workflow_id = f"by {stage.name}"
    action.workflow_type.name = FailsForGood.__name__
    action.task_queue.name = stage.queue
    action.input.payloads.append(_json('"Fatal"'))
    schedule.spec.interval[0].interval.seconds = 1
    schedule.policies.overlap_policy = ScheduleOverlapPolicy.SCHEDULE_OVERLAP_POLICY_BUFFER_ALL
    began_s = time.monotonic()
    await _create(stage, stage.id(), schedule, _trigger(0))

    async def has_acted() -> bool:
        return (await _described(stage, stage.id())).info.action_count >= _ACTIONS

    await stage.until_true(has_acted, "actions")
    actions = (await _described(stage, stage.id())).info.action_count
    # One action for the trigger, and one for the second that has begun.
    stage.note("acts at most once a second", actions <= time.monotonic() - began_s + 2)
    failed = f"WorkflowId STARTS_WITH 'by {stage.name}' AND ExecutionStatus = 'Failed'"

    async def have_failed() -> bool:
        return (await stage.client.count_workflows(failed)).count >= 2

    await stage.until_true(have_failed, "failed workflows")
    await _delete(stage, stage.id())


@program
async def schedule_whose_actions_can_not_start(stage: Stage) -> None:
    """The workflow ids of the actions are in use: each action is dropped, and not tried again."""
    await _create(stage, stage.id(), _schedule(stage))
    for number in range(3):
        await stage.start(Waits.run, suffix=f"action-2027-01-15T08:00:0{number}Z", queue=NO_ONE)
        await stage.service.patch_schedule(
            PatchScheduleRequest(namespace=NAMESPACE, schedule_id=stage.id(), patch=_trigger(number))
        )
    info = (await _described(stage, stage.id())).info
    stage.note("info", [info.action_count, len(info.recent_actions), info.buffer_size, len(info.running_workflows)])
    await asyncio.sleep(2)
    info = (await _described(stage, stage.id())).info
    stage.note("later", [info.action_count, len(info.recent_actions), info.buffer_size, len(info.running_workflows)])
    await _delete(stage, stage.id())
    for number in range(3):
        await stage.client.get_workflow_handle(stage.id(f"action-2027-01-15T08:00:0{number}Z")).terminate()
