"""A call, as its handler sees it."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from fairlead.core.errors import FixRequest
from fairlead.rpc.head import Head

_TRAILER_NAME = re.compile(r"[0-9a-z_.-]+")
_TRAILER_TEXT = re.compile(r"[\x20-\x7e]*")
BINARY_SUFFIX = "-bin"
# gRPC's own names.
RESERVED_PREFIX = "grpc-"


class InvalidTrailer(FixRequest):
    """A handler's trailer can't go over the wire."""


class Call:
    """What a handler may know of the call that it answers, and add to the answer."""

    __slots__ = ("_clock", "deadline_s", "head", "peer", "trailers")

    def __init__(self, head: Head, *, peer: str, clock: Callable[[], float]) -> None:
        self.head = head
        self.peer = peer
        self._clock = clock
        # By the clock of the loop; None: the caller waits for as long as it takes.
        self.deadline_s: float | None = None if head.timeout_s is None else clock() + head.timeout_s
        self.trailers: list[tuple[str, str | bytes]] | None = None

    @property
    def path(self) -> str:
        """The service and the method, such as /grpc.health.v1.Health/Check."""
        return self.head.path

    @property
    def metadata(self) -> Mapping[str, str]:
        """The call's headers; one that was sent several times has its values joined by commas."""
        return self.head.metadata

    @property
    def binary_metadata(self) -> Mapping[str, bytes]:
        """The call's headers whose names end in -bin, decoded."""
        return self.head.binary_metadata

    def remaining_s(self) -> float | None:
        """How long the caller still waits; None: for as long as it takes."""
        return None if self.deadline_s is None else max(0.0, self.deadline_s - self._clock())

    def set_trailer(self, name: str, value: str | bytes) -> None:
        """Send this after the answer, whether it is a message or a status; bytes need a name that ends in -bin."""
        is_binary = isinstance(value, bytes)
        if not _TRAILER_NAME.fullmatch(name) or name.startswith(RESERVED_PREFIX):
            raise InvalidTrailer(f"trailer {name!r}: use lower-case letters, digits and _.-, and no name of gRPC's own")
        if name.endswith(BINARY_SUFFIX) is not is_binary:
            raise InvalidTrailer(f"trailer {name!r}: names that end in {BINARY_SUFFIX} have bytes, and only they do")
        if isinstance(value, str) and not _TRAILER_TEXT.fullmatch(value):
            raise InvalidTrailer(f"trailer {name!r}: {value!r} is not printable ASCII; use a {BINARY_SUFFIX} name")
        if self.trailers is None:
            self.trailers = []
        self.trailers.append((name, value))


UnaryHandler: TypeAlias = Callable[[bytes, Call], Awaitable[bytes]]
StreamHandler: TypeAlias = Callable[[bytes, Call], AsyncIterator[bytes]]
DuplexHandler: TypeAlias = Callable[[AsyncIterator[bytes], Call], AsyncIterator[bytes]]


@dataclass(frozen=True, slots=True)
class Unary:
    """One message in, one message out."""

    handle: UnaryHandler


@dataclass(frozen=True, slots=True)
class ServerStream:
    """One message in, many out."""

    handle: StreamHandler


@dataclass(frozen=True, slots=True)
class Duplex:
    """Many messages in and out, in any order."""

    handle: DuplexHandler


Route: TypeAlias = Unary | ServerStream | Duplex
