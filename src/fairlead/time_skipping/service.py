"""Temporal's TestService on a gRPC server: lock, unlock, sleep, and get the current time."""

from collections.abc import Awaitable, Callable
from typing import Any

from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from temporalio.api.testservice.v1 import (
    GetCurrentTimeResponse,
    LockTimeSkippingRequest,
    LockTimeSkippingResponse,
    SleepRequest,
    SleepResponse,
    SleepUntilRequest,
    UnlockTimeSkippingRequest,
    UnlockTimeSkippingResponse,
    service_pb2,
)

from fairlead.api.errors import InvalidArgument
from fairlead.api.status import status_of
from fairlead.api.times import SECOND_NS, from_duration, from_timestamp, to_timestamp
from fairlead.core.errors import FixRequest
from fairlead.rpc import Call, RpcServer, UnaryHandler
from fairlead.time_skipping.skipper import Skipper

_API: ServiceDescriptor = service_pb2.DESCRIPTOR.services_by_name["TestService"]
TEST_SERVICE = _API.full_name

_Handler = Callable[[Skipper, Any], Awaitable[Message]]


async def _lock(skipper: Skipper, _request: LockTimeSkippingRequest) -> Message:
    skipper.lock()
    return LockTimeSkippingResponse()


async def _unlock(skipper: Skipper, _request: UnlockTimeSkippingRequest) -> Message:
    skipper.unlock()
    return UnlockTimeSkippingResponse()


async def _sleep(skipper: Skipper, request: SleepRequest) -> Message:
    await skipper.sleep_until(skipper.now_ns() + _duration_ns(request))
    return SleepResponse()


async def _sleep_until(skipper: Skipper, request: SleepUntilRequest) -> Message:
    if not request.HasField("timestamp"):
        raise InvalidArgument("timestamp is not set: say until when to sleep")
    await skipper.sleep_until(from_timestamp(request.timestamp))
    return SleepResponse()


async def _unlock_with_sleep(skipper: Skipper, request: SleepRequest) -> Message:
    await skipper.unlock_during_sleep(_duration_ns(request))
    return SleepResponse()


async def _current_time(skipper: Skipper, _request: Empty) -> Message:
    return GetCurrentTimeResponse(time=to_timestamp(skipper.now_ns()))


_METHODS: dict[str, _Handler] = {
    "LockTimeSkipping": _lock,
    "UnlockTimeSkipping": _unlock,
    "Sleep": _sleep,
    "SleepUntil": _sleep_until,
    "UnlockTimeSkippingWithSleep": _unlock_with_sleep,
    "GetCurrentTime": _current_time,
}


def add_test_service(server: RpcServer, skipper: Skipper) -> None:
    """Add the handlers of TestService to the server."""
    for method in _API.methods:
        parse = GetMessageClass(method.input_type).FromString
        server.add(f"/{TEST_SERVICE}/{method.name}", _answerer(parse, _METHODS[method.name], skipper))


def _answerer(parse: Callable[[bytes], Message], handler: _Handler, skipper: Skipper) -> UnaryHandler:
    async def answer(data: bytes, _call: Call) -> bytes:
        try:
            request = parse(data)
        except DecodeError as error:
            raise status_of(InvalidArgument(f"request can't be decoded: {error}")) from None
        try:
            return (await handler(skipper, request)).SerializeToString()
        except FixRequest as wrong:
            raise status_of(wrong) from None

    return answer


def _duration_ns(request: SleepRequest) -> int:
    if not request.HasField("duration"):
        raise InvalidArgument("duration is not set: say how long to sleep")
    duration_ns = from_duration(request.duration)
    if duration_ns < 0:
        raise InvalidArgument(f"duration is {duration_ns / SECOND_NS:g} s: it must not be negative")
    return duration_ns
