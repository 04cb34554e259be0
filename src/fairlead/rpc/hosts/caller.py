"""Calls between hosts, independent of the transport.

A service registers its methods in `Handlers`; a client calls them by host name through a `Caller`. The transport is a
plain function call, gRPC, or the simulator's network; neither side can tell which.
"""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from fairlead.core.errors import GiveUp, RetryElsewhere, RetryLater
from fairlead.telemetry.logs import get_log

log = get_log("cluster.calls")

Request = TypeVar("Request")
Response = TypeVar("Response")


class NotReached(RetryLater):
    """No server answers at the address given to a command."""


class Unreachable(RetryElsewhere):
    """A host did not accept the request, so it was not carried out."""


class CallLost(RetryLater):
    """A host did not respond: the request may have been carried out, or may still be."""


class Overloaded(RetryLater):
    """A limit of the host is reached and nothing was done; the client should slow down."""


class UnknownMethod(GiveUp):
    """A host doesn't have the called method: it runs another release or has another role."""


@dataclass(frozen=True, slots=True)
class Method(Generic[Request, Response]):
    """A method of a host; msgspec must be able to encode both types."""

    name: str
    request: type[Request]
    answer: type[Response]


class Caller(Protocol):
    """Calls methods of other hosts, and of this one.

    An error of the called host is raised here: as the same class if the class is registered, else as its kind
    (`RetryLater`, `FixRequest`, ...). Cancelling a call cancels its handler at the other host.
    """

    async def call(
        self, host: str, method: Method[Request, Response], request: Request, *, timeout_s: float
    ) -> Response:
        """Call `method` at `host`; raise `CallLost` without a response in `timeout_s`, `Unreachable` without a host."""
        ...


class Handlers:
    """The methods of one host and their handlers."""

    def __init__(self) -> None:
        self._handlers: dict[str, tuple[Method[Any, Any], Callable[[Any], Awaitable[Any]]]] = {}

    def add(self, method: Method[Request, Response], handle: Callable[[Request], Awaitable[Response]]) -> None:
        """Register `handle` for `method`."""
        self._handlers[method.name] = (method, handle)

    def __iter__(self) -> Iterator[tuple[Method[Any, Any], Callable[[Any], Awaitable[Any]]]]:
        return iter(self._handlers.values())

    def find(self, name: str) -> tuple[Method[Any, Any], Callable[[Any], Awaitable[Any]]]:
        """Find a method and its handler by name."""
        try:
            return self._handlers[name]
        except KeyError:
            raise UnknownMethod(f"no method {name!r} here: does this host run another release or role?") from None


def unexpected(method: Method[Any, Any], error: Exception) -> GiveUp:
    """Log an unexpected exception of a handler, and make the shorter error that its caller gets."""
    log.error("handler failed", method=method.name, exc_info=error)
    return GiveUp(f"{method.name} failed at its host with {type(error).__name__}: {error}; see the host's log")
