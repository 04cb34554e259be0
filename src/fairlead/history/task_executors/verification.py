"""Checks whether a task is still valid, by its event and the event's version."""

from fairlead.core.versions import Item, RunTask, StateView, verify_task
from fairlead.history.state import RunState
from fairlead.history.state import tasks as kinds

_FREE = (
    kinds.RunTimeout,
    kinds.ExecutionTimeout,
    kinds.WorkflowBackoff,
    kinds.DeleteAfterRetention,
    kinds.FastForwardEnd,
    kinds.Reapply,
)
_OF_WORKFLOW_TASKS = (kinds.PushWorkflowTask, kinds.WorkflowTaskTimeout, kinds.WorkflowTaskRetry)


def is_meant(state: RunState, task: kinds.Task) -> bool:
    """Whether the task's event is on the run's current branch, and its subject is still pending.

    The caller must own the shard and hold the workflow's lock, so that the state equals the stored state.
    """
    if state.is_zombie:
        return False
    if isinstance(task, _OF_WORKFLOW_TASKS):
        # If the task's events are not written, the ids are the ids that the events will get.
        pending = state.workflow_task
        return (
            pending is not None
            and pending.scheduled_event_id == task.scheduled_event_id
            and pending.version == task.version
        )
    if isinstance(task, _FREE):
        return True
    event_id, version = _pending(state, task)
    if state.versions is None:
        return False
    view = StateView(last=state.versions.last, pending_version=version, is_fresh=True)
    return isinstance(verify_task(Item(event_id, task.version), view), RunTask)


def _pending(state: RunState, task: kinds.Task) -> tuple[int, int | None]:  # noqa: PLR0911 - one line a type
    """The id of the task's event, and the version of its pending item; None if no such item is pending."""
    match task:
        case kinds.PushActivityTask() | kinds.ActivityTimeout() | kinds.ActivityRetry():
            return task.scheduled_event_id, _version(state.activities.get(task.scheduled_event_id))
        case kinds.UserTimer():
            timer = state.timers.get(task.timer_id)
            is_same = timer is not None and timer.started_event_id == task.started_event_id
            return task.started_event_id, _version(timer if is_same else None)
        case kinds.StartChild():
            # A closed parent must still terminate a child whose start it did not record.
            child = state.children.get(task.initiated_event_id)
            closed = state.version_at(task.initiated_event_id) if not state.is_open else None
            return task.initiated_event_id, closed if child is None else child.version
        case kinds.SignalExternal():
            return task.initiated_event_id, _version(state.external_signals.get(task.initiated_event_id))
        case kinds.CancelExternal():
            return task.initiated_event_id, _version(state.external_cancels.get(task.initiated_event_id))
        case kinds.CallNexus() | kinds.NexusCallTimeout() | kinds.NexusRetry() | kinds.NexusTimeout():
            return task.scheduled_event_id, _version(state.nexus_operations.get(task.scheduled_event_id))
        case kinds.DeliverUpdateCallback():
            return task.event_id, state.version_at(task.event_id)
        case kinds.CloseRun() | kinds.DeliverCallback():
            is_same = state.close_event_id == task.close_event_id
            return task.close_event_id, state.last_version if is_same else None
        case _:
            raise TypeError(f"{type(task).__name__} is not a task of a run")


def _version(pending: object) -> int | None:
    return None if pending is None else int(pending.version)  # type: ignore[attr-defined]
