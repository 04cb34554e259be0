"""The standard health service of gRPC, by which load balancers and orchestrators ask whether to send calls here."""

import asyncio
from collections.abc import AsyncIterator, Iterable

from google.protobuf.message import DecodeError
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from fairlead.rpc.call import Call
from fairlead.rpc.server import RpcServer
from fairlead.rpc.status import Code, RpcStatus

HEALTH_SERVICE = "grpc.health.v1.Health"


class Health:
    """Says of each service, and of the whole server by the empty name, whether it is serving."""

    def __init__(self, services: Iterable[str] = ()) -> None:
        self._is_serving = dict.fromkeys(("", *services), True)
        self._is_closed = False
        self._changed = asyncio.Event()

    def add_to(self, server: RpcServer) -> None:
        """Answer Check and Watch there."""
        server.add(f"/{HEALTH_SERVICE}/Check", self._check)
        server.add_stream(f"/{HEALTH_SERVICE}/Watch", self._watch)

    def set_serving(self, service: str, *, is_serving: bool) -> None:
        """Tell everyone who asks or watches."""
        self._is_serving[service] = is_serving
        self._change()

    def drain(self) -> None:
        """Nothing here is serving from now on."""
        self._is_serving = dict.fromkeys(self._is_serving, False)
        self._change()

    def close(self) -> None:
        """End the watches, after their last word: the server would wait for them otherwise."""
        self._is_closed = True
        self.drain()

    def _change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _check(self, data: bytes, _: Call) -> bytes:
        service = _service(data)
        if service not in self._is_serving:
            raise RpcStatus(Code.NOT_FOUND, f"no service {service!r} here")
        return self._response(service)

    async def _watch(self, data: bytes, _: Call) -> AsyncIterator[bytes]:
        service = _service(data)
        told: bytes | None = None
        while True:
            changed = self._changed
            response = self._response(service)
            if response != told:
                yield response
                told = response
                # There may have been a change while the peer was slow to take this.
                continue
            if self._is_closed:
                return
            await changed.wait()

    def _response(self, service: str) -> bytes:
        is_serving = self._is_serving.get(service)
        if is_serving is None:
            status = HealthCheckResponse.SERVICE_UNKNOWN
        else:
            status = HealthCheckResponse.SERVING if is_serving else HealthCheckResponse.NOT_SERVING
        response: bytes = HealthCheckResponse(status=status).SerializeToString()
        return response


def _service(data: bytes) -> str:
    try:
        service: str = HealthCheckRequest.FromString(data).service
    except DecodeError as error:
        raise RpcStatus(Code.INVALID_ARGUMENT, f"this is no HealthCheckRequest: {error}") from None
    return service
