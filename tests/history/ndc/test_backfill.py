"""Backfill of existing runs: a cluster that is added to a namespace gets the runs that were there before."""

import asyncio
import time
from collections.abc import Callable

import msgspec
import pytest
from temporalio.api.workflowservice.v1 import RespondActivityTaskFailedRequest

from fairlead.api.namespaces import Namespace, Namespaces
from fairlead.core.errors import RetryLater
from fairlead.history.messages.stream import HandedOver, HandOver, PullRequest, PullResponse
from fairlead.history.ndc.backfill import Mark
from fairlead.history.ndc.sweeps import PAGE_MAX
from fairlead.storage.history import RunKey
from tests.history.ndc.several import GLOBAL_NAMESPACE, Cluster, Several, check_same, replication_work, run_view
from tests.history.shard_world import NAMESPACE, OneHost, complete, schedule_activity, start_request, start_timer
from tests.virtual_time import on_virtual_time

ALONE = msgspec.structs.replace(GLOBAL_NAMESPACE, clusters=("a",))
LOCAL = msgspec.structs.replace(NAMESPACE, active_cluster="a", clusters=("a",))
OPEN, CLOSED = "open-1", "closed-1"


def living_in(*clusters: str) -> Callable[[Namespace], Namespace]:
    """A change that makes a namespace global, if it was local, and sets its clusters."""

    def change(namespace: Namespace) -> Namespace:
        version = namespace.failover_version or GLOBAL_NAMESPACE.failover_version
        return msgspec.structs.replace(namespace, is_global=True, failover_version=version, clusters=clusters)

    return change


async def share(several: Several, *clusters: str) -> None:
    """Set the clusters of the namespace, in all clusters."""
    for cluster in several.clusters.values():
        await cluster.host.namespaces.change(GLOBAL_NAMESPACE.id, living_in(*clusters))
    # Virtual time: all tests of this file that call this run on it.
    await asyncio.sleep(0.1)


async def bring_all(several: Several, source: str, *targets: str) -> int:
    """Replicate from `source` until its backfill is done; return the number of rows."""
    rows = 0
    while True:
        rows += len(await several.bring(source, *targets))
        acknowledge(several, source, *targets)
        await asyncio.sleep(0.05)
        if replication_work(several[source].shard)._backfills.is_idle:
            return rows + len(await several.bring(source, *targets))


def acknowledge(several: Several, source: str, *targets: str) -> None:
    """Acknowledge all rows that were replicated."""
    for target in targets:
        several[source].shard.stream.acknowledge(target, several.cursors[source, target])


async def step(host: OneHost, *commands: object) -> None:
    task = await host.poll()
    assert task is not None
    await host.respond(task, list(commands))  # type: ignore[arg-type]


async def end(cluster: Cluster, workflow_id: str, request_id: str = "") -> None:
    await cluster.host.begin(workflow_id, request_id)
    await step(cluster.host, complete())


async def pulled(source: Cluster, cluster: str) -> list[str]:
    """The workflow ids of all rows that `cluster` would pull."""
    found: list[str] = []
    after_id, ack_id = -1, source.shard.stream.acknowledged(cluster)
    while True:
        request = PullRequest(cluster, 0, after_id, ack_id, 1_000, 1 << 20, 0.0)
        answer = await source.host.history.client.call_shard("PullStream", 0, request, timeout_s=1.0)
        page = msgspec.msgpack.decode(answer, type=PullResponse)
        if not page.tasks:
            return found
        found += [task.workflow_id for task in page.tasks]
        after_id = page.through_id


@pytest.mark.parametrize("before", [ALONE, LOCAL], ids=["one cluster", "local"])
@on_virtual_time
async def test_open_and_closed_runs_with_activity_progress_reach_a_cluster_that_is_added(before: Namespace) -> None:
    async with Several(("a", "b"), namespace=before) as several:
        a, b = several["a"], several["b"]
        await end(a, CLOSED, "first")
        await end(a, CLOSED, "second")
        await a.host.begin(OPEN)
        await step(a.host, schedule_activity(), start_timer(600))
        task = await a.host.poll_activity()
        assert task is not None
        await a.host.call(
            "RespondActivityTaskFailed", OPEN, RespondActivityTaskFailedRequest(task_token=task.task_token)
        )
        await a.host.signal(OPEN, "before")
        assert await several.bring("a", "b") == []
        await share(several, "a", "b")
        await bring_all(several, "a", "b")
        assert len(b.world.runs_of(CLOSED)) == 2
        await check_same(several, [OPEN, CLOSED])
        (progress,) = b.state(OPEN).live.activities.values()
        assert progress.attempt == 2
        # The activity continues in B.
        await several.fail_over(2)
        task = await b.host.poll_activity()
        assert task is not None
        assert task.attempt == 2
        await step(b.host, complete())
        await several.bring("b", "a")
        await check_same(several, [OPEN])


@on_virtual_time
async def test_all_branches_of_a_run_reach_a_cluster_that_is_added() -> None:
    two = msgspec.structs.replace(GLOBAL_NAMESPACE, clusters=("a", "b"))
    async with Several(namespace=two) as several:
        a, b, c = several["a"], several["b"], several["c"]
        run_id = await a.host.begin(OPEN)
        await several.bring("a", "b")
        await several.fail_over(2, "b")
        await a.host.signal(OPEN, "lost", "r1")
        await b.host.signal(OPEN, "won", "r2")
        await several.fail_over(2, "a")
        await several.bring("b", "a")
        await several.bring("a", "b")
        assert len(a.branches(OPEN)) == 2
        # Rows from before the change are not for C: skip them.
        for name in ("a", "b"):
            several.cursors[name, "c"] = (await several[name].rows())[1]
        await several.fail_over(2, "c")
        await share(several, "a", "b", "c")
        assert c.world.runs_of(OPEN) == []
        await bring_all(several, "b", "c")
        key = RunKey(GLOBAL_NAMESPACE.id, OPEN, run_id)
        assert run_view(c, key) == run_view(b, key)
        # A passive cluster backfills the same run, since it might be the only one that has a run.
        await bring_all(several, "a", "c")
        await several.converge()
        await check_same(several, [OPEN])


@on_virtual_time
async def test_a_backfill_is_sent_to_the_new_cluster_only() -> None:
    two = msgspec.structs.replace(GLOBAL_NAMESPACE, clusters=("a", "b"))
    async with Several(("a", "b"), namespace=two) as several:
        a = several["a"]
        await end(a, CLOSED)
        said = await pulled(a, "b")
        assert await pulled(a, "c") == []
        await share(several, "a", "b", "c")
        assert await pulled(a, "b") == said
        assert (await pulled(a, "c"))[len(said) :] == [CLOSED]


@on_virtual_time
async def test_a_backfill_is_paced_by_its_cluster_and_continues_after_a_restart() -> None:
    async with Several(("a", "b"), namespace=ALONE) as several:
        a = several["a"]
        count = 2 * PAGE_MAX + 5
        flows = [f"flow-{number:04}" for number in range(count)]
        for flow in flows:
            await a.host.begin(flow)
        await share(several, "a", "b")
        await asyncio.sleep(60)
        assert await pulled(a, "b") == flows[:PAGE_MAX]
        await a.restart()
        await asyncio.sleep(60)
        # B has acknowledged nothing, so the backfill got no further.
        assert await pulled(a, "b") == flows[:PAGE_MAX]
        assert await bring_all(several, "a", "b") == count
        await check_same(several, [flows[0], flows[-1]])
        before = await pulled(a, "b")
        await a.restart()
        await asyncio.sleep(60)
        assert replication_work(a.shard)._backfills.is_idle
        assert await pulled(a, "b") == before


@on_virtual_time
async def test_a_store_that_fails_in_between_loses_nothing() -> None:
    async with Several(("a", "b"), namespace=ALONE) as several:
        a = several["a"]
        for number in range(3):
            await end(a, f"flow-{number}")
        for operation in ("list_runs", "read_run", "commit", "write_metadata"):
            a.world.faults.fail_once(operation, RetryLater(f"{operation} is not well"))
            await share(several, "a", "b")
            await bring_all(several, "a", "b")
            await asyncio.sleep(5)
            await bring_all(several, "a", "b")
            await check_same(several, [f"flow-{number}" for number in range(3)])
            # B leaves the namespace; when it is added again, the backfill starts from the beginning.
            await share(several, "a")
            await asyncio.sleep(5)
            await end(a, f"flow-after-{operation}")
            assert await pulled(a, "b") == []
            await share(several, "a", "b")
            await bring_all(several, "a", "b")
            await check_same(several, [f"flow-after-{operation}"])
            await share(several, "a")
            await asyncio.sleep(5)


@on_virtual_time
async def test_runs_that_are_deleted_before_they_are_sent_are_skipped() -> None:
    async with Several(("a", "b"), namespace=ALONE) as several:
        a, b = several["a"], several["b"]
        for flow in (CLOSED, OPEN):
            await end(a, flow)
        await share(several, "a", "b")
        async with a.shard.lock(GLOBAL_NAMESPACE.id, CLOSED):
            await a.shard.writer.delete(await a.shard.load(GLOBAL_NAMESPACE.id, CLOSED))
        await bring_all(several, "a", "b")
        assert b.world.runs_of(CLOSED) == []
        await check_same(several, [OPEN])


@on_virtual_time
async def test_writes_during_the_addition_of_a_cluster_reach_it() -> None:
    async with Several(("a", "b"), namespace=LOCAL) as several:
        a = several["a"]
        await a.host.begin(OPEN)
        # This commit is on its way to the store while the namespace is still local.
        has_come, goes_on = a.world.faults.hold("commit")
        writing = asyncio.create_task(a.host.begin("new-1"))
        await has_come.wait()
        # This signal will be written after B was added, by a request that began before.
        async with a.shard.lock(GLOBAL_NAMESPACE.id, OPEN):
            signaling = asyncio.create_task(a.host.signal(OPEN, "late"))
            await asyncio.sleep(1)
            await share(several, "a", "b")
            await asyncio.sleep(1)
            goes_on.set()
            await writing
            await asyncio.sleep(1)
            assert sorted(await pulled(a, "b")) == ["new-1", OPEN]
        await signaling
        await bring_all(several, "a", "b")
        await check_same(several, [OPEN, "new-1"])


@on_virtual_time
async def test_a_backfill_continues_after_a_forced_failover_and_a_graceful_one_waits_for_its_end() -> None:
    async with Several(("a", "b"), namespace=ALONE) as several:
        a = several["a"]
        flows = [f"flow-{number:04}" for number in range(PAGE_MAX + 5)]
        for flow in flows:
            await a.host.begin(flow)
        await several.bring("a", "b")
        acknowledge(several, "a", "b")

        async def has_all() -> bool:
            answer = await a.host.history.client.call_shard(
                "HandOver", 0, HandOver(GLOBAL_NAMESPACE.id, 0, "b"), timeout_s=1.0
            )
            handed = msgspec.msgpack.decode(answer, type=HandedOver)
            return handed.acks.get("b", -1) >= handed.last_id

        # Another host added B; this host does not know it yet.
        other = Namespaces(a.world.store, clock=time.time)
        await other.change(GLOBAL_NAMESPACE.id, living_in("a", "b"))
        assert not await has_all()
        await share(several, "a", "b")
        await several.bring("a", "b")
        acknowledge(several, "a", "b")
        # B has all rows written so far, but the backfill is not done.
        assert not await has_all()
        # A forced failover does not wait for the backfill.
        await several.fail_over(2)
        await bring_all(several, "a", "b")
        assert await has_all()
        await several.converge()
        await check_same(several, flows)


@on_virtual_time
async def test_a_cluster_that_is_connected_later_gets_the_backfill_then() -> None:
    async with Several(("a", "b"), namespace=ALONE) as several:
        a = several["a"]
        clusters = a.shard.services.clusters
        await end(a, CLOSED)
        clusters.update(clusters.versions, ["c"])
        await share(several, "a", "b")
        await asyncio.sleep(5)
        assert (await a.rows())[0] == []
        clusters.update(clusters.versions, ["b", "c"])
        await asyncio.sleep(1)
        await bring_all(several, "a", "b")
        await check_same(several, [CLOSED])


@on_virtual_time
async def test_a_host_with_an_older_namespace_than_its_shard_refreshes_it_before_it_writes() -> None:
    async with Several(("a", "b"), namespace=LOCAL) as several:
        a = several["a"]
        await a.host.begin(OPEN)
        # Another host owned the shard, learned of B, and finished the backfill.
        other = Namespaces(a.world.store, clock=time.time)
        await other.change(GLOBAL_NAMESPACE.id, living_in("a", "b"))
        key = f"replication/announced/0/{GLOBAL_NAMESPACE.id}/b"
        await a.world.store.write_metadata(key, msgspec.msgpack.encode(Mark(is_done=True)), expected_version=0)
        a.shard.ownership.lose()
        while a.shard.ownership.is_lost:  # noqa: ASYNC110 - on virtual time
            await asyncio.sleep(0.01)
        await a.host.signal(OPEN, "late")
        await several["b"].host.namespaces.change(GLOBAL_NAMESPACE.id, living_in("a", "b"))
        await several.bring("a", "b")
        await check_same(several, [OPEN])


@on_virtual_time
async def test_a_cluster_gets_one_backfill_at_a_time_and_an_unreachable_one_blocks_no_other() -> None:
    async with Several(("a", "b"), namespace=ALONE) as several:
        a = several["a"]
        second = msgspec.structs.replace(ALONE, id="second-id", name="second")
        await a.host.namespaces.create(second)
        await end(a, CLOSED)
        await a.host.history.client.call("StartWorkflowExecution", second.id, OPEN, start_request(OPEN, "start"))
        for namespace_id in (GLOBAL_NAMESPACE.id, second.id):
            await a.host.namespaces.change(namespace_id, living_in("a", "b", "c"))
        await asyncio.sleep(60)
        assert [await pulled(a, "b"), await pulled(a, "c")] == [[CLOSED], [CLOSED]]
        a.shard.stream.acknowledge("b", a.shard.stream.last_id)
        await asyncio.sleep(60)
        assert [await pulled(a, "b"), await pulled(a, "c")] == [[CLOSED, OPEN], [CLOSED]]
