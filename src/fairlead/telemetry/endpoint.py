"""Where Prometheus gets the metrics, and a load balancer asks whether the process serves."""

import asyncio
import gzip
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http import HTTPStatus
from typing import NamedTuple

from prometheus_client.exposition import gzip_accepted

from fairlead.core.errors import FixRequest
from fairlead.telemetry.exposition import render
from fairlead.telemetry.listening import refusal
from fairlead.telemetry.logs import get_log
from fairlead.telemetry.metrics import Metrics, Snapshot

LISTEN_DEFAULT = "127.0.0.1:0"
REQUEST_BYTES_MAX = 8 * 1024
# For reading a request, and for writing its answer.
CONNECTION_S_MAX = 10.0
CONNECTIONS_MAX = 16

_METHODS = ("GET", "HEAD")
_LISTEN = re.compile(r"(?:\[(?P<six>[0-9a-fA-F:.]+)\]|(?P<host>[^:\[\]]+)):(?P<port>[0-9]{1,5})")

_log = get_log("telemetry.endpoint")


class CannotListen(FixRequest):
    """The metrics can't be served at the address that was given."""


class _Answer(NamedTuple):
    """What a request is answered with."""

    status: HTTPStatus
    content: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[str, ...] = ()


class _Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: HTTPStatus, *headers: str) -> None:
        super().__init__(status.phrase)
        self.answer = _Answer(status, f"{status.phrase}\n".encode(), headers=headers)


class MetricsEndpoint:
    """Serves `/metrics` and `/healthz`, one request a connection, and nothing else.

    The numbers are taken in the event loop, so that they fit together, and written out in a thread, one scrape at a
    time, so that nobody waits for that. `/healthz` says what `why_not_serving` says: why the
    process should get no requests, or None where it should. An event loop that hangs says nothing.
    """

    def __init__(
        self,
        metrics: Metrics,
        listen: str = LISTEN_DEFAULT,
        *,
        why_not_serving: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._metrics = metrics
        self._host, self._port = _parse_listen(listen)
        self._why_not_serving = why_not_serving
        self._rendering = asyncio.Lock()
        # Of its own: those of the event loop may all be busy just when somebody wants to see why. Begins when needed.
        self._renderer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="metrics")
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def address(self) -> str:
        """Where it listens, with the port that it got."""
        return f"[{self._host}]:{self._port}" if ":" in self._host else f"{self._host}:{self._port}"

    async def start(self) -> None:
        """Begin to serve; raise `CannotListen` where that can't be."""
        try:
            self._server = await asyncio.start_server(
                self._connected, self._host, self._port, limit=REQUEST_BYTES_MAX, backlog=CONNECTIONS_MAX
            )
        except OSError as refused:
            why = refusal(refused, key="metrics.listen")
            raise CannotListen(f"metrics can't be served at {self.address}: {why}") from refused
        self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Serve no longer, for good; what is under way is broken off."""
        if self._server is None:
            return
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None
        self._renderer.shutdown(wait=False)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine runs in a task
        if len(self._connections) >= CONNECTIONS_MAX:
            writer.transport.abort()
            return
        self._connections.add(task)
        try:
            # Who goes away, or is too slow, gets no answer; that is nobody's error.
            with suppress(ConnectionError, TimeoutError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._serve(reader, writer)
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method = ""
        try:
            async with asyncio.timeout(CONNECTION_S_MAX):
                method, path, asked = await _read_request(reader)
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
            # Until the other side has it all: closing before would take back what is still on its way.
            while await reader.read(REQUEST_BYTES_MAX):
                pass

    async def _answer(self, path: str, asked: dict[str, str]) -> _Answer:
        if path == "/healthz":
            why_not = self._why_not_serving()
            if why_not is None:
                return _Answer(HTTPStatus.OK, b"serving\n")
            return _Answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{why_not}\n".encode())
        if path != "/metrics":
            raise _Refused(HTTPStatus.NOT_FOUND)
        async with self._rendering:
            try:
                snapshot = self._metrics.snapshot()
                return await asyncio.get_running_loop().run_in_executor(self._renderer, _render, snapshot, asked)
            except Exception as failure:
                _log.exception("scrape failed")
                raise _Refused(HTTPStatus.INTERNAL_SERVER_ERROR) from failure


def _render(snapshot: Snapshot, asked: dict[str, str]) -> _Answer:
    content_type, content = render(snapshot, asked.get("accept", ""))
    if gzip_accepted(asked.get("accept-encoding", "")):
        packed = gzip.compress(content, compresslevel=1)
        return _Answer(HTTPStatus.OK, packed, content_type, ("Content-Encoding: gzip",))
    return _Answer(HTTPStatus.OK, content, content_type)


async def _read_request(reader: asyncio.StreamReader) -> tuple[str, str, dict[str, str]]:
    """The method, the path and the headers of a request that may be answered."""
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
