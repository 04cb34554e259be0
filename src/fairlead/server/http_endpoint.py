"""An address for HTTP, whose server is loaded with the first connection.

Loading takes tens of milliseconds, and a server whose clients only speak gRPC never needs it.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from structlog.typing import FilteringBoundLogger

from fairlead.http import HttpFault, Request, Response, bound_socket
from fairlead.settings.static.config import Address

if TYPE_CHECKING:
    from fairlead.http.server import HttpServer


class WebApp(Protocol):
    """Answers the requests at one address."""

    async def handle(self, request: Request) -> Response:
        """Answer a request."""
        ...

    def refuse(self, fault: HttpFault) -> Response:
        """Render an error of the HTTP server itself."""
        ...

    def drain(self) -> None:
        """End responses that would continue for as long as the client wants."""
        ...


class HttpEndpoint:
    """Listens at an address, and loads its application with the first connection."""

    def __init__(
        self,
        listen: Address,
        load: Callable[[], WebApp],
        *,
        log: FilteringBoundLogger,
        key: str,
        host_key: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`load` imports and creates the application; it runs in a thread. `key` and `host_key`: see `refusal`.

        `tls` is a server-side context; without one, connections are in clear text.
        """
        self._tls = tls
        self._listen = listen
        self._load = load
        self._log = log
        self._key, self._host_key = key, host_key
        self._socket: socket.socket | None = None
        self._app: WebApp | None = None
        self._server: HttpServer | None = None
        self._loading: asyncio.Task[None] | None = None

    def bind(self) -> str:
        """Bind the socket and return its address."""
        if self._socket is None:
            self._socket = bound_socket(*self._listen, key=self._key, host_key=self._host_key)
        return str(Address(*self._socket.getsockname()[:2]))

    def start(self) -> None:
        """Wait for the first connection."""
        self.bind()
        assert self._socket is not None  # noqa: S101 - bound above
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._connected)

    def drain(self) -> None:
        """Accept no more connections."""
        self._forget_reader()
        if self._app is not None:
            self._app.drain()
        if self._server is not None:
            self._server.drain()
        elif self._socket is not None:
            self._socket.close()

    async def stop(self, grace_s: float) -> None:
        """Stop for good; open requests have `grace_s` seconds."""
        self.drain()
        if self._loading is not None:
            await asyncio.gather(self._loading, return_exceptions=True)
        if self._server is not None:
            await self._server.stop(grace_s)

    def _connected(self) -> None:
        self._forget_reader()
        self._loading = asyncio.get_running_loop().create_task(self._open())

    async def _open(self) -> None:
        try:
            app = self._app = await asyncio.to_thread(self._load)
            from fairlead.http.server import HttpServer  # noqa: PLC0415 - see above

            server = HttpServer(app.handle, refuse=app.refuse, tls=self._tls, log=self._log)
            if self._socket is not None and self._socket.fileno() >= 0:
                await server.start(self._socket)
                self._server = server
        except Exception as failure:
            self._log.error("HTTP is not served", address=str(self._listen), exc_info=failure)
            raise

    def _forget_reader(self) -> None:
        if self._socket is not None and self._socket.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
