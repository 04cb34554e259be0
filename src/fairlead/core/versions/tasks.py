"""Tasks that a run's events left behind: whether they still mean something when they are loaded."""

from dataclasses import dataclass
from enum import Enum

from fairlead.core.versions.history import Item


class DropReason(Enum):
    """Why a task is of no use any more."""

    EVENT_NOT_WRITTEN = "the task's event is not in the history: the write that made the task did not last"
    NOTHING_PENDING = "what the task is about is no longer pending"
    OTHER_BRANCH = "the task's event is on a branch that is not current"


@dataclass(frozen=True, slots=True)
class RunTask:
    """The task's event stands on the current branch and its entity is pending: carry it out."""


@dataclass(frozen=True, slots=True)
class ReloadState:
    """The state at hand is older than the task: load it from the store, then verify again."""


@dataclass(frozen=True, slots=True)
class DropTask:
    """The task must have no effect."""

    reason: DropReason


@dataclass(frozen=True, slots=True)
class StateView:
    """What a task is verified against: a run's mutable state, and the entity that the task's event id names in it.

    `pending_version` is the version of the event that made the entity (a timer, an activity, a workflow task, ...);
    None if no such entity is pending. `is_fresh`: the state is what the store holds, because it was read after the task
    was, or because it is kept by the one owner whose lease lets it write.
    """

    last: Item
    pending_version: int | None
    is_fresh: bool


def verify_task(task_event: Item, state: StateView) -> RunTask | ReloadState | DropTask:
    """Decide what to do with a task that was made for the event `task_event`.

    Both the event id and the version are looked at: on another branch the same id is another event. No task is dropped
    on the word of an old state. It may be of a branch that has lost since, on which the entity had ended, or was never
    there; a dropped task does not come back.
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
