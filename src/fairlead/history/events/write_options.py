"""The steps by which an operator controls a run: pause, unpause, change options."""

from typing import NamedTuple

from temporalio.api.common.v1 import Priority, TimeSkippingConfig
from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.api.history.v1 import (
    HistoryEvent,
    WorkflowExecutionOptionsUpdatedEventAttributes,
    WorkflowExecutionPausedEventAttributes,
    WorkflowExecutionUnpausedEventAttributes,
    WorkflowTaskFailedEventAttributes,
)
from temporalio.api.workflow.v1 import VersioningOverride

from fairlead.api.times import from_duration
from fairlead.api.worker_versions import in_new_form
from fairlead.history.events.activity_attempts import await_attempt
from fairlead.history.events.transaction import Transaction
from fairlead.history.events.write_workflow_tasks import HISTORY_SERVICE, schedule_workflow_task
from fairlead.history.state.run import PAUSED, RunState
from fairlead.history.state.tasks import FastForwardEnd, PushWorkflowTask

_PAUSED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_PAUSED


class Options(NamedTuple):
    """The options of a run that can be changed while it is open; None for an unset option."""

    versioning_override: VersioningOverride | None
    priority: Priority | None

    @classmethod
    def of(cls, state: RunState) -> "Options":
        """The options that the run has."""
        override, priority = state.versioning_override, state.started.priority
        return cls(
            VersioningOverride.FromString(override) if override else None,
            Priority.FromString(priority) if priority is not None else None,
        )


def update_options(
    transaction: Transaction, options: Options, *, identity: str, time_skipping: TimeSkippingConfig | None = None
) -> bool:
    """Set the run's options; return whether they changed. The event contains all options.

    `time_skipping` is a new config. It begins a new session, even if it equals the present config.
    """
    if options == Options.of(transaction.state) and time_skipping is None:
        return False
    override = options.versioning_override
    transaction.add(
        WorkflowExecutionOptionsUpdatedEventAttributes(
            versioning_override=None if override is None else in_new_form(override),
            unset_versioning_override=override is None,
            priority=options.priority,
            identity=identity,
            time_skipping_config=time_skipping,
            time_skipping_config_updated=time_skipping is not None,
        )
    )
    if time_skipping is not None and time_skipping.HasField("fast_forward_config"):
        target_ns = transaction.now_ns + from_duration(time_skipping.fast_forward_config.duration)
        transaction.add_task(FastForwardEnd(transaction.version, target_ns))
    return True


def pause_run(transaction: Transaction, *, identity: str, reason: str, request_id: str) -> None:
    """Withhold workflow tasks and activities from workers until the run is unpaused.

    A workflow task that no worker has is withdrawn. If a worker has one, the pause is buffered until the task ends.
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
    """Unpause the run and schedule a workflow task; return False if the run was not paused.

    A buffered pause is dropped.
    """
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
    """The request id of a buffered pause, which waits for the end of a workflow task."""
    for stored in state.live.buffered:
        event = HistoryEvent.FromString(stored)
        if event.event_type == _PAUSED:
            return event.workflow_execution_paused_event_attributes.request_id
    return None


def _resume_activities(transaction: Transaction) -> None:
    """Schedule the waiting attempts again: during the pause, due attempts were not pushed, or not taken."""
    state = transaction.state
    for event_id, activity in state.activities.items():
        progress = state.live.activities.get(event_id)
        if progress is None or progress.is_started or progress.paused or event_id in state.live.ending:
            continue
        progress.stamp += 1
        progress.due_ns = max(progress.due_ns, transaction.now_ns)
        await_attempt(transaction, state.as_changed(activity), progress)
