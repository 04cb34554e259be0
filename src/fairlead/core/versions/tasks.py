"""Verification of transfer and timer tasks: whether a loaded task is still valid."""

from enum import Enum

from msgspec import Struct

from fairlead.core.versions.history import Item


class DropReason(Enum):
    """Why a task is obsolete."""

    EVENT_NOT_WRITTEN = "the task's event is not in the history: the write that made the task did not last"
    NOTHING_PENDING = "the entity of the task is no longer pending"
    OTHER_BRANCH = "the task's event is on a branch that is not current"


class RunTask(Struct, frozen=True):
    """The task's event is on the current branch and its entity is pending: execute the task."""


class ReloadState(Struct, frozen=True):
    """The cached state is older than the task: load it from the store, then verify again."""


class DropTask(Struct, frozen=True):
    """The task must have no effect."""

    reason: DropReason


class StateView(Struct, frozen=True):
    """The view of a run's mutable state for the verification of a task, with the entity that the task's event id names.

    `pending_version` is the version of the event that created the entity (a timer, an activity, a workflow task, ...);
    None if no such entity is pending. `is_fresh`: the state equals the stored state, because it was read after the
    task, or because the only owner whose lease allows writes keeps it.
    """

    last: Item
    pending_version: int | None
    is_fresh: bool


def verify_task(task_event: Item, state: StateView) -> RunTask | ReloadState | DropTask:
    """Decide what to do with a task that was created for the event `task_event`.

    The event id and the version are both compared: on another branch, the same id belongs to another event. A state
    that is not fresh never drops a task, because a dropped task is lost. Such a state may come from a branch that is no
    longer current, on which the object had ended or never existed.
    """
    if task_event.event_id > state.last.event_id or task_event.version > state.last.version:
        reason = DropReason.EVENT_NOT_WRITTEN
    elif state.pending_version is None:
        reason = DropReason.NOTHING_PENDING
    elif state.pending_version != task_event.version:
        reason = DropReason.OTHER_BRANCH
    else:
        return RunTask()
    return DropTask(reason) if state.is_fresh else ReloadState()
