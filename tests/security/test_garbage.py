"""Garbage of strangers at the ports of hosts and clusters: refused without being decoded, and bounded."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import pytest

from fairlead.replication import endpoint
from fairlead.replication.wire import SERVICE as CLUSTERS
from fairlead.rpc import RpcServer
from fairlead.rpc.hosts.wire import SERVICE as HOSTS
from fairlead.rpc.hosts.wire import Codec
from fairlead.server import Server
from fairlead.settings.static.authorization import AuthorizationConfig
from fairlead.settings.static.config import Address, ClusterConfig, MemoryConfig, SecurityConfig, StaticConfig
from tests.patience import until
from tests.rpc.served import channel as channel_to

SEED = 20_261_118
# Requests of each method.
ATTEMPTS = 12
BYTES_MAX = 200_000
# Bytes that a connection's remembered headers may have.
HEADERS_BYTES_MAX = 300_000
SECRET = "0123456789abcdef0123456789abcdef"  # noqa: S105 - of a test
CREDENTIALS: list[list[tuple[str, str]]] = [
    [],
    [("fairlead-internode-secret", "wrong")],
    [("authorization", "Bearer fl_nobody_nothing")],
    [("authorization", "Bearer a.b.c"), ("authorization-extras", "x" * 5_000)],
]


@asynccontextmanager
async def locked_server() -> AsyncIterator[Server]:
    server = Server(
        StaticConfig(
            frontend_listen=Address("127.0.0.1", 0),
            listen=Address("127.0.0.1", 0),
            store=MemoryConfig(),
            cluster=ClusterConfig("a", 1),
            security=SecurityConfig(AuthorizationConfig(authorizer="default"), secret=SECRET),
            hand_over_s=0.0,
            grace_s=0.0,
        )
    )
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def ports(server: Server) -> dict[str, tuple[str, RpcServer]]:
    """By service: the address of its port, and the server there."""
    workflows = server._workflows
    assert workflows is not None
    assert workflows._frontend is not None
    assert server.frontend_address is not None
    return {
        HOSTS: (server.address, server._grpc._rpc),
        CLUSTERS: (server.frontend_address, workflows._frontend._rpc),
    }


@pytest.mark.parametrize("service", [HOSTS, CLUSTERS])
async def test_garbage_of_strangers_is_refused_and_never_decoded(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(SEED)
    decoded: list[bytes] = []
    async with locked_server() as server:
        address, rpc = ports(server)[service]
        monkeypatch.setattr(Codec, "decode_request", lambda _self, data: decoded.append(data))
        monkeypatch.setattr(endpoint, "decode", lambda data, _kind: decoded.append(data))
        methods = [path for path in rpc._routes if path.startswith(f"/{service}/")]
        assert len(methods) > 5
        async with channel_to(address) as channel:

            async def refused(path: str) -> None:
                send: Any = channel.unary_unary(path, None, None)
                data = rng.randbytes(rng.randrange(rng.choice((1, 100, BYTES_MAX))))
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await send(data, metadata=rng.choice(CREDENTIALS), timeout=30)
                assert error.value.code() is grpc.StatusCode.PERMISSION_DENIED, path
                assert error.value.details() == "Request unauthorized."

            for path in methods:
                await asyncio.gather(*(refused(path) for _ in range(ATTEMPTS)))
        assert not decoded
        # Only remembered headers are left; they end with the connection.
        host = rpc._host
        assert host is not None
        await until(lambda: rpc.stats().streams == 0)
        assert host.memory.used_bytes + host.stranger_memory.used_bytes < HEADERS_BYTES_MAX


@pytest.mark.parametrize("service", [HOSTS, CLUSTERS])
async def test_connections_that_send_garbage_end_and_the_port_keeps_serving(service: str) -> None:
    rng = random.Random(SEED)
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    async with locked_server() as server:
        address, rpc = ports(server)[service]
        name, _, port = address.rpartition(":")

        async def send(front: bytes) -> None:
            reader, writer = await asyncio.open_connection(name, int(port))
            writer.write(front + rng.randbytes(rng.randrange(1, 50_000)))
            # The server may reset the connection; it must only end.
            with suppress(ConnectionError):
                async with asyncio.timeout(30):
                    # Without the end, the server would wait for the rest of a frame.
                    writer.write_eof()
                    while await reader.read(65_536):
                        pass
            writer.close()

        for front in (b"", preface, preface + bytes.fromhex("000000040000000000")):
            await asyncio.gather(*(send(front) for _ in range(30)))
        await until(lambda: rpc.stats().connections == 0)
        async with channel_to(address) as channel:
            check: Any = channel.unary_unary("/grpc.health.v1.Health/Check", None, None)
            assert await check(b"", timeout=30) == b"\x08\x01"
