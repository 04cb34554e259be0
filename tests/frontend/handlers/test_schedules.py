"""Schedules on a whole server, through the official SDK and the official command line."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from temporalio import workflow
from temporalio.api.common.v1 import Memo, Payload, Payloads, RetryPolicy, SearchAttributes, WorkflowType
from temporalio.api.history.v1 import History
from temporalio.api.schedule.v1 import (
    IntervalSpec,
    Range,
    Schedule,
    ScheduleAction,
    SchedulePatch,
    SchedulePolicies,
    ScheduleSpec,
    ScheduleState,
    StructuredCalendarSpec,
)
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflow.v1 import NewWorkflowExecutionInfo
from temporalio.api.workflowservice.v1 import (
    CountSchedulesRequest,
    CreateScheduleRequest,
    DeleteScheduleRequest,
    DescribeScheduleRequest,
    GetWorkflowExecutionHistoryRequest,
    ListScheduleMatchingTimesRequest,
    ListSchedulesRequest,
    ListSchedulesResponse,
    PatchScheduleRequest,
    UpdateScheduleRequest,
)
from temporalio.client import (
    Client,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleBackfill,
    ScheduleCalendarSpec,
    ScheduleDescription,
    ScheduleHandle,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleRange,
    ScheduleUpdate,
    ScheduleUpdateInput,
)
from temporalio.client import (
    Schedule as SdkSchedule,
)
from temporalio.client import (
    ScheduleSpec as SdkSpec,
)
from temporalio.client import (
    ScheduleState as SdkState,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from fairlead.testing import FairleadServer
from tests.frontend.served import TEMPORAL, needs_command_line

QUEUE = "scheduled"
NEVER = SdkSpec()
COLOR = {"Color": Payload(metadata={"encoding": b"json/plain"}, data=b'"red"')}


@workflow.defn
class Counts:
    """A workflow that returns its last completion result plus one."""

    @workflow.run
    async def run(self) -> int:
        """Return the last result plus one."""
        return (workflow.get_last_completion_result(int) or 0) + 1 if workflow.has_last_completion_result() else 1


@workflow.defn
class Waits:
    """A workflow that ends, or fails, when it gets a signal."""

    @workflow.run
    async def run(self) -> str:
        """Wait for the signal."""
        await workflow.wait_condition(lambda: bool(self.ending))
        if self.ending == "fail":
            raise ApplicationError("so it was told")
        if self.ending == "again":
            workflow.continue_as_new()
        return self.ending

    def __init__(self) -> None:
        self.ending = ""

    @workflow.signal
    def end(self, how: str) -> None:
        """Signal the end."""
        self.ending = how


@dataclass
class Stage:
    server: FairleadServer
    client: Client

    async def create(self, name: str, program: Any = Waits.run, **options: Any) -> ScheduleHandle:
        action = ScheduleActionStartWorkflow(program, id=f"{name}-workflow", task_queue=QUEUE)
        schedule = SdkSchedule(
            action=action,
            spec=options.pop("spec", NEVER),
            policy=options.pop("policy", SchedulePolicy()),
            state=options.pop("state", SdkState()),
        )
        return await self.client.create_schedule(name, schedule, **options)

    async def temporal(self, *arguments: str) -> str:
        process = await asyncio.create_subprocess_exec(
            *(str(TEMPORAL), *arguments, "--address", self.server.address),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(60):
            output, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()
        return output.decode()


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[Stage]:
    async with FairleadServer.start(search_attributes={"Color": "Keyword"}, **options) as server:
        client = await server.connect()
        async with Worker(
            client, task_queue=QUEUE, workflows=[Counts, Waits], workflow_runner=UnsandboxedWorkflowRunner()
        ):
            yield Stage(server, client)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with running() as stage:
        yield stage


async def until(
    handle: ScheduleHandle, is_so: Callable[[ScheduleDescription], bool], timeout_s: float = 20.0
) -> ScheduleDescription:
    async with asyncio.timeout(timeout_s):
        while True:
            description = await handle.describe()
            if is_so(description):
                return description
            await asyncio.sleep(0.05)


async def ended(client: Client, workflow_id: str, how: str) -> None:
    await client.get_workflow_handle(workflow_id).signal(Waits.end, how)


async def code_and_message(asked: Awaitable[Any]) -> tuple[RPCStatusCode, str]:
    with pytest.raises(RPCError) as error:
        await asked
    return error.value.status, error.value.message


async def another_run(client: Client, workflow_id: str, run_id: str) -> None:
    for _ in range(200):
        if (await client.get_workflow_handle(workflow_id).describe()).run_id != run_id:
            return
        await asyncio.sleep(0.05)
    pytest.fail(f"{workflow_id} has still the run {run_id}")


async def next_second() -> None:
    """Wait until an action gets another workflow id: ids end with the second of the action."""
    second = int(time.time())
    while int(time.time()) == second:  # noqa: ASYNC110 - the clock is not an event
        await asyncio.sleep(0.01)


def first_id(description: ScheduleDescription) -> str:
    action = description.info.running_actions[0]
    assert hasattr(action, "workflow_id")
    return str(action.workflow_id)


async def test_workflows_are_started_on_time_and_each_gets_the_last_result(stage: Stage) -> None:
    spec = SdkSpec(intervals=[ScheduleIntervalSpec(every=timedelta(seconds=1))])
    handle = await stage.create("clock", Counts.run, spec=spec)
    description = await until(handle, lambda seen: seen.info.num_actions >= 3)
    await handle.pause(note="enough")
    recent = description.info.recent_actions
    assert len({action.scheduled_at for action in recent}) == len(recent) >= 3
    results = []
    for action in recent[:3]:
        workflow_id = f"clock-workflow-{action.scheduled_at:%Y-%m-%dT%H:%M:%SZ}"
        results.append(await stage.client.get_workflow_handle(workflow_id).result())
    assert results == [1, 2, 3]
    assert (await handle.describe()).schedule.state.paused


async def test_a_scheduled_workflow_starts_with_the_same_event_as_at_the_reference_server(stage: Stage) -> None:
    handle = await stage.create("begun", trigger_immediately=True)
    description = await until(handle, lambda seen: bool(seen.info.running_actions))
    workflow_id = first_id(description)
    response = await stage.client.workflow_service.get_workflow_execution_history(
        GetWorkflowExecutionHistoryRequest(
            namespace="default",
            execution={"workflow_id": workflow_id},  # type: ignore[arg-type]
        )
    )
    history: History = response.history
    begun = history.events[0].workflow_execution_started_event_attributes
    assert begun.identity == "temporal-scheduler-default-begun"
    nominal = workflow_id.removeprefix("begun-workflow-")
    fields = begun.search_attributes.indexed_fields
    assert {name: (json.loads(field.data), field.metadata["type"]) for name, field in fields.items()} == {
        "TemporalScheduledStartTime": (nominal, b"Datetime"),
        "TemporalScheduledById": ("begun", b"Keyword"),
    }
    assert not begun.completion_callbacks
    assert begun.workflow_task_timeout.seconds == 10
    found = [info.id async for info in stage.client.list_workflows("TemporalScheduledById = 'begun'")]
    assert found == [workflow_id]


async def test_a_buffered_action_starts_when_the_previous_workflow_closes(stage: Stage) -> None:
    handle = await stage.create("waits", trigger_immediately=True)
    description = await until(handle, lambda seen: bool(seen.info.running_actions))
    first = first_id(description)
    await next_second()
    await handle.trigger(overlap=ScheduleOverlapPolicy.BUFFER_ONE)
    assert (await handle.describe()).raw_description.info.buffer_size == 1
    await ended(stage.client, first, "done")
    description = await until(handle, lambda seen: seen.info.num_actions == 2)
    assert description.raw_description.info.buffer_size == 0
    assert first_id(description) != first


async def test_a_workflow_that_continues_as_new_counts_as_running(stage: Stage) -> None:
    handle = await stage.create("again", trigger_immediately=True)
    first = first_id(await until(handle, lambda seen: bool(seen.info.running_actions)))
    await next_second()
    await handle.trigger(overlap=ScheduleOverlapPolicy.BUFFER_ONE)
    run_id = (await stage.client.get_workflow_handle(first).describe()).run_id
    await ended(stage.client, first, "again")
    await another_run(stage.client, first, run_id)
    description = await handle.describe()
    assert (description.info.num_actions, first_id(description)) == (1, first)
    await ended(stage.client, first, "done")
    assert (await until(handle, lambda seen: seen.info.num_actions == 2)).info.num_actions == 2


async def test_a_failed_workflow_pauses_its_schedule_at_once(stage: Stage) -> None:
    handle = await stage.create("fails", policy=SchedulePolicy(pause_on_failure=True), trigger_immediately=True)
    workflow_id = first_id(await until(handle, lambda seen: bool(seen.info.running_actions)))
    await ended(stage.client, workflow_id, "fail")
    description = await until(handle, lambda seen: seen.schedule.state.paused)
    assert description.schedule.state.note == f"paused due to workflow failure: {workflow_id}: so it was told"
    assert description.info.running_actions == []


@pytest.mark.parametrize("overlap", [ScheduleOverlapPolicy.CANCEL_OTHER, ScheduleOverlapPolicy.TERMINATE_OTHER])
async def test_the_overlap_policies_cancel_or_terminate_the_running_workflow(
    stage: Stage, overlap: ScheduleOverlapPolicy
) -> None:
    handle = await stage.create("ends", trigger_immediately=True)
    first = first_id(await until(handle, lambda seen: bool(seen.info.running_actions)))
    await next_second()
    await handle.trigger(overlap=overlap)
    description = await until(handle, lambda seen: seen.info.num_actions == 2)
    assert first_id(description) != first
    history = await stage.client.get_workflow_handle(first).fetch_history()
    if overlap is ScheduleOverlapPolicy.TERMINATE_OTHER:
        last = history.events[-1].workflow_execution_terminated_event_attributes
        assert (last.reason, last.identity) == (
            "terminated by schedule overlap policy",
            "temporal-scheduler-default-ends",
        )
    else:
        asked = [
            event.workflow_execution_cancel_requested_event_attributes
            for event in history.events
            if event.HasField("workflow_execution_cancel_requested_event_attributes")
        ]
        assert [event.cause for event in asked] == ["cancelled by schedule overlap policy"]


async def test_a_backfill_starts_the_actions_of_a_past_interval(stage: Stage) -> None:
    spec = SdkSpec(intervals=[ScheduleIntervalSpec(every=timedelta(hours=1))])
    handle = await stage.create("past", Counts.run, spec=spec)
    midnight = datetime(2024, 5, 1, tzinfo=UTC)
    await handle.backfill(
        ScheduleBackfill(
            start_at=midnight, end_at=midnight + timedelta(hours=12), overlap=ScheduleOverlapPolicy.ALLOW_ALL
        )
    )
    description = await until(handle, lambda seen: seen.info.num_actions == 13)
    assert [action.scheduled_at.hour for action in description.info.recent_actions] == list(range(3, 13))
    assert await stage.client.get_workflow_handle("past-workflow-2024-05-01T05:00:00Z").result() == 1


async def test_a_schedule_with_limited_actions_stops_after_them(stage: Stage) -> None:
    spec = SdkSpec(intervals=[ScheduleIntervalSpec(every=timedelta(seconds=1))])
    state = SdkState(limited_actions=True, remaining_actions=1)
    handle = await stage.create("limited", Counts.run, spec=spec, state=state)
    description = await until(handle, lambda seen: seen.info.num_actions == 1)
    assert description.schedule.state.remaining_actions == 0
    assert description.info.next_action_times == []
    # Only time can show that no further action starts: one interval of the schedule.
    await asyncio.sleep(1.1)
    assert (await handle.describe()).info.num_actions == 1


async def test_a_deleted_workflow_does_not_block_its_schedule(stage: Stage) -> None:
    spec = SdkSpec(intervals=[ScheduleIntervalSpec(every=timedelta(seconds=1))])
    handle = await stage.create("deleted", spec=spec)
    first = first_id(await until(handle, lambda seen: bool(seen.info.running_actions)))
    await stage.temporal("workflow", "delete", "-w", first, "--yes")
    description = await until(handle, lambda seen: seen.info.num_actions == 2)
    assert first_id(description) != first


async def test_schedules_survive_a_restart_and_catch_up(tmp_path: Path) -> None:
    spec = SdkSpec(intervals=[ScheduleIntervalSpec(every=timedelta(seconds=1))])
    async with running(db_filename=tmp_path / "kept.db") as before:
        policy = SchedulePolicy(overlap=ScheduleOverlapPolicy.ALLOW_ALL)
        handle = await before.create("kept", Counts.run, spec=spec, policy=policy)
        await until(handle, lambda seen: seen.info.num_actions >= 1)
    # At least one action becomes due while the server is down.
    await asyncio.sleep(1.1)
    async with running(db_filename=tmp_path / "kept.db") as after:
        handle = after.client.get_schedule_handle("kept")
        description = await until(handle, lambda seen: seen.info.num_actions >= 5)
        times = [action.scheduled_at for action in description.info.recent_actions]
        # No action was skipped while the server was down.
        assert [later - earlier for earlier, later in pairwise(times)] == [timedelta(seconds=1)] * (len(times) - 1)


async def test_an_update_replaces_the_schedule_and_an_old_conflict_token_is_refused(stage: Stage) -> None:
    handle = await stage.create("updated", memo={"own": 1})
    before = await handle.describe()

    async def change(seen: ScheduleUpdateInput) -> ScheduleUpdate:
        schedule = seen.description.schedule
        schedule.spec = SdkSpec(calendars=[ScheduleCalendarSpec(hour=[ScheduleRange(3)])], time_zone_name="Asia/Tokyo")
        schedule.state.note = "changed"
        return ScheduleUpdate(schedule)

    await handle.update(change)
    after = await handle.describe()
    assert after.schedule.state.note == "changed"
    assert after.info.last_updated_at is not None
    assert [moment.hour for moment in after.info.next_action_times] == [18] * 10
    assert await after.memo() == {"own": 1}
    service = stage.client.workflow_service
    request = UpdateScheduleRequest(
        namespace="default",
        schedule_id="updated",
        schedule=before.raw_description.schedule,
        conflict_token=before.raw_description.conflict_token,
    )
    assert await code_and_message(service.update_schedule(request)) == (
        RPCStatusCode.FAILED_PRECONDITION,
        "mismatched conflict token",
    )
    request.conflict_token = after.raw_description.conflict_token
    request.search_attributes.CopyFrom(SearchAttributes(indexed_fields=COLOR))
    await service.update_schedule(request)
    assert dict((await handle.describe()).search_attributes) == {"Color": ["red"]}


async def test_a_repeated_request_takes_effect_once(stage: Stage) -> None:
    handle = await stage.create("repeated")
    service = stage.client.workflow_service
    request = PatchScheduleRequest(
        namespace="default", schedule_id="repeated", request_id="same", patch=SchedulePatch(pause="once")
    )
    await service.patch_schedule(request)
    await service.patch_schedule(request)
    assert (await handle.describe()).raw_description.conflict_token[-1] == 2
    with pytest.raises(ScheduleAlreadyRunningError):
        await stage.create("repeated")
    create = a_request(request_id="same", schedule_id="twice")
    assert await service.create_schedule(create) == await service.create_schedule(create)


async def test_schedules_are_listed_and_counted_by_their_attributes(stage: Stage) -> None:
    for number in range(5):
        await stage.create(f"many-{number}", state=SdkState(paused=number % 2 == 0, note=f"note {number}"))
    service = stage.client.workflow_service

    async def listed(query: str, **options: Any) -> ListSchedulesResponse:
        return await service.list_schedules(ListSchedulesRequest(namespace="default", query=query, **options))

    async def ids(query: str) -> list[str]:
        return [entry.schedule_id for entry in (await listed(query)).schedules]

    assert await ids("") == [f"many-{number}" for number in range(4, -1, -1)]
    assert await ids("TemporalSchedulePaused = false") == ["many-3", "many-1"]
    assert await ids("ScheduleId STARTS_WITH 'many' AND ScheduleId > 'many-2'") == ["many-4", "many-3"]
    assert await ids("TemporalSchedulePaused = true ORDER BY ScheduleId") == ["many-0", "many-2", "many-4"]
    first = await listed("", maximum_page_size=3)
    second = await listed("", maximum_page_size=3, next_page_token=first.next_page_token)
    assert [entry.info.notes for entry in (*first.schedules, *second.schedules)] == [
        f"note {number}" for number in range(4, -1, -1)
    ]
    assert not second.next_page_token
    count = await service.count_schedules(
        CountSchedulesRequest(namespace="default", query="TemporalSchedulePaused = true")
    )
    assert count.count == 3
    assert [entry.id async for entry in await stage.client.list_schedules()] == await ids("")
    # Schedules are not listed as workflows.
    assert [info async for info in stage.client.list_workflows()] == []
    await stage.client.get_schedule_handle("many-3").delete()
    assert await ids("TemporalSchedulePaused = false") == ["many-1"]
    for query, message in {
        "WorkflowId = 'a'": 'invalid query filter for schedules: cannot filter on "WorkflowId"',
        "Color = 'a' OR StartTime > '2020-01-01T00:00:00Z'": (
            'invalid query filter for schedules: cannot filter on "StartTime"'
        ),
        "TemporalScheduledById = 'a'": 'invalid query filter for schedules: cannot filter on "TemporalScheduledById"',
        "Nope = 'a'": "invalid query: invalid search attribute: Nope",
    }.items():
        assert await code_and_message(listed(query)) == (RPCStatusCode.INVALID_ARGUMENT, message)
    assert (await code_and_message(listed("", next_page_token=b"xx")))[0] == RPCStatusCode.INVALID_ARGUMENT
    assert (await code_and_message(listed("Color = 'a'", next_page_token=first.next_page_token)))[
        1
    ] == "Invalid NextPageToken."


def an_action(**rest: Any) -> NewWorkflowExecutionInfo:
    fields = {"workflow_id": "w", "workflow_type": WorkflowType(name="T"), "task_queue": TaskQueue(name="q")}
    return NewWorkflowExecutionInfo(**{**fields, **rest})


def a_request(
    *, action: NewWorkflowExecutionInfo | None = None, spec: ScheduleSpec | None = None, **rest: Any
) -> CreateScheduleRequest:
    schedule = Schedule(spec=spec, action=ScheduleAction(start_workflow=action or an_action()))
    fields = {"namespace": "default", "schedule_id": "s", "request_id": "r", "schedule": schedule}
    return CreateScheduleRequest(**{**fields, **rest})


INVALID = RPCStatusCode.INVALID_ARGUMENT
# The code is the reference server's, and so is the message except for the name of the id.
REFUSED: dict[str, tuple[CreateScheduleRequest, RPCStatusCode, str]] = {
    "no namespace": (a_request(namespace=""), INVALID, "Namespace is empty."),
    "unknown namespace": (a_request(namespace="nope"), RPCStatusCode.NOT_FOUND, "Namespace nope is not found."),
    "no id": (a_request(schedule_id=""), INVALID, "ScheduleId is not set on request."),
    "long id": (
        a_request(schedule_id="x" * 978),
        INVALID,
        "ScheduleId exceeds maximum allowed length (978/977)",
    ),
    "no request id": (a_request(request_id=""), INVALID, "RequestId is not set on request."),
    "long request id": (a_request(request_id="x" * 1001), INVALID, "RequestId length exceeds limit."),
    "long workflow id": (
        a_request(action=an_action(workflow_id="w" * 990)),
        INVALID,
        "WorkflowId exceeds maximum allowed length (1011/1000)",
    ),
    "no type": (a_request(action=an_action(workflow_type=None)), INVALID, "WorkflowType is not set on request."),
    "no queue": (a_request(action=an_action(task_queue=None)), INVALID, "taskQueue is not set"),
    "cron": (
        a_request(action=an_action(cron_schedule="* * * * *")),
        INVALID,
        "Scheduled workflow must not contain CronSchedule",
    ),
    "reuse policy": (
        a_request(action=an_action(workflow_id_reuse_policy=2)),
        INVALID,
        "Scheduled workflow must not contain WorkflowIDReusePolicy",
    ),
    "timeout": (
        a_request(action=an_action(workflow_run_timeout=Duration(seconds=-1))),
        INVALID,
        "An invalid WorkflowRunTimeoutSeconds is set on request. cause: negative duration",
    ),
    "attribute of the workflow": (
        a_request(action=an_action(search_attributes=SearchAttributes(indexed_fields={"Nope": COLOR["Color"]}))),
        INVALID,
        "Namespace default has no mapping defined for search attribute Nope",
    ),
    "attribute of the schedule": (
        a_request(search_attributes=SearchAttributes(indexed_fields={"Nope": COLOR["Color"]})),
        INVALID,
        "Namespace default has no mapping defined for search attribute Nope",
    ),
    "large input": (
        a_request(action=an_action(input=Payloads(payloads=[Payload(data=b"x" * 2_200_000)]))),
        INVALID,
        "Blob data size exceeds limit.",
    ),
    "large memo": (
        a_request(memo=Memo(fields={"a": Payload(data=b"x" * 2_200_000)})),
        INVALID,
        "Memo size exceeds limit.",
    ),
    "spec": (
        a_request(spec=ScheduleSpec(interval=[IntervalSpec()])),
        INVALID,
        "Invalid schedule spec: interval is too small",
    ),
    "calendar": (
        a_request(spec=ScheduleSpec(structured_calendar=[StructuredCalendarSpec(hour=[Range(start=24)])])),
        INVALID,
        "Invalid schedule spec: invalid calendar spec: Hour Start is not in range [0-23]",
    ),
    "retry policy": (
        a_request(action=an_action(retry_policy=RetryPolicy(maximum_attempts=-1))),
        INVALID,
        "MaximumAttempts cannot be negative on retry policy.",
    ),
    "remaining actions": (
        a_request(schedule=Schedule(state=ScheduleState(remaining_actions=-1))),
        INVALID,
        "RemainingActions is negative.",
    ),
}


async def test_bad_requests_are_refused_and_change_nothing(stage: Stage) -> None:
    service = stage.client.workflow_service
    for name, (request, code, message) in REFUSED.items():
        assert await code_and_message(service.create_schedule(request)) == (code, message), name
    key: dict[str, Any] = {"namespace": "default", "schedule_id": "nope"}
    gone = (RPCStatusCode.NOT_FOUND, "schedule not found")
    schedule = a_request().schedule
    assert await code_and_message(service.describe_schedule(DescribeScheduleRequest(**key))) == gone
    assert await code_and_message(service.update_schedule(UpdateScheduleRequest(schedule=schedule, **key))) == gone
    assert (
        await code_and_message(service.patch_schedule(PatchScheduleRequest(patch=SchedulePatch(pause="p"), **key)))
        == gone
    )
    assert await code_and_message(service.delete_schedule(DeleteScheduleRequest(**key))) == gone
    assert await code_and_message(service.list_schedule_matching_times(ListScheduleMatchingTimesRequest(**key))) == gone
    assert await code_and_message(service.update_schedule(UpdateScheduleRequest(**key))) == (
        INVALID,
        "Only StartWorkflow action is supported for schedules",
    )
    assert await code_and_message(service.patch_schedule(PatchScheduleRequest(**key))) == (
        INVALID,
        "Patch is not set on request.",
    )
    long_notes = SchedulePatch(unpause="x" * 1500)
    assert (await code_and_message(service.patch_schedule(PatchScheduleRequest(patch=long_notes, **key))))[1] == (
        "Schedule notes exceeds limit."
    )
    await service.create_schedule(a_request())
    span = ListScheduleMatchingTimesRequest(namespace="default", schedule_id="s")
    assert await code_and_message(service.list_schedule_matching_times(span)) == (INVALID, "missing or invalid query")
    counted = await service.count_schedules(CountSchedulesRequest(namespace="default"))
    assert counted.count == 1


async def test_a_schedule_with_that_policy_starts_workflows_with_their_original_id(stage: Stage) -> None:
    request = a_request(action=an_action(workflow_id="mine", task_queue=TaskQueue(name="nobody")))
    request.schedule.policies.CopyFrom(SchedulePolicies(keep_original_workflow_id=True))
    request.initial_patch.trigger_immediately.SetInParent()
    await stage.client.workflow_service.create_schedule(request)
    handle = stage.client.get_schedule_handle("s")
    assert first_id(await until(handle, lambda seen: bool(seen.info.running_actions))) == "mine"


async def test_an_action_that_can_not_start_is_skipped(stage: Stage) -> None:
    await stage.client.start_workflow(Waits.run, id="mine", task_queue=QUEUE)
    request = a_request(action=an_action(workflow_id="mine"))
    request.schedule.policies.CopyFrom(SchedulePolicies(keep_original_workflow_id=True))
    request.initial_patch.trigger_immediately.SetInParent()
    await stage.client.workflow_service.create_schedule(request)
    handle = stage.client.get_schedule_handle("s")
    # Only time can show that the action does not start.
    await asyncio.sleep(0.5)
    description = await handle.describe()
    assert (description.info.num_actions, description.info.running_actions) == (0, [])
    await ended(stage.client, "mine", "done")
    await stage.client.get_workflow_handle("mine").result()
    await handle.trigger()
    await until(handle, lambda seen: seen.info.num_actions == 1)


@needs_command_line
async def test_the_official_command_line_manages_schedules(stage: Stage) -> None:
    def named(name: str) -> list[str]:
        return ["schedule", name, "-s", "by-hand"]

    workflow = ["--workflow-id", "w", "--type", "Counts", "-t", QUEUE]
    await stage.temporal(*named("create"), "--cron", "TZ=UTC 30 4 * * *", "--notes", "first", *workflow)
    described = json.loads(await stage.temporal(*named("describe"), "-o", "json"))
    assert described["schedule"]["state"] == {"notes": "first"}
    assert all(moment.endswith("T04:30:00Z") for moment in described["info"]["futureActionTimes"])
    assert described["schedule"]["spec"]["timezoneName"] == "UTC"
    await stage.temporal(*named("trigger"))
    await until(stage.client.get_schedule_handle("by-hand"), lambda seen: seen.info.num_actions == 1)
    await stage.temporal(*named("toggle"), "--pause", "--reason", "not now")
    listed = json.loads(await stage.temporal("schedule", "list", "-o", "json"))
    assert [(entry["scheduleId"], entry["info"]["notes"], entry["info"]["paused"]) for entry in listed] == [
        ("by-hand", "not now", True)
    ]
    await stage.temporal(
        *named("backfill"),
        *("--start-time", "2024-05-01T00:00:00Z", "--end-time", "2024-05-04T00:00:00Z"),
        *("--overlap-policy", "AllowAll"),
    )
    await until(stage.client.get_schedule_handle("by-hand"), lambda seen: seen.info.num_actions == 4)
    await stage.temporal(*named("update"), "--interval", "1h/5m", *workflow)
    described = json.loads(await stage.temporal(*named("describe"), "-o", "json"))
    assert described["schedule"]["spec"]["interval"] == [{"interval": "3600s", "phase": "300s"}]
    assert "by-hand" in await stage.temporal(*named("describe"))
    await stage.temporal(*named("delete"))
    assert json.loads(await stage.temporal("schedule", "list", "-o", "json") or "[]") == []
