"""gRPC's standard health service; load balancers and orchestrators use it to decide whether to send calls here."""

import asyncio
from collections.abc import AsyncIterator, Iterable

from google.protobuf.message import DecodeError

from fairlead.rpc.call import Call
from fairlead.rpc.server import RpcServer
from fairlead.rpc.standard_messages import HEALTH_PACKAGE, HealthCheckRequest, HealthCheckResponse
from fairlead.rpc.status import Code, RpcStatus

HEALTH_SERVICE = f"{HEALTH_PACKAGE}.Health"


class Health:
    """Health of each service; the empty name stands for the whole server."""

    def __init__(self, services: Iterable[str] = ()) -> None:
        self._is_serving = dict.fromkeys(("", *services), True)
        self._is_closed = False
        self._changed = asyncio.Event()

    def add_to(self, server: RpcServer) -> None:
        """Register Check and Watch with the server."""
        server.add(f"/{HEALTH_SERVICE}/Check", self._check)
        server.add_stream(f"/{HEALTH_SERVICE}/Watch", self._watch)

    def set_serving(self, service: str, *, is_serving: bool) -> None:
        """Set a service's health and notify its watchers."""
        self._is_serving[service] = is_serving
        self._change()

    def drain(self) -> None:
        """Set every service to not serving."""
        self._is_serving = dict.fromkeys(self._is_serving, False)
        self._change()

    def close(self) -> None:
        """Send watchers NOT_SERVING and end their streams; otherwise the server's stop would wait for them."""
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
        sent: bytes | None = None
        while True:
            changed = self._changed
            response = self._response(service)
            if response != sent:
                yield response
                sent = response
                # Check again: the health may have changed while the peer was slow to read.
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
        raise RpcStatus(Code.INVALID_ARGUMENT, f"the request is not a HealthCheckRequest: {error}") from None
    return service
