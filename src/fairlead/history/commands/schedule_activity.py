"""Handles the command SCHEDULE_ACTIVITY_TASK."""

from temporalio.api.command.v1 import Command, ScheduleActivityTaskCommandAttributes
from temporalio.api.enums.v1 import TaskQueueKind
from temporalio.api.enums.v1 import WorkflowTaskFailedCause as Cause
from temporalio.api.history.v1 import ActivityTaskScheduledEventAttributes

from fairlead.api.times import from_duration, shorter, to_duration
from fairlead.history.commands.checks import (
    check,
    check_count,
    check_duration,
    check_retry_policy,
    check_size,
    check_task_queue,
    priority_problem,
)
from fairlead.history.commands.task_response import TaskResponse
from fairlead.history.events.activity_attempts import begin_attempts
from fairlead.history.events.field_copies import copy_set
from fairlead.history.state.run import PAUSED

_CAUSE = Cause.WORKFLOW_TASK_FAILED_CAUSE_BAD_SCHEDULE_ACTIVITY_ATTRIBUTES
_TIMEOUTS = {
    "schedule_to_close_timeout": "ScheduleToCloseTimeout",
    "schedule_to_start_timeout": "ScheduleToStartTimeout",
    "start_to_close_timeout": "StartToCloseTimeout",
    "heartbeat_timeout": "HeartbeatTimeout",
}


def handle(answer: TaskResponse, command: Command) -> None:
    """Schedule an activity, and start it eagerly for the responding worker if that is requested and allowed."""
    check(
        command.HasField("schedule_activity_task_command_attributes"),
        _CAUSE,
        "ScheduleActivityTaskCommandAttributes is not set on ScheduleActivityTaskCommand.",
    )
    wanted = command.schedule_activity_task_command_attributes
    transaction = answer.transaction
    state, limits = transaction.state, transaction.limits
    _check_attributes(answer, wanted)
    timeouts = _timeouts_ns(wanted, state.started.run_timeout_ns)
    check_size(
        answer,
        wanted.input.ByteSize(),
        _CAUSE,
        "ScheduleActivityTaskCommandAttributes.Input exceeds size limit.",
    )
    check_count(
        len(state.activities),
        limits.pending_activities_max,
        Cause.WORKFLOW_TASK_FAILED_CAUSE_PENDING_ACTIVITIES_LIMIT_EXCEEDED,
        "pending activities",
    )
    check(
        wanted.activity_id not in state.activity_ids,
        Cause.WORKFLOW_TASK_FAILED_CAUSE_SCHEDULE_ACTIVITY_DUPLICATE_ID,
        f"ActivityID {wanted.activity_id} is pending already",
    )
    attributes = ActivityTaskScheduledEventAttributes(
        activity_id=wanted.activity_id,
        activity_type=wanted.activity_type,
        task_queue=wanted.task_queue,
        workflow_task_completed_event_id=answer.completed_event_id,
        retry_policy=wanted.retry_policy,
        use_workflow_build_id=wanted.use_workflow_build_id,
        **{name: to_duration(timeout_ns) for name, timeout_ns in timeouts.items()},  # type: ignore[arg-type]
    )
    copy_set(wanted, attributes, ("header", "input", "priority"))
    event = answer.add(command, attributes)
    is_paused = state.status == PAUSED
    eager = (
        wanted.request_eager_execution
        and limits.eager_activities
        and not is_paused
        and not limits.limits_running(wanted.task_queue.name)
    )
    begin_attempts(transaction, state.activities[event.event_id], push=not eager and not is_paused)
    if eager:
        answer.eager_activities.append(event.event_id)


def _check_attributes(answer: TaskResponse, wanted: ScheduleActivityTaskCommandAttributes) -> None:
    state = answer.transaction.state
    limit = answer.transaction.limits.id_length_max
    problem = check_task_queue(wanted.task_queue, state.started.task_queue, limit)
    check(problem is None, _CAUSE, f"{problem}")
    if not wanted.task_queue.kind:
        wanted.task_queue.kind = TaskQueueKind.TASK_QUEUE_KIND_NORMAL
    check(bool(wanted.activity_id), _CAUSE, "activityId is not set")
    check(bool(wanted.activity_type.name), _CAUSE, "activityType is not set")
    check_retry_policy(wanted.retry_policy, _CAUSE)
    for name, value in (("activityId", wanted.activity_id), ("activityType", wanted.activity_type.name)):
        check(len(value) <= limit, _CAUSE, f"{name} exceeds length limit. Length={len(value)} Limit={limit}")
    wrong = priority_problem(wanted.priority)
    check(wrong is None, _CAUSE, f"invalid priorities: {wrong}")
    check(
        not wanted.use_workflow_build_id or wanted.task_queue.name == state.started.task_queue,
        _CAUSE,
        "Activity with UseCompatibleVersion cannot run on different task queue.",
    )


def _timeouts_ns(wanted: ScheduleActivityTaskCommandAttributes, run_ns: int) -> dict[str, int]:
    """All four timeouts. Unset timeouts follow from the set ones; no timeout exceeds the run timeout."""
    for field, name in _TIMEOUTS.items():
        check_duration(getattr(wanted, field), _CAUSE, f"invalid {name}: {{}}")
    to_close_ns = from_duration(wanted.schedule_to_close_timeout)
    to_start_ns = from_duration(wanted.schedule_to_start_timeout)
    work_ns = from_duration(wanted.start_to_close_timeout)
    check(
        to_close_ns > 0 or work_ns > 0,
        _CAUSE,
        "a valid StartToCloseTimeout or ScheduleToCloseTimeout must be set on the activity. "
        f"ActivityId={wanted.activity_id} ActivityType={wanted.activity_type.name}",
    )
    if to_close_ns:
        to_start_ns = shorter(to_start_ns, to_close_ns)
        work_ns = shorter(work_ns, to_close_ns)
    to_close_ns, to_start_ns = shorter(to_close_ns, run_ns), shorter(to_start_ns, run_ns)
    work_ns = shorter(work_ns, run_ns)
    heartbeat_ns = min(from_duration(wanted.heartbeat_timeout), work_ns)
    return dict(zip(_TIMEOUTS, (to_close_ns, to_start_ns, work_ns, heartbeat_ns), strict=True))
