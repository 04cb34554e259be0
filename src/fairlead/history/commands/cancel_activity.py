"""Handles the command REQUEST_CANCEL_ACTIVITY_TASK."""

from temporalio.api.command.v1 import Command
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.api.enums.v1 import WorkflowTaskFailedCause as Cause
from temporalio.api.history.v1 import ActivityTaskCancelRequestedEventAttributes

from fairlead.history.commands.checks import check
from fairlead.history.commands.task_response import TaskResponse
from fairlead.history.events.write_activities import canceled_attributes

_CAUSE = Cause.WORKFLOW_TASK_FAILED_CAUSE_BAD_REQUEST_CANCEL_ACTIVITY_ATTRIBUTES
_NOT_STARTED = Payloads(payloads=[Payload(metadata={"encoding": b"json/plain"}, data=b'"ACTIVITY_ID_NOT_STARTED"')])


def handle(answer: TaskResponse, command: Command) -> None:
    """Request an activity's cancellation. An activity that no worker has is canceled at once.

    If the activity's end is buffered, no further event is written for it.
    """
    check(
        command.HasField("request_cancel_activity_task_command_attributes"),
        _CAUSE,
        "RequestCancelActivityTaskCommandAttributes is not set on RequestCancelActivityTaskCommand.",
    )
    scheduled_event_id = command.request_cancel_activity_task_command_attributes.scheduled_event_id
    check(scheduled_event_id > 0, _CAUSE, "ScheduledEventId is not set on RequestCancelActivityTaskCommand.")
    transaction = answer.transaction
    state = transaction.state
    check(
        scheduled_event_id in state.activities,
        _CAUSE,
        f"invalid history builder state for action: add-activitytask-cancel-requested-event: ScheduledEventID: "
        f"{scheduled_event_id}",
    )
    answer.add(
        command,
        ActivityTaskCancelRequestedEventAttributes(
            scheduled_event_id=scheduled_event_id, workflow_task_completed_event_id=answer.completed_event_id
        ),
    )
    activity = state.open_activity(scheduled_event_id)
    progress = state.live.activities.get(scheduled_event_id)
    if activity is None or (progress is not None and progress.is_started):
        return
    transaction.add(canceled_attributes(activity, details=_NOT_STARTED, identity=answer.identity))
    state.live.ending.add(scheduled_event_id)
    state.live.activities.pop(scheduled_event_id, None)
    answer.needs_task = True
