"""Event types: their attribute messages, the types that close a run, and the types that are buffered.

While a worker has a workflow task, no event may be added to the history that the worker got. Events of the worker's
commands are written when the worker responds; other events are buffered until then.
"""

from typing import NamedTuple

from google.protobuf.message import Message
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

_SUFFIX = "_event_attributes"

# Identities in WorkflowExecutionTerminated events: of runs that are reset, and of runs that a newer run of another
# cluster replaces.
RESETTER = "history-resetter"
NEWER_RUN = "history-replication"


class EventKind(NamedTuple):
    """An event type, and the field of HistoryEvent that holds its attributes."""

    event_type: EventType.ValueType
    field: str


def _kinds() -> dict[str, EventKind]:
    kinds = {}
    for field in HistoryEvent.DESCRIPTOR.oneofs_by_name["attributes"].fields:
        name = field.name.removesuffix(_SUFFIX).upper()
        if field.message_type is None:
            raise TypeError(f"{field.name} is not a message: the installed API package does not match this code")
        kinds[field.message_type.full_name] = EventKind(EventType.Value(f"EVENT_TYPE_{name}"), field.name)
    return kinds


_KINDS = _kinds()
_FIELDS = {kind.event_type: kind.field for kind in _KINDS.values()}


def kind_of(attributes: Message) -> EventKind:
    """The event type that has attributes of this message type."""
    return _KINDS[attributes.DESCRIPTOR.full_name]


def field_of(event_type: EventType.ValueType) -> str:
    """The field that holds the attributes of an event type; empty for an unknown type."""
    return _FIELDS.get(event_type, "")


CLOSING = frozenset(
    {
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW,
    }
)

NEVER_BUFFERED = CLOSING | {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED,
    # Events of the workflow task itself.
    EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED,
    EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED,
    EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED,
    EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED,
    EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT,
    # Events that commands write.
    EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED,
    EventType.EVENT_TYPE_ACTIVITY_TASK_CANCEL_REQUESTED,
    EventType.EVENT_TYPE_TIMER_STARTED,
    EventType.EVENT_TYPE_TIMER_CANCELED,
    EventType.EVENT_TYPE_REQUEST_CANCEL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED,
    EventType.EVENT_TYPE_SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED,
    EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED,
    EventType.EVENT_TYPE_MARKER_RECORDED,
    EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES,
    EventType.EVENT_TYPE_WORKFLOW_PROPERTIES_MODIFIED,
    EventType.EVENT_TYPE_NEXUS_OPERATION_SCHEDULED,
    EventType.EVENT_TYPE_NEXUS_OPERATION_CANCEL_REQUESTED,
    # Events that messages about updates write; the messages arrive with the commands.
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_COMPLETED,
}

# Buffered events of these types are written after all other types, so that an end never precedes its start.
FLUSHED_LAST = frozenset(
    {
        EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED,
        EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED,
        EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT,
        EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED,
        EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_COMPLETED,
        EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_FAILED,
        EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_TIMED_OUT,
        EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_CANCELED,
        EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_TERMINATED,
        EventType.EVENT_TYPE_NEXUS_OPERATION_COMPLETED,
        EventType.EVENT_TYPE_NEXUS_OPERATION_FAILED,
        EventType.EVENT_TYPE_NEXUS_OPERATION_CANCELED,
        EventType.EVENT_TYPE_NEXUS_OPERATION_TIMED_OUT,
    }
)

# Workers may ignore these events if they don't know the type.
WORKER_MAY_IGNORE = frozenset(
    {
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_OPTIONS_UPDATED,
        EventType.EVENT_TYPE_NEXUS_OPERATION_CANCEL_REQUEST_COMPLETED,
        EventType.EVENT_TYPE_NEXUS_OPERATION_CANCEL_REQUEST_FAILED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_PAUSED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UNPAUSED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIME_SKIPPING_TRANSITIONED,
    }
)
