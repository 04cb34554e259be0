"""Calls that reach a cluster where their namespace is passive, over real gRPC: sent on, answered here, or refused."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from msgspec.structs import replace
from temporalio.api.common.v1 import WorkflowExecution, WorkflowType
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.errordetails.v1 import (
    NamespaceNotActiveFailure,
    NamespaceNotFoundFailure,
    NotFoundFailure,
    WorkflowExecutionAlreadyStartedFailure,
)
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeTaskQueueRequest,
    DescribeWorkflowExecutionRequest,
    GetWorkflowExecutionHistoryRequest,
    PollWorkflowTaskQueueRequest,
    QueryWorkflowRequest,
    RespondWorkflowTaskCompletedRequest,
    SignalWorkflowExecutionRequest,
    StartWorkflowExecutionRequest,
    TerminateWorkflowExecutionRequest,
)
from temporalio.api.workflowservice.v1.service_pb2_grpc import WorkflowServiceStub

from fairlead.core.versions import ClusterVersions
from fairlead.frontend import redirection
from fairlead.frontend.forwarding import REDIRECTION_HEADER, Forwarder
from fairlead.frontend.redirection import POLLS, READS
from fairlead.frontend.service import WORKFLOW_SERVICE, method_names
from fairlead.history.clusters import Clusters
from fairlead.history.namespaces import Namespace, Namespaces
from fairlead.rpc import Call, Code, RpcServer, RpcStatus
from fairlead.rpc.head import Head
from fairlead.settings import DynamicSettings
from fairlead.storage.history_memory import MemoryHistory
from fairlead.testing import FairleadClusters
from tests.frontend.serving import refusal

pytestmark = pytest.mark.timeout(120)
NAMESPACE = "shared"
WORKFLOW = TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
REDIRECTION = "frontend.redirection"


@asynccontextmanager
async def stubs(clusters: FairleadClusters) -> AsyncIterator[dict[str, Any]]:
    """The stubs are not typed: their methods take any message."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels: dict[str, Any] = {
        name: grpc.aio.insecure_channel(clusters[name].address, options=options) for name in clusters.names
    }
    try:
        yield {name: WorkflowServiceStub(channel) for name, channel in channels.items()}
    finally:
        for channel in channels.values():
            await channel.close(None)


@asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[tuple[FairleadClusters, dict[str, Any]]]:
    """Two clusters, of which a is the active one."""
    async with FairleadClusters.start("a", "b", dynamic_config=settings) as clusters, stubs(clusters) as called:
        yield clusters, called


def start(workflow_id: str = "w", **fields: Any) -> StartWorkflowExecutionRequest:
    return StartWorkflowExecutionRequest(
        namespace=NAMESPACE,
        workflow_id=workflow_id,
        workflow_type=WorkflowType(name="Any"),
        task_queue=TaskQueue(name="q"),
        **{"request_id": f"start {workflow_id}", **fields},
    )


def signal(workflow_id: str = "w") -> SignalWorkflowExecutionRequest:
    return SignalWorkflowExecutionRequest(
        namespace=NAMESPACE, workflow_execution=WorkflowExecution(workflow_id=workflow_id), signal_name="s"
    )


def poll() -> PollWorkflowTaskQueueRequest:
    return PollWorkflowTaskQueueRequest(namespace=NAMESPACE, task_queue=TaskQueue(name="q"), identity="worker")


async def pollers(stub: Any) -> list[str]:
    """Those that a cluster itself has seen, whoever it would ask otherwise."""
    asked = DescribeTaskQueueRequest(namespace=NAMESPACE, task_queue=TaskQueue(name="q"), task_queue_type=WORKFLOW)
    answer = await stub.DescribeTaskQueue(asked, metadata=[(REDIRECTION_HEADER, "false")])
    return [poller.identity for poller in answer.pollers]


def test_every_method_is_a_read_a_poll_or_sent_on() -> None:
    names = set(method_names(WORKFLOW_SERVICE))
    assert names >= READS | POLLS
    assert not READS & POLLS
    # Whoever adds a method that only reads what is replicated should add it to the reads.
    changing = ("Start", "Signal", "Terminate", "Respond", "Reset", "RequestCancel", "Query", "Delete", "Record")
    assert not [name for name in READS if name.startswith(changing)]


async def test_a_workflow_is_run_through_the_passive_cluster() -> None:
    async with running() as (_, called):
        b = called["b"]
        run_id = (await b.StartWorkflowExecution(start(), timeout=10)).run_id
        await b.SignalWorkflowExecution(signal(), timeout=10)
        task = await b.PollWorkflowTaskQueue(poll(), timeout=20)
        assert task.workflow_execution.run_id == run_id
        # The token alone says which namespace it is of.
        await b.RespondWorkflowTaskCompleted(RespondWorkflowTaskCompletedRequest(task_token=task.task_token))
        await b.TerminateWorkflowExecution(
            TerminateWorkflowExecutionRequest(
                namespace=NAMESPACE, workflow_execution=WorkflowExecution(workflow_id="w"), reason="enough"
            )
        )
        history = GetWorkflowExecutionHistoryRequest(
            namespace=NAMESPACE, execution=WorkflowExecution(workflow_id="w", run_id=run_id)
        )
        events = (await called["a"].GetWorkflowExecutionHistory(history)).history.events
        assert [event.version for event in events] == [1] * len(events)
        async with asyncio.timeout(10):
            # Reads are answered here, where the events arrive a little later.
            while await _events(b, history) != events:  # noqa: ASYNC110 - it happens in another server
                await asyncio.sleep(0.05)


async def _events(stub: Any, request: GetWorkflowExecutionHistoryRequest) -> Any:
    try:
        return (await stub.GetWorkflowExecutionHistory(request)).history.events
    except grpc.aio.AioRpcError as missing:
        if missing.code() is not grpc.StatusCode.NOT_FOUND:
            raise
        return None


async def test_errors_come_back_with_code_message_and_details() -> None:
    async with running() as (_, called):
        unknown = [await refusal(called[name].SignalWorkflowExecution(signal("nope"))) for name in "ab"]
        assert unknown[0] == unknown[1]
        assert unknown[1].code == "NOT_FOUND"
        assert unknown[1].details is not None
        assert unknown[1].details[0].Is(NotFoundFailure.DESCRIPTOR)
        started = await called["b"].StartWorkflowExecution(start())
        taken = await refusal(called["b"].StartWorkflowExecution(start(request_id="other")))
        assert taken.code == "ALREADY_EXISTS"
        assert taken.details is not None
        failure = WorkflowExecutionAlreadyStartedFailure()
        assert taken.details[0].Unpack(failure)
        assert failure.run_id == started.run_id
        nowhere = StartWorkflowExecutionRequest(namespace="nowhere", workflow_id="w")
        absent = await refusal(called["b"].StartWorkflowExecution(nowhere))
        assert absent.details is not None
        assert absent.details[0].Is(NamespaceNotFoundFailure.DESCRIPTOR)


async def test_without_redirection_a_call_is_refused_as_not_active_with_both_names() -> None:
    async with running(**{REDIRECTION: "none"}) as (_, called):
        refused = await refusal(called["b"].StartWorkflowExecution(start()))
        assert refused.code == "FAILED_PRECONDITION"
        assert refused.message == (
            "Namespace: shared is active in cluster: a, while current cluster b is a standby cluster."
        )
        assert refused.details is not None
        failure = NamespaceNotActiveFailure()
        assert refused.details[0].Unpack(failure)
        assert (failure.namespace, failure.current_cluster, failure.active_cluster) == ("shared", "b", "a")
        await called["a"].StartWorkflowExecution(start())
        # A query, too: what a worker would say to it here may be old.
        query = QueryWorkflowRequest(namespace=NAMESPACE, execution=WorkflowExecution(workflow_id="w"))
        assert (await refusal(called["b"].QueryWorkflow(query))).code == "FAILED_PRECONDITION"
        # A poll waits here, for the day on which the namespace becomes active here.
        assert not (await called["b"].PollWorkflowTaskQueue(poll(), timeout=3)).task_token


async def test_a_caller_may_ask_for_an_answer_of_this_very_cluster() -> None:
    async with running() as (_, called):
        refused = await refusal(called["b"].StartWorkflowExecution(start(), metadata=[(REDIRECTION_HEADER, "false")]))
        assert refused.details is not None
        assert refused.details[0].Is(NamespaceNotActiveFailure.DESCRIPTOR)


async def test_with_redirection_of_calls_polls_stay_here() -> None:
    async with running(**{REDIRECTION: "calls"}) as (_, called):
        await called["b"].StartWorkflowExecution(start())
        assert not (await called["b"].PollWorkflowTaskQueue(poll(), timeout=3)).task_token
        assert (await called["a"].PollWorkflowTaskQueue(poll(), timeout=10)).task_token
        assert await pollers(called["a"]) == await pollers(called["b"]) == ["worker"]


async def test_what_only_the_active_cluster_has_is_read_there() -> None:
    async with running() as (_, called):
        await _poll(called["a"], timeout=3)
        asked = DescribeTaskQueueRequest(namespace=NAMESPACE, task_queue=TaskQueue(name="q"), task_queue_type=WORKFLOW)
        assert [poller.identity for poller in (await called["b"].DescribeTaskQueue(asked)).pollers] == ["worker"]
        assert await pollers(called["b"]) == []


async def test_local_namespaces_are_answered_where_they_are() -> None:
    async with running() as (_, called):
        asked = start()
        asked.namespace = "default"
        await called["b"].StartWorkflowExecution(asked)
        described = DescribeWorkflowExecutionRequest(namespace="default", execution=WorkflowExecution(workflow_id="w"))
        await called["b"].DescribeWorkflowExecution(described)
        assert (await refusal(called["a"].DescribeWorkflowExecution(described))).code == "NOT_FOUND"


async def test_a_poll_that_waits_follows_its_namespace_to_the_new_active_cluster() -> None:
    async with running() as (clusters, called):
        # One at each cluster: the first waits where it is, the second was sent on to there.
        polls = [asyncio.create_task(_poll(called[name])) for name in "ab"]
        await asyncio.sleep(0.3)
        await clusters.fail_over("b")
        for number in range(2):
            await called["a"].StartWorkflowExecution(start(f"w{number}"))
        async with asyncio.timeout(10):
            tasks = await asyncio.gather(*polls)
        assert {task.workflow_execution.workflow_id for task in tasks} == {"w0", "w1"}


async def _poll(stub: Any, timeout: float = 60) -> Any:  # noqa: ASYNC109 - gRPC's own
    return await stub.PollWorkflowTaskQueue(poll(), timeout=timeout)


async def test_a_poll_is_taken_back_at_the_other_cluster_when_its_worker_goes() -> None:
    async with running() as (_, called):
        waiting = asyncio.create_task(_poll(called["b"]))
        async with asyncio.timeout(10):
            while not await pollers(called["a"]):  # noqa: ASYNC110 - it happens in another server
                await asyncio.sleep(0.02)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await asyncio.sleep(0.2)
        # Were it still there, it would take the task, and nobody would get it for ten seconds.
        await called["a"].StartWorkflowExecution(start(workflow_task_timeout=Duration(seconds=10)))
        async with asyncio.timeout(5):
            task = await _poll(called["a"])
        assert (task.attempt, task.workflow_execution.workflow_id) == (1, "w")


async def test_a_cluster_that_is_gone_is_told_as_unavailable() -> None:
    async with running() as (clusters, called):
        await clusters.stop("a")
        refused = await refusal(called["b"].StartWorkflowExecution(start(), timeout=10))
        assert refused.code == "UNAVAILABLE"
        assert refused.message.startswith("cluster a, where the namespace is active, did not answer")


async def test_a_write_that_waited_long_for_the_end_of_a_hand_over_is_sent_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it waited: only then does it hear that the namespace is active elsewhere."""
    monkeypatch.setattr(redirection, "AGAIN_S_MAX", 0.1)
    clusters = Clusters("a", ClusterVersions(10, {"a": 1, "b": 2}), ["b"])
    namespaces = Namespaces(MemoryHistory(), clock=lambda: 0.0, refresh_s=3600.0)
    made = await namespaces.create(
        Namespace(
            id="id",
            name=NAMESPACE,
            retention_ns=1,
            is_global=True,
            active_cluster="a",
            clusters=("a", "b"),
            failover_version=1,
        )
    )

    async def wait_and_refuse() -> bytes:
        await asyncio.sleep(0.3)
        moved = await namespaces.change(made.id, lambda now: replace(now, active_cluster="b", failover_version=2))
        clusters.check_writable(moved, last_event_version=1)
        return b"written here"

    async def send(cluster: str, _data: bytes, _call: Call) -> bytes:
        return f"written in {cluster}".encode()

    async def settle(cluster: str) -> None:
        return

    redirected = redirection.Redirection(
        clusters=clusters, namespaces=namespaces, settings=DynamicSettings(), send=send, settle=settle
    )
    call = Call(Head("/x/SignalWorkflowExecution", {}, {}, None, "identity", None), peer="", clock=lambda: 0.0)
    answer = await redirected.answer("SignalWorkflowExecution", signal(), b"", call, wait_and_refuse)
    assert answer == b"written in b"


class _Elsewhere:
    """Another cluster's frontend, which notes what it is sent."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.data: list[bytes] = []
        self.is_cancelled = asyncio.Event()

    async def answer(self, data: bytes, call: Call) -> bytes:
        self.calls.append(call)
        self.data.append(data)
        if data == b"wait":
            try:
                await asyncio.Event().wait()
            finally:
                self.is_cancelled.set()
        if data == b"fail":
            raise RpcStatus(Code.ABORTED, "no: ü %", b"details")
        return b"answer to " + data


@asynccontextmanager
async def forwarding() -> AsyncIterator[tuple[_Elsewhere, Any]]:
    """A frontend that does nothing but send on what it gets."""
    elsewhere, there, here = _Elsewhere(), RpcServer("127.0.0.1:0"), RpcServer("127.0.0.1:0")
    there.add("/x.Y/Z", elsewhere.answer)
    address = await there.start()
    forwarder = Forwarder(lambda _cluster: address)

    async def forward(data: bytes, call: Call) -> bytes:
        return await forwarder.send("there", data, call)

    here.add("/x.Y/Z", forward)
    channel = grpc.aio.insecure_channel(await here.start(), options=[("grpc.use_local_subchannel_pool", 1)])
    try:
        yield elsewhere, channel.unary_unary("/x.Y/Z", None, None)
    finally:
        await channel.close(None)
        await forwarder.close()
        await here.stop(0)
        await there.stop(0)


async def test_bytes_deadline_and_metadata_are_sent_on_as_they_came() -> None:
    async with forwarding() as (elsewhere, send):
        headers = [("authorization", "Bearer x"), ("client-name", "temporal-go"), ("trace-bin", b"\x00\xff")]
        assert await send(b"\x00\xff", timeout=70, metadata=headers) == b"answer to \x00\xff"
        (call,) = elsewhere.calls
        assert call.head.timeout_s is not None
        assert 50 < call.head.timeout_s <= 70
        assert call.metadata["authorization"] == "Bearer x"
        assert call.metadata["client-name"] == "temporal-go"
        assert call.metadata[REDIRECTION_HEADER] == "false"
        assert call.binary_metadata["trace-bin"] == b"\x00\xff"


async def test_a_status_is_sent_back_as_it_came() -> None:
    async with forwarding() as (_, send):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await send(b"fail", timeout=7)
        assert (raised.value.code().name, raised.value.details()) == ("ABORTED", "no: ü %")
        trailers: Any = raised.value.trailing_metadata()
        assert dict(trailers)["grpc-status-details-bin"] == b"details"


async def test_who_goes_is_gone_at_the_other_side_as_well() -> None:
    async with forwarding() as (elsewhere, send):
        waiting = send(b"wait", timeout=60)
        async with asyncio.timeout(5):
            while not elsewhere.calls:  # noqa: ASYNC110 - it happens in a handler
                await asyncio.sleep(0.01)
            waiting.cancel()
            await elsewhere.is_cancelled.wait()
