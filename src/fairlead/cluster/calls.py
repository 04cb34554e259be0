"""Calls between hosts: what can be asked of another host, whatever carries it there.

A service says what it answers (`Handlers`), a client asks by the host's name (`Caller`). Between the two is a plain
function call, gRPC, or the simulator's network; neither side can tell.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from fairlead.core.errors import GiveUp, RetryElsewhere, RetryLater
from fairlead.telemetry.logs import get_log

log = get_log("cluster.calls")

Request = TypeVar("Request")
Answer = TypeVar("Answer")


class Unreachable(RetryElsewhere):
    """A host did not take the request: it has not been carried out there."""


class CallLost(RetryLater):
    """A host did not answer: the request may have been carried out, or may yet be."""


class Exhausted(RetryLater):
    """A bound of the host is reached: nothing was done. It is told apart because a client should slow down."""


class UnknownMethod(GiveUp):
    """A host was asked for what it does not offer: it runs another release, or has another role."""


@dataclass(frozen=True, slots=True)
class Method(Generic[Request, Answer]):
    """One thing that a host can be asked for; both types are ones that msgspec can encode."""

    name: str
    request: type[Request]
    answer: type[Answer]


class Caller(Protocol):
    """Asks other hosts, and this one.

    What the other side raises is raised here, as the same class where it is one of the service's own errors, and else
    as its kind: what to do about it. Whoever is cancelled while waiting has its request cancelled at the other side.
    """

    async def call(self, host: str, method: Method[Request, Answer], request: Request, *, timeout_s: float) -> Answer:
        """Ask `host`; `CallLost` if it does not answer within `timeout_s`, `Unreachable` if it is not there."""
        ...


class Handlers:
    """What one host answers."""

    def __init__(self) -> None:
        self._handlers: dict[str, tuple[Method[Any, Any], Callable[[Any], Awaitable[Any]]]] = {}

    def add(self, method: Method[Request, Answer], handle: Callable[[Request], Awaitable[Answer]]) -> None:
        """Answer `method` by `handle`."""
        self._handlers[method.name] = (method, handle)

    def __iter__(self) -> Iterator[tuple[Method[Any, Any], Callable[[Any], Awaitable[Any]]]]:
        return iter(self._handlers.values())

    def find(self, name: str) -> tuple[Method[Any, Any], Callable[[Any], Awaitable[Any]]]:
        """The method of this name, and who answers it."""
        try:
            return self._handlers[name]
        except KeyError:
            raise UnknownMethod(f"no method {name!r} here: is this host of another release or role?") from None


def is_cancelled() -> bool:
    """Whether the task that runs was cancelled itself, and not just something that it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def unexpected(method: Method[Any, Any], error: Exception) -> GiveUp:
    """What a caller gets to see of a fault in a handler; the whole of it goes to this host's log."""
    log.error("handler failed", method=method.name, exc_info=error)
    return GiveUp(f"{method.name} failed at its host with {type(error).__name__}: {error}; its log has the details")
