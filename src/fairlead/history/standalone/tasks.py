"""What an activity that stands alone wants done, now or at a time: what its entity's tasks say."""

import msgspec

from fairlead.history.state.tasks import ActivityTimeoutKind


class Dispatch(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Hand the attempt that waits to matching, if it is still this one."""

    stamp: int


class TimeOut(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """One of the four times may be over. `number` is the stamp before an attempt's start, and the start after it."""

    kind: ActivityTimeoutKind
    number: int


class Forget(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """The namespace's retention is over."""


AnyTask = Dispatch | TimeOut | Forget

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(AnyTask).decode


def encode_task(task: AnyTask) -> bytes:
    """As the queue keeps it."""
    return _encode(task)


def decode_task(data: bytes) -> AnyTask:
    """What the queue kept."""
    decoded: AnyTask = _decode(data)
    return decoded
