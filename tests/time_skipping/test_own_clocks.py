"""Workflows with their own time-skipping clocks, as Temporal's Python SDK uses them."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import cast

import pytest
import pytest_asyncio
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from temporalio import activity, workflow
from temporalio.api.common.v1 import FastForwardConfig as FastForwardMessage
from temporalio.api.common.v1 import TimeSkippingConfig as ConfigMessage
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.enums.v1.time_skipping_pb2 import FastForwardPollingResult as Result
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflow.v1 import WorkflowExecutionOptions
from temporalio.api.workflowservice.v1 import (
    PollWorkflowExecutionTimeSkippingRequest,
    ResetWorkflowExecutionRequest,
    UpdateWorkflowExecutionOptionsRequest,
)
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError
from temporalio.exceptions import TimeoutError as TimedOut
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import TimeSkipper, TimeSkippingConfig
from temporalio.testing._timeskipping import FastForwardConfig
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from fairlead.testing import FairleadServer, start_time_skipping_v2
from tests.history.rebuild import check_file

ENABLED = {"frontend.WorkflowTimeSkippingEnabled": True}
OFF = TimeSkippingConfig(enabled=False)
QUEUE = "clocks"
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
SOON_S = 20.0
SKIPPED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIME_SKIPPING_TRANSITIONED


@workflow.defn
class Sleeping:
    """Sleeps, and returns the time that it slept on the workflow's own clock."""

    @workflow.run
    async def run(self, seconds: float) -> float:
        begun = workflow.now()
        await asyncio.sleep(seconds)
        return (workflow.now() - begun).total_seconds()


attempts: dict[str, int] = {}


@activity.defn
async def work(seconds: float) -> str:
    """Fail the first attempt, then take real time."""
    key = activity.info().workflow_id or ""
    attempts[key] = attempts.get(key, 0) + 1
    if attempts[key] == 1:
        raise ApplicationError("not yet")
    await asyncio.sleep(seconds)
    return "worked"


@workflow.defn
class Working:
    """Runs an activity with a backoff of a day against a timer."""

    @workflow.run
    async def run(self, seconds: float, timer_s: float) -> str:
        """Return which of the two ended first, and after how many days."""
        begun = workflow.now()
        working = workflow.start_activity(
            work, seconds, start_to_close_timeout=HOUR, retry_policy=RetryPolicy(initial_interval=DAY)
        )
        timer = asyncio.create_task(asyncio.sleep(timer_s, "timer"))
        done, _ = await asyncio.wait({working, timer}, return_when=asyncio.FIRST_COMPLETED)
        return f"{done.pop().result()} after {(workflow.now() - begun).days} days"


@workflow.defn
class Parent:
    """Sleeps for an hour, then runs a child that sleeps."""

    @workflow.run
    async def run(self, child_s: float) -> tuple[str, str, float]:
        """Return when the parent started the child, the child's id, and how long the child slept."""
        await asyncio.sleep(HOUR.total_seconds())
        now = workflow.now()
        child = await workflow.start_child_workflow(Sleeping.run, child_s, id=f"{workflow.info().workflow_id}-child")
        slept_s = await child
        return now.isoformat(), f"{workflow.info().workflow_id}-child", slept_s


@workflow.defn
class Continuing:
    """Sleeps for an hour in each of its runs."""

    @workflow.run
    async def run(self, runs: int) -> str:
        await asyncio.sleep(HOUR.total_seconds())
        if runs > 1:
            workflow.continue_as_new(runs - 1)
        return workflow.now().isoformat()


@workflow.defn
class Waiting:
    """Waits for a signal."""

    def __init__(self) -> None:
        """No signal has arrived yet."""
        self.is_over = False

    @workflow.run
    async def run(self) -> str:
        await workflow.wait_condition(lambda: self.is_over)
        return workflow.now().isoformat()

    @workflow.signal
    def end(self) -> None:
        self.is_over = True


@asynccontextmanager
async def working(client: Client) -> AsyncIterator[None]:
    async with Worker(
        client,
        task_queue=QUEUE,
        workflows=[Sleeping, Working, Parent, Continuing, Waiting],
        activities=[work],
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):
        yield


@pytest_asyncio.fixture
async def skipper(tmp_path: Path) -> AsyncIterator[TimeSkipper]:
    """A server with a worker; at the end the state of each run is checked against its events."""
    async with FairleadServer.start(dynamic_config=ENABLED, db_filename=tmp_path / "clocks.db") as server:
        client = await server.connect()
        async with working(client):
            yield TimeSkipper(client)
    assert await check_file(tmp_path / "clocks.db") > 0


async def start(skipper: TimeSkipper, run: object, *args: object, **options: object) -> WorkflowHandle:  # type: ignore[type-arg]
    return await skipper.client.start_workflow(  # type: ignore[call-overload, no-any-return]
        run, args=args, id=f"workflow-{uuid.uuid4()}", task_queue=QUEUE, **options
    )


async def result(handle: WorkflowHandle) -> object:  # type: ignore[type-arg]
    async with asyncio.timeout(SOON_S):
        return await handle.result()


async def run_parent_and_child(skipper: TimeSkipper, child_s: float) -> tuple[str, str, float]:
    begun, child, slept_s = cast(tuple[str, str, float], await result(await start(skipper, Parent.run, child_s)))
    return begun, child, slept_s


async def skips(handle: WorkflowHandle) -> list[HistoryEvent]:  # type: ignore[type-arg]
    return [event async for event in handle.fetch_history_events() if event.event_type == SKIPPED]


async def is_disabled(skipper: TimeSkipper, handle: WorkflowHandle) -> bool:  # type: ignore[type-arg]
    info = await skipper.get_time_skipping_info(handle)
    return info is not None and not info.effective_config.enabled


async def until(is_true: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(SOON_S):
        while not await is_true():  # noqa: ASYNC110 - polls the server
            await asyncio.sleep(0.01)


async def test_the_sdk_can_start_our_server_with_time_skipping_workflows() -> None:
    async with await start_time_skipping_v2() as env:
        assert env.supports_time_skipping_v2
        async with working(env.client):
            handle = await env.client.start_workflow(Waiting.run, id="waiting", task_queue=QUEUE)
            assert await env.fast_forward(handle, DAY)
            assert await env.get_current_time(handle) - datetime.now(UTC) >= DAY - timedelta(seconds=SOON_S)
            await handle.signal(Waiting.end)
            await result(handle)


async def test_each_skipped_sleep_has_an_event_that_workers_may_ignore(skipper: TimeSkipper) -> None:
    begun = datetime.now(UTC)
    handle = await start(skipper, Sleeping.run, 30 * DAY.total_seconds())
    assert await result(handle) == pytest.approx(30 * DAY.total_seconds(), abs=SOON_S)
    (event,) = await skips(handle)
    attributes = event.workflow_execution_time_skipping_transitioned_event_attributes
    assert event.worker_may_ignore
    assert not attributes.disabled_after_fast_forward
    assert attributes.target_time.ToDatetime(UTC) - begun >= 30 * DAY
    assert attributes.wall_clock_time.ToDatetime(UTC) - begun < timedelta(seconds=SOON_S)
    info = await skipper.get_time_skipping_info(handle)
    assert info is not None
    assert info.effective_config == ConfigMessage(enabled=True, max_session_skip_count=200)
    assert info.current_session_skip_count == 1


async def test_each_workflow_has_its_own_clock(skipper: TimeSkipper) -> None:
    with skipper.with_time_skipping_disabled():
        other = await start(skipper, Waiting.run)
    await result(await start(skipper, Sleeping.run, DAY.total_seconds()))
    await other.signal(Waiting.end)
    ended = await result(other)
    assert abs(datetime.fromisoformat(str(ended)) - datetime.now(UTC)) < timedelta(seconds=SOON_S)
    assert await skipper.get_time_skipping_info(other) is None


async def test_backoffs_are_skipped_but_running_activities_take_real_time(skipper: TimeSkipper) -> None:
    assert await result(await start(skipper, Working.run, 0.3, 2 * DAY.total_seconds())) == "worked after 1 days"
    assert await result(await start(skipper, Working.run, 0.3, 3600.0)) == "timer after 0 days"


async def test_start_delays_and_timeouts_are_skipped(skipper: TimeSkipper) -> None:
    delayed = await start(skipper, Sleeping.run, 1.0, start_delay=DAY)
    assert await result(delayed) == pytest.approx(1.0, abs=SOON_S)
    assert len(await skips(delayed)) == 2
    with pytest.raises(WorkflowFailureError) as failed:
        await result(await start(skipper, Waiting.run, run_timeout=DAY))
    assert isinstance(failed.value.cause, TimedOut)


async def test_a_child_starts_at_its_parents_time_and_then_skips_by_itself(skipper: TimeSkipper) -> None:
    begun, child, slept_s = await run_parent_and_child(skipper, HOUR.total_seconds())
    assert slept_s == pytest.approx(3600, abs=SOON_S)
    first = await anext(aiter(skipper.client.get_workflow_handle(child).fetch_history_events()))
    assert abs(first.event_time.ToDatetime(UTC) - datetime.fromisoformat(begun)) < timedelta(seconds=SOON_S)
    skipped = first.workflow_execution_started_event_attributes.time_skipping_state_propagation
    assert skipped.initial_skipped_duration.ToTimedelta() == pytest.approx(HOUR, abs=timedelta(seconds=SOON_S))


async def test_a_child_does_not_skip_time_if_its_parent_disables_propagation(skipper: TimeSkipper) -> None:
    skipper.config = TimeSkippingConfig(disable_propagation=True)
    begun, child, slept_s = await run_parent_and_child(skipper, 1.0)
    assert 1.0 <= slept_s < SOON_S
    handle = skipper.client.get_workflow_handle(child)
    assert await skips(handle) == []
    first = await anext(aiter(handle.fetch_history_events()))
    assert abs(first.event_time.ToDatetime(UTC) - datetime.fromisoformat(begun)) < timedelta(seconds=SOON_S)


async def test_a_new_run_continues_the_clock_of_the_previous_run(skipper: TimeSkipper) -> None:
    begun = datetime.now(UTC)
    ended = await result(await start(skipper, Continuing.run, 3))
    assert timedelta(0) <= datetime.fromisoformat(str(ended)) - begun - 3 * HOUR < timedelta(seconds=SOON_S)


async def test_a_reset_workflow_keeps_its_skipped_time(skipper: TimeSkipper) -> None:
    handle = await start(skipper, Sleeping.run, DAY.total_seconds())
    await result(handle)
    (skip,) = await skips(handle)
    events = [event async for event in handle.fetch_history_events()]
    # The last workflow task comes after the timer.
    last = [event for event in events if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED][-1]
    reset = await skipper.client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace="default",
            workflow_execution=WorkflowExecution(workflow_id=handle.id, run_id=handle.first_execution_run_id or ""),
            workflow_task_finish_event_id=last.event_id,
            request_id=str(uuid.uuid4()),
        )
    )
    again = skipper.client.get_workflow_handle(handle.id, run_id=reset.run_id)
    assert await result(again) == pytest.approx(DAY.total_seconds(), abs=SOON_S)
    *_, ended = [event async for event in again.fetch_history_events()]
    target = skip.workflow_execution_time_skipping_transitioned_event_attributes.target_time
    assert ended.event_time.ToDatetime(UTC) - target.ToDatetime(UTC) < timedelta(seconds=SOON_S)
    assert ended.event_time.ToDatetime(UTC) >= target.ToDatetime(UTC)


async def test_skipping_ends_after_the_maximum_number_of_skips(skipper: TimeSkipper) -> None:
    skipper.config = TimeSkippingConfig(max_session_skip_count=2)
    handle = await start(skipper, Continuing.run, 3)
    current = skipper.client.get_workflow_handle(handle.id)
    await until(partial(is_disabled, skipper, current))
    info = await skipper.get_time_skipping_info(current)
    assert info is not None
    assert info.current_session_skip_count == 2
    # A new config resets the skip count.
    assert await skipper.fast_forward(current, 2 * HOUR) is False
    await result(handle)


async def test_a_fast_forward_ends_at_its_target_and_time_is_real_afterwards(skipper: TimeSkipper) -> None:
    skipper.config = OFF
    handle = await start(skipper, Sleeping.run, 10 * HOUR.total_seconds() + 1.0)
    assert await skipper.fast_forward(handle, 10 * HOUR)
    begun_s = time.monotonic()
    info = await skipper.get_time_skipping_info(handle)
    assert info is not None
    assert not info.effective_config.enabled
    assert info.fast_forward_info.has_completed
    # The last second takes real time, although the timer started before the clock had skipped any time.
    assert await result(handle) == pytest.approx(10 * 3600 + 1.0, abs=SOON_S)
    assert 0.3 < time.monotonic() - begun_s < SOON_S
    (event,) = await skips(handle)
    assert event.workflow_execution_time_skipping_transitioned_event_attributes.disabled_after_fast_forward


async def test_a_fast_forward_continues_in_the_next_run(skipper: TimeSkipper) -> None:
    skipper.config = OFF
    begun = datetime.now(UTC)
    handle = await start(skipper, Continuing.run, 9)
    assert await skipper.fast_forward(handle, 2.5 * HOUR)
    current = skipper.client.get_workflow_handle(handle.id)
    assert (await current.describe()).run_id != handle.first_execution_run_id
    skipped = await skipper.get_current_time(current) - begun
    assert skipped == pytest.approx(2.5 * HOUR, abs=timedelta(seconds=SOON_S))
    await current.terminate()


async def test_a_fast_forward_can_end_while_an_activity_runs(skipper: TimeSkipper) -> None:
    skipper.config = OFF
    handle = await start(skipper, Working.run, 1.0, 1_000_000.0)
    # The first attempt fails, the backoff is skipped, and the target is reached while the second runs.
    assert await skipper.fast_forward(handle, DAY + timedelta(seconds=0.5))
    assert await result(handle) == "worked after 1 days"
    *_, last = await skips(handle)
    assert last.workflow_execution_time_skipping_transitioned_event_attributes.disabled_after_fast_forward


async def test_a_fast_forward_fails_if_its_workflow_ends_or_another_one_replaces_it(skipper: TimeSkipper) -> None:
    ended = await start(skipper, Sleeping.run, 60.0)
    assert await skipper.fast_forward(ended, DAY) is False
    skipper.config = TimeSkippingConfig(fast_forward_config=FastForwardConfig("first", DAY))
    handle = await start(skipper, Waiting.run)
    poll = PollWorkflowExecutionTimeSkippingRequest(
        namespace="default", workflow_execution=WorkflowExecution(workflow_id=handle.id), fast_forward_id="second"
    )
    answer = await skipper.client.workflow_service.poll_workflow_execution_time_skipping(poll)
    assert answer.fast_forward_polling_result == Result.FAST_FORWARD_POLLING_RESULT_FAST_FORWARD_FAILED
    assert "fast_forward_id does not match" in answer.failed_reason
    assert answer.fast_forward_info.fast_forward_id == "first"
    await handle.terminate()


async def test_a_poll_for_a_fast_forward_fails_when_skipping_is_disabled(skipper: TimeSkipper) -> None:
    skipper.config = TimeSkippingConfig(fast_forward_config=FastForwardConfig("far", 2 * DAY))
    # The activity runs longer than the test, so no time is skipped.
    handle = await start(skipper, Working.run, 60.0, 3 * DAY.total_seconds())
    poll = PollWorkflowExecutionTimeSkippingRequest(
        namespace="default", workflow_execution=WorkflowExecution(workflow_id=handle.id), fast_forward_id="far"
    )
    polling = asyncio.ensure_future(skipper.client.workflow_service.poll_workflow_execution_time_skipping(poll))

    async def is_running() -> bool:
        return attempts.get(handle.id, 0) == 2

    await until(is_running)
    await update(skipper, handle, ConfigMessage(enabled=False))
    answer = await asyncio.wait_for(polling, SOON_S)
    assert answer.fast_forward_polling_result == Result.FAST_FORWARD_POLLING_RESULT_FAST_FORWARD_FAILED
    await handle.terminate()


async def update(
    skipper: TimeSkipper,
    handle: WorkflowHandle,  # type: ignore[type-arg]
    config: ConfigMessage | None,
    path: str = "",
) -> ConfigMessage:
    answer = await skipper.client.workflow_service.update_workflow_execution_options(
        UpdateWorkflowExecutionOptionsRequest(
            namespace="default",
            workflow_execution=WorkflowExecution(workflow_id=handle.id),
            workflow_execution_options=WorkflowExecutionOptions(time_skipping_config=config),
            update_mask=FieldMask(paths=[f"time_skipping_config{path}"]),
        )
    )
    return answer.workflow_execution_options.time_skipping_config


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (
            ConfigMessage(fast_forward_config=FastForwardMessage(id="x", duration=Duration(seconds=1))),
            "time_skipping_config: cannot set fast_forward when enabled is false",
        ),
        (
            ConfigMessage(enabled=True, fast_forward_config=FastForwardMessage(duration=Duration(seconds=1))),
            "Time skipping config invalid: fast_forward_id must be set",
        ),
        (
            ConfigMessage(enabled=True, fast_forward_config=FastForwardMessage(id="x", duration=Duration(seconds=-1))),
            "Time skipping config invalid: fast_forward duration must be positive",
        ),
        (
            ConfigMessage(
                enabled=True, fast_forward_config=FastForwardMessage(id="x" * 1001, duration=Duration(seconds=1))
            ),
            "fast_forward_id exceeds length limit",
        ),
    ],
)
async def test_an_invalid_config_is_rejected(skipper: TimeSkipper, config: ConfigMessage, problem: str) -> None:
    handle = await start(skipper, Waiting.run)
    with pytest.raises(RPCError, match=problem) as raised:
        await update(skipper, handle, config)
    assert raised.value.status is RPCStatusCode.INVALID_ARGUMENT
    with pytest.raises(RPCError, match="time_skipping_config doesn't support partial update"):
        await update(skipper, handle, ConfigMessage(enabled=True), ".enabled")
    assert await update(skipper, handle, ConfigMessage(enabled=True)) == ConfigMessage(
        enabled=True, max_session_skip_count=200
    )
    # An empty config, named in the mask, removes the current one.
    assert await update(skipper, handle, None) == ConfigMessage()
    # If the first workflow task is running, the change takes effect when it ends.
    await until(partial(is_disabled, skipper, handle))
    await handle.terminate()


async def test_calls_fail_with_unimplemented_if_the_feature_is_off() -> None:
    async with FairleadServer.start() as server:
        skipper = TimeSkipper(await server.connect())
        poll = PollWorkflowExecutionTimeSkippingRequest(
            namespace="default", workflow_execution=WorkflowExecution(workflow_id="any"), fast_forward_id="x"
        )
        for call in (
            start(skipper, Waiting.run),
            skipper.client.workflow_service.poll_workflow_execution_time_skipping(poll),
        ):
            with pytest.raises(RPCError, match="The Time-Skipping feature is not enabled for namespace") as raised:
                await call
            assert raised.value.status is RPCStatusCode.UNIMPLEMENTED
