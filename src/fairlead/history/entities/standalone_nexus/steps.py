"""Steps of a standalone Nexus operation. Each is one commit, together with the visibility row if it changes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from fairlead.api.errors import NotFound
from fairlead.api.standalone_nexus import ARCHETYPE
from fairlead.core.partitions import TaskType
from fairlead.history.entities import entity
from fairlead.history.entities.entity import Archetype, EntityKey
from fairlead.history.entities.standalone_nexus import machine
from fairlead.history.entities.standalone_nexus.machine import Step, absent
from fairlead.history.entities.standalone_nexus.responses import row_of, stored_status
from fairlead.history.entities.standalone_nexus.state import OperationState, Phase
from fairlead.history.entities.standalone_nexus.tasks import (
    Call,
    CallTimeout,
    Forget,
    Retry,
    TimeOut,
    decode_task,
    encode_task,
)
from fairlead.history.messages.matching_tasks import MatchedEntityTask
from fairlead.history.nexus.dispatch import dispatch
from fairlead.history.nexus.requests import NexusCall, encode_call
from fairlead.history.shard.context import OperationContext
from fairlead.history.state.errors import NotPending
from fairlead.history.state.work import NO_WORK, WaitingTask, Work
from fairlead.storage.history import RunKey

T = TypeVar("T")

# Name of the call by which matching starts a request for a worker.
START_TASK = "StartStandaloneNexusTask"


@contextmanager
def named(operation_id: str) -> Iterator[None]:
    """Raise an error that names the operation if it does not exist."""
    try:
        yield
    except NotFound:
        raise absent(operation_id) from None


async def change(context: OperationContext, operation_id: str, run_id: str, act: Callable[[Step], T]) -> T:
    """Change an operation by one step; an empty `run_id` means its current run."""

    def take(step: Step) -> T:
        state = step.state
        was_open = state.is_open
        result = act(step)
        if step.skip_write:
            return result
        state.transitions += 1
        if was_open and not state.is_open:
            step.status = stored_status(state)
            step.tasks.clear()
            step.add_task(encode_task(Forget()), state.closed_ns + context.namespace.retention_ns)
            step.row = row_of(state, namespace_id=context.namespace.id, custom=context.namespace.search_attributes)
        return result

    with named(operation_id):
        result, state = await entity.change(
            context, OPERATION, operation_id, run_id, lambda step: (take(step), step.state)
        )
    report_work(context, state)
    return result


def report_work(context: OperationContext, state: OperationState) -> None:
    """After a step, report whether the operation has a request in flight."""
    on_work = context.services.on_work
    if on_work is None:
        return
    # The handler may be in another namespace.
    work = Work(waiting=(WaitingTask("", TaskType.NEXUS),)) if state.phase is Phase.SCHEDULED else NO_WORK
    on_work(RunKey(OPERATION.namespace_id(context.namespace.id), state.operation_id, state.run_id), work)


async def read(context: OperationContext, operation_id: str, run_id: str) -> OperationState:
    """The state of an operation, of its current run if `run_id` is empty."""
    with named(operation_id):
        return (await entity.read(context, OPERATION, operation_id, run_id))[1]


async def run(context: OperationContext, key: EntityKey, data: bytes) -> None:
    """Execute one of the operation's tasks."""
    task = decode_task(data)
    match task:
        case Call():
            await _call(context, key, task)
        case CallTimeout():
            await change(context, key.entity_id, key.run_id, lambda step: machine.give_up_call(step, task))
        case Retry():
            await change(context, key.entity_id, key.run_id, lambda step: machine.retry(step, task))
        case TimeOut():
            await change(context, key.entity_id, key.run_id, lambda step: machine.time_out(step, task))
        case Forget():
            if not (await read(context, key.entity_id, key.run_id)).is_open:
                await entity.delete(context, OPERATION, key.entity_id, key.run_id)


async def _call(context: OperationContext, key: EntityKey, task: Call) -> None:
    state = await read(context, key.entity_id, key.run_id)
    if not machine.is_called(state, task.attempt, is_cancel=task.is_cancel):
        return

    report_work(context, state)

    def matched(handler_namespace_id: str, now_ns: int) -> MatchedEntityTask:
        call = NexusCall(handler_namespace_id, 0, task.attempt, task.is_cancel, now_ns)
        return MatchedEntityTask(*key, START_TASK, encode_call(call))

    failure = await dispatch(context, endpoint_id=state.endpoint_id, endpoint=state.endpoint, task=matched)
    if failure is None:
        return

    def step(taken: Step) -> None:
        if task.is_cancel:
            machine.cancel_answered(taken, task.attempt, failure=failure)
        else:
            machine.call_failed(taken, task.attempt, failure=failure)

    with suppress(NotPending):
        await change(context, key.entity_id, key.run_id, step)


def is_pending(state: OperationState, data: bytes, _fire_at_ns: int) -> bool:
    """Whether a timer will have an effect. The deletion of a closed operation does not count."""
    match decode_task(data):
        case CallTimeout(attempt, is_cancel):
            return machine.is_called(state, attempt, is_cancel=is_cancel)
        case Retry() as task:
            return machine.is_retry_pending(state, task)
        case TimeOut() as task:
            return machine.is_timeout_pending(state, task)
        case _:
            return False


OPERATION = entity.register(Archetype(ARCHETYPE, OperationState, run, is_pending))
