"""Cancellation of activities, for the three cancellation types, before and after the activity starts."""

import asyncio
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError

from tests.history.reference_programs import NO_ONE, SOON, ScheduledAndCanceledAtOnce
from tests.sdk.gates import gate, hold_activity
from tests.sdk.stage import Stage, program


@activity.defn
async def beats_until_canceled(how: str) -> str:
    info = activity.info()
    assert info.workflow_id is not None
    gate(info.workflow_id, "begun").reached.set()
    try:
        while True:
            activity.heartbeat("beat")
            await asyncio.sleep(0.05)
    except asyncio.CancelledError:
        if how == "completes":
            return "done all the same"
        if how == "fails":
            raise ApplicationError("not canceled but failed", non_retryable=True) from None
        if how == "held":
            await hold_activity("end")
        raise


@activity.defn
async def always_fails() -> None:
    raise ApplicationError("again", type="Always")


@workflow.defn
class CancelsActivity:
    def __init__(self) -> None:
        self._go = False

    @workflow.signal
    def go(self) -> None:
        self._go = True

    @workflow.run
    async def run(self, name: str, args: list[Any], cancellation: str, polled: bool) -> str:
        handle: Any = workflow.start_activity(
            name,
            args=args,
            task_queue=None if polled else NO_ONE,
            start_to_close_timeout=SOON,
            heartbeat_timeout=timedelta(seconds=15),
            retry_policy=RetryPolicy(initial_interval=timedelta(seconds=30)),
            cancellation_type=workflow.ActivityCancellationType[cancellation],
        )
        await workflow.wait_condition(lambda: self._go)
        handle.cancel()
        try:
            return f"result {await handle}"
        except ActivityError as error:
            return f"{error} {error.retry_state} by {error.cause!r}"
        except asyncio.CancelledError:
            return "canceled at once"


async def _canceled(stage: Stage, how: str, cancellation: str) -> Any:
    handle = await stage.start(CancelsActivity.run, "beats_until_canceled", [how], cancellation, True)
    await stage.reached("begun")
    await stage.idle(handle)
    await handle.signal("go")
    return handle


@program
async def activity_cancel_tried(stage: Stage) -> Any:
    handle = await _canceled(stage, "held", "TRY_CANCEL")
    result = await stage.outcome(handle.result())
    stage.open("end")
    return result


@program
async def activity_cancel_waited_for(stage: Stage) -> Any:
    handle = await _canceled(stage, "held", "WAIT_CANCELLATION_COMPLETED")
    await stage.reached("end")
    await stage.idle(handle)
    stage.note("asked to end", await stage.describe(stage.id()))
    stage.open("end")
    return await stage.outcome(handle.result())


@program
async def activity_cancel_answered_with_a_result(stage: Stage) -> Any:
    handle = await _canceled(stage, "completes", "WAIT_CANCELLATION_COMPLETED")
    return await stage.outcome(handle.result())


@program
async def activity_cancel_answered_with_a_failure(stage: Stage) -> Any:
    handle = await _canceled(stage, "fails", "WAIT_CANCELLATION_COMPLETED")
    return await stage.outcome(handle.result())


@program
async def activity_cancel_abandoned(stage: Stage) -> Any:
    handle = await _canceled(stage, "held", "ABANDON")
    result = await stage.outcome(handle.result())
    stage.open("end")
    return result


@program
async def activity_canceled_before_it_began(stage: Stage) -> Any:
    handle = await stage.start(CancelsActivity.run, "echo", ["x"], "WAIT_CANCELLATION_COMPLETED", False)
    await stage.idle(handle)
    return await stage.signal_and_end(handle, "go")


@program
async def activity_canceled_between_attempts(stage: Stage) -> Any:
    handle = await stage.start(CancelsActivity.run, "always_fails", [], "WAIT_CANCELLATION_COMPLETED", True)
    await stage.idle(handle)
    await stage.until_activity(lambda each: each.attempt == 2)
    return await stage.signal_and_end(handle, "go")


@program
async def activity_scheduled_and_canceled_at_once(stage: Stage) -> Any:
    return await stage.run(ScheduledAndCanceledAtOnce.run)


@program
async def workflow_cancel_reaches_the_activity(stage: Stage) -> Any:
    handle = await stage.start(
        CancelsActivity.run, "beats_until_canceled", ["plain"], "WAIT_CANCELLATION_COMPLETED", True
    )
    await stage.reached("begun")
    await stage.idle(handle)
    await handle.cancel()
    return await stage.outcome(handle.result())
