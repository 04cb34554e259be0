"""Our client against servers that are not ours: grpc.aio's, and grpc-go in Temporal's development server."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from temporalio.api.common.v1 import GrpcStatus
from temporalio.api.errordetails.v1 import NamespaceNotFoundFailure
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    GetSystemInfoRequest,
    GetSystemInfoResponse,
    PollWorkflowTaskQueueRequest,
    PollWorkflowTaskQueueResponse,
    StartWorkflowExecutionRequest,
    StartWorkflowExecutionResponse,
)

from fairlead.rpc import Code
from fairlead.rpc.client import NotSent, RemoteStatus, ResponseLost
from tests.rpc.client.faking import all_of, channel_to, failed
from tests.rpc.served import until
from tests.sdk.servers import serving as server_of_kind

SERVICE = "test.Foreign"
WORKFLOWS = "/temporal.api.workflowservice.v1.WorkflowService"


@dataclass
class Handlers:
    """Handlers of grpc.aio, and what they saw."""

    begun: int = 0
    cancelled: int = 0
    metadata: dict[str, Any] = field(default_factory=dict)
    remaining_s: float = 0.0

    async def echo(self, request: bytes, context: Any) -> bytes:
        self.metadata = dict(context.invocation_metadata())
        self.remaining_s = context.time_remaining()
        return request

    async def refuse(self, request: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.NOT_FOUND, "nicht gefunden: ß\n", (("why-bin", b"\x00\xff"), ("who", "me")))
        return request

    async def wait(self, request: bytes, context: Any) -> bytes:
        self.begun += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return request

    async def count(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        self.begun += 1
        try:
            for number in range(int(request)):
                yield bytes([number % 256]) * 100_000
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled += 1
            raise


@asynccontextmanager
async def foreign(*options: tuple[str, int], compression: Any = None) -> AsyncIterator[tuple[Any, str, Handlers]]:
    handlers = Handlers()
    server: Any = grpc.aio.server(options=[("grpc.max_receive_message_length", -1), *options], compression=compression)
    unary: Any = grpc.unary_unary_rpc_method_handler
    stream: Any = grpc.unary_stream_rpc_method_handler
    methods = {
        "Echo": unary(handlers.echo),
        "Refuse": unary(handlers.refuse),
        "Wait": unary(handlers.wait),
        "Count": stream(handlers.count),
    }
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, methods)])
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield server, address, handlers
    finally:
        await server.stop(0)


async def test_a_server_of_grpc_aio_answers_with_messages_of_any_size() -> None:
    async with foreign() as (_, address, handlers), channel_to(address) as channel:
        for size in (0, 1, 16_379, 16_380, 65_535, 70_000, 4_000_000):
            message = bytes(size)
            assert (
                await channel.unary(f"/{SERVICE}/Echo", message, timeout_s=60, metadata=(("a-bin", b"\xff"),))
                == message
            )
        assert handlers.metadata["a-bin"] == b"\xff"
        assert handlers.metadata["user-agent"].startswith("fairlead/")
        assert 0 < handlers.remaining_s <= 60
        messages = [b"%d" % number * 1_000 for number in range(200)]
        assert await asyncio.gather(*(channel.unary(f"/{SERVICE}/Echo", each) for each in messages)) == messages


async def test_compressed_answers_are_inflated() -> None:
    async with foreign(compression=grpc.Compression.Gzip) as (_, address, _), channel_to(address) as channel:
        for size in (1, 100, 500_000):
            assert await channel.unary(f"/{SERVICE}/Echo", b"x" * size) == b"x" * size


async def test_statuses_and_trailers_of_grpc_aio_arrive() -> None:
    async with foreign() as (_, address, _), channel_to(address) as channel:
        failure = await failed(channel.unary(f"/{SERVICE}/Refuse", b""))
        assert isinstance(failure, RemoteStatus)
        assert (failure.code, failure.message) == (Code.NOT_FOUND, "nicht gefunden: ß\n")
        assert (failure.trailers["why-bin"], failure.trailers["who"]) == (b"\x00\xff", "me")
        failure = await failed(channel.unary(f"/{SERVICE}/Nothing", b""))
        assert (type(failure), failure.code) == (RemoteStatus, Code.UNIMPLEMENTED)


async def test_streams_of_grpc_aio_arrive_in_order_and_are_cancelled_when_left() -> None:
    async with foreign() as (_, address, handlers), channel_to(address) as channel:
        received, failure = await all_of(channel.stream(f"/{SERVICE}/Count", b"40", timeout_s=60))
        assert ([message[0] for message in received], failure) == (list(range(40)), None)
        async with aclosing(channel.stream(f"/{SERVICE}/Count", b"100000")) as endless:
            await anext(endless)
        await until(lambda: handlers.cancelled == 1)


async def test_deadlines_and_cancellation_reach_grpc_aio() -> None:
    async with foreign() as (_, address, handlers), channel_to(address) as channel:
        assert await channel.unary(f"/{SERVICE}/Echo", b"") == b""
        failure = await failed(channel.unary(f"/{SERVICE}/Wait", b"", timeout_s=0.1))
        assert failure.code is Code.DEADLINE_EXCEEDED
        await until(lambda: handlers.cancelled == handlers.begun)
        call = asyncio.ensure_future(channel.unary(f"/{SERVICE}/Wait", b""))
        await until(lambda: handlers.begun - handlers.cancelled == 1)
        call.cancel()
        await until(lambda: handlers.cancelled == handlers.begun)
        await asyncio.gather(call, return_exceptions=True)


async def test_a_stopping_server_of_grpc_aio_loses_its_calls_and_is_then_not_there() -> None:
    async with foreign() as (server, address, handlers), channel_to(address) as channel:
        call = asyncio.ensure_future(channel.unary(f"/{SERVICE}/Wait", b""))
        await until(lambda: handlers.begun == 1)
        await server.stop(0)
        failure = await failed(call)
        assert isinstance(failure, (ResponseLost, RemoteStatus))
        assert isinstance(await failed(channel.unary(f"/{SERVICE}/Echo", b"")), NotSent)


async def test_connections_that_grpc_aio_replaces_by_age_lose_no_call() -> None:
    """GOAWAY of a server that keeps serving: calls move to a new connection, and none fails."""
    age = (("grpc.max_connection_age_ms", 150), ("grpc.max_connection_age_grace_ms", 30_000))
    async with foreign(*age) as (_, address, _), channel_to(address) as channel:
        connections = set()
        for number in range(60):
            try:
                assert await channel.unary(f"/{SERVICE}/Echo", b"%d" % number) == b"%d" % number
            except NotSent:
                assert await channel.unary(f"/{SERVICE}/Echo", b"") == b""
            connections.add(channel._current)
            # The server closes connections by their age.
            await asyncio.sleep(0.01)
        assert len(connections) > 1


@pytest.fixture(scope="module")
def temporal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Temporal's development server, a server of grpc-go."""
    with server_of_kind("reference", tmp_path_factory.mktemp("temporal")) as address:
        yield address


async def test_temporals_server_answers(temporal: str) -> None:
    async with channel_to(temporal) as channel:
        answer = await channel.unary(f"{WORKFLOWS}/GetSystemInfo", GetSystemInfoRequest().SerializeToString())
        assert GetSystemInfoResponse.FromString(answer).server_version
        health = HealthCheckRequest(service="temporal.api.workflowservice.v1.WorkflowService").SerializeToString()
        answer = await channel.unary("/grpc.health.v1.Health/Check", health, timeout_s=30)
        assert HealthCheckResponse.FromString(answer).status == HealthCheckResponse.SERVING
        # Enough calls for grpc-go's header table to settle on indexed fields.
        calls = [channel.unary(f"{WORKFLOWS}/GetSystemInfo", b"", timeout_s=30 + number) for number in range(100)]
        assert {len(each) for each in await asyncio.gather(*calls)} == {len(await calls_answer(channel))}


async def calls_answer(channel: Any) -> bytes:
    answer: bytes = await channel.unary(f"{WORKFLOWS}/GetSystemInfo", b"")
    return answer


async def test_temporals_errors_arrive_with_their_details(temporal: str) -> None:
    async with channel_to(temporal) as channel:
        request = DescribeNamespaceRequest(namespace="nowhere").SerializeToString()
        failure = await failed(channel.unary(f"{WORKFLOWS}/DescribeNamespace", request, timeout_s=30))
        assert isinstance(failure, RemoteStatus)
        assert failure.code is Code.NOT_FOUND
        assert failure.details is not None
        detail = NamespaceNotFoundFailure()
        assert GrpcStatus.FromString(failure.details).details[0].Unpack(detail)
        assert detail.namespace == "nowhere"


async def test_deadlines_and_large_messages_reach_temporals_server(temporal: str) -> None:
    async with channel_to(temporal) as channel:
        start = StartWorkflowExecutionRequest(namespace="default", workflow_id=str(uuid4()), request_id="r")
        start.workflow_type.name = "Some"
        start.task_queue.name = start.workflow_id
        start.input.payloads.add(data=bytes(1_500_000))
        answer = await channel.unary(f"{WORKFLOWS}/StartWorkflowExecution", start.SerializeToString(), timeout_s=60)
        assert StartWorkflowExecutionResponse.FromString(answer).started
        poll = PollWorkflowTaskQueueRequest(namespace="default", identity="test")
        poll.task_queue.name = start.task_queue.name
        answer = await channel.unary(f"{WORKFLOWS}/PollWorkflowTaskQueue", poll.SerializeToString(), timeout_s=60)
        task = PollWorkflowTaskQueueResponse.FromString(answer)
        started = task.history.events[0].workflow_execution_started_event_attributes
        assert len(started.input.payloads[0].data) == 1_500_000
        poll.task_queue.name = "empty"
        failure = await failed(
            channel.unary(f"{WORKFLOWS}/PollWorkflowTaskQueue", poll.SerializeToString(), timeout_s=0.2)
        )
        # The server has read the deadline, and refuses polls that are too short.
        assert (failure.code, failure.message) == (Code.FAILED_PRECONDITION, "Context timeout is too short.")
