"""A server of gRPC on asyncio."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from structlog.typing import FilteringBoundLogger

from fairlead.core.errors import FixRequest
from fairlead.rpc.call import Duplex, DuplexHandler, Route, ServerStream, StreamHandler, Unary, UnaryHandler
from fairlead.rpc.connection import ALPN_PROTOCOL, Connection
from fairlead.rpc.host import Host
from fairlead.rpc.limits import RpcLimits

# Connections that the system holds for us until we take them.
BACKLOG_MAX = 1_024
# What a handler may take to end when it was cancelled because the server stops, and what its answer takes to be read.
CANCELLED_S_MAX = 5.0
CLOSED_S_MAX = 2.0
# For what is written to be taken by the system, at the very end.
CUT_S_MAX = 0.2
# How often connections are looked after, at least; more often where a limit is short.
CHECK_S_MAX = 1.0
_CHECKS_A_LIMIT = 4
_ENDED_POLL_S = 0.01

_LOG: FilteringBoundLogger = structlog.get_logger()


class CannotListen(FixRequest):
    """The server could not be bound to the address that it was given."""


class AlreadyAdded(FixRequest):
    """Two handlers for one path."""


@dataclass(frozen=True, slots=True)
class RpcStats:
    """What a server holds at this moment."""

    connections: int
    streams: int
    # Those of calls that were given up and whose handlers have not ended included.
    handlers: int


class RpcServer:
    """Answers calls of gRPC by the handlers that were added, over HTTP/2, in the loop that it was started in.

    A handler is cancelled when its caller gives up, is gone, or has waited until its deadline. `tls` is a context for
    the server's side; without one the connections are in clear text.
    """

    def __init__(
        self,
        listen: str,
        *,
        limits: RpcLimits | None = None,
        tls: ssl.SSLContext | None = None,
        log: FilteringBoundLogger | None = None,
    ) -> None:
        self._listen = listen
        self._limits = limits or RpcLimits()
        self._tls = tls
        self._log = log or _LOG
        self._routes: dict[str, Route] = {}
        self._socket: socket.socket | None = None
        self._host: Host | None = None
        self._server: asyncio.Server | None = None
        self._check_timer: asyncio.TimerHandle | None = None

    def add(self, path: str, handler: UnaryHandler) -> None:
        """Answer one message by one: `async def handle(request: bytes, call: Call) -> bytes`."""
        self._add(path, Unary(handler))

    def add_stream(self, path: str, handler: StreamHandler) -> None:
        """Answer one message by many: an asynchronous generator of bytes."""
        self._add(path, ServerStream(handler))

    def add_duplex(self, path: str, handler: DuplexHandler) -> None:
        """Answer many messages by many: as `add_stream`, and the request is an asynchronous iterator as well."""
        self._add(path, Duplex(handler))

    @property
    def services(self) -> tuple[str, ...]:
        """The names of the services that have a handler here."""
        return tuple(sorted({path.rpartition("/")[0].lstrip("/") for path in self._routes}))

    def bind(self) -> str:
        """Take the address, and say which it is, so that the server can be named before it answers anything."""
        host, port = self._bound().getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def start(self) -> str:
        """Answer from now on; returns the address, with the port that was chosen if none was given."""
        address = self.bind()
        loop = asyncio.get_running_loop()
        host = self._host = Host(
            limits=self._limits, loop=loop, clock=loop.time, log=self._log.bind(address=address), routes=self._routes
        )
        if self._tls is not None:
            self._tls.set_alpn_protocols([ALPN_PROTOCOL])
        self._server = await loop.create_server(
            lambda: Connection(host), sock=self._bound(), backlog=BACKLOG_MAX, ssl=self._tls
        )
        self._check_later(host)
        return address

    def stats(self) -> RpcStats:
        """What the server holds now."""
        if self._host is None:
            return RpcStats(connections=0, streams=0, handlers=0)
        connections = self._host.connections
        return RpcStats(
            connections=len(connections),
            streams=sum(connection.streams for connection in connections),
            handlers=len(self._host.tasks),
        )

    def drain(self) -> None:
        """Take no more connections, and ask those that are there to open no more calls; open calls go on."""
        if self._host is None or self._host.is_draining:
            return
        self._host.is_draining = True
        if self._server is not None:
            self._server.close()
        for connection in tuple(self._host.connections):
            connection.drain()

    async def stop(self, grace_s: float) -> None:
        """Drain; calls have `grace_s` to end, then they are cancelled and answered UNAVAILABLE."""
        host = self._host
        if host is None:
            if self._socket is not None:
                self._socket.close()
            return
        self.drain()
        if grace_s > 0:
            await _until(lambda: not host.tasks and not self.stats().streams, within_s=grace_s)
        for task in tuple(host.tasks):
            task.cancel()
        await _until(lambda: not host.tasks, within_s=CANCELLED_S_MAX)
        # The last answers are on their way: a connection that is cut now would lose them.
        await _until(lambda: not host.connections, within_s=min(grace_s, CLOSED_S_MAX))
        for connection in tuple(host.connections):
            connection.close()
        await _until(lambda: not host.connections, within_s=CUT_S_MAX)
        for connection in tuple(host.connections):
            connection.abort()
        if self._check_timer is not None:
            self._check_timer.cancel()

    def _bound(self) -> socket.socket:
        if self._socket is None:
            self._socket = _bound_socket(self._listen)
        return self._socket

    def _add(self, path: str, route: Route) -> None:
        if path in self._routes:
            raise AlreadyAdded(f"{path} has a handler already: a path has one")
        self._routes[path] = route

    def _check_later(self, host: Host) -> None:
        limits = self._limits
        shortest_s = min(limits.preface_s_max, limits.keepalive_s, limits.keepalive_timeout_s)
        self._check_timer = host.loop.call_later(min(CHECK_S_MAX, shortest_s / _CHECKS_A_LIMIT), self._check, host)

    def _check(self, host: Host) -> None:
        now_s = host.clock()
        for connection in tuple(host.connections):
            connection.check(now_s)
        self._check_later(host)


async def _until(is_true: Callable[[], bool], *, within_s: float) -> None:
    """Wait until something is so, or the time is up."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + within_s
    while not is_true() and loop.time() < end_s:  # noqa: ASYNC110 - it hangs on three sets that change in many places
        await asyncio.sleep(_ENDED_POLL_S)


def _bound_socket(listen: str) -> socket.socket:
    host, _, port = listen.rpartition(":")
    try:
        found = socket.getaddrinfo(
            host.strip("[]") or "0.0.0.0",  # noqa: S104 - an address without a host means all of them
            _port(port),
            type=socket.SOCK_STREAM,
            flags=socket.AI_PASSIVE,
        )
        family, kind, protocol, _, address = found[0]
        bound = socket.socket(family, kind, protocol)
        try:
            # A server that starts again must not wait for the old one's connections to be forgotten.
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            # Only from here on is the address ours alone. Those who connect before the start wait for it.
            bound.listen(BACKLOG_MAX)
        except OSError:
            bound.close()
            raise
    except (OSError, ValueError) as error:
        raise CannotListen(
            f"can't listen on {listen!r} ({error}): give a free address of this machine, say 127.0.0.1:7233"
        ) from None
    bound.setblocking(False)  # noqa: FBT003 - its name says what is true or false
    return bound


def _port(text: str) -> int:
    port = int(text)
    # The system's resolver would take the number modulo 65,536.
    if not 0 <= port < 2**16:
        raise ValueError(f"{port} is no port")
    return port
