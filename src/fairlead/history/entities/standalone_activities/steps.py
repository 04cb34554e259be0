"""Steps of a standalone activity. Each is one commit, together with the visibility row if it changes."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from temporalio.api.common.v1 import Callback

from fairlead.api.errors import NotFound
from fairlead.api.links import activity_link
from fairlead.api.standalone_activities import ARCHETYPE
from fairlead.core.partitions import TaskQueueId, TaskType
from fairlead.history.entities import entity
from fairlead.history.entities.entity import Archetype, EntityKey
from fairlead.history.entities.standalone_activities import machine
from fairlead.history.entities.standalone_activities.machine import Step, absent
from fairlead.history.entities.standalone_activities.responses import outcome_of, row_of, stored_status
from fairlead.history.entities.standalone_activities.state import AT_WORKER, ActivityState, Phase
from fairlead.history.entities.standalone_activities.tasks import (
    Deliver,
    Dispatch,
    Forget,
    TimeOut,
    decode_task,
    encode_task,
)
from fairlead.history.messages.matching_tasks import MatchedEntityTask
from fairlead.history.nexus.callbacks import NO_RESULT
from fairlead.history.nexus.delivery import deliver
from fairlead.history.shard.context import OperationContext
from fairlead.history.shard.matching_tasks import new_task
from fairlead.history.state.work import NO_WORK, WaitingTask, Work
from fairlead.storage.history import RunKey

T = TypeVar("T")

# Name of the call by which matching starts an attempt for a worker.
START_TASK = "StartStandaloneActivityTask"


@contextmanager
def named(activity_id: str) -> Iterator[None]:
    """Raise an error that names the activity if it does not exist."""
    try:
        yield
    except NotFound:
        raise absent(activity_id) from None


async def change(
    context: OperationContext,
    activity_id: str,
    run_id: str,
    act: Callable[[Step], T],
    *,
    prepare: Callable[[RunKey, ActivityState], Awaitable[None]] | None = None,
) -> T:
    """Change an activity by one step; an empty `run_id` means its current run. For `prepare` see `entity.change`."""
    taken: list[ActivityState] = []

    def take(step: Step) -> T:
        state = step.state
        taken.append(state)
        status, was_open = stored_status(state), state.is_open
        result = act(step)
        if step.skip_write:
            return result
        state.transitions += 1
        if was_open and not state.is_open:
            step.status = stored_status(state)
            step.tasks.clear()
            step.add_task(encode_task(Forget()), state.closed_ns + context.namespace.retention_ns)
            for number in range(len(state.callbacks)):
                step.add_task(encode_task(Deliver(number)))
        if stored_status(state) != status:
            step.row = row_of(state, namespace_id=context.namespace.id, custom=context.namespace.search_attributes)
        return result

    with named(activity_id):
        result = await entity.change(context, ACTIVITY, activity_id, run_id, take, prepare=prepare)
    report_work(context, taken[0])
    return result


def report_work(context: OperationContext, state: ActivityState) -> None:
    """After a step, report whether the activity has a task in flight."""
    on_work = context.services.on_work
    if on_work is None:
        return
    work = NO_WORK
    if state.phase in AT_WORKER:
        work = Work(activities=1)
    elif state.phase is Phase.SCHEDULED and state.due_ns <= context.services.clock_ns():
        task = WaitingTask(context.namespace.id, TaskType.ACTIVITY, (state.options.task_queue,))
        work = Work(waiting=(task,))
    on_work(RunKey(ACTIVITY.namespace_id(context.namespace.id), state.activity_id, state.run_id), work)


async def read(context: OperationContext, activity_id: str, run_id: str) -> ActivityState:
    """The state of an activity, of its current run if `run_id` is empty."""
    with named(activity_id):
        return (await entity.read(context, ACTIVITY, activity_id, run_id))[1]


async def run(context: OperationContext, key: EntityKey, data: bytes) -> None:
    """Execute one of the activity's tasks."""
    task = decode_task(data)
    if isinstance(task, Dispatch):
        await _push(context, key, task)
    elif isinstance(task, TimeOut):
        await change(context, key.entity_id, key.run_id, lambda step: machine.time_out(step, task))
    elif isinstance(task, Deliver):
        await _deliver(context, key, task)
    elif not (await read(context, key.entity_id, key.run_id)).is_open:
        await entity.delete(context, ACTIVITY, key.entity_id, key.run_id)


def is_pending(state: ActivityState, data: bytes, fire_at_ns: int) -> bool:
    """Whether a timer will have an effect. The deletion of a closed activity does not count."""
    task = decode_task(data)
    if isinstance(task, Dispatch):
        return state.phase is Phase.SCHEDULED and state.stamp == task.stamp
    return isinstance(task, TimeOut) and machine.is_timeout_pending(state, task, fire_at_ns)


async def _deliver(context: OperationContext, key: EntityKey, task: Deliver) -> None:
    """Report the activity's end to the Nexus operation that it backs."""
    state = await read(context, key.entity_id, key.run_id)
    registered = state.callbacks[task.number]
    if state.is_open or registered.progress is not None:
        return
    outcome = outcome_of(state)
    payloads = outcome.result.payloads
    progress = await deliver(
        context,
        Callback.FromString(registered.callback),
        started_ns=state.scheduled_ns,
        link=activity_link(namespace=context.namespace.name, activity_id=state.activity_id, run_id=state.run_id),
        result=payloads[0] if payloads else NO_RESULT,
        failure=outcome.failure if outcome.HasField("failure") else None,
    )

    def step(taken: Step) -> None:
        taken.state.callbacks[task.number].progress = progress

    await change(context, key.entity_id, key.run_id, step)


async def _push(context: OperationContext, key: EntityKey, task: Dispatch) -> None:
    state = await read(context, key.entity_id, key.run_id)
    if state.phase is not Phase.SCHEDULED or state.stamp != task.stamp:
        return
    report_work(context, state)
    matched = MatchedEntityTask(*key, START_TASK, encode_task(task))
    task_queue = TaskQueueId(key.namespace_id, state.options.task_queue, TaskType.ACTIVITY)
    services = context.services
    routed = services.deployments.routed(task_queue, key.entity_id)
    await services.matching.add(routed, new_task(matched, state.options.priority, state.due_ns))


ACTIVITY = entity.register(Archetype(ARCHETYPE, ActivityState, run, is_pending))
