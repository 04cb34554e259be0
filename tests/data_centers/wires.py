"""The network between clusters: calls between them go through a wire that the test can cut."""

import asyncio
from contextlib import suppress
from enum import StrEnum
from typing import Self

_CHUNK_BYTES = 65_536


class Cut(StrEnum):
    """How a wire is cut: connections break and new ones are refused; or data is silently dropped."""

    DROP = "drop"
    HOLE = "black hole"


class Wire:
    """The address by which one cluster calls another; it forwards everything to the other's real address."""

    def __init__(self, to: str) -> None:
        self._to = to
        self._server: asyncio.Server | None = None
        self._port = 0
        self._carried: set[asyncio.Task[None]] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self._breaks = False
        # Seconds by which data is delayed.
        self.latency_s = 0.0

    @property
    def address(self) -> str:
        """The address of its beginning, once it is open."""
        return f"127.0.0.1:{self._port}"

    @property
    def leads_to(self) -> str:
        """The address of its end."""
        return self._to

    async def open(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self._port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._break_all()

    async def cut(self, how: Cut = Cut.DROP) -> None:
        """Drop everything from now on."""
        if how is Cut.HOLE:
            self._flows.clear()
            return
        self._breaks = True
        await self._break_all()

    async def lead_to(self, address: str) -> None:
        """Lead to another address from now on."""
        self._to = address
        await self._break_all()

    def heal(self) -> None:
        """Carry everything; data dropped in a black hole arrives late, since TCP retransmits it."""
        self._breaks = False
        self._flows.set()

    async def _break_all(self) -> None:
        for task in self._carried:
            task.cancel()
        await asyncio.gather(*self._carried, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._breaks:
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._carry(reader, writer))
        self._carried.add(task)
        task.add_done_callback(self._carried.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_writer: asyncio.StreamWriter | None = None
        try:
            await self._flows.wait()
            host, _, port = self._to.rpartition(":")
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
            pumps = [
                asyncio.ensure_future(self._pump(reader, far_writer)),
                asyncio.ensure_future(self._pump(far_reader, writer)),
            ]
            try:
                # If either end closes, close both: gRPC uses no half-open connections.
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except OSError:
            pass
        finally:
            for end in (writer, far_writer):
                if end is not None:
                    end.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                await self._flows.wait()
                if self.latency_s:
                    asyncio.get_running_loop().call_later(self.latency_s, _write, writer, data)
                else:
                    writer.write(data)
                    await writer.drain()


def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    if not writer.is_closing():
        writer.write(data)
