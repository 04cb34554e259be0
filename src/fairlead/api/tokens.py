"""Task tokens: identify a task in a worker's response."""

import msgspec

from fairlead.api.errors import InvalidArgument

TOKEN_BYTES_MAX = 16 * 1024


class TaskToken(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Identifies the run of a task."""

    namespace_id: str
    workflow_id: str
    run_id: str


class WorkflowTaskToken(TaskToken, array_like=True, frozen=True, tag=True):
    """Identifies a workflow task."""

    scheduled_event_id: int
    attempt: int
    started_event_id: int
    # Version of the scheduled event: on another branch, the same id belongs to another event.
    version: int = 0
    # Start time of the task. Two clusters may have started the same task: the response applies only to the start that
    # the worker saw.
    started_ns: int = 0


class ActivityTaskToken(TaskToken, array_like=True, frozen=True, tag=True):
    """Identifies an attempt of an activity.

    For a standalone activity, `workflow_id` is the activity id, and `scheduled_event_id` is the number of the start.
    """

    scheduled_event_id: int
    attempt: int
    activity_id: str
    is_standalone: bool = False
    # Version of the scheduled event.
    version: int = 0
    # The run's sticky task queue when the attempt began. A frontend whose worker polls it can offer a waiting poll for
    # the workflow task that follows the activity.
    sticky_task_queue: str = ""


class QueryTaskToken(TaskToken, array_like=True, frozen=True, tag=True):
    """Identifies a query that a worker answers outside of a workflow task."""

    query_id: str


class NexusTaskToken(TaskToken, array_like=True, frozen=True, tag=True):
    """A request to a Nexus handler: `namespace_id` is the handler's, the other fields identify the caller's run.

    For a standalone operation, `workflow_id` is the operation's id and `scheduled_event_id` is 0.
    """

    caller_namespace_id: str
    scheduled_event_id: int
    attempt: int
    is_cancel: bool
    is_standalone: bool = False
    # Id of the operation's request, which only the caller and the handler know, so that no one else can make a valid
    # token.
    request_id: str = ""


AnyToken = WorkflowTaskToken | ActivityTaskToken | QueryTaskToken | NexusTaskToken

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(AnyToken).decode


def encode_token(token: AnyToken) -> bytes:
    """Encode a token; it is opaque to workers."""
    return _encode(token)


def decode_token(token: bytes) -> AnyToken:
    """Decode a token; raises an API error if it is invalid."""
    if not token:
        raise InvalidArgument("Task token not set on request.")
    if len(token) > TOKEN_BYTES_MAX:
        raise InvalidArgument("Invalid TaskToken.")
    try:
        decoded: AnyToken = _decode(token)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidArgument("Invalid TaskToken.") from None
    return decoded
