"""The HTTP API and the web page of a locked server: the same gate as for gRPC, over the same TLS."""

import asyncio
import http.client
import ssl
import time
from pathlib import Path

import pytest

from fairlead.authorization.api_keys import new_key, store_key
from fairlead.server import Server, open_store
from fairlead.settings.static.authorization import AuthorizationConfig
from fairlead.settings.static.config import (
    Address,
    HttpConfig,
    NamespaceConfig,
    SecurityConfig,
    SqliteConfig,
    StaticConfig,
    UiConfig,
)
from fairlead.settings.static.tls import Pem, ServerTls, TlsConfig, TlsGroup
from tests.patience import until
from tests.security.certificates import Authority

LOOPBACK = Address("127.0.0.1", 0)
PATH = "/api/v1/namespaces/orders/workflows/order-1"


def config(folder: Path, tls: TlsConfig | None = None) -> StaticConfig:
    (folder / "index.html").write_text("<html></html>")
    return StaticConfig(
        frontend_listen=LOOPBACK,
        listen=LOOPBACK,
        http=HttpConfig(LOOPBACK),
        ui=UiConfig(*LOOPBACK, asset_path=folder),
        store=SqliteConfig(folder / "fairlead.db"),
        namespaces=(NamespaceConfig("orders"),),
        security=SecurityConfig(AuthorizationConfig(authorizer="default"), tls=tls or TlsConfig()),
        hand_over_s=0.0,
        grace_s=0.0,
    )


def ask(address: str, path: str, key: str = "", context: ssl.SSLContext | None = None) -> tuple[int, bytes]:
    kind = http.client.HTTPConnection(address, timeout=20)
    if context is not None:
        kind = http.client.HTTPSConnection(address, timeout=20, context=context)
    try:
        kind.request("GET", path, headers={"Authorization": f"Bearer {key}"} if key else {})
        response = kind.getresponse()
        return response.status, response.read()
    finally:
        kind.close()


async def key_for(static: StaticConfig, namespace: str) -> str:
    store = await open_store(static.store)
    try:
        key, text = new_key("test", namespace=namespace, role="reader", now_s=time.time())
        await store_key(store.history, key)
    finally:
        await store.close()
    return text


async def test_http_asks_for_the_same_credentials(tmp_path: Path) -> None:
    static = config(tmp_path)
    reader, other = await key_for(static, "orders"), await key_for(static, "billing")
    server = Server(static)
    await server.start()
    try:
        for address in (server.http_address, server.ui_address):
            assert address is not None
            for wrong in ("", other, "fl_wrong"):
                status, body = await asyncio.to_thread(ask, address, PATH, wrong)
                assert (status, b"Request unauthorized." in body) == (403, True), (address, wrong)
            status, body = await asyncio.to_thread(ask, address, PATH, reader)
            assert (status, b"order-1" in body) == (404, True)
            # It is open to all callers, as it is over gRPC.
            assert (await asyncio.to_thread(ask, address, "/api/v1/system-info"))[0] == 200
    finally:
        await server.stop()


async def test_http_has_the_tls_of_the_port_for_sdks(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue("localhost")
    side = ServerTls(Pem(issued.certificate), Pem(issued.key))
    server = Server(config(tmp_path, TlsConfig(frontend=TlsGroup(side))))
    await server.start()
    try:
        context = ssl.create_default_context(cafile=str(authority.certificate))
        for address in (server.http_address, server.ui_address):
            assert address is not None
            assert (await asyncio.to_thread(ask, address, "/api/v1/system-info", "", context))[0] == 200
            with pytest.raises((http.client.HTTPException, OSError)):
                await asyncio.to_thread(ask, address, "/api/v1/system-info")
    finally:
        await server.stop()


async def test_an_open_http_connection_ends_with_the_authority_of_its_certificate(tmp_path: Path) -> None:
    authority, gone = Authority(tmp_path), Authority(tmp_path, "gone")
    trusted = tmp_path / "clients.pem"
    trusted.write_bytes(authority.certificate.read_bytes() + gone.certificate.read_bytes())
    issued = authority.issue("localhost")
    side = ServerTls(Pem(issued.certificate), Pem(issued.key), (Pem(trusted),), requires_client=True)
    server = Server(config(tmp_path, TlsConfig(frontend=TlsGroup(side), refresh_s=0.05)))
    await server.start()
    try:
        address = server.http_address
        assert address is not None
        connections = []
        for name, issuer in (("kept", authority), ("ended", gone)):
            own = issuer.issue(name)
            context = ssl.create_default_context(cafile=str(authority.certificate))
            context.load_cert_chain(own.certificate, own.key)
            connections.append(http.client.HTTPSConnection(address, timeout=20, context=context))

        def status_of(connection: http.client.HTTPSConnection) -> int:
            connection.request("GET", "/api/v1/system-info")
            response = connection.getresponse()
            response.read()
            return response.status

        for connection in connections:
            # The test needs this connection: it must not reconnect automatically.
            connection.auto_open = 0
            await asyncio.to_thread(connection.connect)
            assert await asyncio.to_thread(status_of, connection) == 200
        trusted.write_bytes(authority.certificate.read_bytes())

        async def is_closed() -> bool:
            try:
                await asyncio.to_thread(status_of, connections[1])
            except (http.client.HTTPException, OSError):
                return True
            return False

        await until(is_closed)
        assert await asyncio.to_thread(status_of, connections[0]) == 200
        connections[0].close()
    finally:
        await server.stop()
