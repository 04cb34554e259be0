"""`fairlead-test-server` as Temporal's Python SDK starts and uses it."""

import asyncio
import shutil
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import nexusrpc.handler
import pytest
import pytest_asyncio
from google.protobuf.duration_pb2 import Duration
from google.protobuf.empty_pb2 import Empty
from google.protobuf.timestamp_pb2 import Timestamp
from temporalio import activity, nexus, workflow
from temporalio.api.enums.v1 import EventType, TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.testservice.v1 import (
    LockTimeSkippingRequest,
    SleepRequest,
    SleepUntilRequest,
    UnlockTimeSkippingRequest,
)
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import (
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleIntervalSpec,
    ScheduleSpec,
    WorkflowFailureError,
    WorkflowHandle,
)
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutType
from temporalio.exceptions import TimeoutError as TimedOut
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from tests.patience import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCRIPT = Path(sys.executable).with_name("fairlead-test-server")
MONTH = timedelta(days=30)
# Maximum real time in seconds of any test step that skips time, on a busy machine.
SOON_S = 20.0

env_of_activities: WorkflowEnvironment


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def env() -> AsyncIterator[WorkflowEnvironment]:
    """One server for all tests of this module: its time is global and carries over from test to test."""
    global env_of_activities  # noqa: PLW0603 - activities in this process use it
    path = shutil.which("fairlead-test-server", path=str(SCRIPT.parent))
    assert path is not None, "the command fairlead-test-server is missing: install the package"
    async with await WorkflowEnvironment.start_time_skipping(
        test_server_existing_path=path, test_server_startup_timeout=timedelta(seconds=60)
    ) as started:
        env_of_activities = started
        yield started


@workflow.defn
class Sleeping:
    """Sleeps, and returns the time that it slept on the workflow's own clock."""

    @workflow.run
    async def run(self, seconds: float) -> float:
        begun = workflow.now()
        await asyncio.sleep(seconds)
        return (workflow.now() - begun).total_seconds()


@workflow.defn
class Parent:
    """Runs children that sleep, in sequence and in parallel."""

    @workflow.run
    async def run(self, seconds: float) -> float:
        begun = workflow.now()
        prefix = workflow.info().workflow_id
        await workflow.execute_child_workflow(Sleeping.run, seconds, id=f"{prefix}-first")
        children = [
            workflow.execute_child_workflow(Sleeping.run, seconds, id=f"{prefix}-{number}") for number in range(3)
        ]
        await asyncio.gather(*children)
        return (workflow.now() - begun).total_seconds()


attempts: dict[str, int] = {}


@activity.defn
async def fail_twice(key: str) -> int:
    """Fail the first two attempts."""
    attempts[key] = attempts.get(key, 0) + 1
    if attempts[key] < 3:
        raise ApplicationError("not yet")
    return attempts[key]


@activity.defn
async def work_for(seconds: float) -> str:
    """Take real time."""
    await asyncio.sleep(seconds)
    return "worked"


@activity.defn
async def sleep_in_the_server(seconds: float) -> str:
    """Skip the server's time while the activity runs."""
    await env_of_activities.sleep(seconds)
    return "slept"


@workflow.defn
class Retrying:
    """Runs an activity that is retried after a day."""

    @workflow.run
    async def run(self, key: str) -> float:
        begun = workflow.now()
        await workflow.execute_activity(
            fail_twice,
            key,
            start_to_close_timeout=timedelta(seconds=30),
            retry_policy=RetryPolicy(initial_interval=timedelta(days=1), backoff_coefficient=2.0),
        )
        return (workflow.now() - begun).total_seconds()


@workflow.defn
class Racing:
    """Runs an activity against a timer."""

    @workflow.run
    async def run(self, name: str, seconds: float, timer_s: float) -> str:
        """Return the result of the one that ended first."""
        working = workflow.start_activity(
            name, seconds, start_to_close_timeout=timedelta(days=365), retry_policy=RetryPolicy(maximum_attempts=1)
        )
        timer = asyncio.create_task(asyncio.sleep(timer_s, "timer"))
        done, _ = await asyncio.wait({working, timer}, return_when=asyncio.FIRST_COMPLETED)
        for task in {working, timer} - done:
            task.cancel()
        return str(done.pop().result())


@workflow.defn
class Beating:
    """Runs an activity that has a heartbeat timeout and sends no heartbeat."""

    @workflow.run
    async def run(self, name: str, seconds: float, heartbeat_s: float) -> str:
        return str(
            await workflow.execute_activity(
                name,
                seconds,
                start_to_close_timeout=timedelta(days=365),
                heartbeat_timeout=timedelta(seconds=heartbeat_s),
                retry_policy=RetryPolicy(maximum_attempts=1),
            )
        )


@workflow.defn
class WithoutWorkers:
    """Runs an activity on a task queue without workers."""

    @workflow.run
    async def run(self) -> str:
        return str(
            await workflow.execute_activity(
                work_for, 0.0, task_queue="nobody", schedule_to_start_timeout=timedelta(hours=3),
                start_to_close_timeout=timedelta(hours=1),
            )
        )  # fmt: skip


@workflow.defn
class Waiting:
    """Runs an activity, then waits for a signal; its update sleeps."""

    def __init__(self) -> None:
        self.words: list[str] = []

    @workflow.run
    async def run(self, count: int) -> list[str]:
        await workflow.execute_activity(work_for, 0.0, start_to_close_timeout=timedelta(hours=1))
        await workflow.wait_condition(lambda: len(self.words) >= count)
        return self.words

    @workflow.signal
    def say(self, word: str) -> None:
        """Record a word, with its arrival time."""
        self.words.append(f"{word} {workflow.now().isoformat()}")

    @workflow.query
    def heard(self) -> int:
        """Return the number of words received."""
        return len(self.words)

    @workflow.update
    async def sleep(self, seconds: float) -> float:
        """Sleep in an update."""
        begun = workflow.now()
        await asyncio.sleep(seconds)
        return (workflow.now() - begun).total_seconds()


@nexusrpc.handler.service_handler
class Desk:
    """A Nexus operation that runs a workflow, and one that takes real time."""

    @nexus.workflow_run_operation
    async def sleep(self, context: nexus.WorkflowRunOperationContext, seconds: float) -> nexus.WorkflowHandle[float]:
        """Sleep in a workflow."""
        return await context.start_workflow(Sleeping.run, seconds, id=new_id())

    @nexusrpc.handler.sync_operation
    async def work(self, _context: nexusrpc.handler.StartOperationContext, seconds: float) -> str:
        """Take real time."""
        await asyncio.sleep(seconds)
        return "worked"


@workflow.defn
class Calling:
    """Calls a Nexus operation that takes real time, with a timer beside it, and then one that sleeps."""

    @workflow.run
    async def run(self, endpoint: str, seconds: float) -> tuple[str, float]:
        """Return the first operation's result, and how long the second one slept."""
        client = workflow.create_nexus_client(service=Desk, endpoint=endpoint)
        timer = asyncio.create_task(asyncio.sleep(3600))
        worked = await client.execute_operation(Desk.work, 0.3, schedule_to_close_timeout=timedelta(minutes=5))
        assert not timer.done()
        return worked, await client.execute_operation(Desk.sleep, seconds)


WORKFLOWS = [Calling, Sleeping, Parent, Retrying, Racing, Beating, WithoutWorkers, Waiting]
ACTIVITIES: list[Callable[..., Any]] = [fail_twice, work_for, sleep_in_the_server]


@pytest_asyncio.fixture(loop_scope="module")
async def queue(env: WorkflowEnvironment) -> AsyncIterator[str]:
    """A task queue with a worker."""
    name = f"queue-{uuid.uuid4()}"
    async with Worker(
        env.client,
        task_queue=name,
        workflows=WORKFLOWS,
        activities=ACTIVITIES,
        nexus_service_handlers=[Desk()],
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):
        # Time is also skipped if no worker polls for a waiting workflow task, and the worker starts in the background.
        await until(lambda: is_polled(env, name))
        yield name


async def is_polled(env: WorkflowEnvironment, name: str) -> bool:
    described = await env.client.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace="default", task_queue=TaskQueue(name=name), task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
        )
    )
    return bool(described.pollers)


def new_id() -> str:
    return f"workflow-{uuid.uuid4()}"


async def start(env: WorkflowEnvironment, run: object, queue: str, *args: object, **options: object) -> WorkflowHandle:  # type: ignore[type-arg]
    return await env.client.start_workflow(run, args=args, id=new_id(), task_queue=queue, **options)  # type: ignore[call-overload, no-any-return]


async def result(handle: WorkflowHandle) -> object:  # type: ignore[type-arg]
    async with asyncio.timeout(SOON_S):
        return await handle.result()


async def test_a_workflow_that_sleeps_for_a_month_ends_at_once(env: WorkflowEnvironment, queue: str) -> None:
    begun = await env.get_current_time()
    slept_s = await result(await start(env, Sleeping.run, queue, MONTH.total_seconds()))
    assert slept_s == pytest.approx(MONTH.total_seconds(), abs=SOON_S)
    assert await env.get_current_time() - begun >= MONTH


async def test_child_workflows_skip_time_too(env: WorkflowEnvironment, queue: str) -> None:
    slept_s = await result(await start(env, Parent.run, queue, 86_400))
    assert slept_s == pytest.approx(2 * 86_400, abs=SOON_S)


async def test_the_backoff_between_attempts_of_an_activity_is_skipped(env: WorkflowEnvironment, queue: str) -> None:
    took_s = await result(await start(env, Retrying.run, queue, new_id()))
    assert took_s == pytest.approx(3 * 86_400, abs=SOON_S)


async def test_no_time_is_skipped_while_an_activity_runs(env: WorkflowEnvironment, queue: str) -> None:
    handle = await start(env, Racing.run, queue, "work_for", 0.5, 3600.0)
    begun = await env.get_current_time()
    assert await result(handle) == "worked"
    assert await env.get_current_time() - begun < timedelta(seconds=SOON_S)


async def test_an_activity_can_skip_time_explicitly(env: WorkflowEnvironment, queue: str) -> None:
    assert await result(await start(env, Racing.run, queue, "sleep_in_the_server", 1_000_000.0, 500_000.0)) == "timer"
    assert await result(await start(env, Racing.run, queue, "sleep_in_the_server", 500_000.0, 1_000_000.0)) == "slept"


async def test_an_activity_that_sleeps_without_heartbeats_times_out(env: WorkflowEnvironment, queue: str) -> None:
    handle = await start(env, Beating.run, queue, "sleep_in_the_server", 1_000.0, 20.0)
    with pytest.raises(WorkflowFailureError) as failed:
        await result(handle)
    assert isinstance(failed.value.cause, ActivityError)
    assert isinstance(failed.value.cause.cause, TimedOut)
    assert failed.value.cause.cause.type is TimeoutType.HEARTBEAT


async def test_the_heartbeat_timeout_of_a_running_activity_takes_real_time(
    env: WorkflowEnvironment, queue: str
) -> None:
    handle = await start(env, Beating.run, queue, "work_for", 3.0, 1.0)
    begun_s = time.monotonic()
    with pytest.raises(WorkflowFailureError) as failed:
        await result(handle)
    assert time.monotonic() - begun_s >= 0.9
    assert isinstance(failed.value.cause, ActivityError)
    assert isinstance(failed.value.cause.cause, TimedOut)


async def test_an_activity_without_workers_times_out_at_once(env: WorkflowEnvironment, queue: str) -> None:
    with pytest.raises(WorkflowFailureError) as failed:
        await result(await start(env, WithoutWorkers.run, queue))
    assert isinstance(failed.value.cause, ActivityError)
    assert isinstance(failed.value.cause.cause, TimedOut)
    assert failed.value.cause.cause.type is TimeoutType.SCHEDULE_TO_START


async def test_a_workflow_that_exceeds_its_run_timeout_times_out_at_once(env: WorkflowEnvironment, queue: str) -> None:
    handle = await start(env, Sleeping.run, queue, MONTH.total_seconds(), run_timeout=timedelta(days=1))
    with pytest.raises(WorkflowFailureError) as failed:
        await result(handle)
    assert isinstance(failed.value.cause, TimedOut)


async def test_a_workflow_without_workers_times_out_at_once(env: WorkflowEnvironment) -> None:
    handle = await start(env, Sleeping.run, "nobody", 1.0, execution_timeout=timedelta(days=7))
    with pytest.raises(WorkflowFailureError) as failed:
        await result(handle)
    assert isinstance(failed.value.cause, TimedOut)


async def test_a_start_delay_is_skipped(env: WorkflowEnvironment, queue: str) -> None:
    handle = await start(env, Sleeping.run, queue, 1.0, start_delay=timedelta(days=2))
    begun = await env.get_current_time()
    await result(handle)
    assert await env.get_current_time() - begun >= timedelta(days=2) - timedelta(seconds=SOON_S)


async def test_a_signal_has_the_time_to_which_the_test_has_skipped(env: WorkflowEnvironment, queue: str) -> None:
    handle = await start(env, Waiting.run, queue, 2)
    with env.auto_time_skipping_disabled():
        for word in ("one", "two"):
            await env.sleep(timedelta(hours=5))
            await handle.signal(Waiting.say, word)
        heard = await result(handle)
    assert isinstance(heard, list)
    one, two = (datetime.fromisoformat(word.split()[1]) for word in heard)
    assert (two - one).total_seconds() == pytest.approx(5 * 3600, abs=SOON_S)


async def test_time_does_not_skip_to_timers_of_ended_activities(env: WorkflowEnvironment, queue: str) -> None:
    """The timeouts of a completed activity stay in the timer queue."""
    handle = await start(env, Waiting.run, queue, 1)
    begun = await env.get_current_time()

    async def say_later() -> None:
        async for event in handle.fetch_history_events(wait_new_event=True):
            if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
                break
        # There is no event to wait for, so sleep longer than a client's call holds time.
        await asyncio.sleep(0.5)
        await handle.signal(Waiting.say, "hello")

    async with asyncio.TaskGroup() as group:
        group.create_task(say_later())
        group.create_task(result(handle))
    assert await env.get_current_time() - begun < timedelta(seconds=SOON_S)


async def test_an_update_that_sleeps_skips_time_while_time_is_unlocked(env: WorkflowEnvironment, queue: str) -> None:
    handle = await start(env, Waiting.run, queue, 1)
    async with asyncio.timeout(SOON_S), env.time_skipping_unlocked():  # type: ignore[attr-defined]
        assert await handle.execute_update(Waiting.sleep, 86_400.0) == pytest.approx(86_400, abs=SOON_S)
    assert await handle.query(Waiting.heard) == 0
    await handle.terminate()


async def test_a_cron_workflow_runs_at_its_times(env: WorkflowEnvironment, queue: str) -> None:
    handle = await start(env, Sleeping.run, queue, 1.0, cron_schedule="0 * * * *")
    async with asyncio.timeout(SOON_S):
        await env.sleep(timedelta(hours=4))
    runs = [run async for run in env.client.list_workflows(f"WorkflowId = '{handle.id}'")]
    times = sorted(run.execution_time for run in runs if run.execution_time is not None)
    assert len(runs) == 5
    assert {(moment.minute, moment.second) for moment in times} == {(0, 0)}
    assert (times[-1] - times[0]).total_seconds() == pytest.approx(4 * 3600, abs=1.0)
    await handle.terminate()


async def test_a_schedule_acts_at_its_times(env: WorkflowEnvironment, queue: str) -> None:
    action = ScheduleActionStartWorkflow(Sleeping.run, 60.0, id=new_id(), task_queue=queue)
    spec = ScheduleSpec(intervals=[ScheduleIntervalSpec(every=timedelta(hours=6))])
    handle = await env.client.create_schedule(new_id(), Schedule(action=action, spec=spec))
    async with asyncio.timeout(SOON_S):
        await env.sleep(timedelta(days=2))
    described = await handle.describe()
    assert described.info.num_actions == 8
    assert described.info.running_actions == []
    await handle.delete()


async def test_closed_workflows_are_kept_after_any_time_skip(env: WorkflowEnvironment, queue: str) -> None:
    handle = await start(env, Sleeping.run, queue, 1.0)
    await result(handle)
    async with asyncio.timeout(SOON_S):
        await env.sleep(timedelta(days=400))
    assert (await handle.describe()).status is not None
    assert await result(handle) == pytest.approx(1.0, abs=SOON_S)


async def test_time_is_real_during_a_nexus_handler_and_skipped_in_the_workflow_of_an_operation(
    env: WorkflowEnvironment, queue: str
) -> None:
    endpoint = await env.create_nexus_endpoint(f"desk-{uuid.uuid4()}", queue)
    worked, slept_s = cast(
        tuple[str, float], await result(await start(env, Calling.run, queue, endpoint.spec.name, MONTH.total_seconds()))
    )
    assert worked == "worked"
    assert slept_s == pytest.approx(MONTH.total_seconds(), abs=SOON_S)


async def test_no_time_is_skipped_while_time_is_locked(env: WorkflowEnvironment, queue: str) -> None:
    begun_s = time.monotonic()
    with env.auto_time_skipping_disabled():
        await result(await start(env, Sleeping.run, queue, 1.0))
    assert time.monotonic() - begun_s >= 1.0


async def test_lock_calls_are_counted(env: WorkflowEnvironment) -> None:
    service = env.client.test_service
    sleep = SleepRequest(duration=Duration(seconds=1))
    await service.lock_time_skipping(LockTimeSkippingRequest())
    # The call releases one of two locks, so the sleep takes real time.
    begun_s = time.monotonic()
    await service.unlock_time_skipping_with_sleep(sleep)
    assert time.monotonic() - begun_s >= 0.99
    await service.unlock_time_skipping(UnlockTimeSkippingRequest())
    await service.unlock_time_skipping(UnlockTimeSkippingRequest())
    for unlock in (
        service.unlock_time_skipping(UnlockTimeSkippingRequest()),
        service.unlock_time_skipping_with_sleep(sleep),
    ):
        with pytest.raises(RPCError, match="the lock counter is 0") as raised:
            await unlock
        assert raised.value.status is RPCStatusCode.FAILED_PRECONDITION
    # No lock is left, so sleeps are skipped.
    async with asyncio.timeout(SOON_S):
        begun = await env.get_current_time()
        await service.sleep(SleepRequest(duration=Duration(seconds=86_400)))
        assert await env.get_current_time() - begun >= timedelta(days=1)
        until = await env.get_current_time() + timedelta(days=3)
        await service.sleep_until(SleepUntilRequest(timestamp=Timestamp(seconds=int(until.timestamp()))))
        assert await env.get_current_time() >= until - timedelta(seconds=1)
        await service.sleep_until(SleepUntilRequest(timestamp=Timestamp(seconds=1)))
    await service.lock_time_skipping(LockTimeSkippingRequest())


async def test_the_lock_returns_when_a_sleep_ends_or_its_caller_is_cancelled(env: WorkflowEnvironment) -> None:
    service = env.client.test_service
    await service.lock_time_skipping(LockTimeSkippingRequest())
    sleeping = asyncio.create_task(
        service.unlock_time_skipping_with_sleep(SleepRequest(duration=Duration(seconds=3600)))
    )
    # Give the call time to reach the server; it is still sleeping afterwards.
    await asyncio.wait({sleeping}, timeout=0.2)
    sleeping.cancel()
    await asyncio.gather(sleeping, return_exceptions=True)
    await service.unlock_time_skipping(UnlockTimeSkippingRequest())
    begun = await env.get_current_time()
    await env.sleep(3600)
    before = await service.get_current_time(Empty())
    # Only time can show that the server's time is locked again.
    await asyncio.sleep(0.3)
    after = await service.get_current_time(Empty())
    assert after.time.ToNanoseconds() - before.time.ToNanoseconds() < SOON_S * 1e9
    assert before.time.ToDatetime(UTC) - begun >= timedelta(hours=1)


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        (SleepRequest(), "duration is not set"),
        (SleepRequest(duration=Duration(seconds=-1)), "must not be negative"),
        (SleepRequest(duration=Duration(seconds=315_000_000_000)), "beyond the year 2200"),
    ],
)
async def test_invalid_sleeps_are_rejected_and_change_nothing(
    env: WorkflowEnvironment, request_: SleepRequest, problem: str
) -> None:
    service = env.client.test_service
    for sleep in (service.sleep, service.unlock_time_skipping_with_sleep):
        with pytest.raises(RPCError, match=problem) as raised:
            await sleep(request_)
        assert raised.value.status is RPCStatusCode.INVALID_ARGUMENT
    # The rejected calls have not changed the lock counter.
    await service.unlock_time_skipping(UnlockTimeSkippingRequest())
    await service.lock_time_skipping(LockTimeSkippingRequest())


async def test_a_hundred_workflows_that_sleep_for_a_month_take_seconds(env: WorkflowEnvironment, queue: str) -> None:
    begun_s = time.monotonic()
    begun = await env.get_current_time()
    for _ in range(100):
        await result(await start(env, Sleeping.run, queue, MONTH.total_seconds()))
    took_s = time.monotonic() - begun_s
    print(f"\n100 workflows that sleep for a month, one after the other: {took_s:.1f} s")  # noqa: T201 - the figure in docs/testing.md
    assert await env.get_current_time() - begun >= 100 * MONTH
    assert took_s < 60
