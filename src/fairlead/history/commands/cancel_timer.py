"""Handles the command CANCEL_TIMER."""

from temporalio.api.command.v1 import Command
from temporalio.api.enums.v1 import WorkflowTaskFailedCause as Cause
from temporalio.api.history.v1 import HistoryEvent, TimerCanceledEventAttributes

from fairlead.history.commands.checks import check
from fairlead.history.commands.task_response import TaskResponse

_CAUSE = Cause.WORKFLOW_TASK_FAILED_CAUSE_BAD_CANCEL_TIMER_ATTRIBUTES


def handle(answer: TaskResponse, command: Command) -> None:
    """Cancel a timer.

    If the timer fired during the workflow task, drop the buffered event, which the worker has not seen.
    """
    check(
        command.HasField("cancel_timer_command_attributes"),
        _CAUSE,
        "CancelTimerCommandAttributes is not set on CancelTimerCommand.",
    )
    timer_id = command.cancel_timer_command_attributes.timer_id
    transaction = answer.transaction
    limit = transaction.limits.id_length_max
    check(bool(timer_id), _CAUSE, "TimerId is not set on CancelTimerCommand.")
    check(
        len(timer_id) <= limit,
        _CAUSE,
        f"TimerId on CancelTimerCommand exceeds length limit. TimerId={timer_id} Length={len(timer_id)} Limit={limit}",
    )
    timer = transaction.state.timers.get(timer_id)
    check(
        timer is not None,
        _CAUSE,
        f"invalid history builder state for action: add-timer-canceled-event: TimerID: {timer_id}",
    )
    if timer is None:
        return

    def is_its_firing(event: HistoryEvent) -> bool:
        return event.timer_fired_event_attributes.started_event_id == timer.started_event_id

    if timer.started_event_id in transaction.state.live.ending:
        transaction.take_buffered(is_its_firing)
        transaction.state.live.ending.discard(timer.started_event_id)
        answer.has_unseen = answer.has_unseen and transaction.buffered_count > 0
    answer.add(
        command,
        TimerCanceledEventAttributes(
            timer_id=timer_id,
            started_event_id=timer.started_event_id,
            workflow_task_completed_event_id=answer.completed_event_id,
            identity=answer.identity,
        ),
    )
