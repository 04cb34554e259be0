"""Activities: results, failures, retries, options, dispatch."""

import asyncio
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.common import Priority, RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError

from tests.history.reference_programs import (
    NO_ONE,
    SOON,
    ExhaustedActivity,
    FatalActivity,
    NonRetryableType,
    OneActivity,
    RetriedActivity,
    echo,
)
from tests.sdk.gates import hold_activity
from tests.sdk.stage import Stage, program


@activity.defn
async def waits_at(gate: str) -> str:
    await hold_activity(gate)
    return gate


@activity.defn
async def fails_with_cause() -> None:
    raise ApplicationError("outer", {"a": 1}, [2], type="Outer", non_retryable=True) from ValueError("the cause")


@activity.defn
async def fails_with_delay() -> int:
    attempt = activity.info().attempt
    if attempt < 3:
        raise ApplicationError("later", type="Later", next_retry_delay=timedelta(milliseconds=100))
    return attempt


@activity.defn
async def reports_its_last_attempt() -> list[Any]:
    attempt = activity.info().attempt
    if attempt < 3:
        activity.heartbeat("progress", attempt)
        raise ApplicationError(f"attempt {attempt}")
    return [attempt, *activity.info().heartbeat_details]


@activity.defn
async def raises_plainly() -> None:
    raise KeyError("a plain error")


@workflow.defn
class GatedActivities:
    @workflow.run
    async def run(self, count: int) -> list[str]:
        return list(
            await asyncio.gather(
                *(
                    workflow.execute_activity(
                        waits_at, f"gate {number}", start_to_close_timeout=SOON, summary=f"number {number}"
                    )
                    for number in range(count)
                )
            )
        )


@workflow.defn
class CallsActivity:
    """Calls one activity by name and returns its failure as the result."""

    @workflow.run
    async def run(self, name: str, args: list[Any], attempts: int) -> Any:
        try:
            return await workflow.execute_activity(
                name,
                args=args,
                start_to_close_timeout=SOON,
                retry_policy=RetryPolicy(
                    initial_interval=timedelta(milliseconds=50),
                    backoff_coefficient=1.2,
                    maximum_interval=timedelta(milliseconds=80),
                    maximum_attempts=attempts,
                ),
            )
        except ActivityError as error:
            return f"{error} {error.retry_state} by {error.cause!r}"


@workflow.defn
class ActivityWithEverything:
    @workflow.run
    async def run(self, queue: str) -> str:
        return await workflow.execute_activity(
            echo,
            "x",
            task_queue=queue,
            activity_id="my-own-id",
            summary="a summary",
            schedule_to_close_timeout=timedelta(seconds=50),
            schedule_to_start_timeout=timedelta(seconds=40),
            start_to_close_timeout=timedelta(seconds=30),
            heartbeat_timeout=timedelta(seconds=20),
            priority=Priority(priority_key=3, fairness_key="tenant", fairness_weight=3.0),
            retry_policy=RetryPolicy(
                initial_interval=timedelta(seconds=2),
                backoff_coefficient=1.5,
                maximum_interval=timedelta(seconds=9),
                maximum_attempts=7,
                non_retryable_error_types=["Never"],
            ),
        )


@workflow.defn
class TimeoutsAreFilledIn:
    """The server fills in the timeouts that a command leaves out, from the run's own timeouts."""

    @workflow.run
    async def run(self) -> None:
        await workflow.execute_activity(echo, "x", schedule_to_close_timeout=timedelta(minutes=3))
        await workflow.execute_activity(echo, "x", start_to_close_timeout=timedelta(hours=3))
        await workflow.execute_activity(
            echo,
            "x",
            start_to_close_timeout=timedelta(minutes=5),
            schedule_to_close_timeout=timedelta(minutes=2),
            schedule_to_start_timeout=timedelta(minutes=9),
            heartbeat_timeout=timedelta(minutes=10),
        )


@workflow.defn
class LeavesActivities:
    def __init__(self) -> None:
        self._go = False

    @workflow.signal
    def go(self) -> None:
        self._go = True

    @workflow.run
    async def run(self) -> str:
        workflow.start_activity(echo, "x", task_queue=NO_ONE, start_to_close_timeout=SOON)
        workflow.start_activity(waits_at, "left", start_to_close_timeout=SOON)
        await workflow.wait_condition(lambda: self._go)
        return "left them"


@program
async def activity_completes(stage: Stage) -> Any:
    return await stage.run(OneActivity.run, "x")


@program
async def activity_with_everything(stage: Stage) -> Any:
    return await stage.run(ActivityWithEverything.run, stage.queue)


@program
async def activity_timeouts_are_filled_in(stage: Stage) -> Any:
    return await stage.run(TimeoutsAreFilledIn.run, run_timeout=timedelta(hours=1))


@program
async def activity_inherits_the_priority(stage: Stage) -> Any:
    priority = Priority(priority_key=4, fairness_key="inherited", fairness_weight=0.5)
    return await stage.run(OneActivity.run, "x", priority=priority)


@program
async def activities_in_parallel(stage: Stage) -> Any:
    handle = await stage.start(GatedActivities.run, 12)
    for number in range(12):
        await stage.reached(f"gate {number}")
    stage.note("pending", len((await stage.describe(stage.id())).pending_activities))
    order = (3, 0, 11, *(each for each in range(12) if each not in {0, 3, 11}))
    for opened, number in enumerate(order, start=1):
        stage.open(f"gate {number}")
        await stage.until(handle, "ACTIVITY_TASK_COMPLETED", opened)
        if opened < 12:
            await stage.idle(handle)
    return await stage.outcome(handle.result())


@program
async def activity_retried(stage: Stage) -> Any:
    return await stage.run(RetriedActivity.run)


@program
async def activity_exhausted(stage: Stage) -> Any:
    return await stage.run(ExhaustedActivity.run)


@program
async def activity_fatal(stage: Stage) -> Any:
    return await stage.run(FatalActivity.run)


@program
async def activity_of_a_type_that_is_not_retried(stage: Stage) -> Any:
    return await stage.run(NonRetryableType.run)


@program
async def activity_fails_with_a_cause(stage: Stage) -> Any:
    return await stage.run(CallsActivity.run, "fails_with_cause", [], 5)


@program
async def activity_raises_plainly(stage: Stage) -> Any:
    return await stage.run(CallsActivity.run, "raises_plainly", [], 2)


@program
async def activity_says_when_to_retry(stage: Stage) -> Any:
    return await stage.run(CallsActivity.run, "fails_with_delay", [], 5)


@program
async def activity_of_an_unknown_type(stage: Stage) -> Any:
    return await stage.run(CallsActivity.run, "nobody_knows_it", [], 1)


@program
async def activity_passes_heartbeat_details_on(stage: Stage) -> Any:
    return await stage.run(CallsActivity.run, "reports_its_last_attempt", [], 5)


@program
async def activity_without_eager_dispatch(stage: Stage) -> Any:
    queue = f"{stage.name}-queue"
    async with stage.worker(queue, [OneActivity], [echo], disable_eager_activity_execution=True):
        return await stage.run(OneActivity.run, "x", queue=queue)


@program
async def activity_on_another_queue(stage: Stage) -> Any:
    queue = f"{stage.name}-queue"
    async with stage.worker(queue, [], [echo]):
        return await stage.run(ActivityWithEverything.run, queue)


@program
async def activities_left_behind(stage: Stage) -> Any:
    handle = await stage.start(LeavesActivities.run)
    await stage.idle(handle)
    await stage.reached("left")
    result = await stage.signal_and_end(handle, "go")
    stage.open("left")
    return result
