"""The tasks of a standalone activity, which are executed at once or at a given time."""

import msgspec

from fairlead.history.state.tasks import ActivityTimeoutKind


class Dispatch(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Push the waiting attempt to matching, if it still has this stamp."""

    stamp: int


class TimeOut(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Check one of the four timeouts.

    `number` is the stamp for a schedule-to-start timeout, and `starts` for timeouts of a started attempt.
    """

    kind: ActivityTimeoutKind
    number: int


class Forget(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Delete the activity: the namespace's retention is over."""


class Deliver(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Report the end to the completion callback at this position."""

    number: int


AnyTask = Dispatch | TimeOut | Forget | Deliver

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(AnyTask).decode


def encode_task(task: AnyTask) -> bytes:
    """The task as the queue stores it."""
    return _encode(task)


def decode_task(data: bytes) -> AnyTask:
    """The task that the queue stored."""
    decoded: AnyTask = _decode(data)
    return decoded
