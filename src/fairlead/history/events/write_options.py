"""The steps by which an operator intervenes in a run: paused, unpaused, with other options."""

from typing import NamedTuple

from temporalio.api.common.v1 import Priority
from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.api.history.v1 import (
    HistoryEvent,
    WorkflowExecutionOptionsUpdatedEventAttributes,
    WorkflowExecutionPausedEventAttributes,
    WorkflowExecutionUnpausedEventAttributes,
    WorkflowTaskFailedEventAttributes,
)
from temporalio.api.workflow.v1 import VersioningOverride

from fairlead.history.events.transaction import Transaction
from fairlead.history.events.write_activities import await_attempt
from fairlead.history.events.write_workflow_tasks import HISTORY_SERVICE, schedule_workflow_task
from fairlead.history.state.run import PAUSED, RunState
from fairlead.history.state.tasks import PushWorkflowTask

_PAUSED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_PAUSED


class Options(NamedTuple):
    """What can be changed of a run while it is open; None where it has nothing of the kind."""

    versioning_override: VersioningOverride | None
    priority: Priority | None

    @classmethod
    def of(cls, state: RunState) -> "Options":
        """Those that a run has."""
        override, priority = state.versioning_override, state.started.priority
        return cls(
            VersioningOverride.FromString(override) if override else None,
            Priority.FromString(priority) if priority is not None else None,
        )


def update_options(transaction: Transaction, options: Options, *, identity: str) -> bool:
    """Give the run these options; whether it had others. The event tells all of them."""
    if options == Options.of(transaction.state):
        return False
    transaction.add(
        WorkflowExecutionOptionsUpdatedEventAttributes(
            versioning_override=options.versioning_override,
            unset_versioning_override=options.versioning_override is None,
            priority=options.priority,
            identity=identity,
        )
    )
    return True


def pause_run(transaction: Transaction, *, identity: str, reason: str, request_id: str) -> None:
    """Hand out no workflow task or activity until the run goes on.

    A workflow task that nobody has yet is taken back; one that a worker has ends first.
    """
    state = transaction.state
    state.check_open()
    task = state.task
    if task is not None and not task.is_started:
        transaction.add(
            WorkflowTaskFailedEventAttributes(
                scheduled_event_id=task.scheduled_event_id,
                cause=WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_WORKFLOW_PAUSE_REQUESTED_BEFORE_TASK_STARTED,
                identity=HISTORY_SERVICE,
            )
        )
    elif not state.has_started_task:
        state.live.unwritten_task = None
    transaction.add(WorkflowExecutionPausedEventAttributes(identity=identity, reason=reason, request_id=request_id))
    transaction.show()


def unpause_run(transaction: Transaction, *, identity: str, reason: str, request_id: str) -> bool:
    """Let the run go on, with a workflow task; false if it was not paused. A pause that waits never was."""
    state = transaction.state
    state.check_open()
    if transaction.take_buffered(lambda event: event.event_type == _PAUSED) is not None:
        return True
    if state.status != PAUSED:
        return False
    transaction.add(WorkflowExecutionUnpausedEventAttributes(identity=identity, reason=reason, request_id=request_id))
    transaction.flush()
    task = state.workflow_task
    if task is None and not state.in_backoff:
        schedule_workflow_task(transaction)
    elif task is not None and not task.is_started:
        transaction.add_task(
            PushWorkflowTask(task.version, task.scheduled_event_id, task.attempt, task.task_queue, sticky=task.sticky)
        )
    _resume_activities(transaction)
    transaction.show()
    return True


def waiting_pause(state: RunState) -> str | None:
    """The request id of a pause that waits for the end of a workflow task."""
    for stored in state.live.buffered:
        event = HistoryEvent.FromString(stored)
        if event.event_type == _PAUSED:
            return event.workflow_execution_paused_event_attributes.request_id
    return None


def _resume_activities(transaction: Transaction) -> None:
    """Attempts that fell due meanwhile were not handed out, or not taken: those that wait are handed out again."""
    state = transaction.state
    for event_id, activity in state.activities.items():
        progress = state.live.activities.get(event_id)
        if progress is None or progress.is_started or progress.paused or event_id in state.live.ending:
            continue
        progress.stamp += 1
        progress.due_ns = max(progress.due_ns, transaction.now_ns)
        await_attempt(transaction, state.as_changed(activity), progress)
