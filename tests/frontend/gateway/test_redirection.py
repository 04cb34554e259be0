"""Calls to a cluster where their namespace is passive, over real gRPC: forwarded, served locally, or refused."""

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

from fairlead.api.clusters import Clusters
from fairlead.api.namespaces import Namespace, Namespaces
from fairlead.core.versions import ClusterVersions
from fairlead.frontend.gateway import redirection
from fairlead.frontend.gateway.forwarder import Forwarder
from fairlead.frontend.gateway.redirection import POLLS, READS, REDIRECTION_HEADER
from fairlead.frontend.gateway.service import WORKFLOW_SERVICE, method_names
from fairlead.rpc import Call, Code, RpcServer, RpcStatus
from fairlead.rpc.head import Head
from fairlead.settings import DynamicSettings
from fairlead.storage.memory.history import MemoryHistory
from fairlead.testing import FairleadClusters
from tests.frontend.served import error_of
from tests.patience import until

pytestmark = pytest.mark.timeout(120)
NAMESPACE = "shared"
WORKFLOW = TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
REDIRECTION = "frontend.redirection"


@asynccontextmanager
async def stubs(clusters: FairleadClusters) -> AsyncIterator[dict[str, Any]]:
    """The stubs have no types: their methods take any message."""
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
    """Two clusters; the namespace is active in a."""
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


def poll(identity: str = "worker") -> PollWorkflowTaskQueueRequest:
    return PollWorkflowTaskQueueRequest(namespace=NAMESPACE, task_queue=TaskQueue(name="q"), identity=identity)


async def pollers(stub: Any) -> list[str]:
    """The pollers that this cluster itself has seen."""
    asked = DescribeTaskQueueRequest(namespace=NAMESPACE, task_queue=TaskQueue(name="q"), task_queue_type=WORKFLOW)
    answer = await stub.DescribeTaskQueue(asked, metadata=[(REDIRECTION_HEADER, "false")])
    return [poller.identity for poller in answer.pollers]


def test_every_method_is_a_local_read_a_poll_or_forwarded() -> None:
    names = set(method_names(WORKFLOW_SERVICE))
    assert names >= READS | POLLS
    assert not READS & POLLS
    # A new method that only reads replicated data should be added to the reads.
    changing = ("Start", "Signal", "Terminate", "Respond", "Reset", "RequestCancel", "Query", "Delete", "Record")
    assert not [name for name in READS if name.startswith(changing)]


async def test_a_workflow_can_be_run_through_the_passive_cluster() -> None:
    async with running() as (_, called):
        b = called["b"]
        run_id = (await b.StartWorkflowExecution(start(), timeout=10)).run_id
        await b.SignalWorkflowExecution(signal(), timeout=10)
        task = await b.PollWorkflowTaskQueue(poll(), timeout=20)
        assert task.workflow_execution.run_id == run_id
        # The namespace is known only from the token.
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
            # Reads are served locally, where the events arrive a little later.
            while await _events(b, history) != events:  # noqa: ASYNC110 - it happens in another server
                await asyncio.sleep(0.05)


async def _events(stub: Any, request: GetWorkflowExecutionHistoryRequest) -> Any:
    try:
        return (await stub.GetWorkflowExecutionHistory(request)).history.events
    except grpc.aio.AioRpcError as missing:
        if missing.code() is not grpc.StatusCode.NOT_FOUND:
            raise
        return None


async def test_errors_of_forwarded_calls_keep_code_message_and_details() -> None:
    async with running() as (_, called):
        unknown = [await error_of(called[name].SignalWorkflowExecution(signal("nope"))) for name in "ab"]
        assert unknown[0] == unknown[1]
        assert unknown[1].code == "NOT_FOUND"
        assert unknown[1].details is not None
        assert unknown[1].details[0].Is(NotFoundFailure.DESCRIPTOR)
        started = await called["b"].StartWorkflowExecution(start())
        taken = await error_of(called["b"].StartWorkflowExecution(start(request_id="other")))
        assert taken.code == "ALREADY_EXISTS"
        assert taken.details is not None
        failure = WorkflowExecutionAlreadyStartedFailure()
        assert taken.details[0].Unpack(failure)
        assert failure.run_id == started.run_id
        nowhere = StartWorkflowExecutionRequest(namespace="nowhere", workflow_id="w")
        absent = await error_of(called["b"].StartWorkflowExecution(nowhere))
        assert absent.details is not None
        assert absent.details[0].Is(NamespaceNotFoundFailure.DESCRIPTOR)


async def test_without_redirection_a_call_fails_as_not_active_and_names_both_clusters() -> None:
    async with running(**{REDIRECTION: "none"}) as (_, called):
        error = await error_of(called["b"].StartWorkflowExecution(start()))
        assert error.code == "FAILED_PRECONDITION"
        assert error.message == (
            "Namespace: shared is active in cluster: a, while current cluster b is a standby cluster."
        )
        assert error.details is not None
        failure = NamespaceNotActiveFailure()
        assert error.details[0].Unpack(failure)
        assert (failure.namespace, failure.current_cluster, failure.active_cluster) == ("shared", "b", "a")
        await called["a"].StartWorkflowExecution(start())
        # A query fails too: the state of a passive cluster may be old.
        query = QueryWorkflowRequest(namespace=NAMESPACE, execution=WorkflowExecution(workflow_id="w"))
        assert (await error_of(called["b"].QueryWorkflow(query))).code == "FAILED_PRECONDITION"
        # A poll waits here: the namespace may become active here.
        assert not (await called["b"].PollWorkflowTaskQueue(poll(), timeout=3)).task_token


async def test_a_call_with_the_header_that_disables_redirection_is_not_forwarded() -> None:
    async with running() as (_, called):
        error = await error_of(called["b"].StartWorkflowExecution(start(), metadata=[(REDIRECTION_HEADER, "false")]))
        assert error.details is not None
        assert error.details[0].Is(NamespaceNotActiveFailure.DESCRIPTOR)


async def test_the_policy_that_redirects_calls_only_leaves_polls_at_the_passive_cluster() -> None:
    async with running(**{REDIRECTION: "calls"}) as (_, called):
        await called["b"].StartWorkflowExecution(start())
        assert not (await called["b"].PollWorkflowTaskQueue(poll(), timeout=3)).task_token
        assert (await called["a"].PollWorkflowTaskQueue(poll(), timeout=10)).task_token
        assert await pollers(called["a"]) == await pollers(called["b"]) == ["worker"]


async def test_a_read_that_needs_the_active_cluster_is_forwarded_to_it() -> None:
    async with running() as (_, called):
        await called["a"].PollWorkflowTaskQueue(poll(), timeout=3)
        asked = DescribeTaskQueueRequest(namespace=NAMESPACE, task_queue=TaskQueue(name="q"), task_queue_type=WORKFLOW)
        assert [poller.identity for poller in (await called["b"].DescribeTaskQueue(asked)).pollers] == ["worker"]
        assert await pollers(called["b"]) == []


async def test_calls_to_a_local_namespace_are_served_locally() -> None:
    async with running() as (_, called):
        asked = start()
        asked.namespace = "default"
        await called["b"].StartWorkflowExecution(asked)
        described = DescribeWorkflowExecutionRequest(namespace="default", execution=WorkflowExecution(workflow_id="w"))
        await called["b"].DescribeWorkflowExecution(described)
        assert (await error_of(called["a"].DescribeWorkflowExecution(described))).code == "NOT_FOUND"


async def test_a_waiting_poll_follows_its_namespace_to_the_new_active_cluster() -> None:
    async with running() as (clusters, called):
        # One poll at each cluster: the first waits locally, the second was forwarded to the same cluster.
        polls = [asyncio.create_task(_poll(called[name], f"at-{name}")) for name in "ab"]
        await until(lambda: _are_waiting(called["a"], {"at-a", "at-b"}))
        await clusters.fail_over("b")
        for number in range(2):
            await called["a"].StartWorkflowExecution(start(f"w{number}"))
        async with asyncio.timeout(10):
            tasks = await asyncio.gather(*polls)
        assert {task.workflow_execution.workflow_id for task in tasks} == {"w0", "w1"}


async def _poll(stub: Any, identity: str = "worker") -> Any:
    return await stub.PollWorkflowTaskQueue(poll(identity), timeout=60)


async def _are_waiting(stub: Any, identities: set[str]) -> bool:
    return set(await pollers(stub)) >= identities


async def test_a_forwarded_poll_is_cancelled_at_the_other_cluster_when_its_worker_disconnects() -> None:
    async with running() as (_, called):
        waiting = asyncio.create_task(_poll(called["b"]))
        await until(lambda: _are_waiting(called["a"], {"worker"}))
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        # No API shows the end of a poll: give the cancellation time to cross two connections.
        await asyncio.sleep(0.2)
        # A poll that was not cancelled would get the task and lose it for ten seconds.
        await called["a"].StartWorkflowExecution(start(workflow_task_timeout=Duration(seconds=10)))
        async with asyncio.timeout(5):
            task = await _poll(called["a"])
        assert (task.attempt, task.workflow_execution.workflow_id) == (1, "w")


async def test_a_call_to_an_unreachable_active_cluster_fails_as_unavailable() -> None:
    async with running() as (clusters, called):
        await clusters.stop("a")
        error = await error_of(called["b"].StartWorkflowExecution(start(), timeout=10))
        assert error.code == "UNAVAILABLE"
        assert error.message.startswith("no response from cluster a, in which the namespace is active")


async def test_a_write_that_waited_long_for_the_end_of_a_handover_is_forwarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only after its wait does the write get the error that the namespace is active elsewhere."""
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
        # The write waits this long for the end of the handover.
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
    """Another cluster's frontend; records the calls that it gets."""

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
    """A frontend that only forwards its calls."""
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


async def test_a_forwarded_call_keeps_its_bytes_deadline_and_metadata() -> None:
    async with forwarding() as (elsewhere, send):
        headers = [("authorization", "Bearer x"), ("client-name", "temporal-go"), ("trace-bin", b"\x00\xff")]
        assert await send(b"\x00\xff", timeout=70, metadata=headers) == b"answer to \x00\xff"
        (call,) = elsewhere.calls
        assert call.head.timeout_s is not None
        # grpcio rounds a timeout up to three digits each time it sends one.
        assert 50 < call.head.timeout_s <= 71
        assert call.metadata["authorization"] == "Bearer x"
        assert call.metadata["client-name"] == "temporal-go"
        assert call.metadata[REDIRECTION_HEADER] == "false"
        assert call.binary_metadata["trace-bin"] == b"\x00\xff"


async def test_the_status_of_a_forwarded_call_is_returned_unchanged() -> None:
    async with forwarding() as (_, send):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await send(b"fail", timeout=7)
        assert (raised.value.code().name, raised.value.details()) == ("ABORTED", "no: ü %")
        trailers: Any = raised.value.trailing_metadata()
        assert dict(trailers)["grpc-status-details-bin"] == b"details"


async def test_a_forwarded_call_is_cancelled_when_its_caller_disconnects() -> None:
    async with forwarding() as (elsewhere, send):
        waiting = send(b"wait", timeout=60)
        async with asyncio.timeout(5):
            while not elsewhere.calls:  # noqa: ASYNC110 - it happens in a handler
                await asyncio.sleep(0.01)
            waiting.cancel()
            await elsewhere.is_cancelled.wait()
