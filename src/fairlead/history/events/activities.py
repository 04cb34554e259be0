"""What the events of activities do. A start is written only when the activity ends, just before its end."""

from temporalio.api.history.v1 import ActivityTaskScheduledEventAttributes, HistoryEvent

from fairlead.history.events.refusal import pending, refusal
from fairlead.history.state.pending import PendingActivity
from fairlead.history.state.run import RunState
from fairlead.history.state.times import from_duration, from_timestamp


def scheduled(state: RunState, event: HistoryEvent) -> None:
    """An activity is to be run."""
    attributes = event.activity_task_scheduled_event_attributes
    if attributes.activity_id in state.activity_ids:
        raise refusal(state, event, f"activity {attributes.activity_id!r} is pending already")
    state.activity_ids[attributes.activity_id] = event.event_id
    state.activities[event.event_id] = _pending(event, attributes)


def _pending(event: HistoryEvent, attributes: ActivityTaskScheduledEventAttributes) -> PendingActivity:
    return PendingActivity(
        scheduled_event_id=event.event_id,
        version=event.version,
        scheduled_ns=from_timestamp(event.event_time),
        activity_id=attributes.activity_id,
        activity_type=attributes.activity_type.name,
        task_queue=attributes.task_queue.name,
        schedule_to_close_ns=from_duration(attributes.schedule_to_close_timeout),
        schedule_to_start_ns=from_duration(attributes.schedule_to_start_timeout),
        start_to_close_ns=from_duration(attributes.start_to_close_timeout),
        heartbeat_ns=from_duration(attributes.heartbeat_timeout),
        retry_policy=attributes.retry_policy.SerializeToString(deterministic=True)
        if attributes.HasField("retry_policy")
        else None,
        priority=attributes.priority.SerializeToString(deterministic=True),
        workflow_task_completed_event_id=attributes.workflow_task_completed_event_id,
        use_workflow_build_id=attributes.use_workflow_build_id,
    )


def started(state: RunState, event: HistoryEvent) -> None:
    """A worker had it: its end follows."""
    scheduled_event_id = event.activity_task_started_event_attributes.scheduled_event_id
    activity = pending(state, event, state.activities, scheduled_event_id, "activity scheduled by event")
    if activity.started_event_id:
        raise refusal(state, event, f"the activity was started by event {activity.started_event_id}")
    activity.started_event_id = event.event_id


def cancel_requested(state: RunState, event: HistoryEvent) -> None:
    """The activity is asked to end; it may have ended at the same time, and then nothing is left to ask."""
    attributes = event.activity_task_cancel_requested_event_attributes
    if attributes.scheduled_event_id >= event.event_id:
        raise refusal(state, event, f"event {attributes.scheduled_event_id} is not before it")
    activity = state.activities.get(attributes.scheduled_event_id)
    if activity is not None:
        activity.cancel_requested_event_id = event.event_id


def completed(state: RunState, event: HistoryEvent) -> None:
    """The activity has a result."""
    attributes = event.activity_task_completed_event_attributes
    _end(state, event, attributes.scheduled_event_id, attributes.started_event_id)


def failed(state: RunState, event: HistoryEvent) -> None:
    """The activity failed, and is not tried again."""
    attributes = event.activity_task_failed_event_attributes
    _end(state, event, attributes.scheduled_event_id, attributes.started_event_id)


def timed_out(state: RunState, event: HistoryEvent) -> None:
    """The activity took too long, and is not tried again."""
    attributes = event.activity_task_timed_out_event_attributes
    _end(state, event, attributes.scheduled_event_id, attributes.started_event_id)


def canceled(state: RunState, event: HistoryEvent) -> None:
    """The activity ended because it was asked to."""
    attributes = event.activity_task_canceled_event_attributes
    _end(state, event, attributes.scheduled_event_id, attributes.started_event_id)


def properties_modified_externally(state: RunState, event: HistoryEvent) -> None:
    """Somebody changes how the activity is retried."""
    attributes = event.activity_properties_modified_externally_event_attributes
    activity = pending(state, event, state.activities, attributes.scheduled_event_id, "activity scheduled by event")
    activity.retry_policy = attributes.new_retry_policy.SerializeToString(deterministic=True)


def _end(state: RunState, event: HistoryEvent, scheduled_event_id: int, started_event_id: int) -> None:
    activity = pending(state, event, state.activities, scheduled_event_id, "activity scheduled by event")
    if activity.started_event_id != started_event_id:
        raise refusal(
            state,
            event,
            f"it names start {started_event_id} of activity {scheduled_event_id}, which is {activity.started_event_id}",
        )
    del state.activities[scheduled_event_id]
    del state.activity_ids[activity.activity_id]
