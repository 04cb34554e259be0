"""Activities that are reset while a worker runs them: in workflows, and standalone."""

from collections import defaultdict
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.api.activity.v1 import ActivityExecutionInfo
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.workflowservice.v1 import (
    DescribeActivityExecutionRequest,
    PauseActivityRequest,
    ResetActivityExecutionRequest,
    ResetActivityRequest,
    UnpauseActivityRequest,
)
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError

from tests.sdk.gates import gate, wait_for
from tests.sdk.stage import NAMESPACE, Stage, execution, program

_ATTEMPTS_SHOWN_MAX = 6
_attempts: defaultdict[str, list[int]] = defaultdict(list)


@activity.defn
async def fails_at_each_gate(name: str, successful_call: int) -> list[int]:
    """Waits at the gate of its n-th call, then fails; the successful call returns all attempts."""
    attempts = _attempts[name]
    attempts.append(activity.info().attempt)
    call = len(attempts)
    if call == successful_call:
        return attempts
    place = gate(name, f"call {call}")
    place.reached.set()
    if call <= 2:
        await wait_for(place.opened)
    raise ApplicationError(f"call {call}", type="Call", non_retryable=call > _ATTEMPTS_SHOWN_MAX)


@workflow.defn
class ResetWhileRunning:
    @workflow.run
    async def run(self, name: str, successful_call: int, maximum_attempts: int) -> Any:
        try:
            return await workflow.execute_activity(
                fails_at_each_gate,
                args=[name, successful_call],
                activity_id="reset",
                start_to_close_timeout=timedelta(seconds=30),
                retry_policy=RetryPolicy(
                    initial_interval=timedelta(milliseconds=300),
                    backoff_coefficient=1.0,
                    maximum_attempts=maximum_attempts,
                ),
            )
        except ActivityError as error:
            return f"{error.retry_state} by {error.cause!r}"


def _address(stage: Stage, **more: Any) -> dict[str, Any]:
    return {"namespace": NAMESPACE, "execution": execution(stage.id()), "identity": "raw", "id": "reset", **more}


def _call_of_workflow(stage: Stage, **options: Any) -> Callable[[], Awaitable[Any]]:
    return lambda: stage.service.reset_activity(ResetActivityRequest(**_address(stage, **options)))


def _call_of_standalone(stage: Stage, **options: Any) -> Callable[[], Awaitable[Any]]:
    fields = {"namespace": NAMESPACE, "activity_id": stage.id(), "identity": "raw", **options}
    return lambda: stage.service.reset_activity_execution(ResetActivityExecutionRequest(**fields))


async def _reset_at(stage: Stage, call: int, reset: Callable[[], Awaitable[Any]]) -> None:
    """Reset the activity while its n-th call is running, then let that call fail."""
    await wait_for(gate(stage.id(), f"call {call}").reached)
    stage.note(f"reset in call {call}", await stage.outcome(reset()))
    _open(stage, call)


def _open(stage: Stage, call: int) -> None:
    gate(stage.id(), f"call {call}").opened.set()


async def _started(stage: Stage, *, successful_call: int = 0, maximum_attempts: int = 0) -> Any:
    return await stage.start(ResetWhileRunning.run, stage.id(), successful_call, maximum_attempts)


async def _ended(stage: Stage, handle: Any) -> Any:
    result = await stage.outcome(handle.result())
    stage.note("attempts", _attempts[stage.id()])
    return result


@program
async def running_activity_reset_in_its_first_attempt(stage: Stage) -> Any:
    handle = await _started(stage, successful_call=2)
    await _reset_at(stage, 1, _call_of_workflow(stage))
    return await _ended(stage, handle)


@program
async def running_activity_reset_with_one_attempt(stage: Stage) -> Any:
    handle = await _started(stage, maximum_attempts=1)
    await _reset_at(stage, 1, _call_of_workflow(stage))
    return await _ended(stage, handle)


@program
async def running_activity_reset_with_three_attempts(stage: Stage) -> Any:
    handle = await _started(stage, maximum_attempts=3)
    await _reset_at(stage, 1, _call_of_workflow(stage))
    _open(stage, 2)
    return await _ended(stage, handle)


@program
async def running_activity_reset_shows_its_first_attempt(stage: Stage) -> None:
    handle = await _started(stage)
    _open(stage, 1)
    await wait_for(gate(stage.id(), "call 2").reached)
    await _call_of_workflow(stage)()
    stage.note("pending", await stage.until_activity(lambda each: each.attempt == 1))
    await handle.terminate()
    _open(stage, 2)


@program
async def running_activity_paused_and_reset(stage: Stage) -> Any:
    handle = await _started(stage, successful_call=2)
    await wait_for(gate(stage.id(), "call 1").reached)
    await stage.service.pause_activity(PauseActivityRequest(**_address(stage)))
    await _reset_at(stage, 1, _call_of_workflow(stage, keep_paused=True))
    stage.note(
        "pending",
        await stage.until_activity(lambda each: each.state == PendingActivityState.PENDING_ACTIVITY_STATE_PAUSED),
    )
    await stage.service.unpause_activity(UnpauseActivityRequest(**_address(stage)))
    return await _ended(stage, handle)


async def _started_standalone(stage: Stage, *, successful_call: int = 0, maximum_attempts: int = 0) -> Any:
    return await stage.client.start_activity(
        fails_at_each_gate,
        args=[stage.id(), successful_call],
        id=stage.id(),
        task_queue=stage.queue,
        start_to_close_timeout=timedelta(seconds=30),
        retry_policy=RetryPolicy(
            initial_interval=timedelta(milliseconds=300), backoff_coefficient=1.0, maximum_attempts=maximum_attempts
        ),
    )


@program
async def standalone_activity_reset_in_its_first_attempt(stage: Stage) -> Any:
    handle = await _started_standalone(stage, successful_call=2)
    await _reset_at(stage, 1, _call_of_standalone(stage))
    return await _ended(stage, handle)


@program
async def standalone_activity_reset_in_its_second_attempt(stage: Stage) -> Any:
    handle = await _started_standalone(stage, successful_call=4)
    _open(stage, 1)
    await _reset_at(stage, 2, _call_of_standalone(stage))
    return await _ended(stage, handle)


@program
async def standalone_activity_reset_with_one_attempt(stage: Stage) -> Any:
    handle = await _started_standalone(stage, maximum_attempts=1)
    await _reset_at(stage, 1, _call_of_standalone(stage))
    _open(stage, 2)
    return await _ended(stage, handle)


@program
async def standalone_activity_reset_in_its_last_attempt(stage: Stage) -> Any:
    handle = await _started_standalone(stage, maximum_attempts=2)
    _open(stage, 1)
    await _reset_at(stage, 2, _call_of_standalone(stage))
    return await _ended(stage, handle)


@program
async def standalone_activity_described(stage: Stage) -> Any:
    handle = await stage.client.start_activity(
        fails_at_each_gate,
        args=[stage.id(), 2],
        id=stage.id(),
        task_queue=stage.queue,
        start_to_close_timeout=timedelta(seconds=30),
        start_delay=timedelta(seconds=1),
        retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=300), backoff_coefficient=1.0),
    )
    stage.note("delayed", await _described(stage))
    await wait_for(gate(stage.id(), "call 1").reached)
    stage.note("started", await _described(stage))
    _open(stage, 1)
    result = await stage.outcome(handle.result())
    stage.note("completed", await _described(stage))
    return result


async def _described(stage: Stage) -> ActivityExecutionInfo:
    response = await stage.service.describe_activity_execution(
        DescribeActivityExecutionRequest(namespace=NAMESPACE, activity_id=stage.id())
    )
    # The size depends on how a server stores its data.
    response.info.ClearField("state_size_bytes")
    return response.info
