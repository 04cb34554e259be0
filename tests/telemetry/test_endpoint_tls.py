"""Metrics over TLS."""

import asyncio
import ssl
from pathlib import Path

import pytest

from fairlead.rpc.tls import ServerSide
from fairlead.settings.static.tls import Pem, ServerTls
from fairlead.telemetry import Metrics, MetricsEndpoint
from tests.security.certificates import Authority


async def test_metrics_are_served_over_tls_and_not_in_clear_text(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue("localhost")
    side = ServerSide(ServerTls(Pem(issued.certificate), Pem(issued.key)), alpn=None)
    endpoint = MetricsEndpoint(Metrics(), tls=side.context)
    await endpoint.start()
    try:
        host, port = endpoint.address.rsplit(":", 1)
        trusting = ssl.create_default_context(cafile=str(authority.certificate))
        reader, writer = await asyncio.open_connection(host, int(port), ssl=trusting, server_hostname="localhost")
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(30):
            assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
        writer.close()
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(30):
            assert b"200" not in await reader.read()
        writer.close()
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.open_connection(
                host, int(port), ssl=ssl.create_default_context(), server_hostname="localhost"
            )
    finally:
        await endpoint.stop()
