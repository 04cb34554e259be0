"""A gRPC server on asyncio."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from structlog.typing import FilteringBoundLogger

from fairlead.aio.condition import until
from fairlead.core.errors import FixRequest
from fairlead.rpc.call import Duplex, DuplexHandler, Route, ServerStream, StreamHandler, Unary, UnaryHandler
from fairlead.rpc.connection import Connection
from fairlead.rpc.host import Host
from fairlead.rpc.http2 import ALPN_PROTOCOL
from fairlead.rpc.limits import RpcLimits
from fairlead.rpc.memory import Memory
from fairlead.telemetry.descriptors import Descriptors
from fairlead.telemetry.listen_errors import CannotListen

# Connections that the operating system queues until the server accepts them.
BACKLOG_MAX = 1_024
# At stop: seconds for cancelled handlers to end, and seconds for peers to read the last responses and close.
CANCELLED_S_MAX = 5.0
CLOSED_S_MAX = 2.0
# Seconds at the end of stop for the operating system to take the last written bytes.
CUT_S_MAX = 0.2
# Seconds for which the server may be short of memory before the connection that holds most is cut.
SHORT_S_MAX = 10.0
# Seconds between checks of all connections; checks are more frequent where a time limit is short.
CHECK_S_MAX = 1.0
_CHECKS_A_LIMIT = 4

_LOG: FilteringBoundLogger = structlog.get_logger()


class AlreadyAdded(FixRequest):
    """A path has a handler already."""


@dataclass(frozen=True, slots=True)
class RpcStats:
    """Numbers of a server's open connections, open streams and running handlers."""

    connections: int
    streams: int
    # Including cancelled handlers that have not ended.
    handlers: int


class RpcServer:
    """Serves gRPC over HTTP/2 with the added handlers, in the event loop in which it was started.

    The server cancels a handler when its caller cancels, disconnects or reaches its deadline. `tls` is a server-side
    context; without one, connections are in clear text.
    """

    def __init__(
        self,
        listen: str,
        *,
        listens: bool = True,
        limits: RpcLimits | None = None,
        stranger_limits: RpcLimits | None = None,
        tls: ssl.SSLContext | None = None,
        log: FilteringBoundLogger | None = None,
        memory_bytes_max: Callable[[], int] | None = None,
        ages_s: Callable[[], tuple[float, float]] | None = None,
    ) -> None:
        """Without `listens`, another process accepts the connections at `listen`; see `adopt`.

        `memory_bytes_max` replaces that of the limits. `ages_s` returns the maximum age of a connection in seconds, 0
        for no limit, and the seconds that its open calls have then. Both are asked again while the server runs.
        `stranger_limits` are for connections until a handler calls `Call.trust`; their sizes of messages and headers
        must be the same.
        """
        self._ages_s = ages_s
        self._listen = listen
        self._listens = listens
        self._limits = limits or RpcLimits()
        self._stranger_limits = stranger_limits or self._limits
        self._tls = tls
        self._memory_bytes_max = memory_bytes_max or (lambda: self._limits.memory_bytes_max)
        # A peer that does not finish its handshake must not keep its connection for long.
        self._handshake_s_max = None if tls is None else self._limits.preface_s_max
        self._shutdown_s_max = None if tls is None else CLOSED_S_MAX
        self._log = log or _LOG
        self._routes: dict[str, Route] = {}
        self._socket: socket.socket | None = None
        self._host: Host | None = None
        self._server: asyncio.Server | None = None
        self._check_timer: asyncio.TimerHandle | None = None
        # By memory budget that is short: the time in seconds since when.
        self._short_s: dict[Memory, float] = {}

    def add(self, path: str, handler: UnaryHandler) -> None:
        """Add a unary handler: `async def handle(request: bytes, call: Call) -> bytes`."""
        self._add(path, Unary(handler))

    def add_stream(self, path: str, handler: StreamHandler) -> None:
        """Add a handler that gets one message and yields many: an asynchronous generator of bytes."""
        self._add(path, ServerStream(handler))

    def add_duplex(self, path: str, handler: DuplexHandler) -> None:
        """Add a handler that gets an asynchronous iterator of messages and yields many, as for `add_stream`."""
        self._add(path, Duplex(handler))

    @property
    def services(self) -> tuple[str, ...]:
        """Names of the services that have a handler."""
        return tuple(sorted({path.rpartition("/")[0].lstrip("/") for path in self._routes}))

    def bind(self) -> str:
        """Bind the socket and return its address, so that the address is known before the server answers calls."""
        if not self._listens:
            return self._listen
        host, port = self._bound().getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def start(self) -> str:
        """Start serving; return the address, with the chosen port if the configured one was 0."""
        address = self.bind()
        loop = asyncio.get_running_loop()
        log = self._log.bind(address=address)
        memory = stranger_memory = Memory(self._memory_bytes_max(), loop=loop, on_excess=self._cut_excess)
        if self._stranger_limits is not self._limits:
            stranger_memory = Memory(
                self._stranger_limits.memory_bytes_max, loop=loop, on_excess=self._cut_excess_of_strangers
            )
        host = self._host = Host(
            limits=self._limits,
            stranger_limits=self._stranger_limits,
            loop=loop,
            clock=loop.time,
            log=log,
            routes=self._routes,
            memory=memory,
            stranger_memory=stranger_memory,
            descriptors=Descriptors(log),
        )
        if self._tls is not None:
            self._tls.set_alpn_protocols([ALPN_PROTOCOL])
        if self._listens:
            self._server = await loop.create_server(
                lambda: Connection(host),
                sock=self._bound(),
                backlog=BACKLOG_MAX,
                ssl=self._tls,
                ssl_handshake_timeout=self._handshake_s_max,
                ssl_shutdown_timeout=self._shutdown_s_max,
            )
        self._check_later(host)
        return address

    async def adopt(self, accepted: socket.socket) -> None:
        """Serve a connection that another process has accepted; the server must be started."""
        host = self._host
        if host is None:
            accepted.close()
            return
        accepted.setblocking(False)  # noqa: FBT003 - its name says what is true or false
        try:
            await host.loop.connect_accepted_socket(
                lambda: Connection(host),
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=self._handshake_s_max,
                ssl_shutdown_timeout=self._shutdown_s_max,
            )
        except OSError as failure:
            # The peer has disconnected, or its TLS handshake failed.
            host.log.debug("connection not taken over", reason=str(failure))

    def release(self) -> None:
        """Ask the peer of one connection to open another one; open calls continue."""
        for connection in tuple(self._host.connections if self._host else ()):
            if not connection.is_draining:
                connection.drain()
                return

    @property
    def lasting_connections(self) -> int:
        """Number of open connections whose peers were not asked to leave."""
        return sum(not connection.is_draining for connection in self._host.connections) if self._host else 0

    def stats(self) -> RpcStats:
        """Current numbers of connections, streams and handlers."""
        if self._host is None:
            return RpcStats(connections=0, streams=0, handlers=0)
        connections = self._host.connections
        return RpcStats(
            connections=len(connections),
            streams=sum(connection.streams for connection in connections),
            handlers=len(self._host.tasks),
        )

    def drain(self) -> None:
        """Accept no more connections and ask peers to open no more calls; open calls continue."""
        if self._host is None or self._host.is_draining:
            return
        self._host.is_draining = True
        if self._server is not None:
            self._server.close()
        for connection in tuple(self._host.connections):
            connection.drain()

    async def stop(self, grace_s: float) -> None:
        """Drain, wait up to `grace_s` for calls to end, then cancel the rest, which end with UNAVAILABLE."""
        host = self._host
        if host is None:
            if self._socket is not None:
                self._socket.close()
            return
        self.drain()
        if grace_s > 0:
            await until(lambda: not host.tasks and not self.stats().streams, within_s=grace_s)
        for task in tuple(host.tasks):
            task.cancel()
        await until(lambda: not host.tasks, within_s=CANCELLED_S_MAX)
        # Wait for peers to close: cutting a connection now would lose the last responses.
        await until(lambda: not host.connections, within_s=min(grace_s, CLOSED_S_MAX))
        for connection in tuple(host.connections):
            connection.close()
        await until(lambda: not host.connections, within_s=CUT_S_MAX)
        for connection in tuple(host.connections):
            connection.abort()
        host.deadlines.close()
        if self._check_timer is not None:
            self._check_timer.cancel()

    def _bound(self) -> socket.socket:
        if self._socket is None:
            self._socket = _bound_socket(self._listen)
        return self._socket

    def _add(self, path: str, route: Route) -> None:
        if path in self._routes:
            raise AlreadyAdded(f"{path} has a handler already: add only one")
        self._routes[path] = route

    def _check_later(self, host: Host) -> None:
        limits = self._limits
        shortest_s = min(limits.preface_s_max, limits.request_s_max, limits.keepalive_s, limits.keepalive_timeout_s)
        self._check_timer = host.loop.call_later(min(CHECK_S_MAX, shortest_s / _CHECKS_A_LIMIT), self._check, host)

    def _check(self, host: Host) -> None:
        now_s = host.clock()
        if self._ages_s is not None:
            host.age_s_max, host.age_grace_s = self._ages_s()
        for connection in tuple(host.connections):
            connection.check(now_s)
        host.descriptors.check()
        host.memory.bytes_max = self._memory_bytes_max()
        for memory in dict.fromkeys((host.memory, host.stranger_memory)):
            self._check_memory(host, memory, now_s)
        self._check_later(host)

    def _check_memory(self, host: Host, memory: Memory, now_s: float) -> None:
        if not memory.is_short:
            self._short_s.pop(memory, None)
        elif memory not in self._short_s:
            self._short_s[memory] = now_s
            host.log.warning("rpc server is short of memory: large messages wait", bytes=memory.used_bytes)
        elif now_s - self._short_s[memory] > SHORT_S_MAX:
            self._cut_largest(host, memory)

    def _cut_excess(self) -> None:
        if self._host is not None:
            self._cut_until_enough(self._host, self._host.memory)

    def _cut_excess_of_strangers(self) -> None:
        if self._host is not None:
            self._cut_until_enough(self._host, self._host.stranger_memory)

    def _cut_until_enough(self, host: Host, memory: Memory) -> None:
        while memory.is_excessive and self._cut_largest(host, memory):
            pass

    def _cut_largest(self, host: Host, memory: Memory) -> bool:
        """Cut the connection that holds most bytes of a budget, so that others can continue; False if there is none."""
        sharing = [one for one in host.connections if one.account.memory is memory]
        largest = max(sharing, key=lambda connection: connection.account.held_bytes, default=None)
        if largest is None:
            return False
        held_bytes = largest.account.held_bytes
        host.log.warning("rpc connection cut: it holds most of the server's message memory", bytes=held_bytes)
        host.connections.discard(largest)
        largest.cut(f"this connection holds {held_bytes} bytes of messages, and the server is short of memory")
        return True


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
            # A restarted server must not wait until the old process's connections leave TIME_WAIT.
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            # SO_REUSEADDR lets others bind until listen(). Clients that connect before start() wait in the backlog.
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
    # getaddrinfo would take the number modulo 65,536.
    if not 0 <= port < 2**16:
        raise ValueError(f"port {port} is not between 0 and 65535")
    return port
