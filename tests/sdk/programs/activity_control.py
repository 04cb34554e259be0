"""Activities that are completed by another client, and activities that are paused, reset or updated by a client."""

import asyncio
from datetime import timedelta
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from temporalio import activity, workflow
from temporalio.api.activity.v1 import ActivityOptions
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.workflowservice.v1 import (
    PauseActivityRequest,
    RecordActivityTaskHeartbeatRequest,
    ResetActivityRequest,
    RespondActivityTaskCanceledByIdRequest,
    RespondActivityTaskCompletedByIdRequest,
    RespondActivityTaskCompletedRequest,
    UnpauseActivityRequest,
    UpdateActivityOptionsRequest,
)
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError

from tests.history.reference_programs import NO_ONE, Hello
from tests.sdk.gates import gate
from tests.sdk.stage import NAMESPACE, Stage, execution, program

_tokens: dict[str, bytes] = {}
_may_succeed: set[str] = set()


@activity.defn
async def completed_by_others() -> Any:
    info = activity.info()
    assert info.workflow_id is not None
    _tokens[info.workflow_id] = info.task_token
    gate(info.workflow_id, "begun").reached.set()
    activity.raise_complete_async()


@activity.defn
async def fails_until_allowed() -> int:
    if activity.info().workflow_id not in _may_succeed:
        raise ApplicationError("not allowed yet", type="NotYet")
    return activity.info().attempt


@workflow.defn
class CompletedByOthers:
    @workflow.run
    async def run(self, heartbeat_s: float) -> Any:
        handle = workflow.start_activity(
            completed_by_others,
            activity_id="by-others",
            start_to_close_timeout=timedelta(seconds=30),
            heartbeat_timeout=timedelta(seconds=heartbeat_s) if heartbeat_s else None,
            retry_policy=RetryPolicy(maximum_attempts=1),
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        )
        try:
            return await handle
        except ActivityError as error:
            return f"{error} {error.retry_state} by {error.cause!r}"


@workflow.defn
class Controlled:
    @workflow.run
    async def run(self, polled: bool, interval_s: float) -> int:
        return await workflow.execute_activity(
            fails_until_allowed,
            activity_id="controlled",
            task_queue=None if polled else NO_ONE,
            start_to_close_timeout=timedelta(seconds=30),
            retry_policy=RetryPolicy(initial_interval=timedelta(seconds=interval_s), backoff_coefficient=1.0),
        )


async def _begun(stage: Stage, heartbeat_s: float = 0.0) -> Any:
    handle = await stage.start(CompletedByOthers.run, heartbeat_s)
    await stage.reached("begun")
    await stage.idle(handle)
    # The worker has reported that the activity will be completed asynchronously.
    await asyncio.sleep(0.1)
    return handle


@program
async def async_completion_by_token(stage: Stage) -> Any:
    handle = await _begun(stage)
    other = stage.client.get_async_activity_handle(task_token=_tokens[stage.id()])
    await other.heartbeat("on the way")
    stage.note("pending", (await stage.describe(stage.id())).pending_activities[0].heartbeat_details)
    await other.complete("by token")
    result = await stage.outcome(handle.result())
    stage.note("again", await stage.outcome(other.complete("twice")))
    return result


@program
async def async_completion_by_id(stage: Stage) -> Any:
    handle = await _begun(stage)
    other = stage.client.get_async_activity_handle(workflow_id=stage.id(), run_id=None, activity_id="by-others")
    await other.heartbeat("on the way")
    await other.complete({"by": "id"})
    return await stage.outcome(handle.result())


@program
async def async_failure_by_id(stage: Stage) -> Any:
    handle = await _begun(stage)
    other = stage.client.get_async_activity_handle(workflow_id=stage.id(), run_id=None, activity_id="by-others")
    await other.fail(ApplicationError("by others", "detail", type="Others"), last_heartbeat_details=["last"])
    return await stage.outcome(handle.result())


@program
async def async_cancellation_by_token(stage: Stage) -> Any:
    handle = await _begun(stage, 20.0)
    other = stage.client.get_async_activity_handle(task_token=_tokens[stage.id()])
    stage.note("before it is asked for", await stage.outcome(other.report_cancellation("early")))
    await handle.cancel()
    await stage.until(handle, "ACTIVITY_TASK_CANCEL_REQUESTED")
    stage.note("heartbeat", await stage.outcome(other.heartbeat("still there")))
    await other.report_cancellation("late")
    return await stage.outcome(handle.result())


@program
async def async_heartbeat_timeout(stage: Stage) -> Any:
    handle = await stage.start(CompletedByOthers.run, 1.0)
    return await stage.outcome(handle.result())


@program
async def activity_answers_refused(stage: Stage) -> None:
    handle = await stage.start(Hello.run, "x")
    await handle.result()
    fields: dict[str, Any] = {"namespace": NAMESPACE, "workflow_id": stage.id(), "activity_id": "1"}
    service = stage.service
    calls = {
        "of a closed run": service.respond_activity_task_completed_by_id(
            RespondActivityTaskCompletedByIdRequest(**fields)
        ),
        "cancel of a closed run": service.respond_activity_task_canceled_by_id(
            RespondActivityTaskCanceledByIdRequest(**fields)
        ),
        "no activity": service.respond_activity_task_completed_by_id(
            RespondActivityTaskCompletedByIdRequest(**(fields | {"activity_id": ""}))
        ),
        "missing": service.respond_activity_task_completed_by_id(
            RespondActivityTaskCompletedByIdRequest(**(fields | {"workflow_id": stage.id("missing")}))
        ),
        "no token": service.respond_activity_task_completed(RespondActivityTaskCompletedRequest(namespace=NAMESPACE)),
        "garbage": service.record_activity_task_heartbeat(
            RecordActivityTaskHeartbeatRequest(namespace=NAMESPACE, task_token=b"garbage")
        ),
    }
    for label, call in calls.items():
        stage.note(label, await stage.outcome(call))


def _address(stage: Stage, **more: Any) -> dict[str, Any]:
    return {"namespace": NAMESPACE, "execution": execution(stage.id()), "identity": "raw", "id": "controlled", **more}


@program
async def activity_paused_between_attempts(stage: Stage) -> Any:
    handle = await stage.start(Controlled.run, True, 1.0)
    await stage.until_activity(lambda each: each.attempt == 2)
    stage.note("pause", await stage.service.pause_activity(PauseActivityRequest(**_address(stage, reason="wait"))))
    stage.note(
        "paused",
        await stage.until_activity(
            lambda each: each.state == PendingActivityState.PENDING_ACTIVITY_STATE_PAUSED,
        ),
    )
    _may_succeed.add(stage.id())
    # Wait longer than the backoff: the activity must stay paused.
    await asyncio.sleep(1.5)
    stage.note("still paused", await stage.until_activity(lambda each: each.paused))
    stage.note("unpause", await stage.service.unpause_activity(UnpauseActivityRequest(**_address(stage))))
    return await stage.outcome(handle.result())


@program
async def activity_paused_before_it_began(stage: Stage) -> Any:
    handle = await stage.start(Controlled.run, False, 1.0)
    await stage.idle(handle)
    await stage.service.pause_activity(PauseActivityRequest(**_address(stage)))
    stage.note("paused", await stage.until_activity(lambda each: each.paused))
    await stage.service.unpause_activity(UnpauseActivityRequest(**_address(stage)))
    stage.note("unpaused", await stage.until_activity(lambda each: not each.paused))
    await handle.terminate()


@program
async def activity_reset(stage: Stage) -> Any:
    handle = await stage.start(Controlled.run, True, 30.0)
    await stage.until_activity(lambda each: each.attempt == 2)
    _may_succeed.add(stage.id())
    # The activity starts again at once, with attempt 1.
    stage.note("reset", await stage.service.reset_activity(ResetActivityRequest(**_address(stage))))
    return await stage.outcome(handle.result())


@program
async def activity_options_changed(stage: Stage) -> Any:
    handle = await stage.start(Controlled.run, False, 1.0)
    await stage.idle(handle)
    answer = await stage.service.update_activity_options(
        UpdateActivityOptionsRequest(
            **_address(
                stage,
                activity_options=ActivityOptions(start_to_close_timeout=Duration(seconds=77)),
                update_mask=FieldMask(paths=["start_to_close_timeout"]),
            )
        )
    )
    stage.note("answer", answer)
    stage.note("pending", await stage.until_activity(lambda each: not each.paused))
    await handle.terminate()


@program
async def activity_control_refused(stage: Stage) -> None:
    handle = await stage.start(Controlled.run, False, 1.0)
    await stage.idle(handle)
    unknown = _address(stage) | {"id": "unknown"}
    nameless = _address(stage) | {"id": ""}
    service = stage.service
    for label, fields in {"unknown": unknown, "nameless": nameless}.items():
        stage.note(f"pause {label}", await stage.outcome(service.pause_activity(PauseActivityRequest(**fields))))
        stage.note(f"unpause {label}", await stage.outcome(service.unpause_activity(UnpauseActivityRequest(**fields))))
        stage.note(f"reset {label}", await stage.outcome(service.reset_activity(ResetActivityRequest(**fields))))
    await handle.terminate()
    stage.note("closed", await stage.outcome(service.pause_activity(PauseActivityRequest(**_address(stage)))))
