"""Requests of workers for standalone activities: start an attempt, heartbeat, complete, fail, cancel."""

import msgspec
from temporalio.api.common.v1 import Payloads
from temporalio.api.failure.v1 import Failure

from fairlead.api.errors import InvalidArgument
from fairlead.api.standalone_activities import ARCHETYPE
from fairlead.history.entities.standalone_activities import machine
from fairlead.history.entities.standalone_activities.machine import HeartbeatResponse, Step
from fairlead.history.entities.standalone_activities.responses import worker_answer
from fairlead.history.entities.standalone_activities.state import AT_WORKER, ActivityState, Phase
from fairlead.history.entities.standalone_activities.steps import change
from fairlead.history.entities.standalone_activities.tasks import Dispatch, decode_task
from fairlead.history.messages.matching_tasks import MatchedEntityTask, StartMatched
from fairlead.history.shard.context import OperationContext
from fairlead.history.shard.matching_tasks import fairness_key_of
from fairlead.history.shard.slots import ENTITY_TOKENS
from fairlead.storage.history import RunKey


async def start(context: OperationContext, request: StartMatched) -> bytes:
    """Give an attempt to the worker whose poll got the task."""
    matched = request.task
    task = decode_task(matched.data) if isinstance(matched, MatchedEntityTask) else None
    if not isinstance(task, Dispatch):
        raise InvalidArgument("not an activity task")

    start_id = context.services.new_id()

    def step(taken: Step) -> bytes:
        machine.start(taken, stamp=task.stamp, identity=request.identity, sdk=request.sdk)
        taken.state.start_id = start_id
        namespace = context.namespace
        return worker_answer(taken.state, namespace_id=namespace.id, namespace=namespace.name).SerializeToString()

    tried: list[RunKey] = []

    async def take_slot(key: RunKey, state: ActivityState) -> None:
        if state.phase is Phase.SCHEDULED and state.stamp == task.stamp:
            tried.append(key)
            await context.shard.slots.take(
                key,
                token=start_id,
                event_id=state.starts + 1,
                task_queue=state.options.task_queue,
                fairness_key=fairness_key_of(state.options.priority),
            )

    try:
        return await change(context, matched.workflow_id, matched.run_id, step, prepare=take_slot)
    except BaseException:
        for key in tried:
            context.shard.slots.doubt(key)
        raise


def _running_token(stored: bytes) -> str | None:
    state = msgspec.msgpack.decode(stored, type=ActivityState)
    return state.start_id if state.phase in AT_WORKER else None


ENTITY_TOKENS[ARCHETYPE] = _running_token


async def heartbeat(
    context: OperationContext, activity_id: str, run_id: str, *, number: int | None, details: Payloads | None
) -> HeartbeatResponse:
    """Record a heartbeat. `number` is the number of the start; None if the request names the activity by id."""
    return await change(
        context, activity_id, run_id, lambda step: machine.heartbeat(step, number=number, details=details)
    )


async def complete(
    context: OperationContext,
    activity_id: str,
    run_id: str,
    *,
    number: int | None,
    result: Payloads | None,
    identity: str,
) -> None:
    """Complete the activity."""
    await change(
        context,
        activity_id,
        run_id,
        lambda step: machine.complete(step, number=number, result=result, identity=identity),
    )


async def fail(
    context: OperationContext,
    activity_id: str,
    run_id: str,
    *,
    number: int | None,
    failure: Failure | None,
    last_details: Payloads | None,
) -> None:
    """Fail the attempt."""
    await change(
        context,
        activity_id,
        run_id,
        lambda step: machine.fail(step, number=number, failure=failure, last_details=last_details),
    )


async def cancel(
    context: OperationContext, activity_id: str, run_id: str, *, number: int | None, details: Payloads | None
) -> None:
    """Cancel the activity: the worker ended it after a cancel request."""
    await change(
        context, activity_id, run_id, lambda step: machine.cancel_by_worker(step, number=number, details=details)
    )
