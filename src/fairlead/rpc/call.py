"""One gRPC call, as its handler sees it."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TypeAlias

from msgspec import Struct

from fairlead.core.errors import FixRequest
from fairlead.rpc.certificate import PeerCertificate
from fairlead.rpc.head import Head

_TRAILER_NAME = re.compile(r"[0-9a-z_.-]+")
_TRAILER_TEXT = re.compile(r"[\x20-\x7e]*")
BINARY_SUFFIX = "-bin"
# Prefix of the trailer names that gRPC reserves for itself.
RESERVED_PREFIX = "grpc-"


class InvalidTrailer(FixRequest):
    """A handler set a trailer that can't be sent."""


class Call:
    """Path, headers and deadline of a call, for its handler, which may add trailers to the response."""

    __slots__ = ("_clock", "certificate", "deadline_s", "head", "peer", "trailers")

    def __init__(
        self,
        head: Head,
        *,
        peer: str,
        clock: Callable[[], float],
        timeout_s: float | None = None,
        certificate: PeerCertificate | None = None,
    ) -> None:
        """`timeout_s` replaces the head's: calls with different timeouts share a cached head.

        `certificate` is that of the caller, if it presented one that was verified.
        """
        self.head = head
        self.peer = peer
        self.certificate = certificate
        self._clock = clock
        # In seconds of the event loop's clock; None if the caller set no deadline.
        timeout_s = head.timeout_s if timeout_s is None else timeout_s
        self.deadline_s: float | None = None if timeout_s is None else clock() + timeout_s
        self.trailers: list[tuple[str, str | bytes]] | None = None

    @property
    def path(self) -> str:
        """The service and the method, such as /grpc.health.v1.Health/Check."""
        return self.head.path

    @property
    def metadata(self) -> Mapping[str, str]:
        """The call's headers; the values of a repeated header are joined by commas."""
        return self.head.metadata

    @property
    def binary_metadata(self) -> Mapping[str, bytes]:
        """The call's headers whose names end in -bin, decoded."""
        return self.head.binary_metadata

    def trust(self) -> None:
        """Record that the caller is identified: its connection gets the whole limits, not those of strangers."""

    def remaining_s(self) -> float | None:
        """Seconds until the deadline; None if the caller set none."""
        return None if self.deadline_s is None else max(0.0, self.deadline_s - self._clock())

    def set_trailer(self, name: str, value: str | bytes) -> None:
        """Send a trailer after the response, successful or not; bytes need a name that ends in -bin."""
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


class Unary(Struct, frozen=True):
    """One message in, one message out."""

    handle: UnaryHandler


class ServerStream(Struct, frozen=True):
    """One message in, many out."""

    handle: StreamHandler


class Duplex(Struct, frozen=True):
    """Many messages in and out, in any order."""

    handle: DuplexHandler


Route: TypeAlias = Unary | ServerStream | Duplex
