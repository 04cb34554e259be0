"""The standard health service of gRPC, by which load balancers and orchestrators ask whether to send requests here."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

HEALTH_SERVICE = "grpc.health.v1.Health"


class Health:
    """Says SERVING while this host is able to serve and until it drains, else NOT_SERVING, to all who ask or watch."""

    def __init__(self, service: str) -> None:
        # The empty name asks for the whole host.
        self._services = ("", service)
        self._is_able = True
        self._is_draining = False
        self._is_stopping = False
        # Set at the next change, and then replaced.
        self._changed = asyncio.Event()

    def rpc_handler(self) -> "grpc.GenericRpcHandler[Any, Any]":
        """Answers Check and Watch."""
        return grpc.method_handlers_generic_handler(
            HEALTH_SERVICE,
            {
                "Check": grpc.unary_unary_rpc_method_handler(
                    self._check,
                    request_deserializer=HealthCheckRequest.FromString,
                    response_serializer=HealthCheckResponse.SerializeToString,
                ),
                "Watch": grpc.unary_stream_rpc_method_handler(
                    self._watch,
                    request_deserializer=HealthCheckRequest.FromString,
                    response_serializer=HealthCheckResponse.SerializeToString,
                ),
            },
        )

    def set_able(self, *, is_able: bool) -> None:
        """Ask for requests, or for none until this host is able to serve again."""
        if is_able is not self._is_able:
            self._is_able = is_able
            self._tell()

    def drain(self) -> None:
        """Ask for no more requests."""
        self._is_draining = True
        self._tell()

    def stop(self) -> None:
        """End the watches: the host would wait for them otherwise."""
        self._is_draining = self._is_stopping = True
        self._tell()

    async def _check(self, request: HealthCheckRequest, context: Any) -> HealthCheckResponse:
        if request.service not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no service {request.service!r} here")
        return self._response(request)

    async def _watch(self, request: HealthCheckRequest, _: Any) -> AsyncIterator[HealthCheckResponse]:
        said: HealthCheckResponse | None = None
        while not self._is_stopping:
            changed, response = self._changed, self._response(request)
            if response != said:
                yield response
                said = response
            # What has changed meanwhile has set this one.
            await changed.wait()

    def _response(self, request: HealthCheckRequest) -> HealthCheckResponse:
        if request.service not in self._services:
            return HealthCheckResponse(status=HealthCheckResponse.SERVICE_UNKNOWN)
        is_serving = self._is_able and not self._is_draining
        return HealthCheckResponse(
            status=HealthCheckResponse.SERVING if is_serving else HealthCheckResponse.NOT_SERVING
        )

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
