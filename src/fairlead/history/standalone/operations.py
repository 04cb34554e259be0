"""What clients ask of activities that stand alone: started, waited for, described, canceled, controlled, deleted."""

import asyncio
from collections.abc import Callable

import msgspec
from google.protobuf.message import Message
from temporalio.api.common.v1 import Link, Payload, Payloads
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

from fairlead.history import entities
from fairlead.history.entities import EntityStep
from fairlead.history.refusals import Refused, invalid, refused
from fairlead.history.scope import Operation, Scope
from fairlead.history.standalone import controls, machine, worker
from fairlead.history.standalone.answers import info_of, options_answer, outcome_of, row_of
from fairlead.history.standalone.machine import Step
from fairlead.history.standalone.options import merge_options, read_options
from fairlead.history.standalone.state import ActivityState, Asked, Options
from fairlead.history.standalone.steps import ACTIVITY, START_TASK, change, named, read
from fairlead.history.state.times import from_duration
from fairlead.history.tasks_wire import StartMatched
from fairlead.rpc import Code
from fairlead.storage.history_contract import CurrentRun

LINKS_MAX = 100


class ChangeToken(msgspec.Struct, array_like=True, frozen=True):
    """How far somebody who waits for changes has seen an activity."""

    run_id: str
    transitions: int


async def start(scope: Scope, request: StartActivityExecutionRequest) -> Message:
    """Start an activity, or do with the one that has its id what the policies say."""
    # One at a time for an id: what is found is still so when the new one is written, or has closed since.
    async with scope.shard.lock(f"{ACTIVITY.namespace_id(scope.namespace.id)}#start", request.activity_id):
        current = await entities.find(scope, ACTIVITY, request.activity_id)
        if current is None:
            return _started(scope, request, await _create(scope, request), is_new=True)
        if current.request_id == request.request_id:
            return _started(scope, request, current.run_id, is_new=False)
        if not current.is_closed:
            await _use(scope, request, current)
            return _started(scope, request, current.run_id, is_new=False)
        _check_reuse(request, current)
        return _started(scope, request, await _create(scope, request), is_new=True)


async def _create(scope: Scope, request: StartActivityExecutionRequest) -> str:
    services, namespace = scope.services, scope.namespace
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
    )
    step: Step = EntityStep(state, now_ns)
    machine.schedule(step)
    await entities.create(
        scope,
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
    scope: Scope, request: StartActivityExecutionRequest, run_id: str, *, is_new: bool
) -> StartActivityExecutionResponse:
    link = Link()
    link.activity.namespace = scope.namespace.name
    link.activity.activity_id = request.activity_id
    link.activity.run_id = run_id
    return StartActivityExecutionResponse(run_id=run_id, started=is_new, link=link)


def _check_reuse(request: StartActivityExecutionRequest, current: CurrentRun) -> None:
    policy = request.id_reuse_policy
    completed = current.status == WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_COMPLETED
    if policy == Reuse.ACTIVITY_ID_REUSE_POLICY_REJECT_DUPLICATE or (
        policy == Reuse.ACTIVITY_ID_REUSE_POLICY_ALLOW_DUPLICATE_FAILED_ONLY and completed
    ):
        raise _taken(current)


async def _use(scope: Scope, request: StartActivityExecutionRequest, current: CurrentRun) -> None:
    """The activity that is there will do, if the policy says so; links are added to its own where that is asked for."""
    if request.id_conflict_policy != Conflict.ACTIVITY_ID_CONFLICT_POLICY_USE_EXISTING:
        raise _taken(current)
    if not request.on_conflict_options.attach_links or not request.links:
        return
    new = [link.SerializeToString() for link in request.links]

    def step(taken: Step) -> None:
        links = (*taken.state.links, *(link for link in new if link not in taken.state.links))
        if len(links) > LINKS_MAX:
            raise invalid(f"cannot attach more than {LINKS_MAX} links to an activity")
        taken.state.links = links

    await change(scope, current.workflow_id, current.run_id, step)


def _taken(current: CurrentRun) -> Refused:
    detail = ActivityExecutionAlreadyStartedFailure(start_request_id=current.request_id, run_id=current.run_id)
    return refused(Code.ALREADY_EXISTS, "activity execution already started", detail)


async def poll(scope: Scope, request: PollActivityExecutionRequest) -> Message:
    """How it ended, once it has; nothing if the time is over before."""
    state = await _wait(scope, request.activity_id, request.run_id, lambda state: not state.is_open)
    if state is None:
        return PollActivityExecutionResponse()
    return PollActivityExecutionResponse(run_id=state.run_id, outcome=outcome_of(state))


async def describe(scope: Scope, request: DescribeActivityExecutionRequest) -> Message:
    """What there is to know; with a token of an answer before: once there is more, or nothing if there is not."""
    if request.long_poll_token:
        seen = _read_token(request)
        state = await _wait(
            scope, request.activity_id, request.run_id, lambda state: state.transitions > seen.transitions
        )
        if state is None:
            return DescribeActivityExecutionResponse()
    else:
        state = await read(scope, request.activity_id, request.run_id)
    answer = DescribeActivityExecutionResponse(
        run_id=state.run_id,
        info=info_of(
            state,
            now_ns=scope.services.clock_ns(),
            with_heartbeat_details=request.include_heartbeat_details,
            with_last_failure=request.include_last_failure,
        ),
        long_poll_token=msgspec.msgpack.encode(ChangeToken(state.run_id, state.transitions)),
    )
    if request.include_input and state.input is not None:
        answer.input.ParseFromString(state.input)
    if request.include_outcome and not state.is_open:
        answer.outcome.CopyFrom(outcome_of(state))
    return answer


async def _wait(
    scope: Scope, activity_id: str, run_id: str, is_there: Callable[[ActivityState], bool]
) -> ActivityState | None:
    """An activity once it is as it should be, None if the time is over before that."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + scope.timeout_s
    state = await read(scope, activity_id, run_id)
    while not is_there(state):
        left_s = end_s - loop.time()
        if left_s <= 0:
            return None
        await entities.wait_for_change(scope, ACTIVITY, activity_id, state.run_id, left_s)
        state = await read(scope, activity_id, state.run_id)
    return state


def _read_token(request: DescribeActivityExecutionRequest) -> ChangeToken:
    try:
        token = msgspec.msgpack.decode(request.long_poll_token, type=ChangeToken)
    except (msgspec.DecodeError, UnicodeDecodeError):
        token = None
    if token is None or token.run_id != request.run_id:
        raise invalid("invalid long poll token")
    return token


async def request_cancel(scope: Scope, request: RequestCancelActivityExecutionRequest) -> Message:
    """Ask its worker to end it, or end it where none has it."""
    asked = Asked(request.request_id, request.identity, request.reason)
    reason = Payload(metadata={"encoding": b"json/plain"}, data=msgspec.json.encode(request.reason))
    await change(
        scope,
        request.activity_id,
        request.run_id,
        lambda step: machine.request_cancel(step, asked, details=Payloads(payloads=[reason])),
    )
    return RequestCancelActivityExecutionResponse()


async def terminate(scope: Scope, request: TerminateActivityExecutionRequest) -> Message:
    """End it."""
    await change(
        scope,
        request.activity_id,
        request.run_id,
        lambda step: machine.terminate(
            step, request_id=request.request_id, identity=request.identity, reason=request.reason
        ),
    )
    return TerminateActivityExecutionResponse()


async def delete(scope: Scope, request: DeleteActivityExecutionRequest) -> Message:
    """Nothing is left of it, whether it has ended or not."""
    with named(request.activity_id):
        await entities.delete(scope, ACTIVITY, request.activity_id, request.run_id)
    return DeleteActivityExecutionResponse()


async def pause(scope: Scope, request: PauseActivityExecutionRequest) -> Message:
    """Begin no further attempt."""
    await change(
        scope,
        request.activity_id,
        request.run_id,
        lambda step: controls.pause(step, request_id=request.request_id),
    )
    return PauseActivityExecutionResponse()


async def unpause(scope: Scope, request: UnpauseActivityExecutionRequest) -> Message:
    """Go on."""
    jitter_ns = int(from_duration(request.jitter) * scope.services.uniform())
    await change(
        scope,
        request.activity_id,
        request.run_id,
        lambda step: controls.unpause(step, request_id=request.request_id, jitter_ns=jitter_ns),
    )
    return UnpauseActivityExecutionResponse()


async def reset(scope: Scope, request: ResetActivityExecutionRequest) -> Message:
    """Count the attempts from 1 again."""
    jitter_ns = int(from_duration(request.jitter) * scope.services.uniform())
    await change(
        scope,
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


async def update_options(scope: Scope, request: UpdateActivityExecutionOptionsRequest) -> Message:
    """Take other options, or those that it was started with."""

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

    options = await change(scope, request.activity_id, request.run_id, step)
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
