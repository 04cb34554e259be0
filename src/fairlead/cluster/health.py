"""The standard health service of gRPC, by which load balancers and orchestrators ask whether to send requests here."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

HEALTH_SERVICE = "grpc.health.v1.Health"


class Health:
    """Says SERVING until this host drains, then NOT_SERVING to everyone who asks or watches."""

    def __init__(self, service: str) -> None:
        # The empty name asks for the whole host.
        self._services = ("", service)
        self._is_draining = asyncio.Event()
        self._is_stopping = asyncio.Event()

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

    def drain(self) -> None:
        """Ask for no more requests."""
        self._is_draining.set()

    def stop(self) -> None:
        """End the watches: the host would wait for them otherwise."""
        self._is_draining.set()
        self._is_stopping.set()

    async def _check(self, request: HealthCheckRequest, context: Any) -> HealthCheckResponse:
        if request.service not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no service {request.service!r} here")
        return self._response(request)

    async def _watch(self, request: HealthCheckRequest, _: Any) -> AsyncIterator[HealthCheckResponse]:
        for change in (self._is_draining, self._is_stopping):
            if not change.is_set():
                yield self._response(request)
                await change.wait()

    def _response(self, request: HealthCheckRequest) -> HealthCheckResponse:
        if request.service not in self._services:
            return HealthCheckResponse(status=HealthCheckResponse.SERVICE_UNKNOWN)
        is_draining = self._is_draining.is_set()
        return HealthCheckResponse(
            status=HealthCheckResponse.NOT_SERVING if is_draining else HealthCheckResponse.SERVING
        )
