"""The types of events: which message holds the attributes of each, which end a run, and which have to wait.

While a worker has a workflow task, the history it was shown must not grow under it. What it causes itself is written
when it answers; what comes from elsewhere waits until then.
"""

from typing import NamedTuple

from google.protobuf.message import Message
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

_SUFFIX = "_event_attributes"

# Who terminates a run that is reset, and one that a newer run from another cluster takes the place of.
RESETTER = "history-resetter"
NEWER_RUN = "history-replication"


class EventKind(NamedTuple):
    """An event's type, and the field in which its attributes are."""

    event_type: EventType.ValueType
    field: str


def _kinds() -> dict[str, EventKind]:
    kinds = {}
    for field in HistoryEvent.DESCRIPTOR.oneofs_by_name["attributes"].fields:
        name = field.name.removesuffix(_SUFFIX).upper()
        if field.message_type is None:
            raise TypeError(f"{field.name} is no message: this is not the API that this code was written for")
        kinds[field.message_type.full_name] = EventKind(EventType.Value(f"EVENT_TYPE_{name}"), field.name)
    return kinds


_KINDS = _kinds()
_FIELDS = {kind.event_type: kind.field for kind in _KINDS.values()}


def kind_of(attributes: Message) -> EventKind:
    """The type of event that these attributes are for."""
    return _KINDS[attributes.DESCRIPTOR.full_name]


def field_of(event_type: EventType.ValueType) -> str:
    """The field that holds the attributes of a type of events; empty for a type that this code does not know."""
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
    # Of the workflow task itself.
    EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED,
    EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED,
    EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED,
    EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED,
    EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT,
    # Of commands.
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
    # Of the messages that come with commands.
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_COMPLETED,
}

# Leave the buffer after everything else, so that a result never stands before the start it belongs to.
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

# A worker that does not know these may go on without them.
WORKER_MAY_IGNORE = frozenset(
    {
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_OPTIONS_UPDATED,
        EventType.EVENT_TYPE_NEXUS_OPERATION_CANCEL_REQUEST_COMPLETED,
        EventType.EVENT_TYPE_NEXUS_OPERATION_CANCEL_REQUEST_FAILED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_PAUSED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UNPAUSED,
    }
)
