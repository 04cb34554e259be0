"""Our client over TLS."""

import asyncio
import ssl
from pathlib import Path

import grpc
import pytest

from fairlead.rpc.client import Channel, ClientTls, NotSent
from tests.rpc.client.faking import failed
from tests.rpc.served import ECHO, WAIT, serving, until
from tests.rpc.tls_context import context, new_certificate


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return new_certificate(tmp_path_factory.mktemp("tls"))


def trusting(certificate: tuple[Path, Path], server_hostname: str | None = "localhost") -> ClientTls:
    trusted = ssl.create_default_context(cafile=str(certificate[0]))
    return ClientTls(lambda: trusted, server_hostname)


async def test_calls_go_over_tls_with_large_messages_and_the_name_of_the_server(certificate: tuple[Path, Path]) -> None:
    async with serving(tls=context(certificate)) as served:
        async with Channel(served.address, tls=trusting(certificate)) as channel:
            assert await channel.unary(ECHO, bytes(2_000_000), timeout_s=60) == bytes(2_000_000)
            messages = [b"%d" % number for number in range(500)]
            assert await asyncio.gather(*(channel.unary(ECHO, each) for each in messages)) == messages
        address = f"localhost:{served.address.rpartition(':')[2]}"
        async with Channel(address, tls=trusting(certificate, None)) as channel:
            assert await channel.unary(ECHO, b"x") == b"x"
        await until(lambda: served.server.stats().connections == 0)


async def test_a_server_that_is_not_trusted_gets_no_call(
    certificate: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = new_certificate(tmp_path_factory.mktemp("other"))
    async with serving(tls=context(certificate)) as served:
        for tls in (trusting(other), trusting(certificate, "other.example"), trusting(certificate, None)):
            async with Channel(served.address, tls=tls) as channel:
                failure = await failed(channel.unary(ECHO, b"secret"))
                assert isinstance(failure, NotSent)
                assert "certificate" in failure.message
        assert served.server.stats().handlers == 0


async def test_clear_text_and_tls_do_not_mix(certificate: tuple[Path, Path]) -> None:
    async with serving(tls=context(certificate)) as served, Channel(served.address) as channel:
        assert isinstance(await failed(channel.unary(ECHO, b"")), NotSent)
    async with serving() as served, Channel(served.address, tls=trusting(certificate)) as channel:
        assert isinstance(await failed(channel.unary(ECHO, b"")), NotSent)


async def test_a_server_that_does_not_choose_http2_gets_no_call(certificate: tuple[Path, Path]) -> None:
    server_side = context(certificate)
    server_side.set_alpn_protocols(["http/1.1"])

    async def ignore(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(ignore, "127.0.0.1", 0, ssl=server_side)
    async with server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with Channel(address, tls=trusting(certificate)) as channel:
            assert isinstance(await failed(channel.unary(ECHO, b"")), NotSent)


async def test_a_renewed_certificate_is_used_by_the_next_connection_while_open_calls_continue(
    certificate: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    renewed = new_certificate(tmp_path_factory.mktemp("renewed"))
    server_side = context(certificate)
    trusted = [ssl.create_default_context(cafile=str(certificate[0]))]
    async with (
        serving(tls=server_side) as served,
        Channel(served.address, tls=ClientTls(lambda: trusted[-1], "localhost")) as channel,
    ):
        poll = asyncio.ensure_future(channel.unary(WAIT, b"poll"))
        await until(lambda: served.handlers.begun == 1)
        server_side.load_cert_chain(*renewed)
        trusted.append(ssl.create_default_context(cafile=str(renewed[0])))
        channel.reconnect()
        assert await channel.unary(ECHO, b"new") == b"new"
        served.handlers.release.set()
        assert await poll == b"poll"


async def test_a_context_that_can_not_be_made_fails_the_call_and_not_the_channel(
    certificate: tuple[Path, Path],
) -> None:
    trusted = ssl.create_default_context(cafile=str(certificate[0]))
    is_broken = True

    def make() -> ssl.SSLContext:
        if is_broken:
            raise RuntimeError("no key there")
        return trusted

    async with (
        serving(tls=context(certificate)) as served,
        Channel(served.address, tls=ClientTls(make, "localhost")) as channel,
    ):
        failure = await failed(channel.unary(ECHO, b""))
        assert isinstance(failure, NotSent)
        assert "no key there" in failure.message
        is_broken = False
        channel._retry_at_s = 0.0
        assert await channel.unary(ECHO, b"x") == b"x"


async def test_a_server_of_grpc_aio_is_called_over_tls(certificate: tuple[Path, Path]) -> None:
    async def echo(request: bytes, _: object) -> bytes:
        return request

    server = grpc.aio.server()
    method = grpc.unary_unary_rpc_method_handler(echo)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test.Service", {"Echo": method})])
    credentials = grpc.ssl_server_credentials([(certificate[1].read_bytes(), certificate[0].read_bytes())])
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    async with Channel(f"127.0.0.1:{port}", tls=trusting(certificate)) as channel:
        assert await channel.unary(ECHO, bytes(100_000)) == bytes(100_000)
    await server.stop(0)
