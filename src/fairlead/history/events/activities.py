"""Effects of the events of activities. The started event is written just before the event that ends the activity."""

from temporalio.api.history.v1 import ActivityTaskScheduledEventAttributes, HistoryEvent

from fairlead.api.times import from_duration, from_timestamp
from fairlead.history.events.errors import cannot_follow, pending
from fairlead.history.state.pending import PendingActivity
from fairlead.history.state.run import RunState


def scheduled(state: RunState, event: HistoryEvent) -> None:
    """ActivityTaskScheduled: the activity becomes pending."""
    attributes = event.activity_task_scheduled_event_attributes
    if attributes.activity_id in state.activity_ids:
        raise cannot_follow(state, event, f"activity {attributes.activity_id!r} is pending already")
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
    """ActivityTaskStarted: a worker had the activity; the next event is its end."""
    scheduled_event_id = event.activity_task_started_event_attributes.scheduled_event_id
    activity = pending(state, event, state.activities, scheduled_event_id, "activity scheduled by event")
    if activity.started_event_id:
        raise cannot_follow(state, event, f"the activity was started by event {activity.started_event_id}")
    activity.started_event_id = event.event_id


def cancel_requested(state: RunState, event: HistoryEvent) -> None:
    """ActivityTaskCancelRequested: no effect if the activity has ended."""
    attributes = event.activity_task_cancel_requested_event_attributes
    if attributes.scheduled_event_id >= event.event_id:
        raise cannot_follow(
            state, event, f"its scheduled event {attributes.scheduled_event_id} is not an earlier event"
        )
    activity = state.activities.get(attributes.scheduled_event_id)
    if activity is not None:
        activity.cancel_requested_event_id = event.event_id


def completed(state: RunState, event: HistoryEvent) -> None:
    """ActivityTaskCompleted: the activity is no longer pending."""
    attributes = event.activity_task_completed_event_attributes
    _end(state, event, attributes.scheduled_event_id, attributes.started_event_id)


def failed(state: RunState, event: HistoryEvent) -> None:
    """ActivityTaskFailed: the activity failed and is not retried."""
    attributes = event.activity_task_failed_event_attributes
    _end(state, event, attributes.scheduled_event_id, attributes.started_event_id)


def timed_out(state: RunState, event: HistoryEvent) -> None:
    """ActivityTaskTimedOut: the activity timed out and is not retried."""
    attributes = event.activity_task_timed_out_event_attributes
    _end(state, event, attributes.scheduled_event_id, attributes.started_event_id)


def canceled(state: RunState, event: HistoryEvent) -> None:
    """ActivityTaskCanceled: the activity ended after a cancel request."""
    attributes = event.activity_task_canceled_event_attributes
    _end(state, event, attributes.scheduled_event_id, attributes.started_event_id)


def properties_modified_externally(state: RunState, event: HistoryEvent) -> None:
    """ActivityPropertiesModifiedExternally: a client changed the retry policy."""
    attributes = event.activity_properties_modified_externally_event_attributes
    activity = pending(state, event, state.activities, attributes.scheduled_event_id, "activity scheduled by event")
    activity.retry_policy = attributes.new_retry_policy.SerializeToString(deterministic=True)


def _end(state: RunState, event: HistoryEvent, scheduled_event_id: int, started_event_id: int) -> None:
    activity = pending(state, event, state.activities, scheduled_event_id, "activity scheduled by event")
    if activity.started_event_id != started_event_id:
        raise cannot_follow(
            state,
            event,
            f"it names started event {started_event_id}, but that of activity {scheduled_event_id} is "
            f"{activity.started_event_id}",
        )
    del state.activities[scheduled_event_id]
    del state.activity_ids[activity.activity_id]
