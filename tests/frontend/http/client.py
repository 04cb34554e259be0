"""A plain HTTP client on one connection, which shows responses as they are on the wire."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tests.patience import PATIENCE_S


@dataclass(frozen=True)
class Reply:
    """A response; the values of a repeated header are on lines of their own."""

    status: int
    headers: dict[str, str]
    body: bytes


class Client:
    """Sends requests one after another."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self._port = port
        self._host = host
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    async def __aenter__(self) -> Self:
        self.reader, self.writer = await asyncio.open_connection(self._host, self._port, limit=1 << 24)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.writer.close()

    async def send(self, method: str, target: str, body: bytes | None = None, **headers: str) -> Reply:
        """Send a request and read its response; `_` in a header's name stands for `-`."""
        given = {name.replace("_", "-").lower(): value for name, value in headers.items()}
        fields = {"host": f"{self._host}:{self._port}", **given}
        if body is not None:
            fields = {"content-type": "application/json", "content-length": str(len(body)), **fields}
        lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
        self.writer.write("\r\n".join([*lines, "", ""]).encode() + (body or b""))
        return await self.read(method)

    async def read(self, method: str = "GET") -> Reply:
        """Read one response."""
        async with asyncio.timeout(PATIENCE_S):
            first, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
            headers: dict[str, str] = {}
            for name, _, value in (line.partition(":") for line in lines):
                before = headers.get(name.lower())
                headers[name.lower()] = value.strip() if before is None else f"{before}\n{value.strip()}"
            status = int(first.split()[1])
            if method == "HEAD" or status in {204, 304}:
                return Reply(status, headers, b"")
            if headers.get("transfer-encoding") == "chunked":
                return Reply(status, headers, await self._chunks())
            if "content-length" in headers:
                return Reply(status, headers, await self.reader.readexactly(int(headers["content-length"])))
            return Reply(status, headers, await self.reader.read())

    async def _chunks(self) -> bytes:
        parts: list[bytes] = []
        while size := int(await self.reader.readline(), 16):
            parts.append(await self.reader.readexactly(size))
            await self.reader.readline()
        await self.reader.readline()
        return b"".join(parts)
