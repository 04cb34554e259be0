"""The health service, called with grpcio's client."""

import asyncio

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from fairlead.rpc import Health
from tests.rpc.served import EOF, channel, serving


async def test_check_returns_the_health_of_each_service_and_of_the_server() -> None:
    async with serving() as served:
        health = Health(["test.Service"])
        health.add_to(served.server)
        async with channel(served.address) as client:
            stub = HealthStub(client)
            for service in ("", "test.Service"):
                answer = await stub.Check(HealthCheckRequest(service=service))
                assert answer.status == HealthCheckResponse.SERVING
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await stub.Check(HealthCheckRequest(service="other"))
            assert raised.value.code() is grpc.StatusCode.NOT_FOUND
            health.drain()
            assert (await stub.Check(HealthCheckRequest())).status == HealthCheckResponse.NOT_SERVING
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await client.unary_unary("/grpc.health.v1.Health/Check")(b"\xff")
            assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_watch_returns_every_change_and_ends_when_the_health_service_closes() -> None:
    async with serving() as served:
        health = Health(["test.Service"])
        health.add_to(served.server)
        async with channel(served.address) as client:
            stub = HealthStub(client)
            watch = stub.Watch(HealthCheckRequest(service="test.Service"))
            later = stub.Watch(HealthCheckRequest(service="later"))
            assert (await watch.read()).status == HealthCheckResponse.SERVING
            assert (await later.read()).status == HealthCheckResponse.SERVICE_UNKNOWN
            health.set_serving("later", is_serving=True)
            assert (await later.read()).status == HealthCheckResponse.SERVING
            # A change of another service is not reported here.
            health.set_serving("test.Service", is_serving=False)
            assert (await watch.read()).status == HealthCheckResponse.NOT_SERVING
            health.close()
            assert (await later.read()).status == HealthCheckResponse.NOT_SERVING
            assert await watch.read() is EOF
            assert await later.read() is EOF
        await asyncio.wait_for(served.server.stop(10), 5)
