"""Activities: given to a worker, kept alive, and ended by it; by the token it was given or by their ids."""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from google.protobuf.message import Message
from temporalio.api.common.v1 import Payloads, Priority, RetryPolicy, WorkerVersionStamp, WorkflowExecution
from temporalio.api.workflowservice.v1 import (
    PollActivityTaskQueueResponse,
    RecordActivityTaskHeartbeatByIdRequest,
    RecordActivityTaskHeartbeatByIdResponse,
    RecordActivityTaskHeartbeatRequest,
    RecordActivityTaskHeartbeatResponse,
    RespondActivityTaskCanceledByIdRequest,
    RespondActivityTaskCanceledByIdResponse,
    RespondActivityTaskCanceledRequest,
    RespondActivityTaskCanceledResponse,
    RespondActivityTaskCompletedByIdRequest,
    RespondActivityTaskCompletedByIdResponse,
    RespondActivityTaskCompletedRequest,
    RespondActivityTaskCompletedResponse,
    RespondActivityTaskFailedByIdRequest,
    RespondActivityTaskFailedByIdResponse,
    RespondActivityTaskFailedRequest,
    RespondActivityTaskFailedResponse,
)

from fairlead.history.events import (
    Transaction,
    cancel_activity,
    complete_activity,
    fail_activity,
    find_activity,
    heartbeat_activity,
    start_activity,
)
from fairlead.history.refusals import invalid
from fairlead.history.runs import LoadedRun
from fairlead.history.scope import Operation, Scope
from fairlead.history.standalone import worker
from fairlead.history.standalone.machine import Heard
from fairlead.history.state import NotPending, RunState
from fairlead.history.state.run import PAUSED
from fairlead.history.state.times import to_duration, to_timestamp
from fairlead.history.tasks_wire import MatchedActivityTask, StartMatched
from fairlead.history.tokens import ActivityTaskToken, decode_token, encode_token

T = TypeVar("T")


async def start(scope: Scope, request: StartMatched) -> bytes:
    """Give an attempt to the worker whose poll took it."""
    matched = request.task
    if not isinstance(matched, MatchedActivityTask):
        raise invalid("not an activity task")
    shard, namespace = scope.shard, scope.namespace
    async with shard.lock(namespace.id, matched.workflow_id):
        run = await shard.load(namespace.id, matched.workflow_id, matched.run_id)

        def step(transaction: Transaction, _run: LoadedRun) -> None:
            state = transaction.state
            _check_version(state, matched.scheduled_event_id, matched.version)
            progress = state.live.activities.get(matched.scheduled_event_id)
            is_paused = state.status == PAUSED or (progress is not None and progress.paused)
            if is_paused or (progress is not None and progress.attempt != matched.attempt):
                raise NotPending("Activity task not found.")
            start_activity(
                transaction,
                matched.scheduled_event_id,
                request_id=scope.services.new_id(),
                identity=request.identity,
                stamp=matched.stamp,
            )

        await shard.step(namespace, run, step)
        return (await activity_answer(scope, run, matched.scheduled_event_id)).SerializeToString()


def _check_version(state: RunState, scheduled_event_id: int, version: int) -> None:
    """On another branch of the events, another activity may have the same number."""
    activity = state.activities.get(scheduled_event_id)
    if activity is not None and activity.version != version:
        raise NotPending("invalid activityID or activity already timed out or invoking workflow is completed")


async def activity_answer(scope: Scope, run: LoadedRun, scheduled_event_id: int) -> PollActivityTaskQueueResponse:
    """What a worker is told of the attempt that it has."""
    state, key = run.state, run.key
    activity = state.as_changed(state.activities[scheduled_event_id])
    progress = state.live.activities[scheduled_event_id]
    event = await scope.shard.read_event(state, scheduled_event_id)
    scheduled = event.activity_task_scheduled_event_attributes
    answer = PollActivityTaskQueueResponse(
        task_token=encode_token(
            ActivityTaskToken(
                *key, scheduled_event_id, progress.attempt, activity.activity_id, version=activity.version
            )
        ),
        workflow_namespace=scope.namespace.name,
        workflow_execution=WorkflowExecution(workflow_id=key.workflow_id, run_id=key.run_id),
        activity_type=scheduled.activity_type,
        activity_id=activity.activity_id,
        scheduled_time=to_timestamp(activity.scheduled_ns),
        current_attempt_scheduled_time=to_timestamp(progress.due_ns or activity.scheduled_ns),
        started_time=to_timestamp(progress.started_ns),
        attempt=progress.attempt,
        schedule_to_close_timeout=to_duration(activity.schedule_to_close_ns),
        start_to_close_timeout=to_duration(activity.start_to_close_ns),
        heartbeat_timeout=to_duration(activity.heartbeat_ns),
        header=scheduled.header if scheduled.HasField("header") else None,
        input=scheduled.input if scheduled.HasField("input") else None,
    )
    answer.workflow_type.name = state.started.workflow_type
    if progress.heartbeat_details is not None:
        answer.heartbeat_details.CopyFrom(Payloads.FromString(progress.heartbeat_details))
    if activity.retry_policy is not None:
        answer.retry_policy.CopyFrom(RetryPolicy.FromString(activity.retry_policy))
    if activity.priority:
        answer.priority.CopyFrom(Priority.FromString(activity.priority))
    return answer


class Target(NamedTuple):
    """The activity that a request is about: by its event and attempt, or by its id.

    Of one that stands alone, the workflow id is its own, and in place of the event is the number of its start.
    """

    workflow_id: str
    run_id: str
    scheduled_event_id: int
    attempt: int | None
    activity_id: str
    is_standalone: bool = False
    version: int = 0

    @property
    def number(self) -> int | None:
        """Which start of an activity that stands alone is meant; None if the request does not say."""
        return None if self.attempt is None else self.scheduled_event_id


async def _change(scope: Scope, target: Target, step: Callable[[Transaction, int, int | None], T]) -> T:
    def find(transaction: Transaction, _run: LoadedRun) -> T:
        scheduled_event_id = target.scheduled_event_id
        if not scheduled_event_id:
            scheduled_event_id = find_activity(transaction.state, target.activity_id).scheduled_event_id
        else:
            _check_version(transaction.state, scheduled_event_id, target.version)
        return step(transaction, scheduled_event_id, target.attempt)

    return await scope.shard.change(scope.namespace, target.workflow_id, target.run_id, find)


def _target(token: bytes) -> Target:
    decoded = decode_token(token)
    if not isinstance(decoded, ActivityTaskToken):
        raise invalid("Invalid TaskToken.")
    return Target(
        decoded.workflow_id,
        decoded.run_id,
        decoded.scheduled_event_id,
        decoded.attempt,
        decoded.activity_id,
        decoded.is_standalone,
        decoded.version,
    )


def _target_by_id(
    request: RecordActivityTaskHeartbeatByIdRequest
    | RespondActivityTaskCanceledByIdRequest
    | RespondActivityTaskCompletedByIdRequest
    | RespondActivityTaskFailedByIdRequest,
) -> Target:
    if not request.workflow_id:
        return Target(request.activity_id, request.run_id, 0, None, request.activity_id, is_standalone=True)
    return Target(request.workflow_id, request.run_id, 0, None, request.activity_id)


async def _heartbeat(scope: Scope, target: Target, details: Payloads | None) -> Heard:
    if target.is_standalone:
        return await worker.heartbeat(scope, *target[:2], number=target.number, details=details)
    heard = await _change(
        scope,
        target,
        lambda transaction, event_id, attempt: heartbeat_activity(
            transaction, event_id, attempt=attempt, details=details
        ),
    )
    return Heard(*heard)


async def heartbeat(scope: Scope, request: RecordActivityTaskHeartbeatRequest) -> Message:
    """The worker still has it."""
    heard = await _heartbeat(scope, _target(request.task_token), _details(request))
    return RecordActivityTaskHeartbeatResponse(
        cancel_requested=heard.cancel_requested, activity_paused=heard.paused, activity_reset=heard.was_reset
    )


async def heartbeat_by_id(scope: Scope, request: RecordActivityTaskHeartbeatByIdRequest) -> Message:
    """Whoever has it still works."""
    heard = await _heartbeat(scope, _target_by_id(request), _details(request))
    return RecordActivityTaskHeartbeatByIdResponse(
        cancel_requested=heard.cancel_requested, activity_paused=heard.paused, activity_reset=heard.was_reset
    )


async def _complete(
    scope: Scope,
    target: Target,
    request: RespondActivityTaskCompletedRequest | RespondActivityTaskCompletedByIdRequest,
) -> None:
    result = request.result if request.HasField("result") else None
    if target.is_standalone:
        await worker.complete(scope, *target[:2], number=target.number, result=result, identity=request.identity)
        return
    await _change(
        scope,
        target,
        lambda transaction, event_id, attempt: complete_activity(
            transaction,
            event_id,
            attempt=attempt,
            result=result,
            identity=request.identity,
            worker_version=_worker_version(request),
        ),
    )


async def complete(scope: Scope, request: RespondActivityTaskCompletedRequest) -> Message:
    """It has a result."""
    await _complete(scope, _target(request.task_token), request)
    return RespondActivityTaskCompletedResponse()


async def complete_by_id(scope: Scope, request: RespondActivityTaskCompletedByIdRequest) -> Message:
    """It has a result."""
    await _complete(scope, _target_by_id(request), request)
    return RespondActivityTaskCompletedByIdResponse()


async def _fail(
    scope: Scope, target: Target, request: RespondActivityTaskFailedRequest | RespondActivityTaskFailedByIdRequest
) -> None:
    details = request.last_heartbeat_details if request.HasField("last_heartbeat_details") else None
    if target.is_standalone:
        failure = request.failure if request.HasField("failure") else None
        await worker.fail(scope, *target[:2], number=target.number, failure=failure, last_details=details)
        return
    await _change(
        scope,
        target,
        lambda transaction, event_id, attempt: fail_activity(
            transaction,
            event_id,
            attempt=attempt,
            failure=request.failure,
            identity=request.identity,
            last_heartbeat_details=details,
            worker_version=_worker_version(request),
        ),
    )


async def fail(scope: Scope, request: RespondActivityTaskFailedRequest) -> Message:
    """The attempt failed."""
    await _fail(scope, _target(request.task_token), request)
    return RespondActivityTaskFailedResponse()


async def fail_by_id(scope: Scope, request: RespondActivityTaskFailedByIdRequest) -> Message:
    """The attempt failed."""
    await _fail(scope, _target_by_id(request), request)
    return RespondActivityTaskFailedByIdResponse()


async def _cancel(
    scope: Scope, target: Target, request: RespondActivityTaskCanceledRequest | RespondActivityTaskCanceledByIdRequest
) -> None:
    details = _details(request)
    if target.is_standalone:
        await worker.cancel(scope, *target[:2], number=target.number, details=details)
        return
    await _change(
        scope,
        target,
        lambda transaction, event_id, attempt: cancel_activity(
            transaction, event_id, attempt=attempt, details=details, identity=request.identity
        ),
    )


async def cancel(scope: Scope, request: RespondActivityTaskCanceledRequest) -> Message:
    """The worker ended it because it was asked to."""
    await _cancel(scope, _target(request.task_token), request)
    return RespondActivityTaskCanceledResponse()


async def cancel_by_id(scope: Scope, request: RespondActivityTaskCanceledByIdRequest) -> Message:
    """It was ended because somebody asked for it."""
    await _cancel(scope, _target_by_id(request), request)
    return RespondActivityTaskCanceledByIdResponse()


def _worker_version(
    request: RespondActivityTaskCompletedRequest
    | RespondActivityTaskCompletedByIdRequest
    | RespondActivityTaskFailedRequest
    | RespondActivityTaskFailedByIdRequest,
) -> WorkerVersionStamp | None:
    """The build of the worker; who answers by an id is none."""
    if not isinstance(request, RespondActivityTaskCompletedRequest | RespondActivityTaskFailedRequest):
        return None
    return request.worker_version if request.HasField("worker_version") else None


def _details(
    request: RecordActivityTaskHeartbeatRequest
    | RecordActivityTaskHeartbeatByIdRequest
    | RespondActivityTaskCanceledRequest
    | RespondActivityTaskCanceledByIdRequest,
) -> Payloads | None:
    return request.details if request.HasField("details") else None


OPERATIONS = {
    "StartActivityTask": Operation(StartMatched, start),
    "RecordActivityTaskHeartbeat": Operation(RecordActivityTaskHeartbeatRequest, heartbeat),
    "RecordActivityTaskHeartbeatById": Operation(RecordActivityTaskHeartbeatByIdRequest, heartbeat_by_id),
    "RespondActivityTaskCompleted": Operation(RespondActivityTaskCompletedRequest, complete),
    "RespondActivityTaskCompletedById": Operation(RespondActivityTaskCompletedByIdRequest, complete_by_id),
    "RespondActivityTaskFailed": Operation(RespondActivityTaskFailedRequest, fail),
    "RespondActivityTaskFailedById": Operation(RespondActivityTaskFailedByIdRequest, fail_by_id),
    "RespondActivityTaskCanceled": Operation(RespondActivityTaskCanceledRequest, cancel),
    "RespondActivityTaskCanceledById": Operation(RespondActivityTaskCanceledByIdRequest, cancel_by_id),
}
