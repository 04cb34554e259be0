"""Decides in advance whether a timer task will have an effect when it fires.

A queue keeps the timeouts of ended activities and the tasks of canceled timers; time must not be skipped to them.
Deletions after the retention don't count either: a server that skips time keeps closed runs.
"""

from fairlead.api.errors import NotFound
from fairlead.history.entities import entity
from fairlead.history.events.activity_attempts import is_activity_retry_due, is_activity_timeout_due
from fairlead.history.events.write_nexus import is_called, is_nexus_retry_due, is_nexus_timeout_due
from fairlead.history.events.write_time_skipping import is_fast_forward_due
from fairlead.history.shard.shard import Shard
from fairlead.history.state import RunState, tasks
from fairlead.history.state.tasks import QueueRow, TaskTimeout
from fairlead.history.task_executors.verification import is_meant


async def is_pending(shard: Shard, row: QueueRow) -> bool:
    """Whether the row will have an effect when it fires, according to the current state of its run or entity."""
    try:
        match row.task:
            case tasks.DeleteAfterRetention():
                return False
            case tasks.EntityTimer():
                return await entity.is_pending(shard, row, row.task)
            case tasks.ExecutionTimeout():
                return await _is_execution_pending(shard, row, row.task)
            case _:
                async with shard.lock(row.namespace_id, row.workflow_id):
                    run = await shard.load(row.namespace_id, row.workflow_id, row.run_id)
                return _is_pending_of_run(run.state, row.task)
    except NotFound:
        return False


def is_over(state: RunState, task: tasks.Task) -> bool:
    """Whether a timer certainly has no effect, according to the stored state of its run; False for most other tasks.

    Most timeouts are over when they are due, because the workflow task or the activity ended in time.
    """
    match task:
        case tasks.WorkflowTaskTimeout() | tasks.ActivityTimeout() | tasks.UserTimer() | tasks.RunTimeout():
            return not _is_pending_of_run(state, task)
        case _:
            return False


def _is_pending_of_run(state: RunState, task: tasks.Task) -> bool:
    return state.is_open and is_meant(state, task) and _has_effect(state, task)


async def _is_execution_pending(shard: Shard, row: QueueRow, due: tasks.ExecutionTimeout) -> bool:
    async with shard.lock(row.namespace_id, row.workflow_id):
        current = await shard.current_runs.find(row.namespace_id, row.workflow_id)
        if current is None or current.is_closed:
            return False
        run = await shard.load(row.namespace_id, row.workflow_id, current.run_id)
    origin = run.state.started
    return origin.first_run_id == due.first_run_id and origin.expires_at_ns <= due.fire_at_ns


def _has_effect(state: RunState, task: tasks.Task) -> bool:  # noqa: PLR0911 - one line a type
    match task:
        case tasks.WorkflowTaskTimeout():
            pending = state.workflow_task
            is_started = task.kind is TaskTimeout.START_TO_CLOSE
            return pending is not None and (pending.attempt, pending.is_started) == (task.attempt, is_started)
        case tasks.ActivityTimeout():
            return is_activity_timeout_due(state, task)
        case tasks.ActivityRetry():
            return is_activity_retry_due(state, task)
        case tasks.RunTimeout():
            return 0 < state.started.run_expires_at_ns <= task.fire_at_ns
        case tasks.FastForwardEnd():
            return is_fast_forward_due(state, task)
        case tasks.WorkflowBackoff():
            return not state.had_task
        case tasks.NexusCallTimeout():
            return is_called(state, task.scheduled_event_id, task.attempt, is_cancel=task.is_cancel)
        case tasks.NexusRetry():
            return is_nexus_retry_due(state, task)
        case tasks.NexusTimeout():
            return is_nexus_timeout_due(state, task)
        case _:
            return True
