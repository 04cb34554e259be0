"""Activity tasks: a worker starts them, records heartbeats and responds, by task token or by ids."""

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

from fairlead.api.errors import InvalidArgument
from fairlead.api.times import to_duration, to_timestamp
from fairlead.api.tokens import ActivityTaskToken, decode_token, encode_token
from fairlead.history.entities.standalone_activities import worker
from fairlead.history.entities.standalone_activities.machine import HeartbeatResponse
from fairlead.history.events import (
    Transaction,
    cancel_activity,
    complete_activity,
    fail_activity,
    find_activity,
    heartbeat_activity,
    pause_first_attempt,
    start_activity,
)
from fairlead.history.messages.matching_tasks import MatchedActivityTask, StartMatched
from fairlead.history.shard.context import Operation, OperationContext
from fairlead.history.shard.matching_tasks import fairness_key_of
from fairlead.history.shard.run_cache import LoadedRun
from fairlead.history.state import NotPending, RunState
from fairlead.history.state.run import PAUSED

T = TypeVar("T")


async def start(context: OperationContext, request: StartMatched) -> bytes:
    """Start an attempt for the worker whose poll got the task."""
    matched = request.task
    if not isinstance(matched, MatchedActivityTask):
        raise InvalidArgument("not an activity task")
    shard, namespace = context.shard, context.namespace
    async with shard.lock(namespace.id, matched.workflow_id):
        run = await shard.load(namespace.id, matched.workflow_id, matched.run_id)
        request_id = context.services.new_id()
        await _take_slot(context, run, matched, request_id)
        paused_by_rule = False

        def step(transaction: Transaction, _run: LoadedRun) -> None:
            nonlocal paused_by_rule
            state = transaction.state
            _check_version(state, matched.scheduled_event_id, matched.version)
            progress = state.live.activities.get(matched.scheduled_event_id)
            is_paused = state.status == PAUSED or (progress is not None and progress.paused)
            if is_paused or (progress is not None and progress.attempt != matched.attempt):
                raise NotPending("Activity task not found.")
            paused_by_rule = pause_first_attempt(transaction, matched.scheduled_event_id, matched.stamp)
            if paused_by_rule:
                return
            start_activity(
                transaction,
                matched.scheduled_event_id,
                request_id=request_id,
                identity=request.identity,
                stamp=matched.stamp,
            )

        try:
            await shard.step(namespace, run, step)
        except BaseException:
            shard.slots.doubt(run.key)
            raise
        if paused_by_rule:
            raise NotPending("Activity task not found: a workflow rule has paused the activity.")
        return (await activity_answer(context, run, matched.scheduled_event_id)).SerializeToString()


async def _take_slot(context: OperationContext, run: LoadedRun, matched: MatchedActivityTask, token: str) -> None:
    """Take a slot for an attempt that is about to start, if its task queue limits running activities."""
    activity = run.state.open_activity(matched.scheduled_event_id) if run.state.is_open else None
    progress = run.state.live.activities.get(matched.scheduled_event_id)
    if activity is not None and (progress is None or not progress.is_started):
        await context.shard.slots.take(
            run.key,
            token=token,
            event_id=matched.scheduled_event_id,
            task_queue=activity.task_queue,
            fairness_key=fairness_key_of(activity.priority),
        )


def _check_version(state: RunState, scheduled_event_id: int, version: int) -> None:
    """Check the version, because another branch may have another activity with the same event id."""
    activity = state.activities.get(scheduled_event_id)
    if activity is not None and activity.version != version:
        raise NotPending("invalid activityID or activity already timed out or invoking workflow is completed")


async def activity_answer(
    context: OperationContext, run: LoadedRun, scheduled_event_id: int
) -> PollActivityTaskQueueResponse:
    """The response to the poll of the worker that starts an attempt."""
    state, key = run.state, run.key
    activity = state.as_changed(state.activities[scheduled_event_id])
    progress = state.live.activities[scheduled_event_id]
    event = await context.shard.events.read_event(state, scheduled_event_id)
    scheduled = event.activity_task_scheduled_event_attributes
    answer = PollActivityTaskQueueResponse(
        task_token=encode_token(
            ActivityTaskToken(
                *key,
                scheduled_event_id,
                progress.attempt,
                activity.activity_id,
                version=activity.version,
                sticky_task_queue=state.live.sticky_task_queue,
            )
        ),
        workflow_namespace=context.namespace.name,
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
    """The activity that a request names: by its event and attempt, or by its id.

    For a standalone activity, `workflow_id` is the activity id, and `scheduled_event_id` is the number of the start.
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
        """The number of a standalone activity's start; None if the request does not contain it."""
        return None if self.attempt is None else self.scheduled_event_id


async def _change(context: OperationContext, target: Target, step: Callable[[Transaction, int, int | None], T]) -> T:
    def find(transaction: Transaction, _run: LoadedRun) -> T:
        scheduled_event_id = target.scheduled_event_id
        if not scheduled_event_id:
            scheduled_event_id = find_activity(transaction.state, target.activity_id).scheduled_event_id
        else:
            _check_version(transaction.state, scheduled_event_id, target.version)
        return step(transaction, scheduled_event_id, target.attempt)

    return await context.shard.change(context.namespace, target.workflow_id, target.run_id, find)


def _target(token: bytes) -> Target:
    decoded = decode_token(token)
    if not isinstance(decoded, ActivityTaskToken):
        raise InvalidArgument("Invalid TaskToken.")
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


async def _heartbeat(context: OperationContext, target: Target, details: Payloads | None) -> HeartbeatResponse:
    if target.is_standalone:
        return await worker.heartbeat(context, target.workflow_id, target.run_id, number=target.number, details=details)
    response = await _change(
        context,
        target,
        lambda transaction, event_id, attempt: heartbeat_activity(
            transaction, event_id, attempt=attempt, details=details
        ),
    )
    return HeartbeatResponse(*response)


async def heartbeat(context: OperationContext, request: RecordActivityTaskHeartbeatRequest) -> Message:
    """Record a heartbeat of the worker that has the task token."""
    response = await _heartbeat(context, _target(request.task_token), _details(request))
    return RecordActivityTaskHeartbeatResponse(
        cancel_requested=response.cancel_requested, activity_paused=response.paused, activity_reset=response.was_reset
    )


async def heartbeat_by_id(context: OperationContext, request: RecordActivityTaskHeartbeatByIdRequest) -> Message:
    """Record a heartbeat for an activity that the request names by its id."""
    response = await _heartbeat(context, _target_by_id(request), _details(request))
    return RecordActivityTaskHeartbeatByIdResponse(
        cancel_requested=response.cancel_requested, activity_paused=response.paused, activity_reset=response.was_reset
    )


async def _complete(
    context: OperationContext,
    target: Target,
    request: RespondActivityTaskCompletedRequest | RespondActivityTaskCompletedByIdRequest,
) -> None:
    result = request.result if request.HasField("result") else None
    if target.is_standalone:
        await worker.complete(
            context, target.workflow_id, target.run_id, number=target.number, result=result, identity=request.identity
        )
        return
    await _change(
        context,
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


async def complete(context: OperationContext, request: RespondActivityTaskCompletedRequest) -> Message:
    """Complete an activity with its result."""
    await _complete(context, _target(request.task_token), request)
    return RespondActivityTaskCompletedResponse()


async def complete_by_id(context: OperationContext, request: RespondActivityTaskCompletedByIdRequest) -> Message:
    """Complete an activity that the request names by its id."""
    await _complete(context, _target_by_id(request), request)
    return RespondActivityTaskCompletedByIdResponse()


async def _fail(
    context: OperationContext,
    target: Target,
    request: RespondActivityTaskFailedRequest | RespondActivityTaskFailedByIdRequest,
) -> None:
    details = request.last_heartbeat_details if request.HasField("last_heartbeat_details") else None
    if target.is_standalone:
        failure = request.failure if request.HasField("failure") else None
        await worker.fail(
            context, target.workflow_id, target.run_id, number=target.number, failure=failure, last_details=details
        )
        return
    await _change(
        context,
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


async def fail(context: OperationContext, request: RespondActivityTaskFailedRequest) -> Message:
    """Fail an attempt."""
    await _fail(context, _target(request.task_token), request)
    return RespondActivityTaskFailedResponse()


async def fail_by_id(context: OperationContext, request: RespondActivityTaskFailedByIdRequest) -> Message:
    """Fail the attempt of an activity that the request names by its id."""
    await _fail(context, _target_by_id(request), request)
    return RespondActivityTaskFailedByIdResponse()


async def _cancel(
    context: OperationContext,
    target: Target,
    request: RespondActivityTaskCanceledRequest | RespondActivityTaskCanceledByIdRequest,
) -> None:
    details = _details(request)
    if target.is_standalone:
        await worker.cancel(context, target.workflow_id, target.run_id, number=target.number, details=details)
        return
    await _change(
        context,
        target,
        lambda transaction, event_id, attempt: cancel_activity(
            transaction, event_id, attempt=attempt, details=details, identity=request.identity
        ),
    )


async def cancel(context: OperationContext, request: RespondActivityTaskCanceledRequest) -> Message:
    """End an activity as canceled, after a cancel request."""
    await _cancel(context, _target(request.task_token), request)
    return RespondActivityTaskCanceledResponse()


async def cancel_by_id(context: OperationContext, request: RespondActivityTaskCanceledByIdRequest) -> Message:
    """End an activity, which the request names by its id, as canceled."""
    await _cancel(context, _target_by_id(request), request)
    return RespondActivityTaskCanceledByIdResponse()


def _worker_version(
    request: RespondActivityTaskCompletedRequest
    | RespondActivityTaskCompletedByIdRequest
    | RespondActivityTaskFailedRequest
    | RespondActivityTaskFailedByIdRequest,
) -> WorkerVersionStamp | None:
    """The worker's build; None for a response by id, whose sender may not be a worker."""
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
