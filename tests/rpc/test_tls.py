"""Connections that are encrypted."""

import asyncio
import contextlib
import ssl
import subprocess
from pathlib import Path

import grpc
import pytest

from tests.rpc.serving import ECHO, WAIT, channel, serving, until


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    command += ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603 - a fixed command
    return certificate, key


def context(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(*certificate)
    return made


async def test_calls_are_answered_over_tls(certificate: tuple[Path, Path]) -> None:
    credentials = grpc.ssl_channel_credentials(certificate[0].read_bytes())
    async with serving(tls=context(certificate)) as served:
        address = f"localhost:{served.address.rpartition(':')[2]}"
        async with channel(address, credentials=credentials) as client:
            assert await client.unary_unary(ECHO)(bytes(2_000_000)) == bytes(2_000_000)
            call = client.unary_unary(WAIT)(b"poll")
            await until(lambda: served.handlers.begun == 1)
            stopping = asyncio.ensure_future(served.server.stop(10))
            await asyncio.sleep(0.05)
            served.handlers.release.set()
            assert await call == b"poll"
            await stopping


async def test_clear_text_to_a_server_of_tls_is_no_harm(certificate: tuple[Path, Path]) -> None:
    async with serving(tls=context(certificate)) as served:
        reader, writer = await asyncio.open_connection(*served.address.rsplit(":", 1))
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        # The handshake fails: an alert at the most, then the end.
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
