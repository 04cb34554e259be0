"""Schedules in the store: read, and changed in one step with everything that follows from it."""

from collections.abc import Callable
from typing import TypeVar

from fairlead.history import entities
from fairlead.history.entities import Archetype, EntityStep
from fairlead.history.refusals import Refused, not_found
from fairlead.history.schedules.answers import row_of
from fairlead.history.schedules.machine import Machine
from fairlead.history.schedules.state import ScheduleRecord
from fairlead.history.scope import Scope
from fairlead.rpc import Code
from fairlead.storage.history_visibility import VisibilityRow

ARCHETYPE = "schedule"
# What a schedule's tasks say: do what was decided; or look, because the time has come that follows.
ACT = b"act"
WAKE = b"wake"

T = TypeVar("T")
Task = tuple[bytes, int]


def archetype() -> Archetype[ScheduleRecord]:
    """What schedules are among the entities."""
    return entities.ARCHETYPES[ARCHETYPE]


def machine_of(scope: Scope, schedule_id: str, record: ScheduleRecord, now_ns: int) -> Machine:
    """The schedule at a time."""
    return Machine(record, now_ns=now_ns, seed=f"{scope.namespace.id}-{schedule_id}")


async def create(scope: Scope, schedule_id: str, run_id: str, machine: Machine, *, request_id: str) -> None:
    """Begin a schedule. `CurrentConflict` says what has its id."""
    record = machine.record
    row = _row(scope, schedule_id, run_id, machine)
    tasks = _tasks(record, begins=bool(record.starting or record.stopping), woken_ns=0)
    await entities.create(scope, archetype(), schedule_id, run_id, record, request_id=request_id, row=row, tasks=tasks)


async def read(scope: Scope, schedule_id: str, run_id: str = "") -> tuple[str, ScheduleRecord]:
    """A schedule and its run id."""
    try:
        return await entities.read(scope, archetype(), schedule_id, run_id)
    except Refused as error:
        raise _told(error) from None


async def delete(scope: Scope, schedule_id: str, run_id: str = "") -> None:
    """Delete a schedule."""
    try:
        await entities.delete(scope, archetype(), schedule_id, run_id)
    except Refused as error:
        raise _told(error) from None


async def change(
    scope: Scope, schedule_id: str, run_id: str, act: Callable[[Machine], T], *, is_wake: bool = False
) -> T:
    """Change a schedule, have it decide what follows, and write all of it at once.

    `is_wake`: its wake-up has come, so that it needs another one, even if for the same time.
    """
    run_id = run_id or (await read(scope, schedule_id))[0]

    def step(taken: EntityStep[ScheduleRecord]) -> T:
        record = taken.state
        woken_ns = 0 if is_wake else record.wake_ns
        known = {start.number for start in record.starting}, set(record.stopping)
        machine = machine_of(scope, schedule_id, record, taken.now_ns)
        result = act(machine)
        machine.advance()
        begins = not {start.number for start in record.starting} <= known[0] or not set(record.stopping) <= known[1]
        for data, fire_at_ns in _tasks(record, begins=begins, woken_ns=woken_ns):
            taken.add_task(data, fire_at_ns)
        taken.row = _row(scope, schedule_id, run_id, machine)
        return result

    try:
        return await entities.change(scope, archetype(), schedule_id, run_id, step)
    except Refused as error:
        raise _told(error) from None


async def change_if_there(
    scope: Scope, schedule_id: str, run_id: str, act: Callable[[Machine], T], *, is_wake: bool = False
) -> T | None:
    """The same, but nothing happens if the schedule is gone."""
    try:
        return await change(scope, schedule_id, run_id, act, is_wake=is_wake)
    except Refused as error:
        if error.code == Code.NOT_FOUND:
            return None
        raise


async def read_if_there(scope: Scope, schedule_id: str, run_id: str) -> ScheduleRecord | None:
    """A schedule, None if it is gone."""
    try:
        return (await read(scope, schedule_id, run_id))[1]
    except Refused as error:
        if error.code == Code.NOT_FOUND:
            return None
        raise


def _told(error: Refused) -> Refused:
    return not_found("schedule not found") if error.code == Code.NOT_FOUND else error


def _tasks(record: ScheduleRecord, *, begins: bool, woken_ns: int) -> list[Task]:
    """What is to be done after a step. For what was decided before, and for the same wake-up, there is a task."""
    tasks: list[Task] = [(ACT, 0)] if begins else []
    if record.wake_ns and record.wake_ns != woken_ns:
        tasks.append((WAKE + record.wake_ns.to_bytes(8, "big"), record.wake_ns))
    return tasks


def _row(scope: Scope, schedule_id: str, run_id: str, machine: Machine) -> VisibilityRow | None:
    return row_of(
        machine,
        namespace_id=archetype().namespace_id(scope.namespace.id),
        schedule_id=schedule_id,
        run_id=run_id,
        custom=scope.namespace.search_attributes,
    )
