"""All tasks of a run, made again from its state.

A cluster in which a namespace is not active has no tasks of its runs. Where it becomes active, and where the current
branch of a run switches, everything that is pending gets a task; those that were there before are void, or find
nothing to do.
"""

from fairlead.history.events import Transaction, schedule_workflow_task
from fairlead.history.events.write_activities import (
    await_attempt,
    first_progress,
    limit_all_attempts,
    limit_attempt,
    push_attempt,
)
from fairlead.history.events.write_closing import leave_close
from fairlead.history.events.write_nexus import take_up_operation
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
from fairlead.history.state.times import SECOND_NS

# The worker whose own queue a task was for is in another cluster, most likely.
STICKY_WAIT_NS = 5 * SECOND_NS
# A child begins when its parent knows of it. The parent may have ended since, and then nobody lets it begin.
CHILD_WAIT_NS = 60 * SECOND_NS


def refresh(transaction: Transaction) -> None:
    """Leave every task that the run's state asks for. An attempt of a workflow task that failed gets the next one.

    To be called where the namespace is active. A zombie has no tasks.
    """
    state = transaction.state
    if state.owes:
        transaction.add_task(Reapply(state.last_version))
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
            take_up_operation(transaction, operation)


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
        _take_up_task(transaction, task)
    elif state.status == PAUSED:
        return
    elif not state.had_task:
        origin = state.started
        due_ns = origin.execution_ns if origin.first_backoff_ns else transaction.now_ns + CHILD_WAIT_NS
        transaction.add_task(WorkflowBackoff(state.last_version, due_ns))
    elif state.live.task_attempt > 1:
        schedule_workflow_task(transaction)


def _take_up_task(transaction: Transaction, task: WorkflowTask) -> None:
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
            # What the active cluster knows holds, in the others as well: they may have heard of attempts that were
            # made on a line which has lost.
            transaction.progressed(progress)
        # What was said of it on another line is not heard by those who have this one.
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
    """What other workflows are asked for: each bears the id that it was asked for with, if it was."""
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
