"""How requests, answers and errors look between hosts: msgpack, and a gRPC status for each kind of error."""

import inspect
from collections.abc import Iterable
from typing import Any, Generic, get_type_hints

import grpc
import msgspec

from fairlead.cluster.calls import Answer, CallLost, Exhausted, Method, Request, UnknownMethod, Unreachable
from fairlead.core.errors import FairleadError, FixRequest, GiveUp, RetryElsewhere, RetryLater

# gRPC's name of the service that has all methods, and of the metadata in which an error crosses.
SERVICE = "fairlead"
ERROR_KEY = "fairlead-error-bin"

# A payload of 4 MiB, twice what a client may send as one blob, and what goes around it.
MESSAGE_BYTES_MAX = 4 * 2**20 + 64 * 2**10
# An error crosses in the trailing metadata of a call, of which gRPC takes 8 KiB, the binary part as base64.
ERROR_MESSAGE_BYTES_MAX = 2048
ERROR_DATA_BYTES_MAX = 2048

# The one place where kinds of errors become gRPC's. An error has the status of the nearest of these it derives from.
STATUS_CODES: dict[type, grpc.StatusCode] = {
    FixRequest: grpc.StatusCode.INVALID_ARGUMENT,
    # gRPC's word for "retry, but from further up": look again who the owner is, then ask there.
    RetryElsewhere: grpc.StatusCode.ABORTED,
    RetryLater: grpc.StatusCode.UNAVAILABLE,
    Exhausted: grpc.StatusCode.RESOURCE_EXHAUSTED,
    GiveUp: grpc.StatusCode.INTERNAL,
    UnknownMethod: grpc.StatusCode.UNIMPLEMENTED,
}
_KINDS: dict[str, type[FairleadError]] = {
    kind.__name__: kind for kind in (FixRequest, RetryElsewhere, RetryLater, GiveUp)
}
# All that decoding foreign bytes can end in: wrong bytes or types, wrong text, and what is nested too deep.
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class MalformedRequest(FixRequest):
    """What was received is not a request of this method."""


class MessageTooLarge(FixRequest):
    """A request or its answer has more bytes than may be sent at once: nothing was sent."""


class MalformedAnswer(GiveUp):
    """What was received is not an answer to this method: the other host runs another release."""


class Unsendable(GiveUp):
    """An error was registered that can't be made again at the other side."""


def status_code(error: FairleadError) -> grpc.StatusCode:
    """The gRPC status of an error."""
    return next(STATUS_CODES[base] for base in type(error).__mro__ if base in STATUS_CODES)


class Codec(Generic[Request, Answer]):
    """Encodes what is said in one method, and trusts nothing that it decodes."""

    __slots__ = ("_decode_answer", "_decode_request", "_encode", "_name")

    def __init__(self, method: Method[Request, Answer]) -> None:
        self._name = method.name
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode_request = msgspec.msgpack.Decoder(method.request).decode
        self._decode_answer = msgspec.msgpack.Decoder(method.answer).decode

    def encode(self, message: Request | Answer) -> bytes:
        """The bytes of a request or an answer; refused if there are too many."""
        data = self._encode(message)
        if len(data) > MESSAGE_BYTES_MAX:
            raise MessageTooLarge(
                f"{type(message).__name__} of {self._name} has {len(data)} bytes, at most {MESSAGE_BYTES_MAX} can be "
                "sent: send, or ask for, less at once"
            )
        return data

    def decode_request(self, data: bytes) -> Request:
        """The request; whatever else the bytes are is the sender's fault."""
        try:
            return self._decode_request(data)
        except _UNREADABLE as error:
            raise MalformedRequest(
                f"{len(data)} bytes received are no request of {self._name} ({error}): is the caller of this release?"
            ) from None

    def decode_answer(self, data: bytes) -> Answer:
        """The answer of another host."""
        try:
            return self._decode_answer(data)
        except (*_UNREADABLE, FairleadError) as error:
            raise MalformedAnswer(
                f"{len(data)} bytes received are no answer to {self._name} ({error}): is the host of this release?"
            ) from None


class _Crossing(msgspec.Struct, frozen=True, array_like=True):
    """An error on its way. Who does not know the class goes by the kind; `data` is what the class holds besides."""

    class_name: str
    kind: str
    message: str
    data: bytes = b""


class Errors:
    """The errors that come back as themselves; any other comes back as the nearest of these that it derives from.

    An error that holds more than its message takes it as arguments after `message`, with a type that msgspec can
    encode, and keeps each as the attribute of the same name: these cross with it.
    """

    def __init__(self, classes: Iterable[type[FairleadError]] = ()) -> None:
        self._classes: dict[str, type[FairleadError]] = {}
        self._fields: dict[type[FairleadError], tuple[str, ...]] = {}
        self._decoders: dict[type[FairleadError], msgspec.msgpack.Decoder[Any]] = {}
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(_Crossing).decode
        for known in (*_KINDS.values(), Unreachable, CallLost, Exhausted, UnknownMethod, *classes):
            self._register(known)

    def encode(self, error: FairleadError) -> bytes:
        """The error as it crosses; of an over-long message the beginning."""
        known = next(base for base in type(error).__mro__ if self._classes.get(base.__name__) is base)
        kind = next(base.__name__ for base in known.__mro__ if base.__name__ in _KINDS)
        data = self._encode([getattr(error, field) for field in self._fields[known]]) if self._fields[known] else b""
        if len(data) > ERROR_DATA_BYTES_MAX:
            known, data = _KINDS[kind], b""
        message = str(error).encode(errors="replace")[:ERROR_MESSAGE_BYTES_MAX].decode(errors="ignore")
        return self._encode(_Crossing(known.__name__, kind, message, data))

    def decode(self, data: bytes) -> FairleadError:
        """The error that crossed; `GiveUp` if it can't be read."""
        try:
            crossing = self._decode(data)
            known = self._classes.get(crossing.class_name)
            if known is None:
                return _KINDS.get(crossing.kind, GiveUp)(crossing.message)
            if not self._fields[known]:
                return known(crossing.message)
            values = self._decoders[known].decode(crossing.data)
            return known(crossing.message, **dict(zip(self._fields[known], values, strict=True)))
        except (*_UNREADABLE, FairleadError) as error:
            return GiveUp(f"a host failed, and how can't be read ({error}): is it of this release?")

    def _register(self, known: type[FairleadError]) -> None:
        if self._classes.setdefault(known.__name__, known) is not known:
            raise Unsendable(f"two errors are called {known.__name__}: rename one, since they cross by their names")
        fields = _further_arguments(known)
        self._fields[known] = tuple(fields)
        self._decoders[known] = msgspec.msgpack.Decoder(tuple.__class_getitem__(tuple(fields.values())))


def _further_arguments(known: type[FairleadError]) -> dict[str, Any]:
    if known.__init__ is FairleadError.__init__:
        return {}
    hints = get_type_hints(known.__init__)
    _, first, *further = inspect.signature(known.__init__).parameters
    if first != "message" or any(name not in hints for name in further):
        raise Unsendable(
            f"{known.__name__} can't be made again at the other side: let it take `message`, then arguments with types"
        )
    return {name: hints[name] for name in further}
