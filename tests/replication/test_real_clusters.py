"""Clusters with real parts only: each has the others' writes soon."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

import pytest
from google.protobuf.duration_pb2 import Duration
from msgspec.structs import replace
from temporalio import activity, workflow
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.api.enums.v1 import EventType
from temporalio.api.replication.v1 import ClusterReplicationConfig
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest, UpdateNamespaceRequest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from fairlead.api.errors import ApiError, InvalidArgument, NotFound
from fairlead.api.namespaces import Namespace
from fairlead.core.errors import FixRequest
from fairlead.history.messages.ndc import Outcome
from fairlead.history.messages.stream import ReplicationTask
from fairlead.history.shard.stream import REPLICATION
from fairlead.replication.grpc_remote import GrpcRemote
from fairlead.replication.messages import (
    DeadLetterCount,
    DeadLetterCountRequest,
    FailOverRequest,
    NamespacesRequest,
    PullRequest,
    RemoteReadBranch,
)
from fairlead.replication.remote import RemoteUnavailable
from fairlead.storage.history import TASK_KEY_ZERO, HistoryStore, RunKey
from fairlead.storage.memory.history import MemoryHistory
from fairlead.testing import FairleadClusters
from tests.replication.clusters import GLOBAL_NAMESPACE, OneCluster
from tests.replication.receivers import until


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    """Closes the opened objects in reverse order."""
    async with AsyncExitStack() as opened:
        yield opened


async def opened(stack: AsyncExitStack, cluster: OneCluster) -> OneCluster:
    await cluster.open()
    stack.push_async_callback(cluster.close)
    return cluster


async def same_history(one: OneCluster, other: OneCluster, workflow_id: str, count: int) -> None:
    """Wait until both clusters have the same `count` events of a workflow."""
    async with asyncio.timeout(15):
        while True:
            try:
                found = await other.events(workflow_id)
            except ApiError:
                found = []
            if len(found) >= count:
                break
            await asyncio.sleep(0.02)
    assert found == await one.events(workflow_id)


async def test_writes_are_replicated_to_clusters_with_other_numbers_of_shards(
    stack: AsyncExitStack, store: HistoryStore
) -> None:
    a = await opened(stack, OneCluster("a", ["b", "c"], shards=3, store=store))
    b = await opened(stack, OneCluster("b", ["a"], shards=1))
    c = await opened(stack, OneCluster("c", ["a"], shards=5))
    b.connect(a)
    c.connect(a)
    for number in range(12):
        await a.begin(f"w-{number}")
    for number in range(12):
        await a.signal(f"w-{number}", "go")
    for number in range(12):
        count = len(await a.events(f"w-{number}"))
        assert count >= 3
        for other in (b, c):
            await same_history(a, other, f"w-{number}", count)
    assert {status.shard_id for status in b.replication.status()} == {0, 1, 2}
    assert not any(status.dead_letters for other in (b, c) for status in other.replication.status())
    await until(lambda: not any(status.lag_tasks for other in (b, c) for status in other.replication.status()))
    # Rows that all clusters have are deleted.
    async with asyncio.timeout(10):
        while any([await rows_left(a, shard_id) for shard_id in range(3)]):  # noqa: ASYNC110 - the store has no event
            await asyncio.sleep(0.05)
    (gauges,) = b.metrics.snapshot().replication
    assert gauges.source_cluster == "a"
    assert sum(gauges.latency.counts) >= 24


async def rows_left(cluster: OneCluster, shard_id: int) -> int:
    return len(await cluster.store.read_tasks(shard_id, REPLICATION, after=TASK_KEY_ZERO, until_ns=None, limit=100))


async def test_replication_continues_after_restarts_of_source_and_receiver() -> None:
    a = await OneCluster("a", ["b"], shards=2).open()
    b = await OneCluster("b", ["a"]).open()
    b.connect(a)
    await a.begin("w-1")
    await same_history(a, b, "w-1", 2)
    await a.close()
    await a.open()
    await a.signal("w-1", "again")
    await same_history(a, b, "w-1", 3)
    await b.close()
    await a.signal("w-1", "more")
    await a.begin("w-2")
    await b.open()
    b.connect(a)
    await same_history(a, b, "w-1", 4)
    await same_history(a, b, "w-2", 2)
    await b.close()
    await a.close()


async def test_a_batch_larger_than_a_message_is_replicated(stack: AsyncExitStack) -> None:
    a = await opened(stack, OneCluster("a", ["b"]))
    b = await opened(stack, OneCluster("b", ["a"]))
    large = Payloads(payloads=[Payload(data=bytes(7 << 20))])
    await a.begin("large-1", input=large)
    await a.begin("small-1")
    b.connect(a)
    await same_history(a, b, "small-1", 2)
    await same_history(a, b, "large-1", 2)


async def test_a_namespace_is_not_sent_to_clusters_outside_of_it(stack: AsyncExitStack) -> None:
    a = await opened(stack, OneCluster("a", ["b", "c"]))
    b = await opened(stack, OneCluster("b", ["a"]))
    b.addresses["a"] = a.address
    await a.namespaces.update(GLOBAL_NAMESPACE.name, lambda found: _without(found, "b"))
    await a.begin("w-1")
    last_id = a.history.shards[0].stream.last_id
    answer = await b.remote("a").pull(PullRequest("b", 0, -1, -1, 100, 1 << 20, 0.0))
    assert answer.tasks == ()
    assert answer.through_id >= last_id
    other = await b.remote("a").pull(PullRequest("c", 0, -1, -1, 100, 1 << 20, 0.0))
    assert [task.workflow_id for task in other.tasks] == ["w-1"]
    assert other.tasks[0].start_request_id == "start-w-1"


def _without(namespace: Namespace, cluster: str) -> Namespace:
    return replace(namespace, clusters=tuple(one for one in namespace.clusters if one != cluster))


async def test_the_replication_service_responds_by_grpc(stack: AsyncExitStack) -> None:
    a = await opened(stack, OneCluster("a", ["b"], shards=4))
    b = await opened(stack, OneCluster("b", ["a"]))
    b.addresses["a"] = a.address
    remote = b.remote("a")
    info = await remote.info()
    assert (info.name, info.cluster_id, info.initial_version, info.increment, info.shards) == ("a", "id-a", 1, 10, 4)
    assert (await remote.namespaces(NamespacesRequest())).digest == "digest of none"
    asked = FailOverRequest("default", "b", is_graceful=True, timeout_s=1)
    assert (await remote.fail_over(asked)).active_cluster == "b"
    await remote.nudge()
    assert a.nudges == ["b"]
    run_id = await a.begin("w-1")
    events = await a.events("w-1")
    items = ((len(events), 1),)
    branch = RemoteReadBranch(GLOBAL_NAMESPACE.id, "w-1", run_id, items, 1, len(events) + 1, 1 << 20)
    answer = await remote.read_branch(branch)
    assert answer.start_request_id == "start-w-1"
    assert sum(batch.last_event_id - batch.first_event_id + 1 for batch in answer.batches) == len(events)


async def test_errors_keep_their_class_between_clusters(stack: AsyncExitStack) -> None:
    a = await opened(stack, OneCluster("a", ["b"]))
    b = await opened(stack, OneCluster("b", ["a"]))
    b.addresses["a"] = a.address
    remote = b.remote("a")
    with pytest.raises(InvalidArgument, match="cluster 'a' is not connected to 'x'"):
        await remote.pull(PullRequest("x", 0, -1, -1, 1, 1, 0.0))
    with pytest.raises(FixRequest, match="shard 7 does not exist: there are 1 shards"):
        await remote.pull(PullRequest("b", 7, -1, -1, 1, 1, 0.0))
    with pytest.raises(NotFound):
        await remote.read_branch(RemoteReadBranch(GLOBAL_NAMESPACE.id, "none", "none", ((1, 1),), 1, 2, 100))
    await a.begin("w-1")
    with pytest.raises(ApiError, match="no branch with event 3 at version 21"):
        await remote.read_branch(RemoteReadBranch(GLOBAL_NAMESPACE.id, "w-1", "", ((3, 21),), 1, 2, 100))
    nobody = GrpcRemote("127.0.0.1:1", here="b")
    with pytest.raises(RemoteUnavailable, match=r"failed \(UNAVAILABLE"):
        await nobody.info()
    await nobody.close()


QUEUE = "orders"
RETENTION_S = 86_400
FOLLOWED_S_MAX = 30.0
WORKFLOW_TASK_COMPLETED = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED


@activity.defn
async def double(number: int) -> int:
    return 2 * number


@workflow.defn
class Sum:
    """Adds the doubled numbers of its signals until the sum reaches its target."""

    def __init__(self) -> None:
        self._told: list[int] = []

    @workflow.run
    async def run(self, wanted: int) -> int:
        total = 0
        while total < wanted:
            await workflow.wait_condition(lambda: bool(self._told))
            number = self._told.pop(0)
            total += await workflow.execute_activity(double, number, start_to_close_timeout=timedelta(seconds=10))
        return total

    @workflow.signal
    def add(self, number: int) -> None:
        self._told.append(number)


def worker(client: Client) -> Worker:
    return Worker(
        client, task_queue=QUEUE, workflows=[Sum], activities=[double], workflow_runner=UnsandboxedWorkflowRunner()
    )


async def connect(clusters: FairleadClusters, name: str) -> Client:
    """A client of a namespace other than the one that all clusters share."""
    return await Client.connect(clusters[name].address, namespace="orders")


async def register(client: Client, *, is_global: bool) -> None:
    """A namespace of one cluster only."""
    request = RegisterNamespaceRequest(
        namespace=client.namespace,
        workflow_execution_retention_period=Duration(seconds=RETENTION_S),
        is_global_namespace=is_global,
    )
    await client.workflow_service.register_namespace(request)


async def add_clusters(client: Client, *names: str, is_global: bool) -> None:
    """Like `temporal operator namespace update`, with `--promote-global` if needed and `--cluster`."""
    if not is_global:
        await client.workflow_service.update_namespace(
            UpdateNamespaceRequest(namespace=client.namespace, promote_namespace=True)
        )
    request = UpdateNamespaceRequest(namespace=client.namespace)
    request.replication_config.clusters.extend(ClusterReplicationConfig(cluster_name=name) for name in names)
    await client.workflow_service.update_namespace(request)


async def at_rest(client: Client, workflow_id: str) -> None:
    """Wait until a workflow has processed all its signals."""
    async with asyncio.timeout(FOLLOWED_S_MAX):
        while True:
            kinds = [
                event.event_type for event in (await client.get_workflow_handle(workflow_id).fetch_history()).events
            ]
            if EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED in kinds and kinds[-1] == WORKFLOW_TASK_COMPLETED:
                return
            await asyncio.sleep(0.05)


async def followed(source: Client, target: Client, workflow_ids: list[str]) -> None:
    """Wait until both clusters show the same for workflows without further writes."""
    async with asyncio.timeout(FOLLOWED_S_MAX):
        for workflow_id in workflow_ids:
            wanted = await source.get_workflow_handle(workflow_id).fetch_history()
            while True:
                try:
                    found = await target.get_workflow_handle(workflow_id).fetch_history()
                    if found.events == wanted.events:
                        break
                except RPCError as error:
                    assert "not found" in error.message  # noqa: PT017 - the namespace and its runs are yet to come
                await asyncio.sleep(0.05)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("is_global", [True, False], ids=["global", "local"])
async def test_a_namespaces_runs_are_backfilled_to_a_cluster_that_is_added_to_it(*, is_global: bool) -> None:
    async with FairleadClusters.start("a", "b") as clusters:
        here, there = [await connect(clusters, name) for name in clusters.names]
        await register(here, is_global=is_global)
        closed = [f"closed-{number}" for number in range(8)]
        still_open = [f"open-{number}" for number in range(8)]
        async with worker(here):
            for workflow_id in (*closed, *still_open):
                started = await here.start_workflow(Sum.run, 22, id=workflow_id, task_queue=QUEUE)
                await started.signal(Sum.add, 1)
            for workflow_id in closed:
                handle = here.get_workflow_handle(workflow_id, result_type=int)
                await handle.signal(Sum.add, 10)
                assert await handle.result() == 22
            for workflow_id in still_open:
                await at_rest(here, workflow_id)
        await add_clusters(here, "a", "b", is_global=is_global)
        await followed(here, there, [*closed, *still_open])
        listed = {one.id: one.status async for one in there.list_workflows()}
        assert {id_ for id_, status in listed.items() if status is WorkflowExecutionStatus.COMPLETED} == {*closed}
        assert {id_ for id_, status in listed.items() if status is WorkflowExecutionStatus.RUNNING} == {*still_open}

        remote = GrpcRemote(clusters[clusters.names[1]].address, here="test")
        answer = await remote.fail_over(FailOverRequest("orders", "b", is_graceful=False, timeout_s=10.0))
        await remote.close()
        assert answer.active_cluster == "b"
        async with worker(there):
            for workflow_id in still_open:
                handle = there.get_workflow_handle(workflow_id, result_type=int)
                await handle.signal(Sum.add, 10)
                assert await handle.result() == 22


@pytest.mark.timeout(120)
async def test_a_graceful_failover_to_a_just_added_cluster_waits_until_it_has_all_runs(tmp_path: Path) -> None:
    async with FairleadClusters.start("a", "b", folder=tmp_path) as clusters:
        here, there = [await connect(clusters, name) for name in clusters.names]
        await register(here, is_global=False)
        for number in range(40):
            await here.start_workflow(Sum.run, 2, id=f"w-{number}", task_queue=QUEUE)
        await add_clusters(here, "a", "b", is_global=False)
        remote = GrpcRemote(clusters["a"].address, here="test")
        await remote.fail_over(FailOverRequest("orders", "b", is_graceful=True, timeout_s=FOLLOWED_S_MAX))
        await remote.close()
        # From the moment when it becomes active there.
        for number in range(40):
            await there.get_workflow_handle(f"w-{number}").signal(Sum.add, 1)
        async with worker(there):
            for number in range(40):
                assert await there.get_workflow_handle(f"w-{number}", result_type=int).result() == 2


@pytest.mark.parametrize("cluster_id", ["id-a", "id-of-another"])
async def test_a_cluster_that_lost_its_store_is_pulled_from_the_beginning_of_its_new_one(
    stack: AsyncExitStack, cluster_id: str
) -> None:
    a = OneCluster("a", ["b"])
    await a.open()
    b = await opened(stack, OneCluster("b", ["a"]))
    b.connect(a)
    for number in range(5):
        await a.begin(f"before-{number}")
    await same_history(a, b, "before-4", 2)
    await until(lambda: b.replication.status()[0].cursor >= b.replication.status()[0].read_id)
    await a.close()
    a.store, a.cluster_id = MemoryHistory(), cluster_id
    await opened(stack, a)
    for number in range(2):
        await a.begin(f"after-{number}")
    await same_history(a, b, "after-0", 2)
    await same_history(a, b, "after-1", 2)


async def test_an_open_run_reports_events_that_were_deleted_at_their_source_as_missing(stack: AsyncExitStack) -> None:
    a = OneCluster("a", ["b"])
    await a.open()
    b = await opened(stack, OneCluster("b", ["a"]))
    b.connect(a)
    run_ids = {name: await a.begin(name) for name in ("open", "known")}
    for name in run_ids:
        await same_history(a, b, name, 2)
    await b.replication.close()
    await a.signal("open", "lost")
    run_ids["new"] = await a.begin("new")
    (shard,) = a.history.shards.values()
    for name in ("open", "new"):
        await a.store.delete_run(
            0,
            shard.ownership.range_id,
            RunKey(GLOBAL_NAMESPACE.id, name, run_ids[name]),
            branches=[
                (run_ids[name], (await shard.load(GLOBAL_NAMESPACE.id, name, run_ids[name])).state.identity.branch_id)
            ],
        )
    await a.close()
    await opened(stack, a)
    await a.signal("known", "after")
    b.connect(a)
    await same_history(a, b, "known", 3)
    await until(lambda: b.replication.status()[0].dead_letters == 1)
    (dead_letter,) = await b.replication.dead_letters.page()
    assert (dead_letter.workflow_id, dead_letter.first_event_id, dead_letter.last_event_id) == ("open", 3, 3)
    a.addresses["b"] = b.address
    for namespace_id, count in ((GLOBAL_NAMESPACE.id, 1), ("another", 0)):
        assert await a.remote("b").count_dead_letters(DeadLetterCountRequest("a", namespace_id)) == DeadLetterCount(
            count
        )
    assert dead_letter.error.startswith("BatchGone: cluster 'a' does not have events 3 to 3 of run")
    # A run that is unknown here, or complete, reports nothing.
    with pytest.raises(ApiError):
        await b.events("new")
    had = ReplicationTask(9, 0, GLOBAL_NAMESPACE.id, "known", run_ids["known"], 1, 2, ((2, 1),), b"", is_gone=True)
    assert await b.replication._applier("a").apply(had) == Outcome.DUPLICATE
