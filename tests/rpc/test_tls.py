"""Connections that are encrypted."""

import asyncio
import contextlib
import socket
import ssl
from pathlib import Path

import grpc
import pytest

from fairlead.rpc import RpcServer
from tests.patience import step
from tests.rpc.served import ECHO, WAIT, channel, serving, until
from tests.rpc.tls_context import context, new_certificate


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return new_certificate(tmp_path_factory.mktemp("tls"))


async def test_calls_over_tls_get_their_responses(certificate: tuple[Path, Path]) -> None:
    credentials = grpc.ssl_channel_credentials(certificate[0].read_bytes())
    async with serving(tls=context(certificate)) as served:
        address = f"localhost:{served.address.rpartition(':')[2]}"
        async with channel(address, credentials=credentials) as client:
            assert await client.unary_unary(ECHO)(bytes(2_000_000)) == bytes(2_000_000)
            call = client.unary_unary(WAIT)(b"poll")
            await until(lambda: served.handlers.begun == 1)
            stopping = asyncio.ensure_future(served.server.stop(10))
            await step()
            served.handlers.release.set()
            assert await call == b"poll"
            await stopping


async def test_clear_text_to_a_tls_server_does_no_harm(certificate: tuple[Path, Path]) -> None:
    async with serving(tls=context(certificate)) as served:
        reader, writer = await asyncio.open_connection(*served.address.rsplit(":", 1))
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        # The handshake fails: at most an alert, then the end of the connection.
        assert len(await asyncio.wait_for(reader.read(), 10)) < 100
        writer.close()
        assert served.server.stats().connections == 0


async def test_a_peer_that_does_not_agree_on_http2_is_closed(certificate: tuple[Path, Path]) -> None:
    asking = ssl.create_default_context(cafile=str(certificate[0]))
    asking.set_alpn_protocols(["http/1.1"])
    async with serving(tls=context(certificate)) as served:
        host, port = served.address.rsplit(":", 1)
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            reader, writer = await asyncio.open_connection(host, int(port), ssl=asking, server_hostname="localhost")
            with contextlib.closing(writer):
                assert await asyncio.wait_for(reader.read(), 10) == b""
        assert served.server.stats().connections == 0


async def test_a_connection_of_another_process_whose_handshake_fails_is_no_harm(certificate: tuple[Path, Path]) -> None:
    server = RpcServer("127.0.0.1:0", listens=False, tls=context(certificate))
    await server.start()
    ours, theirs = socket.socketpair()
    try:
        theirs.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        await asyncio.wait_for(server.adopt(ours), 10)
        assert server.stats().connections == 0
    finally:
        theirs.close()
        await server.stop(0)
