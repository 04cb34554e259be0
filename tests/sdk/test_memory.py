"""A server's memory stays bounded with many waiting runs and with a history of maximum length."""

import asyncio
import itertools
import resource
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from uuid import uuid4

import grpc
import pytest
import temporalio.api.workflowservice.v1 as api
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from temporalio.api.command.v1 import Command, RecordMarkerCommandAttributes
from temporalio.api.common.v1 import Payload, Payloads, WorkflowExecution, WorkflowType
from temporalio.api.enums.v1 import CommandType, EventType, WorkflowExecutionStatus
from temporalio.api.taskqueue.v1 import TaskQueue

from tests.patience import PATIENCE_S

SERVICE = "/temporal.api.workflowservice.v1.WorkflowService"
MB = 1_000_000
READY_S_MAX = PATIENCE_S
CALL_S_MAX = PATIENCE_S

IDLE_RUNS = 10_000
IDLE_MB_MAX = 400
AT_ONCE = 100

EVENTS = 50_000
MARKERS_A_TASK = 1_000
# Number of events in a batch: the markers, and the workflow task up to the next markers.
BATCH_EVENTS_MAX = MARKERS_A_TASK + 3
# Size of a marker in bytes, so that the history is much larger than the memory allowed for reading it.
MARKER_BYTES = 800
READERS = 4
GROWTH_MB_MAX = 30
PAGE_EVENTS = 256
PAGE_BYTES_MAX = 4 * 1024 * 1024


class ServerProcess:
    """A development server on a file, in its own process."""

    def __init__(self, address: str, pid: int) -> None:
        self.address = address
        self._folder = Path(f"/proc/{pid}")

    def resident_mb(self) -> float:
        """The server's resident memory now, in MB."""
        return int((self._folder / "statm").read_text().split()[1]) * resource.getpagesize() / MB

    def forget_peak(self) -> None:
        """Reset the peak to the current memory."""
        (self._folder / "clear_refs").write_text("5")

    def peak_mb(self) -> float:
        """The server's peak memory, in MB."""
        status = (self._folder / "status").read_text()
        (line,) = [line for line in status.splitlines() if line.startswith("VmHWM")]
        return int(line.split()[1]) * 1024 / MB


@contextmanager
def server_process(folder: Path) -> Iterator[ServerProcess]:
    """Start a server, ready when the block begins and stopped when it ends."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["server", "start-dev", "--headless", "--port", str(port), "--stop-with-input"]
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(  # noqa: S603 - this very program
            [sys.executable, "-m", "fairlead", *command, "--db-filename", str(folder / "fairlead.db")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    with process:
        try:
            assert process.stdout is not None
            assert any(line.startswith("Ready") for line in process.stdout), (folder / "server.log").read_text()
            yield ServerProcess(f"127.0.0.1:{port}", process.pid)
        finally:
            process.kill()


class RawClient:
    """A client and worker in one, without an SDK, because it must be faster than the server."""

    def __init__(self, channel: "grpc.aio.Channel") -> None:
        self._start = self._method(channel, "StartWorkflowExecution", api.StartWorkflowExecutionResponse)
        self._complete = self._method(channel, "RespondWorkflowTaskCompleted", api.RespondWorkflowTaskCompletedResponse)
        self._read = self._method(channel, "GetWorkflowExecutionHistory", api.GetWorkflowExecutionHistoryResponse)
        self._describe = self._method(channel, "DescribeWorkflowExecution", api.DescribeWorkflowExecutionResponse)

    @staticmethod
    def _method(channel: "grpc.aio.Channel", name: str, answer: type[Message]) -> Callable[..., Awaitable[object]]:
        call: Callable[..., Awaitable[object]] = channel.unary_unary(
            f"{SERVICE}/{name}",
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        return call

    async def start(self, workflow_id: str) -> bytes:
        """Start a workflow and poll its first workflow task; returns the task's token."""
        request = api.StartWorkflowExecutionRequest(
            namespace="default",
            workflow_id=workflow_id,
            workflow_type=WorkflowType(name="Waiting"),
            task_queue=TaskQueue(name="memory"),
            workflow_task_timeout=Duration(seconds=60),
            identity="memory",
            request_id=str(uuid4()),
            request_eager_execution=True,
        )
        answer = await self._start(request, timeout=CALL_S_MAX)
        assert isinstance(answer, api.StartWorkflowExecutionResponse)
        assert answer.eager_workflow_task.task_token
        return answer.eager_workflow_task.task_token

    async def complete(self, token: bytes, *, markers: int = 0) -> bytes:
        """Complete a workflow task; with markers there is a next task, whose token is returned."""
        marker = RecordMarkerCommandAttributes(marker_name="m")
        marker.details["data"].CopyFrom(Payloads(payloads=[Payload(data=b"x" * MARKER_BYTES)]))
        command = Command(command_type=CommandType.COMMAND_TYPE_RECORD_MARKER, record_marker_command_attributes=marker)
        request = api.RespondWorkflowTaskCompletedRequest(
            namespace="default",
            task_token=token,
            commands=[command] * markers,
            identity="memory",
            return_new_workflow_task=bool(markers),
            force_create_new_workflow_task=bool(markers),
        )
        answer = await self._complete(request, timeout=CALL_S_MAX)
        assert isinstance(answer, api.RespondWorkflowTaskCompletedResponse)
        return answer.workflow_task.task_token

    async def pages(self, workflow_id: str) -> AsyncIterator[api.GetWorkflowExecutionHistoryResponse]:
        """The history from its start, page by page."""
        request = api.GetWorkflowExecutionHistoryRequest(
            namespace="default",
            execution=WorkflowExecution(workflow_id=workflow_id),
            maximum_page_size=PAGE_EVENTS,
        )
        while True:
            page = await self._read(request, timeout=CALL_S_MAX)
            assert isinstance(page, api.GetWorkflowExecutionHistoryResponse)
            yield page
            request.next_page_token = page.next_page_token
            if not page.next_page_token:
                return

    async def describe(self, workflow_id: str) -> api.DescribeWorkflowExecutionResponse:
        """The server's description of a workflow."""
        request = api.DescribeWorkflowExecutionRequest(
            namespace="default", execution=WorkflowExecution(workflow_id=workflow_id)
        )
        answer = await self._describe(request, timeout=CALL_S_MAX)
        assert isinstance(answer, api.DescribeWorkflowExecutionResponse)
        return answer


@asynccontextmanager
async def raw_client(address: str) -> AsyncIterator[RawClient]:
    """A client that accepts responses of any size, because the tests check the size."""
    async with grpc.aio.insecure_channel(address, options=[("grpc.max_receive_message_length", -1)]) as channel:
        await asyncio.wait_for(channel.channel_ready(), READY_S_MAX)
        yield RawClient(channel)


@pytest.mark.timeout(170)
async def test_ten_thousand_open_workflows_that_wait_take_less_than_400_megabytes(tmp_path: Path) -> None:
    with server_process(tmp_path) as server:
        async with raw_client(server.address) as client:
            numbers = iter(range(IDLE_RUNS))

            async def make_idle() -> None:
                for number in numbers:
                    await client.complete(await client.start(f"idle-{number}"))

            await asyncio.gather(*(make_idle() for _ in range(AT_ONCE)))
            for number in (0, IDLE_RUNS - 1):
                info = (await client.describe(f"idle-{number}")).workflow_execution_info
                assert info.status == WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING
                # The start event, and one workflow task that was scheduled, started and completed.
                assert info.history_length == 4
            assert server.resident_mb() < IDLE_MB_MAX
            # The peak on the way there was not higher either.
            assert server.peak_mb() < IDLE_MB_MAX


async def _read_all(client: RawClient, workflow_id: str) -> int:
    """Read all pages and return their size in bytes; checks that pages are small and events complete and in order."""
    numbers = itertools.count(1)
    size = 0
    async for page in client.pages(workflow_id):
        assert len(page.history.events) < PAGE_EVENTS + BATCH_EVENTS_MAX
        assert page.ByteSize() <= PAGE_BYTES_MAX
        size += page.ByteSize()
        for event in page.history.events:
            assert event.event_id == next(numbers)
    assert next(numbers) > EVENTS
    return size


@pytest.mark.timeout(170)
async def test_a_history_of_fifty_thousand_events_is_read_page_by_page_in_little_memory(tmp_path: Path) -> None:
    with server_process(tmp_path) as server:
        async with raw_client(server.address) as client:
            token = await client.start("long")
            for _ in range(EVENTS // MARKERS_A_TASK):
                token = await client.complete(token, markers=MARKERS_A_TASK)
            server.forget_peak()
            before_mb = server.resident_mb()
            sizes = await asyncio.gather(*(_read_all(client, "long") for _ in range(READERS)))
            growth_mb = server.peak_mb() - before_mb
            assert min(sizes) > GROWTH_MB_MAX * MB, "the history is too small to tell"
            assert growth_mb < GROWTH_MB_MAX

            # The limit on the number of events refuses this step, and ends the run.
            with pytest.raises(grpc.aio.AioRpcError, match="Workflow history count exceeds limit"):
                await client.complete(token, markers=2 * MARKERS_A_TASK)
            info = (await client.describe("long")).workflow_execution_info
            assert info.status == WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_TERMINATED
            last = [event async for page in client.pages("long") for event in page.history.events][-1]
            assert last.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED
