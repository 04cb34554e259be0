"""What a worker is given with a task, and shows with its answer: which task of which run it was."""

import msgspec

from fairlead.history.refusals import invalid

TOKEN_BYTES_MAX = 16 * 1024


class TaskToken(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Which run the task is of."""

    namespace_id: str
    workflow_id: str
    run_id: str


class WorkflowTaskToken(TaskToken, array_like=True, frozen=True, tag=True):
    """A workflow task."""

    scheduled_event_id: int
    attempt: int
    started_event_id: int
    # Of the event: on another branch, another one has its id.
    version: int = 0
    # Two clusters may have started the one task that they share: the answer is to the start that its worker has seen.
    started_ns: int = 0


class ActivityTaskToken(TaskToken, array_like=True, frozen=True, tag=True):
    """An attempt of an activity.

    Of one that stands alone, the workflow id is its own id, and in place of the event is the number of its start.
    """

    scheduled_event_id: int
    attempt: int
    activity_id: str
    is_standalone: bool = False
    # Of the event with which it was scheduled.
    version: int = 0


class QueryTaskToken(TaskToken, array_like=True, frozen=True, tag=True):
    """A query that a worker answers on its own, without a workflow task."""

    query_id: str


class NexusTaskToken(TaskToken, array_like=True, frozen=True, tag=True):
    """A request to a Nexus handler: `namespace_id` is where that is, the others say which run made it."""

    caller_namespace_id: str
    scheduled_event_id: int
    attempt: int
    is_cancel: bool


AnyToken = WorkflowTaskToken | ActivityTaskToken | QueryTaskToken | NexusTaskToken

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(AnyToken).decode


def encode_token(token: AnyToken) -> bytes:
    """The token as bytes that mean nothing to a worker."""
    return _encode(token)


def decode_token(token: bytes) -> AnyToken:
    """The token that `encode_token` was given; everything else is refused."""
    if not token:
        raise invalid("Task token not set on request.")
    if len(token) > TOKEN_BYTES_MAX:
        raise invalid("Invalid TaskToken.")
    try:
        decoded: AnyToken = _decode(token)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise invalid("Invalid TaskToken.") from None
    return decoded
