"""HTTP endpoint for Prometheus' scrapes and for load balancers' health checks."""

import asyncio
import gzip
import re
import ssl
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http import HTTPStatus
from typing import NamedTuple

from fairlead.telemetry.exposition import render
from fairlead.telemetry.listen_errors import CannotListen, refusal
from fairlead.telemetry.logs import get_log
from fairlead.telemetry.metrics import Metrics, Snapshot

LISTEN_DEFAULT = "127.0.0.1:0"
REQUEST_BYTES_MAX = 8 * 1024
# Seconds to read a request, and seconds to write its response.
CONNECTION_S_MAX = 10.0
CONNECTIONS_MAX = 16

_METHODS = ("GET", "HEAD")
_LISTEN = re.compile(r"(?:\[(?P<six>[0-9a-fA-F:.]+)\]|(?P<host>[^:\[\]]+)):(?P<port>[0-9]{1,5})")

_log = get_log("telemetry.endpoint")


class _Response(NamedTuple):
    """HTTP response."""

    status: HTTPStatus
    content: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[str, ...] = ()


class _Refused(Exception):
    """A request fails with an HTTP error."""

    def __init__(self, status: HTTPStatus, *headers: str) -> None:
        super().__init__(status.phrase)
        self.answer = _Response(status, f"{status.phrase}\n".encode(), headers=headers)


class MetricsEndpoint:
    """Serves only `/metrics` and `/healthz`, with one request per connection.

    The endpoint takes the snapshot in the event loop, so that its numbers are consistent, and renders it in a thread,
    one scrape at a time, so that the loop doesn't block. `why_not_serving` returns the reason why the process should
    get no requests, or None if it should; `/healthz` reports it. If the event loop is blocked, there is no response.
    """

    def __init__(
        self,
        metrics: Metrics,
        listen: str = LISTEN_DEFAULT,
        *,
        why_not_serving: Callable[[], str | None] = lambda: None,
        page: Callable[[], Awaitable[tuple[str, bytes]]] | None = None,
        key: str = "metrics.listen",
        host_key: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`page` returns the content type and the content of `/metrics`; it replaces the page of `metrics`.

        `key` and `host_key` are the settings of the address, see `refusal`. `tls` is a server-side context.
        """
        self._page = page
        self._tls = tls
        self._key, self._host_key = key, host_key
        self._metrics = metrics
        self._host, self._port = _parse_listen(listen)
        self._why_not_serving = why_not_serving
        self._rendering = asyncio.Lock()
        # A separate thread, started when needed: the event loop's threads may all be busy when the metrics matter most.
        self._renderer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="metrics")
        self._connections: set[asyncio.Task[None]] = set()
        # Connections that wait for their clients: to send the whole request, or to close; longest wait first.
        self._idle: dict[asyncio.Task[None], None] = {}
        self._server: asyncio.Server | None = None

    @property
    def address(self) -> str:
        """Address of the endpoint, with the actual port."""
        return f"[{self._host}]:{self._port}" if ":" in self._host else f"{self._host}:{self._port}"

    async def start(self) -> None:
        """Start to serve; raise `CannotListen` if the address can't be used."""
        try:
            self._server = await asyncio.start_server(
                self._connected,
                self._host,
                self._port,
                limit=REQUEST_BYTES_MAX,
                backlog=CONNECTIONS_MAX,
                ssl=self._tls,
            )
        except OSError as refused:
            why = refusal(refused, key=self._key, host_key=self._host_key)
            raise CannotListen(f"metrics can't be served at {self.address}: {why}") from refused
        self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop for good; cancel open requests."""
        if self._server is None:
            return
        self._server.close()
        connections = tuple(self._connections)
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None
        self._renderer.shutdown(wait=False)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine runs in a task
        if len(self._connections) >= CONNECTIONS_MAX:
            # Idle connections must not block health checks and scrapes: close the one that has been idle for longest.
            idle = next(iter(self._idle), None)
            if idle is None:
                writer.transport.abort()
                return
            self._forget(idle)
            idle.cancel()
        self._connections.add(task)
        self._idle[task] = None
        try:
            # Clients that disconnect or are too slow get no response; that is not an error.
            with suppress(ConnectionError, TimeoutError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._serve(reader, writer, task)
        finally:
            self._forget(task)
            writer.transport.abort()

    def _forget(self, connection: asyncio.Task[None]) -> None:
        self._connections.discard(connection)
        self._idle.pop(connection, None)

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: asyncio.Task[None]
    ) -> None:
        method = ""
        try:
            async with asyncio.timeout(CONNECTION_S_MAX):
                method, path, asked = await _read_request(reader)
            self._idle.pop(connection, None)
            answer = await self._answer(path, asked)
        except _Refused as refused:
            answer = refused.answer
        head = [
            f"HTTP/1.1 {answer.status.value} {answer.status.phrase}",
            f"Content-Type: {answer.content_type}",
            f"Content-Length: {len(answer.content)}",
            *answer.headers,
            "Connection: close",
        ]
        writer.write("\r\n".join([*head, "", ""]).encode() + (b"" if method == "HEAD" else answer.content))
        async with asyncio.timeout(CONNECTION_S_MAX):
            await writer.drain()
            writer.write_eof()
            self._idle[connection] = None
            # Wait until the client has read everything: closing earlier would drop bytes that are still being sent.
            while await reader.read(REQUEST_BYTES_MAX):
                pass

    async def _answer(self, path: str, asked: dict[str, str]) -> _Response:
        if path == "/healthz":
            why_not = self._why_not_serving()
            if why_not is None:
                return _Response(HTTPStatus.OK, b"serving\n")
            return _Response(HTTPStatus.SERVICE_UNAVAILABLE, f"{why_not}\n".encode())
        if path != "/metrics":
            raise _Refused(HTTPStatus.NOT_FOUND)
        async with self._rendering:
            try:
                if self._page is not None:
                    content_type, content = await self._page()
                    return _Response(HTTPStatus.OK, content, content_type)
                snapshot = self._metrics.snapshot()
                return await asyncio.get_running_loop().run_in_executor(self._renderer, _render, snapshot, asked)
            except Exception as failure:
                _log.exception("scrape failed")
                raise _Refused(HTTPStatus.INTERNAL_SERVER_ERROR) from failure


def _render(snapshot: Snapshot, asked: dict[str, str]) -> _Response:
    from fairlead.telemetry.process_metrics import gzip_accepted  # noqa: PLC0415 - see `render`

    content_type, content = render(snapshot, asked.get("accept", ""))
    if gzip_accepted(asked.get("accept-encoding", "")):
        packed = gzip.compress(content, compresslevel=1)
        return _Response(HTTPStatus.OK, packed, content_type, ("Content-Encoding: gzip",))
    return _Response(HTTPStatus.OK, content, content_type)


async def _read_request(reader: asyncio.StreamReader) -> tuple[str, str, dict[str, str]]:
    """Read the method, the path and the headers of a request; raise `_Refused` if it is invalid."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError as too_long:
        raise _Refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE) from too_long
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise _Refused(HTTPStatus.BAD_REQUEST)
    method, target, _ = words
    if method not in _METHODS:
        raise _Refused(HTTPStatus.METHOD_NOT_ALLOWED, f"Allow: {', '.join(_METHODS)}")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return method, target.partition("?")[0], headers


def _parse_listen(listen: str) -> tuple[str, int]:
    found = _LISTEN.fullmatch(listen)
    if found is None or int(found["port"]) > 65_535:
        raise CannotListen(f"metrics can't be served at {listen!r}: write it like 127.0.0.1:9090 or [::1]:9090")
    return found["six"] or found["host"], int(found["port"])
