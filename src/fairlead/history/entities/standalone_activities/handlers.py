"""Handlers of clients' requests about standalone activities: start, poll, describe, cancel, control, delete."""

from collections.abc import Callable

import msgspec
from google.protobuf.message import Message
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.api.enums.v1 import ActivityIdConflictPolicy as Conflict
from temporalio.api.enums.v1 import ActivityIdReusePolicy as Reuse
from temporalio.api.enums.v1 import WorkflowExecutionStatus
from temporalio.api.errordetails.v1 import ActivityExecutionAlreadyStartedFailure
from temporalio.api.workflowservice.v1 import (
    DeleteActivityExecutionRequest,
    DeleteActivityExecutionResponse,
    DescribeActivityExecutionRequest,
    DescribeActivityExecutionResponse,
    PauseActivityExecutionRequest,
    PauseActivityExecutionResponse,
    PollActivityExecutionRequest,
    PollActivityExecutionResponse,
    RequestCancelActivityExecutionRequest,
    RequestCancelActivityExecutionResponse,
    ResetActivityExecutionRequest,
    ResetActivityExecutionResponse,
    StartActivityExecutionRequest,
    StartActivityExecutionResponse,
    TerminateActivityExecutionRequest,
    TerminateActivityExecutionResponse,
    UnpauseActivityExecutionRequest,
    UnpauseActivityExecutionResponse,
    UpdateActivityExecutionOptionsRequest,
    UpdateActivityExecutionOptionsResponse,
)

from fairlead.api.error_details import packed
from fairlead.api.errors import AlreadyExists, FailedPrecondition, InvalidArgument
from fairlead.api.links import activity_link
from fairlead.api.times import from_duration
from fairlead.history.entities import entity
from fairlead.history.entities.entity import EntityStep
from fairlead.history.entities.long_poll import ChangeToken, decode_token, encode_token, wait_until
from fairlead.history.entities.standalone_activities import controls, machine, worker
from fairlead.history.entities.standalone_activities.machine import Step
from fairlead.history.entities.standalone_activities.options import merge_options
from fairlead.history.entities.standalone_activities.responses import (
    callbacks_of,
    info_of,
    options_answer,
    outcome_of,
    row_of,
)
from fairlead.history.entities.standalone_activities.state import ActivityState, Asked, RegisteredCallback
from fairlead.history.entities.standalone_activities.steps import ACTIVITY, START_TASK, change, named, read
from fairlead.history.messages.activity_options import Options, read_options
from fairlead.history.messages.matching_tasks import StartMatched
from fairlead.history.shard.context import Operation, OperationContext
from fairlead.storage.history import CurrentRun

LINKS_MAX = 100
CALLBACKS_MAX = 2_000


async def start(context: OperationContext, request: StartActivityExecutionRequest) -> Message:
    """Start an activity; if its id is in use, the request's policies decide."""
    # Allow one start at a time for an id: the current run can't be replaced between the check and the write.
    async with context.shard.lock(f"{ACTIVITY.namespace_id(context.namespace.id)}#start", request.activity_id):
        current = await entity.find(context, ACTIVITY, request.activity_id)
        if current is None:
            return _started(context, request, await _create(context, request), is_new=True)
        if current.request_id == request.request_id:
            return _started(context, request, current.run_id, is_new=False)
        if not current.is_closed:
            await _use(context, request, current)
            return _started(context, request, current.run_id, is_new=False)
        _check_reuse(request, current)
        return _started(context, request, await _create(context, request), is_new=True)


async def _create(context: OperationContext, request: StartActivityExecutionRequest) -> str:
    services, namespace = context.services, context.namespace
    options = read_options(
        request,
        task_queue=request.task_queue.name,
        activity_id=request.activity_id,
        activity_type=request.activity_type.name,
    )
    now_ns = services.clock_ns()
    state = ActivityState(
        activity_id=request.activity_id,
        run_id=services.new_id(),
        activity_type=request.activity_type.name,
        options=options,
        original=options,
        scheduled_ns=now_ns,
        due_ns=now_ns + options.start_delay_ns,
        input=request.input.SerializeToString() if request.HasField("input") else None,
        header=request.header.SerializeToString() if request.HasField("header") else None,
        user_metadata=request.user_metadata.SerializeToString() if request.HasField("user_metadata") else None,
        search_attributes=request.search_attributes.SerializeToString(deterministic=True),
        links=tuple(link.SerializeToString() for link in request.links),
        callbacks=_registered(request, now_ns),
    )
    step: Step = EntityStep(state, now_ns)
    machine.schedule(step)
    await entity.create(
        context,
        ACTIVITY,
        request.activity_id,
        state.run_id,
        state,
        request_id=request.request_id,
        row=row_of(state, namespace_id=namespace.id, custom=namespace.search_attributes),
        tasks=step.tasks,
    )
    return state.run_id


def _started(
    context: OperationContext, request: StartActivityExecutionRequest, run_id: str, *, is_new: bool
) -> StartActivityExecutionResponse:
    link = activity_link(namespace=context.namespace.name, activity_id=request.activity_id, run_id=run_id)
    return StartActivityExecutionResponse(run_id=run_id, started=is_new, link=link)


def _check_reuse(request: StartActivityExecutionRequest, current: CurrentRun) -> None:
    policy = request.id_reuse_policy
    completed = current.status == WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_COMPLETED
    if policy == Reuse.ACTIVITY_ID_REUSE_POLICY_REJECT_DUPLICATE or (
        policy == Reuse.ACTIVITY_ID_REUSE_POLICY_ALLOW_DUPLICATE_FAILED_ONLY and completed
    ):
        raise _taken(current)


async def _use(context: OperationContext, request: StartActivityExecutionRequest, current: CurrentRun) -> None:
    """Use the current activity if the policy allows it; attach links and callbacks if the request asks for that."""
    if request.id_conflict_policy != Conflict.ACTIVITY_ID_CONFLICT_POLICY_USE_EXISTING:
        raise _taken(current)
    options = request.on_conflict_options
    new = [link.SerializeToString() for link in request.links] if options.attach_links else []
    attaches_callbacks = options.attach_completion_callbacks and bool(request.completion_callbacks)
    if not new and not attaches_callbacks:
        return

    def step(taken: Step) -> None:
        state = taken.state
        links = (*state.links, *(link for link in new if link not in state.links))
        if len(links) > LINKS_MAX:
            raise InvalidArgument(f"cannot attach more than {LINKS_MAX} links to an activity")
        state.links = links
        # A retried request adds no callbacks.
        if attaches_callbacks and all(each.request_id != request.request_id for each in state.callbacks):
            callbacks = (*state.callbacks, *_registered(request, taken.now_ns))
            if len(callbacks) > CALLBACKS_MAX:
                raise FailedPrecondition(
                    f"cannot attach more than {CALLBACKS_MAX} callbacks to an execution "
                    f"({len(state.callbacks)} callbacks already attached)"
                )
            state.callbacks = callbacks

    await change(context, current.workflow_id, current.run_id, step)


def _registered(request: StartActivityExecutionRequest, now_ns: int) -> tuple[RegisteredCallback, ...]:
    return tuple(
        RegisteredCallback(callback.SerializeToString(), request.request_id, now_ns)
        for callback in request.completion_callbacks
    )


def _taken(current: CurrentRun) -> AlreadyExists:
    detail = ActivityExecutionAlreadyStartedFailure(start_request_id=current.request_id, run_id=current.run_id)
    return AlreadyExists("activity execution already started", packed(detail))


async def poll(context: OperationContext, request: PollActivityExecutionRequest) -> Message:
    """Wait for the end of an activity; the response is empty if the activity does not end in time."""
    state = await _wait(context, request, lambda state: not state.is_open)
    if state is None:
        return PollActivityExecutionResponse()
    return PollActivityExecutionResponse(run_id=state.run_id, outcome=outcome_of(state))


async def describe(context: OperationContext, request: DescribeActivityExecutionRequest) -> Message:
    """Describe an activity; with a long poll token, wait for a change.

    The response is empty if there is no change in time.
    """
    if request.long_poll_token:
        seen = _read_token(request)
        state = await _wait(context, request, lambda state: state.transitions > seen.transitions)
        if state is None:
            return DescribeActivityExecutionResponse()
    else:
        state = await read(context, request.activity_id, request.run_id)
    answer = DescribeActivityExecutionResponse(
        run_id=state.run_id,
        info=info_of(
            state,
            now_ns=context.services.clock_ns(),
            with_heartbeat_details=request.include_heartbeat_details,
            with_last_failure=request.include_last_failure,
        ),
        long_poll_token=encode_token(state),
    )
    if request.include_input and state.input is not None:
        answer.input.ParseFromString(state.input)
    answer.callbacks.extend(callbacks_of(state))
    if request.include_outcome and not state.is_open:
        answer.outcome.CopyFrom(outcome_of(state))
    return answer


async def _wait(
    context: OperationContext,
    request: PollActivityExecutionRequest | DescribeActivityExecutionRequest,
    is_there: Callable[[ActivityState], bool],
) -> ActivityState | None:
    return await wait_until(context, ACTIVITY, request.activity_id, request.run_id, read=read, is_there=is_there)


def _read_token(request: DescribeActivityExecutionRequest) -> ChangeToken:
    token = decode_token(request.long_poll_token)
    if token.run_id != request.run_id:
        raise InvalidArgument("invalid long poll token")
    return token


async def request_cancel(context: OperationContext, request: RequestCancelActivityExecutionRequest) -> Message:
    """Request cancellation from the worker; cancel at once if no worker has the activity."""
    asked = Asked(request.request_id, request.identity, request.reason)
    reason = Payload(metadata={"encoding": b"json/plain"}, data=msgspec.json.encode(request.reason))
    await change(
        context,
        request.activity_id,
        request.run_id,
        lambda step: machine.request_cancel(step, asked, details=Payloads(payloads=[reason])),
    )
    return RequestCancelActivityExecutionResponse()


async def terminate(context: OperationContext, request: TerminateActivityExecutionRequest) -> Message:
    """Terminate an activity."""
    await change(
        context,
        request.activity_id,
        request.run_id,
        lambda step: machine.terminate(
            step, request_id=request.request_id, identity=request.identity, reason=request.reason
        ),
    )
    return TerminateActivityExecutionResponse()


async def delete(context: OperationContext, request: DeleteActivityExecutionRequest) -> Message:
    """Delete an activity, open or closed."""
    with named(request.activity_id):
        await entity.delete(context, ACTIVITY, request.activity_id, request.run_id)
    return DeleteActivityExecutionResponse()


async def pause(context: OperationContext, request: PauseActivityExecutionRequest) -> Message:
    """Pause an activity: begin no further attempts."""
    await change(
        context,
        request.activity_id,
        request.run_id,
        lambda step: controls.pause(step, request_id=request.request_id),
    )
    return PauseActivityExecutionResponse()


async def unpause(context: OperationContext, request: UnpauseActivityExecutionRequest) -> Message:
    """Unpause an activity."""
    jitter_ns = int(from_duration(request.jitter) * context.services.uniform())
    await change(
        context,
        request.activity_id,
        request.run_id,
        lambda step: controls.unpause(step, request_id=request.request_id, jitter_ns=jitter_ns),
    )
    return UnpauseActivityExecutionResponse()


async def reset(context: OperationContext, request: ResetActivityExecutionRequest) -> Message:
    """Reset an activity: count its attempts from 1 again."""
    jitter_ns = int(from_duration(request.jitter) * context.services.uniform())
    await change(
        context,
        request.activity_id,
        request.run_id,
        lambda step: controls.reset(
            step,
            keep_paused=request.keep_paused,
            forgets_heartbeat=request.reset_heartbeat,
            restores_options=request.restore_original_options,
            jitter_ns=jitter_ns,
        ),
    )
    return ResetActivityExecutionResponse()


async def update_options(context: OperationContext, request: UpdateActivityExecutionOptionsRequest) -> Message:
    """Change the options, or restore the original ones."""

    def step(taken: Step) -> Options:
        state = taken.state
        options = state.original
        sets_delay = options.start_delay_ns != state.options.start_delay_ns
        if not request.restore_original:
            sets_delay = "start_delay" in request.update_mask.paths
            options = merge_options(
                state.options,
                request.activity_options,
                request.update_mask.paths,
                activity_id=state.activity_id,
                activity_type=state.activity_type,
            )
        controls.update_options(taken, options, sets_delay=sets_delay)
        return options

    options = await change(context, request.activity_id, request.run_id, step)
    return UpdateActivityExecutionOptionsResponse(activity_options=options_answer(options))


OPERATIONS = {
    START_TASK: Operation(StartMatched, worker.start),
    "StartActivityExecution": Operation(StartActivityExecutionRequest, start),
    "PollActivityExecution": Operation(PollActivityExecutionRequest, poll),
    "DescribeActivityExecution": Operation(DescribeActivityExecutionRequest, describe),
    "RequestCancelActivityExecution": Operation(RequestCancelActivityExecutionRequest, request_cancel),
    "TerminateActivityExecution": Operation(TerminateActivityExecutionRequest, terminate),
    "DeleteActivityExecution": Operation(DeleteActivityExecutionRequest, delete),
    "PauseActivityExecution": Operation(PauseActivityExecutionRequest, pause),
    "UnpauseActivityExecution": Operation(UnpauseActivityExecutionRequest, unpause),
    "ResetActivityExecution": Operation(ResetActivityExecutionRequest, reset),
    "UpdateActivityExecutionOptions": Operation(UpdateActivityExecutionOptionsRequest, update_options),
}
