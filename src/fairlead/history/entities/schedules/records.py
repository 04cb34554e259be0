"""Stored schedules: reads, and changes in one step with the tasks that result from them."""

from collections.abc import Callable
from typing import TypeVar

from fairlead.api.errors import NotFound
from fairlead.api.schedules.lists import ARCHETYPE
from fairlead.history.entities import entity
from fairlead.history.entities.entity import Archetype, EntityStep
from fairlead.history.entities.schedules.machine import Machine
from fairlead.history.entities.schedules.responses import row_of
from fairlead.history.entities.schedules.state import ScheduleRecord
from fairlead.history.shard.context import OperationContext
from fairlead.storage.visibility import VisibilityRow

# Data of a schedule's tasks: carry out the decided starts and stops; or advance the schedule at the time that is
# appended.
ACT = b"act"
WAKE = b"wake"

T = TypeVar("T")
Task = tuple[bytes, int]


def archetype() -> Archetype[ScheduleRecord]:
    """The archetype of schedules."""
    return entity.ARCHETYPES[ARCHETYPE]


def machine_of(context: OperationContext, schedule_id: str, record: ScheduleRecord, now_ns: int) -> Machine:
    """The state machine of the schedule at the time `now_ns`."""
    return Machine(record, now_ns=now_ns, seed=f"{context.namespace.id}-{schedule_id}")


async def create(
    context: OperationContext, schedule_id: str, run_id: str, machine: Machine, *, request_id: str
) -> None:
    """Create a schedule; raises `CurrentConflict` with the present schedule if the id is in use."""
    record = machine.record
    row = _row(context, schedule_id, run_id, machine)
    tasks = _tasks(record, begins=bool(record.starting or record.stopping), woken_ns=0)
    await entity.create(context, archetype(), schedule_id, run_id, record, request_id=request_id, row=row, tasks=tasks)


async def read(context: OperationContext, schedule_id: str, run_id: str = "") -> tuple[str, ScheduleRecord]:
    """The run id and the record of a schedule."""
    try:
        return await entity.read(context, archetype(), schedule_id, run_id)
    except NotFound:
        raise _missing() from None


async def delete(context: OperationContext, schedule_id: str, run_id: str = "") -> None:
    """Delete a schedule."""
    try:
        await entity.delete(context, archetype(), schedule_id, run_id)
    except NotFound:
        raise _missing() from None


async def change(
    context: OperationContext, schedule_id: str, run_id: str, act: Callable[[Machine], T], *, is_wake: bool = False
) -> T:
    """Change a schedule, advance it, and write everything in one step.

    `is_wake` is true if the wake-up has fired: the schedule then needs another wake-up, even for the same time.
    """
    run_id = run_id or (await read(context, schedule_id))[0]

    def step(taken: EntityStep[ScheduleRecord]) -> T:
        record = taken.state
        woken_ns = 0 if is_wake else record.wake_ns
        known = {start.number for start in record.starting}, set(record.stopping)
        machine = machine_of(context, schedule_id, record, taken.now_ns)
        result = act(machine)
        machine.advance()
        begins = not {start.number for start in record.starting} <= known[0] or not set(record.stopping) <= known[1]
        for data, fire_at_ns in _tasks(record, begins=begins, woken_ns=woken_ns):
            taken.add_task(data, fire_at_ns)
        taken.row = _row(context, schedule_id, run_id, machine)
        return result

    try:
        return await entity.change(context, archetype(), schedule_id, run_id, step)
    except NotFound:
        raise _missing() from None


async def change_if_there(
    context: OperationContext, schedule_id: str, run_id: str, act: Callable[[Machine], T], *, is_wake: bool = False
) -> T | None:
    """Like `change`, but does nothing if the schedule doesn't exist."""
    try:
        return await change(context, schedule_id, run_id, act, is_wake=is_wake)
    except NotFound:
        return None


async def read_if_there(context: OperationContext, schedule_id: str, run_id: str) -> ScheduleRecord | None:
    """The record of a schedule; None if it doesn't exist."""
    try:
        return (await read(context, schedule_id, run_id))[1]
    except NotFound:
        return None


def _missing() -> NotFound:
    return NotFound("schedule not found")


def _tasks(record: ScheduleRecord, *, begins: bool, woken_ns: int) -> list[Task]:
    """The new tasks after a step. Earlier decisions and an unchanged wake-up have their tasks already."""
    tasks: list[Task] = [(ACT, 0)] if begins else []
    if record.wake_ns and record.wake_ns != woken_ns:
        tasks.append((WAKE + record.wake_ns.to_bytes(8, "big"), record.wake_ns))
    return tasks


def _row(context: OperationContext, schedule_id: str, run_id: str, machine: Machine) -> VisibilityRow | None:
    return row_of(
        machine,
        namespace_id=archetype().namespace_id(context.namespace.id),
        schedule_id=schedule_id,
        run_id=run_id,
        custom=context.namespace.search_attributes,
    )
