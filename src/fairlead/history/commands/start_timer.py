"""Handles the command START_TIMER."""

from temporalio.api.command.v1 import Command
from temporalio.api.enums.v1 import WorkflowTaskFailedCause as Cause
from temporalio.api.history.v1 import TimerStartedEventAttributes

from fairlead.history.commands.checks import check, check_duration
from fairlead.history.commands.task_response import TaskResponse
from fairlead.history.events.field_copies import copy_set
from fairlead.history.state.tasks import UserTimer

_CAUSE = Cause.WORKFLOW_TASK_FAILED_CAUSE_BAD_START_TIMER_ATTRIBUTES


def handle(answer: TaskResponse, command: Command) -> None:
    """Start a timer."""
    check(
        command.HasField("start_timer_command_attributes"),
        _CAUSE,
        "StartTimerCommandAttributes is not set on StartTimerCommand.",
    )
    wanted = command.start_timer_command_attributes
    timer_id, limit = wanted.timer_id, answer.transaction.limits.id_length_max
    check(bool(timer_id), _CAUSE, "TimerId is not set on StartTimerCommand.")
    check(
        len(timer_id) <= limit,
        _CAUSE,
        f"TimerId on StartTimerCommand exceeds length limit. TimerId={timer_id} Length={len(timer_id)} Limit={limit}",
    )
    check_duration(
        wanted.start_to_fire_timeout,
        _CAUSE,
        f"An invalid StartToFireTimeout is set on StartTimerCommand: {{}}. TimerId={timer_id}",
    )
    state = answer.transaction.state
    check(
        timer_id not in state.timers,
        Cause.WORKFLOW_TASK_FAILED_CAUSE_START_TIMER_DUPLICATE_ID,
        f"invalid history builder state for action: add-timer-started-event: TimerID: {timer_id}",
    )
    attributes = TimerStartedEventAttributes(
        timer_id=timer_id, workflow_task_completed_event_id=answer.completed_event_id
    )
    copy_set(wanted, attributes, ("start_to_fire_timeout",))
    event = answer.add(command, attributes)
    timer = state.timers[timer_id]
    answer.transaction.add_task(UserTimer(event.version, timer.fire_at_ns, timer_id, event.event_id))
