"""Task refresh: adds all tasks of a run again, from its state.

A passive cluster has no tasks for its runs. When the namespace becomes active, or a run's current branch changes, all
pending work gets new tasks. Older tasks are then invalid, or have no effect.
"""

from fairlead.api.times import SECOND_NS
from fairlead.history.events import Transaction, schedule_workflow_task
from fairlead.history.events.activity_attempts import (
    await_attempt,
    first_progress,
    limit_all_attempts,
    limit_attempt,
    push_attempt,
)
from fairlead.history.events.write_close import leave_close
from fairlead.history.events.write_nexus import refresh_operation
from fairlead.history.events.write_updates import leave_update_callbacks
from fairlead.history.state import WorkflowTask
from fairlead.history.state.requests import request_id_of
from fairlead.history.state.run import PAUSED
from fairlead.history.state.tasks import (
    CancelExternal,
    ExecutionTimeout,
    PushWorkflowTask,
    Reapply,
    RunTimeout,
    SignalExternal,
    StartChild,
    TaskTimeout,
    UserTimer,
    WorkflowBackoff,
    WorkflowTaskTimeout,
)

# Nanoseconds after which a sticky task goes to the normal queue: its worker is probably in another cluster.
STICKY_WAIT_NS = 5 * SECOND_NS
# Nanoseconds for which a child waits until its parent has recorded its start; a closed parent will never do that.
CHILD_WAIT_NS = 60 * SECOND_NS


def refresh(transaction: Transaction) -> None:
    """Add every task that the run's state requires, and schedule the next attempt of a failed workflow task.

    The namespace must be active. A zombie has no tasks.
    """
    state = transaction.state
    if state.has_events_to_reapply:
        transaction.add_task(Reapply(state.last_version))
    for update_id, record in state.updates.items():
        if record.completed_event_id:
            leave_update_callbacks(transaction, update_id, record.completed_event_id)
    if not state.is_open:
        leave_close(transaction)
        return
    if state.is_zombie:
        return
    _limit_run(transaction)
    _refresh_workflow_task(transaction)
    _refresh_activities(transaction)
    for timer in state.timers.values():
        transaction.add_task(UserTimer(timer.version, timer.fire_at_ns, timer.timer_id, timer.started_event_id))
    _refresh_others(transaction)
    for operation in list(state.nexus_operations.values()):
        if operation.scheduled_event_id not in state.live.ending:
            refresh_operation(transaction, operation)


def _limit_run(transaction: Transaction) -> None:
    origin, version = transaction.state.started, transaction.state.last_version
    if origin.run_expires_at_ns:
        transaction.add_task(RunTimeout(version, origin.run_expires_at_ns))
    if origin.expires_at_ns:
        transaction.add_task(ExecutionTimeout(version, origin.expires_at_ns, origin.first_run_id))


def _refresh_workflow_task(transaction: Transaction) -> None:
    state = transaction.state
    task = state.workflow_task
    if task is not None:
        _refresh_pending_task(transaction, task)
    elif state.status == PAUSED:
        return
    elif not state.had_task:
        origin = state.started
        due_ns = origin.execution_ns if origin.first_backoff_ns else transaction.now_ns + CHILD_WAIT_NS
        transaction.add_task(WorkflowBackoff(state.last_version, due_ns))
    elif state.live.task_attempt > 1:
        schedule_workflow_task(transaction)


def _refresh_pending_task(transaction: Transaction, task: WorkflowTask) -> None:
    kind, due_ns = TaskTimeout.START_TO_CLOSE, task.started_ns + task.timeout_ns
    if not task.is_started:
        kind, due_ns = TaskTimeout.SCHEDULE_TO_START, transaction.now_ns + STICKY_WAIT_NS
        transaction.add_task(
            PushWorkflowTask(task.version, task.scheduled_event_id, task.attempt, task.task_queue, sticky=task.sticky)
        )
    if task.is_started or task.sticky:
        transaction.add_task(
            WorkflowTaskTimeout(
                version=task.version,
                fire_at_ns=due_ns,
                scheduled_event_id=task.scheduled_event_id,
                attempt=task.attempt,
                kind=kind,
            )
        )


def _refresh_activities(transaction: Transaction) -> None:
    state = transaction.state
    for event_id, pending in state.activities.items():
        if event_id in state.live.ending:
            continue
        progress = state.live.activities.setdefault(event_id, first_progress(pending))
        if progress.changed_version < transaction.version:
            # The active cluster's progress overrides the progress of other clusters, which may come from a branch that
            # is not current.
            transaction.progressed(progress)
        # Replicate the progress again: clusters on this branch ignored progress that was sent for another branch.
        transaction.has_progress = True
        activity = state.as_changed(pending)
        limit_all_attempts(transaction, activity, progress)
        if progress.is_started:
            limit_attempt(transaction, activity, progress)
        elif progress.paused:
            continue
        elif progress.due_ns > transaction.now_ns:
            await_attempt(transaction, activity, progress)
        else:
            push_attempt(transaction, activity, progress)


def _refresh_others(transaction: Transaction) -> None:
    """Add the tasks that concern other workflows. A request that was already sent keeps its request id."""
    state = transaction.state
    ending = state.live.ending
    for child in state.children.values():
        if child.initiated_event_id in ending:
            continue
        transaction.add_task(StartChild(child.version, child.initiated_event_id, request_id_of(state, child)))
    for signaled in state.external_signals.values():
        if signaled.initiated_event_id in ending:
            continue
        transaction.add_task(
            SignalExternal(signaled.version, signaled.initiated_event_id, request_id_of(state, signaled))
        )
    for canceled in state.external_cancels.values():
        if canceled.initiated_event_id in ending:
            continue
        transaction.add_task(
            CancelExternal(canceled.version, canceled.initiated_event_id, request_id_of(state, canceled))
        )
