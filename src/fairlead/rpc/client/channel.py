"""A client's channel to one address: it keeps a connection, and makes a new one when that is lost."""

import asyncio
import os
import random
import re
import ssl
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Self

import structlog
from structlog.typing import FilteringBoundLogger

from fairlead.aio.backoff import Backoff
from fairlead.aio.deadlines import Deadlines
from fairlead.rpc.client.call import ClientCall, expire
from fairlead.rpc.client.connection import ClientConnection
from fairlead.rpc.client.failures import NotSent, unpacked
from fairlead.rpc.client.request_head import Metadata, RequestHeads
from fairlead.rpc.head import TIMEOUT_S_MAX
from fairlead.rpc.http2 import ALPN_PROTOCOL
from fairlead.rpc.limits import ChannelLimits
from fairlead.rpc.message import Packed
from fairlead.rpc.status import Code
from fairlead.rpc.stream import Messages

# Upper bound of the seconds between pings: a server may ask for fewer pings.
KEEPALIVE_S_MAX = 600.0

_CONNECT_FAILED = re.compile(r"\[Errno (\d+)\] Connect call failed")
_LOG: FilteringBoundLogger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ClientTls:
    """TLS of a channel's connections.

    Every new connection asks `context` for the context, so that a renewed certificate is used without a restart.
    """

    context: Callable[[], ssl.SSLContext]
    # Name that the server's certificate must have; None for the host of the channel's address.
    server_hostname: str | None = None


@dataclass(frozen=True, slots=True)
class ChannelStats:
    """Numbers of a channel's connections, including draining ones, and of its open calls."""

    connections: int
    calls: int


class Channel:
    """Calls methods of the gRPC server at one address, over one connection.

    The first call connects. While there is no connection, calls wait for the attempt under way; after a failed attempt
    they fail at once with `NotSent` until the next attempt is due. A call fails with `RemoteStatus` if the server says
    so, with `NotSent` if the server surely did not process it, and with `ResponseLost` if that is unknown.
    """

    def __init__(
        self,
        address: str,
        *,
        limits: ChannelLimits | None = None,
        tls: ClientTls | None = None,
        deadlines: Deadlines[ClientCall] | None = None,
        log: FilteringBoundLogger | None = None,
        random: Callable[[], float] = random.random,
    ) -> None:
        """Channels of one owner may share `deadlines` (`new_deadlines`), and with it one timer."""
        self._address = address
        self._deadlines = deadlines or new_deadlines()
        self._limits = limits or ChannelLimits()
        self._tls = tls
        self._log = (log or _LOG).bind(server=address)
        authority = address if tls is None or tls.server_hostname is None else tls.server_hostname
        self._heads = RequestHeads(authority, is_encrypted=tls is not None)
        self._keepalive_s = self._limits.keepalive_s
        self._backoff = Backoff(self._limits.reconnect_first_s, self._limits.reconnect_max_s, random=random)
        # Time of the event loop before which no attempt to connect is made, and why the last one failed.
        self._retry_at_s = 0.0
        self._failure = ""
        self._waiting = 0
        # The connection for new calls, if it is ready for them.
        self._current: ClientConnection | None = None
        self._connections: dict[ClientConnection, None] = {}
        self._connecting: asyncio.Task[None] | None = None
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def address(self) -> str:
        """Address of the server."""
        return self._address

    def stats(self) -> ChannelStats:
        """Current numbers of connections and calls."""
        calls = sum(connection.calls.number for connection in self._connections)
        return ChannelStats(connections=len(self._connections), calls=calls + self._waiting)

    async def unary(
        self, path: str, request: bytes, *, timeout_s: float | None = None, metadata: Metadata = ()
    ) -> bytes:
        """Call a method with one request and one response. Cancelling the call cancels it at the server too."""
        loop = asyncio.get_running_loop()
        deadline_s = None if timeout_s is None else loop.time() + min(timeout_s, TIMEOUT_S_MAX)
        connection = self._current
        if connection is None:
            connection = await self._connected(path, deadline_s)
        future: asyncio.Future[bytes | Packed] = loop.create_future()
        call = ClientCall(path, self._head(connection, path, metadata), request, deadline_s=deadline_s, future=future)
        connection.open(call)
        try:
            message = await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                # Reading the failure keeps asyncio from logging it: the cancelled caller does not read it.
                future.exception()
            connection.calls.cancel(call)
            raise
        return await unpacked(path, message) if isinstance(message, Packed) else message

    async def stream(
        self, path: str, request: bytes, *, timeout_s: float | None = None, metadata: Metadata = ()
    ) -> AsyncGenerator[bytes, None]:
        """Call a method with one request and many responses. Closing the iterator cancels the call."""
        loop = asyncio.get_running_loop()
        deadline_s = None if timeout_s is None else loop.time() + min(timeout_s, TIMEOUT_S_MAX)
        connection = self._current
        if connection is None:
            connection = await self._connected(path, deadline_s)
        messages = Messages(lambda window_bytes, _: connection.give(call, window_bytes), unpack=partial(unpacked, path))
        call = ClientCall(
            path, self._head(connection, path, metadata), request, deadline_s=deadline_s, messages=messages
        )
        connection.open(call)
        try:
            async for message in messages:
                yield message
        finally:
            connection.calls.cancel(call)

    def reconnect(self) -> None:
        """Send new calls over a new connection, for example with a renewed certificate; open calls continue."""
        if self._current is not None:
            self._current.retire()

    async def close(self) -> None:
        """Close all connections; open calls fail with `ResponseLost`, those that wait to be sent with `NotSent`."""
        self._is_closed = True
        self._failure = "the connection is closed by this side"
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait({self._connecting})
        for connection in tuple(self._connections):
            connection.close(self._failure)
        # One turn of the loop, in which the transports write the last frames and close.
        await asyncio.sleep(0)

    def _head(self, connection: ClientConnection, path: str, metadata: Metadata) -> bytes:
        head, list_bytes = self._heads.head(path, metadata)
        if list_bytes > connection.header_list_bytes_max:
            raise NotSent(
                Code.RESOURCE_EXHAUSTED,
                f"the headers of {path} have {list_bytes} bytes, at most {connection.header_list_bytes_max} are"
                f" accepted by {self._address}",
            )
        return head

    async def _connected(self, path: str, deadline_s: float | None) -> ClientConnection:
        """Wait for the attempt to connect, or make one if it is due; raises NotSent."""
        loop = asyncio.get_running_loop()
        if self._is_closed or (self._connecting is None and loop.time() < self._retry_at_s):
            raise self._not_sent(path)
        if self._waiting >= self._limits.calls_max:
            raise NotSent(Code.RESOURCE_EXHAUSTED, f"{self._waiting} calls wait for {self._address}: send fewer")
        if self._connecting is None:
            self._connecting = loop.create_task(self._connect())
        self._waiting += 1
        try:
            timeout_s = None if deadline_s is None else deadline_s - loop.time()
            # Unlike a plain await, this does not cancel the attempt, which others wait for too.
            done, _ = await asyncio.wait({self._connecting}, timeout=timeout_s)
        finally:
            self._waiting -= 1
        if not done:
            raise NotSent(Code.DEADLINE_EXCEEDED, f"{path} was not sent: no connection to {self._address} in time")
        if self._current is None:
            raise self._not_sent(path)
        return self._current

    async def _connect(self) -> None:
        """Make one attempt to connect, up to the server's SETTINGS."""
        loop = asyncio.get_running_loop()
        limits = self._limits
        ready: asyncio.Future[None] = loop.create_future()

        def changed(connection: ClientConnection) -> None:
            self._changed(connection)
            if not ready.done():
                ready.set_result(None)

        connection = ClientConnection(
            limits,
            loop=loop,
            log=self._log,
            keepalive_s=self._keepalive_s,
            deadlines=self._deadlines,
            on_change=changed,
        )
        try:
            async with asyncio.timeout(limits.connect_s_max):
                host, port = _host_and_port(self._address)
                context, server_hostname = self._encryption(host)
                await loop.create_connection(
                    lambda: connection, host, port, ssl=context, server_hostname=server_hostname
                )
                if connection.end_reason is None:
                    self._connections[connection] = None
                await ready
            self._failure = connection.end_reason or ""
        except TimeoutError:
            self._failure = f"no connection within {limits.connect_s_max} s"
        except Exception as error:  # noqa: BLE001 - a fault of the TLS context must fail the calls, not hang them
            self._failure = _reason(error)
        finally:
            self._connecting = None
            if not connection.is_ready:
                if connection in self._connections:
                    connection.abort(self._failure or "cancelled")
                self._hold_off()

    def _changed(self, connection: ClientConnection) -> None:
        """A connection became ready, takes no more calls, or was lost."""
        if connection.is_ready and not self._is_closed:
            self._current = connection
            return
        if connection is self._current:
            self._current = None
            if connection.is_told_to_calm:
                self._keepalive_s = min(2 * self._keepalive_s, KEEPALIVE_S_MAX)
            if connection.was_useful:
                self._backoff.reset()
            else:
                self._failure = connection.end_reason or "the server takes no calls"
                self._hold_off()
        if connection.end_reason is not None:
            self._connections.pop(connection, None)
        elif len(self._connections) > self._limits.draining_max:
            next(iter(self._connections)).abort("too many connections to this server are draining")

    def _hold_off(self) -> None:
        self._retry_at_s = asyncio.get_running_loop().time() + self._backoff.next_s()

    def _not_sent(self, path: str) -> NotSent:
        return NotSent(Code.UNAVAILABLE, f"{path} was not sent to {self._address}: {self._failure}")

    def _encryption(self, host: str) -> tuple[ssl.SSLContext | None, str | None]:
        if self._tls is None:
            return None, None
        context = self._tls.context()
        context.set_alpn_protocols([ALPN_PROTOCOL])
        return context, self._tls.server_hostname or host


def new_deadlines() -> Deadlines[ClientCall]:
    """Deadlines of calls, for channels that share one timer."""
    return Deadlines(expire)


def _reason(error: Exception) -> str:
    """Why there is no connection; asyncio puts the same words into every such error of a system call."""
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and error.errno and error.errno > 0:
        return os.strerror(error.errno)
    text = _CONNECT_FAILED.sub(lambda match: os.strerror(int(match[1])), str(error))
    return text or type(error).__name__


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) >= 2**16:
        raise ValueError(f"{address!r} is not HOST:PORT, say 127.0.0.1:7233")
    return host.strip("[]"), int(port)
