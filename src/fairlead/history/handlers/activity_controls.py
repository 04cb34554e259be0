"""Operations of an operator on a workflow's activities: pause, unpause, reset."""

from collections.abc import Callable

from google.protobuf.message import Message
from temporalio.api.workflowservice.v1 import (
    PauseActivityRequest,
    PauseActivityResponse,
    ResetActivityRequest,
    ResetActivityResponse,
    UnpauseActivityRequest,
    UnpauseActivityResponse,
    UpdateActivityOptionsRequest,
)

from fairlead.api.errors import FailedPrecondition
from fairlead.api.times import from_duration
from fairlead.history.events import (
    Transaction,
    change_activity_options,
    pause_activity,
    reset_activity,
    unpause_activity,
)
from fairlead.history.shard.context import Operation, OperationContext
from fairlead.history.shard.run_cache import LoadedRun
from fairlead.history.state import NotPending, RunState

AnyControl = PauseActivityRequest | UnpauseActivityRequest | ResetActivityRequest | UpdateActivityOptionsRequest


def matching(state: RunState, request: AnyControl) -> list[int]:
    """The scheduled event ids of the activities that a request selects; `NotPending` if none has the id or type."""
    every = request.WhichOneof("activity") in ("match_all", "unpause_all")
    found = [
        event_id
        for event_id, activity in state.activities.items()
        if event_id not in state.live.ending
        and (
            every
            or (request.id and activity.activity_id == request.id)
            or (request.type and activity.activity_type == request.type)
        )
    ]
    if not found and not every:
        raise NotPending(
            "Can't find pending activity with such ID. Invalid activityID or activity already completed",
        )
    return found


async def _each(
    context: OperationContext,
    request: PauseActivityRequest | UnpauseActivityRequest | ResetActivityRequest,
    act: Callable[[Transaction, int], None],
) -> None:
    def step(transaction: Transaction, _run: LoadedRun) -> None:
        for event_id in matching(transaction.state, request):
            act(transaction, event_id)

    execution = request.execution
    await context.shard.change(context.namespace, execution.workflow_id, execution.run_id, step)


async def pause(context: OperationContext, request: PauseActivityRequest) -> Message:
    """Pause activities: no further attempt begins."""

    def act(transaction: Transaction, event_id: int) -> None:
        progress = transaction.state.live.activities.get(event_id)
        if progress is not None and progress.paused:
            if request.request_id and progress.pause_request_id == request.request_id:
                return
            raise FailedPrecondition("activity is already paused")
        pause_activity(
            transaction,
            event_id,
            identity=request.identity,
            reason=request.reason,
            request_id=request.request_id,
        )

    await _each(context, request, act)
    return PauseActivityResponse()


async def unpause(context: OperationContext, request: UnpauseActivityRequest) -> Message:
    """Unpause activities: the next attempt may begin."""

    def act(transaction: Transaction, event_id: int) -> None:
        jitter_ns = int(from_duration(request.jitter) * context.services.uniform())
        progress = transaction.state.live.activities.get(event_id)
        if progress is None or not progress.paused:
            return
        if request.reset_attempts:
            reset_activity(transaction, event_id, keep_paused=True, reset_heartbeat=request.reset_heartbeat)
        elif request.reset_heartbeat:
            progress.heartbeat_details = None
        unpause_activity(transaction, event_id, jitter_ns=jitter_ns)

    await _each(context, request, act)
    return UnpauseActivityResponse()


async def reset(context: OperationContext, request: ResetActivityRequest) -> Message:
    """Reset activities: their attempts count from 1 again."""
    shard, execution = context.shard, request.execution
    async with shard.lock(context.namespace.id, execution.workflow_id):
        run = await shard.load(context.namespace.id, execution.workflow_id, execution.run_id)
        run.state.check_open()
        event_ids = matching(run.state, request)

        def step(transaction: Transaction, _run: LoadedRun) -> None:
            for event_id in event_ids:
                jitter_ns = int(from_duration(request.jitter) * context.services.uniform())
                if request.restore_original_options:
                    change_activity_options(transaction, event_id, None)
                reset_activity(
                    transaction,
                    event_id,
                    keep_paused=request.keep_paused,
                    reset_heartbeat=request.reset_heartbeat,
                    jitter_ns=jitter_ns,
                )

        await shard.step(context.namespace, run, step)
    return ResetActivityResponse()


OPERATIONS = {
    "PauseActivity": Operation(PauseActivityRequest, pause),
    "UnpauseActivity": Operation(UnpauseActivityRequest, unpause),
    "ResetActivity": Operation(ResetActivityRequest, reset),
}
