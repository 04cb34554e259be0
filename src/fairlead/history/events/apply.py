"""The effect of each event on a run: one function for each event type, found in one table.

The state that follows from events is changed only here, so rebuilding it from the stored events gives the same state.
"""

from collections.abc import Callable, Iterable

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from fairlead.core.versions import VersionHistory
from fairlead.history.events import (
    activities,
    attributes,
    children,
    execution,
    externals,
    nexus,
    time_skipping,
    timers,
    updates,
    workflow_tasks,
)
from fairlead.history.events.errors import cannot_follow
from fairlead.history.events.kinds import CLOSING
from fairlead.history.state.run import RunIdentity, RunState

Effect = Callable[[RunState, HistoryEvent], None]

_FIRST = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED

EFFECTS: dict[EventType.ValueType, Effect] = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED: execution.started,
    **dict.fromkeys(CLOSING, execution.closed),
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED: execution.cancel_requested,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED: execution.signaled,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_OPTIONS_UPDATED: execution.options_updated,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_PAUSED: execution.paused,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UNPAUSED: execution.unpaused,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIME_SKIPPING_TRANSITIONED: time_skipping.transitioned,
    EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED: workflow_tasks.scheduled,
    EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED: workflow_tasks.started,
    EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED: workflow_tasks.completed,
    EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED: workflow_tasks.failed,
    EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT: workflow_tasks.timed_out,
    EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED: activities.scheduled,
    EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED: activities.started,
    EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED: activities.completed,
    EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED: activities.failed,
    EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT: activities.timed_out,
    EventType.EVENT_TYPE_ACTIVITY_TASK_CANCEL_REQUESTED: activities.cancel_requested,
    EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED: activities.canceled,
    EventType.EVENT_TYPE_ACTIVITY_PROPERTIES_MODIFIED_EXTERNALLY: activities.properties_modified_externally,
    EventType.EVENT_TYPE_TIMER_STARTED: timers.started,
    EventType.EVENT_TYPE_TIMER_FIRED: timers.fired,
    EventType.EVENT_TYPE_TIMER_CANCELED: timers.canceled,
    EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED: children.initiated,
    EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_FAILED: children.start_failed,
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_STARTED: children.started,
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_COMPLETED: children.completed,
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_FAILED: children.failed,
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_CANCELED: children.canceled,
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_TIMED_OUT: children.timed_out,
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_TERMINATED: children.terminated,
    EventType.EVENT_TYPE_SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED: externals.signal_initiated,
    EventType.EVENT_TYPE_SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_FAILED: externals.signal_failed,
    EventType.EVENT_TYPE_EXTERNAL_WORKFLOW_EXECUTION_SIGNALED: externals.signal_arrived,
    EventType.EVENT_TYPE_REQUEST_CANCEL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED: externals.cancel_initiated,
    EventType.EVENT_TYPE_REQUEST_CANCEL_EXTERNAL_WORKFLOW_EXECUTION_FAILED: externals.cancel_failed,
    EventType.EVENT_TYPE_EXTERNAL_WORKFLOW_EXECUTION_CANCEL_REQUESTED: externals.cancel_arrived,
    EventType.EVENT_TYPE_MARKER_RECORDED: attributes.marked,
    EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES: attributes.search_attributes_upserted,
    EventType.EVENT_TYPE_WORKFLOW_PROPERTIES_MODIFIED: attributes.properties_modified,
    EventType.EVENT_TYPE_WORKFLOW_PROPERTIES_MODIFIED_EXTERNALLY: attributes.properties_modified_externally,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ADMITTED: updates.admitted,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED: updates.accepted,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_COMPLETED: updates.completed,
    EventType.EVENT_TYPE_NEXUS_OPERATION_SCHEDULED: nexus.scheduled,
    EventType.EVENT_TYPE_NEXUS_OPERATION_STARTED: nexus.started,
    EventType.EVENT_TYPE_NEXUS_OPERATION_COMPLETED: nexus.completed,
    EventType.EVENT_TYPE_NEXUS_OPERATION_FAILED: nexus.failed,
    EventType.EVENT_TYPE_NEXUS_OPERATION_CANCELED: nexus.canceled,
    EventType.EVENT_TYPE_NEXUS_OPERATION_TIMED_OUT: nexus.timed_out,
    EventType.EVENT_TYPE_NEXUS_OPERATION_CANCEL_REQUESTED: nexus.cancel_requested,
    EventType.EVENT_TYPE_NEXUS_OPERATION_CANCEL_REQUEST_COMPLETED: nexus.cancel_answered,
    EventType.EVENT_TYPE_NEXUS_OPERATION_CANCEL_REQUEST_FAILED: nexus.cancel_answered,
}


def apply(state: RunState, event: HistoryEvent) -> None:
    """Apply the event to the state; an event that does not fit raises `EventCannotFollow` and changes nothing."""
    event_type, event_id, version, versions = event.event_type, event.event_id, event.version, state.versions
    effect = EFFECTS.get(event_type)
    if effect is None:
        raise cannot_follow(state, event, "this server does not support the event type")
    if event_id != state.next_event_id:
        raise cannot_follow(state, event, f"expected event id {state.next_event_id}")
    if not state.is_open:
        raise cannot_follow(state, event, f"event {state.close_event_id} closed the run")
    if (state.origin is None) != (event_type == _FIRST):
        raise cannot_follow(state, event, "WorkflowExecutionStarted must be the first event, and only the first")
    if versions is not None and version < versions.last.version:
        raise cannot_follow(
            state, event, f"its version {version} is lower than the last event's version {versions.last.version}"
        )
    effect(state, event)
    if versions is None:
        state.versions = VersionHistory.beginning(version)
    else:
        state.versions = versions.append(event_id=event_id, version=version)
    state.next_event_id = event_id + 1
    # 0 while an event is being written: `Transaction.finish` assigns task ids.
    state.last_event_task_id = event.task_id


def rebuild(identity: RunIdentity, events: Iterable[HistoryEvent]) -> RunState:
    """Rebuild the state from a history.

    Its live part has initial values: attempts and heartbeats are lost.
    """
    state = RunState(identity)
    for event in events:
        apply(state, event)
    return state
