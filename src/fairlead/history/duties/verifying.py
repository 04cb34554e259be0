"""Whether a task still means something: both the event it was made for and that event's version are looked at."""

from fairlead.core.versions import Item, RunTask, StateView, verify_task
from fairlead.history.state import RunState
from fairlead.history.state import tasks as kinds

_FREE = (
    kinds.RunTimeout,
    kinds.ExecutionTimeout,
    kinds.WorkflowBackoff,
    kinds.DeleteAfterRetention,
    kinds.Reapply,
)


def is_meant(state: RunState, task: kinds.Task) -> bool:
    """Whether the task is of the run's current branch, and what it is about is pending.

    The state is what the store holds: only the owner of the shard, who has the workflow's lock, asks this.
    """
    if state.is_zombie:
        return False
    if isinstance(task, _FREE):
        return True
    if isinstance(task, kinds.PushWorkflowTask | kinds.WorkflowTaskTimeout) and state.task is None:
        # One whose events are not written: the ids that it has are those that they would have.
        unwritten = state.live.unwritten_task
        return unwritten is not None and (unwritten.scheduled_event_id, unwritten.version) == (
            task.scheduled_event_id,
            task.version,
        )
    event_id, version = _pending(state, task)
    if state.versions is None:
        return False
    view = StateView(last=state.versions.last, pending_version=version, is_fresh=True)
    return isinstance(verify_task(Item(event_id, task.version), view), RunTask)


def _pending(state: RunState, task: kinds.Task) -> tuple[int, int | None]:  # noqa: PLR0911 - one line a type
    """The event that the task was made for, and the version of what is pending since; None if nothing is."""
    match task:
        case kinds.PushWorkflowTask() | kinds.WorkflowTaskTimeout():
            pending = state.task
            is_same = pending is not None and pending.scheduled_event_id == task.scheduled_event_id
            return task.scheduled_event_id, pending.version if pending is not None and is_same else None
        case kinds.PushActivityTask() | kinds.ActivityTimeout() | kinds.ActivityRetry():
            return task.scheduled_event_id, _version(state.activities.get(task.scheduled_event_id))
        case kinds.UserTimer():
            timer = state.timers.get(task.timer_id)
            is_same = timer is not None and timer.started_event_id == task.started_event_id
            return task.started_event_id, _version(timer if is_same else None)
        case kinds.StartChild():
            # A parent that has closed still sees to a child that it did not know of.
            child = state.children.get(task.initiated_event_id)
            closed = state.version_at(task.initiated_event_id) if not state.is_open else None
            return task.initiated_event_id, closed if child is None else child.version
        case kinds.SignalExternal():
            return task.initiated_event_id, _version(state.external_signals.get(task.initiated_event_id))
        case kinds.CancelExternal():
            return task.initiated_event_id, _version(state.external_cancels.get(task.initiated_event_id))
        case kinds.CallNexus() | kinds.NexusCallTimeout() | kinds.NexusRetry() | kinds.NexusTimeout():
            return task.scheduled_event_id, _version(state.nexus_operations.get(task.scheduled_event_id))
        case kinds.CloseRun() | kinds.DeliverCallback():
            is_same = state.close_event_id == task.close_event_id
            return task.close_event_id, state.last_version if is_same else None
        case _:
            raise TypeError(f"{type(task).__name__} is not of a run")


def _version(pending: object) -> int | None:
    return None if pending is None else int(pending.version)  # type: ignore[attr-defined]
