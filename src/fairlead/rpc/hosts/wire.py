"""Encoding of requests, responses and errors between hosts: msgpack."""

import inspect
from collections.abc import Iterable
from typing import Any, Generic, get_type_hints

import msgspec

from fairlead.core.errors import FairleadError, FixRequest, GiveUp, RetryElsewhere, RetryLater
from fairlead.rpc.hosts.caller import CallLost, Method, Overloaded, Request, Response, UnknownMethod, Unreachable

# Name of the gRPC service that has all methods, and of the trailer that carries an error.
SERVICE = "fairlead"
ERROR_KEY = "fairlead-error-bin"

# Bytes of a message: a payload of 4 MiB (twice the largest blob that a client may send) and the fields around it.
MESSAGE_BYTES_MAX = 4 * 2**20 + 64 * 2**10
# Bytes of an error's message and of its data: both travel base64-encoded in trailers; gRPC accepts 8 KiB of trailers.
ERROR_MESSAGE_BYTES_MAX = 2048
ERROR_DATA_BYTES_MAX = 2048

_KINDS: dict[str, type[FairleadError]] = {
    kind.__name__: kind for kind in (FixRequest, RetryElsewhere, RetryLater, GiveUp)
}
# Errors of decoding foreign bytes: wrong bytes or types, invalid UTF-8, and too deep nesting.
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class MalformedRequest(FixRequest):
    """The received bytes are not a request of the method."""


class MessageTooLarge(FixRequest):
    """A request or response has more bytes than one message may have; nothing was sent."""


class MalformedResponse(GiveUp):
    """The received bytes are not a response of the method: the other host runs another release."""


class Unsendable(GiveUp):
    """An error class was registered that the other host could not reconstruct."""


class Codec(Generic[Request, Response]):
    """Encodes and decodes the messages of one method, and validates everything that it decodes."""

    __slots__ = ("_decode_answer", "_decode_request", "_encode", "_name")

    def __init__(self, method: Method[Request, Response]) -> None:
        self._name = method.name
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode_request = msgspec.msgpack.Decoder(method.request).decode
        self._decode_answer = msgspec.msgpack.Decoder(method.answer).decode

    def encode(self, message: Request | Response) -> bytes:
        """Encode a request or response; raise MessageTooLarge above MESSAGE_BYTES_MAX."""
        data = self._encode(message)
        if len(data) > MESSAGE_BYTES_MAX:
            raise MessageTooLarge(
                f"{type(message).__name__} of {self._name} has {len(data)} bytes, at most {MESSAGE_BYTES_MAX} can be "
                "sent: send, or ask for, less at once"
            )
        return data

    def decode_request(self, data: bytes) -> Request:
        """Decode a request; raise MalformedRequest if the bytes are not one."""
        try:
            return self._decode_request(data)
        except _UNREADABLE as error:
            raise MalformedRequest(
                f"{len(data)} bytes are not a request of {self._name} ({error}): does the caller run this release?"
            ) from None

    def decode_answer(self, data: bytes) -> Response:
        """Decode another host's response; raise MalformedResponse if the bytes are not one."""
        try:
            return self._decode_answer(data)
        except (*_UNREADABLE, FairleadError) as error:
            raise MalformedResponse(
                f"{len(data)} bytes are not a response of {self._name} ({error}): does the host run this release?"
            ) from None


class _Crossing(msgspec.Struct, frozen=True, array_like=True):
    """An error on the wire. A receiver that doesn't know the class uses the kind; `data` has the class's own fields."""

    class_name: str
    kind: str
    message: str
    data: bytes = b""


class Errors:
    """Registry of error classes that callers get unchanged; any other error arrives as its nearest registered base.

    An error class with further fields takes them as arguments after `message`, with types that msgspec can encode, and
    keeps each as the attribute of the same name; these are sent with the error. If these fields are too large to be
    sent, the receiver gets the same class with the fields' defaults, or, if a field has no default, only the error's
    kind.
    """

    def __init__(self, classes: Iterable[type[FairleadError]] = ()) -> None:
        self._classes: dict[str, type[FairleadError]] = {}
        self._fields: dict[type[FairleadError], tuple[str, ...]] = {}
        self._with_defaults: set[type[FairleadError]] = set()
        self._decoders: dict[type[FairleadError], msgspec.msgpack.Decoder[Any]] = {}
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(_Crossing).decode
        for known in (*_KINDS.values(), Unreachable, CallLost, Overloaded, UnknownMethod, *classes):
            self._register(known)

    def encode(self, error: FairleadError) -> bytes:
        """Encode an error; an over-long message is cut."""
        known = next(base for base in type(error).__mro__ if self._classes.get(base.__name__) is base)
        kind = next(base.__name__ for base in known.__mro__ if base.__name__ in _KINDS)
        data = self._encode([getattr(error, field) for field in self._fields[known]]) if self._fields[known] else b""
        if len(data) > ERROR_DATA_BYTES_MAX:
            known, data = known if known in self._with_defaults else _KINDS[kind], b""
        message = str(error).encode(errors="replace")[:ERROR_MESSAGE_BYTES_MAX].decode(errors="ignore")
        return self._encode(_Crossing(known.__name__, kind, message, data))

    def decode(self, data: bytes) -> FairleadError:
        """Decode an error; `GiveUp` if it can't be read."""
        try:
            crossing = self._decode(data)
            known = self._classes.get(crossing.class_name)
            if known is None:
                return _KINDS.get(crossing.kind, GiveUp)(crossing.message)
            if not self._fields[known] or (not crossing.data and known in self._with_defaults):
                return known(crossing.message)
            values = self._decoders[known].decode(crossing.data)
            return known(crossing.message, **dict(zip(self._fields[known], values, strict=True)))
        except (*_UNREADABLE, FairleadError) as error:
            return GiveUp(f"the error of another host can't be decoded ({error}): does it run this release?")

    def _register(self, known: type[FairleadError]) -> None:
        if self._classes.setdefault(known.__name__, known) is not known:
            raise Unsendable(f"two error classes are named {known.__name__}: rename one, hosts send errors by name")
        fields = _further_arguments(known)
        self._fields[known] = tuple(fields)
        if _has_defaults(known, fields):
            self._with_defaults.add(known)
        self._decoders[known] = msgspec.msgpack.Decoder(tuple.__class_getitem__(tuple(fields.values())))


def _further_arguments(known: type[FairleadError]) -> dict[str, Any]:
    if known.__init__ is FairleadError.__init__:
        return {}
    hints = get_type_hints(known.__init__)
    _, first, *further = inspect.signature(known.__init__).parameters
    if first != "message" or any(name not in hints for name in further):
        raise Unsendable(
            f"{known.__name__} can't be reconstructed by other hosts: let it take `message`, then arguments with types"
        )
    return {name: hints[name] for name in further}


def _has_defaults(known: type[FairleadError], fields: Iterable[str]) -> bool:
    parameters = inspect.signature(known.__init__).parameters
    return all(parameters[name].default is not inspect.Parameter.empty for name in fields)
