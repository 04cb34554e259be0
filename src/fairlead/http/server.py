"""An HTTP/1.1 server on asyncio."""

import asyncio
import socket
import ssl

import structlog
from structlog.typing import FilteringBoundLogger

from fairlead.aio.condition import until
from fairlead.http.connection import Connection
from fairlead.http.host import Handler, Host, Refuse
from fairlead.http.limits import HttpLimits
from fairlead.http.listening import BACKLOG_MAX
from fairlead.http.message import HttpFault

__all__ = ["Handler", "HttpServer"]

# Seconds between checks of all connections; checks are more frequent where a time limit is short.
CHECK_S_MAX = 1.0
_CHECKS_A_LIMIT = 4
# At stop: seconds for cancelled handlers to end.
CANCELLED_S_MAX = 5.0

_LOG: FilteringBoundLogger = structlog.get_logger()


class HttpServer:
    """Serves one handler on a bound socket, in the event loop in which it was started.

    The server cancels a handler when its client disconnects. `tls` is a server-side context; without one, connections
    are in clear text. `refuse` renders the errors of the server itself, such as that of a body that is too large.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        refuse: Refuse = HttpFault.response,
        limits: HttpLimits | None = None,
        tls: ssl.SSLContext | None = None,
        log: FilteringBoundLogger | None = None,
    ) -> None:
        self._handler = handler
        self._refuse = refuse
        self._limits = limits or HttpLimits()
        self._tls = tls
        self._log = log or _LOG
        self._host: Host | None = None
        self._server: asyncio.Server | None = None
        self._check_timer: asyncio.TimerHandle | None = None

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return 0 if self._host is None else len(self._host.connections)

    async def start(self, bound: socket.socket) -> None:
        """Start to accept connections."""
        loop = asyncio.get_running_loop()
        host = self._host = Host(self._handler, refuse=self._refuse, limits=self._limits, loop=loop, log=self._log)
        self._server = await loop.create_server(
            lambda: Connection(host), sock=bound, backlog=BACKLOG_MAX, ssl=self._tls
        )
        self._check_later(host)

    def drain(self) -> None:
        """Accept no more connections, and close those without an open request."""
        if self._host is None or self._host.is_draining:
            return
        self._host.is_draining = True
        if self._server is not None:
            self._server.close()
        for connection in tuple(self._host.connections):
            connection.drain()

    async def stop(self, grace_s: float) -> None:
        """Drain, wait up to `grace_s` for open requests, then cancel the rest."""
        host = self._host
        if host is None:
            return
        self.drain()
        await until(lambda: not host.connections, within_s=grace_s)
        tasks = [task for connection in tuple(host.connections) if (task := connection.cancel()) is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=CANCELLED_S_MAX)
        for connection in tuple(host.connections):
            connection.abort()
        if self._check_timer is not None:
            self._check_timer.cancel()

    def _check_later(self, host: Host) -> None:
        limits = self._limits
        shortest_s = min(limits.idle_s_max, limits.request_s_max, limits.write_s_max, limits.linger_s_max)
        self._check_timer = host.loop.call_later(min(CHECK_S_MAX, shortest_s / _CHECKS_A_LIMIT), self._check, host)

    def _check(self, host: Host) -> None:
        now_s = host.loop.time()
        for connection in tuple(host.connections):
            connection.check(now_s)
        self._check_later(host)
