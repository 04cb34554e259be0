"""How a step of an activity that stands alone is taken: one commit, with its row in the lists where that changes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from fairlead.core.partitions import TaskList, TaskType
from fairlead.history import entities
from fairlead.history.entities import Archetype, EntityKey
from fairlead.history.pushing import new_task
from fairlead.history.refusals import Refused
from fairlead.history.scope import Scope
from fairlead.history.standalone import machine
from fairlead.history.standalone.answers import ARCHETYPE, row_of, stored_status
from fairlead.history.standalone.machine import Step, absent
from fairlead.history.standalone.state import ActivityState, Phase
from fairlead.history.standalone.tasks import Dispatch, Forget, TimeOut, decode_task, encode_task
from fairlead.history.tasks_wire import MatchedEntityTask
from fairlead.rpc import Code

T = TypeVar("T")

# The operation by which matching starts an attempt.
START_TASK = "StartStandaloneActivityTask"


@contextmanager
def named(activity_id: str) -> Iterator[None]:
    """Say of an activity that is not there that it is an activity."""
    try:
        yield
    except Refused as refused:
        if refused.code == Code.NOT_FOUND:
            raise absent(activity_id) from None
        raise


async def change(scope: Scope, activity_id: str, run_id: str, act: Callable[[Step], T]) -> T:
    """Take a step of an activity, the current one of its id if no run is named."""

    def take(step: Step) -> T:
        state = step.state
        status, was_open = stored_status(state), state.is_open
        result = act(step)
        if step.skip_write:
            return result
        state.transitions += 1
        if was_open and not state.is_open:
            step.status = stored_status(state)
            step.tasks.clear()
            step.add_task(encode_task(Forget()), state.closed_ns + scope.namespace.retention_ns)
        if stored_status(state) != status:
            step.row = row_of(state, namespace_id=scope.namespace.id, custom=scope.namespace.search_attributes)
        return result

    with named(activity_id):
        return await entities.change(scope, ACTIVITY, activity_id, run_id, take)


async def read(scope: Scope, activity_id: str, run_id: str) -> ActivityState:
    """An activity as it is, the current one of its id if no run is named."""
    with named(activity_id):
        return (await entities.read(scope, ACTIVITY, activity_id, run_id))[1]


async def run(scope: Scope, key: EntityKey, data: bytes) -> None:
    """Do what one of its tasks says."""
    task = decode_task(data)
    if isinstance(task, Dispatch):
        await _push(scope, key, task)
    elif isinstance(task, TimeOut):
        await change(scope, key.entity_id, key.run_id, lambda step: machine.time_out(step, task))
    elif not (await read(scope, key.entity_id, key.run_id)).is_open:
        await entities.delete(scope, ACTIVITY, key.entity_id, key.run_id)


async def _push(scope: Scope, key: EntityKey, task: Dispatch) -> None:
    state = await read(scope, key.entity_id, key.run_id)
    if state.phase is not Phase.SCHEDULED or state.stamp != task.stamp:
        return
    matched = MatchedEntityTask(*key, START_TASK, encode_task(task))
    task_list = TaskList(key.namespace_id, state.options.task_queue, TaskType.ACTIVITY)
    services = scope.services
    place = services.deployments.routed(task_list, key.entity_id)
    await services.matching.add(place, new_task(matched, state.options.priority, state.due_ns))


ACTIVITY = entities.register(Archetype(ARCHETYPE, ActivityState, run))
