"""The tasks of a standalone Nexus operation, which are executed at once or at a given time."""

import msgspec


class Call(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Push a request to the workers of the endpoint."""

    attempt: int
    is_cancel: bool


class CallTimeout(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Fail a request that no worker answered in time."""

    attempt: int
    is_cancel: bool


class Retry(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """End the backoff after a failed request. `attempt` is the number of the request that failed."""

    attempt: int
    is_cancel: bool


class TimeOut(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Time out the operation. `kind` is the number of a `TimeoutType`."""

    kind: int


class Forget(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Delete the operation: the namespace's retention is over."""


AnyTask = Call | CallTimeout | Retry | TimeOut | Forget

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(AnyTask).decode


def encode_task(task: AnyTask) -> bytes:
    """The task as the queue stores it."""
    return _encode(task)


def decode_task(data: bytes) -> AnyTask:
    """The task that the queue stored."""
    decoded: AnyTask = _decode(data)
    return decoded
