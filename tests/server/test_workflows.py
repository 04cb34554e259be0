"""A whole server with workflows: its roles, frontend-only hosts, and draining."""

import asyncio
import dataclasses
import time

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckResponse
from temporalio import workflow
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    GetClusterInfoRequest,
    PollWorkflowTaskQueueRequest,
    PollWorkflowTaskQueueResponse,
)
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from fairlead.history.messages.matching_tasks import (
    AnyMatched,
    MatchedActivityTask,
    MatchedEntityTask,
    MatchedQuery,
    MatchedWorkflowTask,
    decode_matched,
    encode_matched,
)
from fairlead.membership.ring import RING, RingRequest
from fairlead.server import Server, new_caller
from fairlead.server.bootstrap import ShardsFixed
from fairlead.settings.static.config import Role, StaticConfig
from fairlead.storage import watched
from tests.patience import until
from tests.server.test_server import (
    IN_MEMORY,
    LOOPBACK,
    ORDERS,
    SHARED,
    OpenToAll,
    client_of,
    health,
    running,
    share_store,
    task,
)

ALL = dataclasses.replace(IN_MEMORY, roles=frozenset(Role), frontend_listen=LOOPBACK)
BEHIND = dataclasses.replace(SHARED, roles=frozenset({Role.HISTORY, Role.MATCHING}))
FRONT = dataclasses.replace(SHARED, roles=frozenset({Role.FRONTEND}), frontend_listen=LOOPBACK)


@pytest.fixture
def shared_store(monkeypatch: pytest.MonkeyPatch) -> OpenToAll:
    return share_store(monkeypatch)


@workflow.defn
class Greeting:
    """The smallest workflow."""

    @workflow.run
    async def run(self, name: str) -> str:
        """Greet."""
        return f"hello {name}"


async def greet(server: Server) -> str:
    assert server.frontend_address is not None
    client = await Client.connect(server.frontend_address)
    async with (
        Worker(client, task_queue="greetings", workflows=[Greeting], workflow_runner=UnsandboxedWorkflowRunner()),
        asyncio.timeout(20),
    ):
        return await client.execute_workflow(Greeting.run, "world", id="greeting", task_queue="greetings")


@pytest.mark.parametrize(
    "matched",
    [
        MatchedWorkflowTask("namespace", "workflow", "run", 2, 1),
        MatchedActivityTask("namespace", "workflow", "run", 5, 1, 0),
        MatchedQuery("namespace", "workflow", "run", "query"),
        MatchedEntityTask("namespace", "workflow", "run", "name", b"data"),
    ],
)
def test_tasks_of_workflows_are_distinguished_from_other_tasks(matched: AnyMatched) -> None:
    decoded = decode_matched(encode_matched(matched), "worker", b"")
    assert decoded is not None
    assert decoded[1].task == matched
    for other in (b"", b"hello", b'{"Matched": 1}', b"Matched", b"\x93\x01\x02\x03"):
        assert decode_matched(other, "worker", b"") is None


async def test_tasks_without_a_workflow_are_served_beside_workflows() -> None:
    async with running(ALL) as server, client_of(server.address) as client:
        await client.add(ORDERS, task(b"one"))
        assert (await client.poll(ORDERS, "worker", timeout_s=5)).task == b"one"
        assert await greet(server) == "hello world"


async def test_a_frontend_only_host_finds_the_other_hosts_and_joins_no_ring(shared_store: OpenToAll) -> None:
    async with running(BEHIND) as behind, running(FRONT) as front:
        assert behind.frontend_address is None
        assert front.address == ""
        assert await greet(front) == "hello world"
        caller = new_caller()
        answer = await caller.call(behind.address, RING, RingRequest(), timeout_s=5)
        await caller.close()
        assert answer.hosts == [behind.address]


async def test_a_frontend_only_host_follows_changes_of_the_ring(shared_store: OpenToAll) -> None:
    async with running(FRONT) as front:
        async with running(BEHIND):
            assert await greet(front) == "hello world"
        # The next host has another name.
        async with running(BEHIND):
            assert front.frontend_address is not None
            client = await Client.connect(front.frontend_address)
            async with asyncio.timeout(10):
                assert await client.get_workflow_handle("greeting").result() == "hello world"


async def test_workflows_continue_on_the_remaining_hosts(shared_store: OpenToAll) -> None:
    config = dataclasses.replace(SHARED, roles=frozenset(Role), frontend_listen=LOOPBACK)
    async with running(config) as one:
        async with running(config) as two:
            assert await greet(two) == "hello world"
        assert one.frontend_address is not None
        client = await Client.connect(one.frontend_address)
        async with asyncio.timeout(10):
            assert await client.get_workflow_handle("greeting").result() == "hello world"


async def test_polls_are_answered_empty_when_the_server_stops() -> None:
    """FL-17: waiting polls are answered, and nothing is lost."""
    server = Server(dataclasses.replace(ALL, grace_s=30.0))
    await server.start()
    assert server.frontend_address is not None
    async with grpc.aio.insecure_channel(server.frontend_address) as channel:
        poll = channel.unary_unary(
            "/temporal.api.workflowservice.v1.WorkflowService/PollWorkflowTaskQueue",
            request_serializer=PollWorkflowTaskQueueRequest.SerializeToString,
            response_deserializer=PollWorkflowTaskQueueResponse.FromString,
        )
        request = PollWorkflowTaskQueueRequest(
            namespace="default", task_queue=TaskQueue(name="greetings"), identity="worker"
        )
        polls = [poll(request, timeout=60) for _ in range(3)]
        # Only time can show that the polls wait.
        await asyncio.sleep(0.3)
        assert not any(call.done() for call in polls)
        began_s = time.monotonic()
        stopping = asyncio.create_task(server.stop())
        answers = [await call for call in polls]
        assert [answer.task_token for answer in answers] == [b"", b"", b""]
        await stopping
        # Less than the time of a poll and the grace period.
        assert time.monotonic() - began_s < 20


async def _is_health(server: Server, expected: int) -> bool:
    assert server.frontend_address is not None
    return await health(server.frontend_address) == expected


async def test_the_health_of_the_frontend_follows_the_store(
    shared_store: OpenToAll, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched, "UNAVAILABLE_AFTER_S", 0.3)
    config = dataclasses.replace(SHARED, roles=frozenset(Role), frontend_listen=LOOPBACK)
    async with running(config) as server:
        assert server.frontend_address is not None
        assert await health(server.frontend_address) == HealthCheckResponse.SERVING
        shared_store.is_away = True
        await until(lambda: _is_health(server, HealthCheckResponse.NOT_SERVING))
        shared_store.is_away = False
        await until(lambda: _is_health(server, HealthCheckResponse.SERVING))


async def test_the_cluster_info_describes_the_running_cluster(shared_store: OpenToAll) -> None:
    config = dataclasses.replace(SHARED, roles=frozenset(Role), frontend_listen=LOOPBACK, history_shards=3)
    ids = set()
    for _ in range(2):
        async with running(config) as server:
            assert server.frontend_address is not None
            client = await Client.connect(server.frontend_address)
            info = await client.workflow_service.get_cluster_info(GetClusterInfoRequest())
            assert info.history_shard_count == 3
            ids.add(info.cluster_id)
    assert len(ids) == 1


async def test_a_server_refused_for_its_number_of_shards_leaves_no_member_behind(shared_store: OpenToAll) -> None:
    def config(shards: int) -> StaticConfig:
        return dataclasses.replace(SHARED, roles=frozenset(Role), frontend_listen=LOOPBACK, history_shards=shards)

    async with running(config(3)):
        pass
    with pytest.raises(ShardsFixed, match="created with 3 shards"):
        await Server(config(5)).start()
    assert await shared_store.members(now_s=time.time()) == []
