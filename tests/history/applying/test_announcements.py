"""Runs that were there before a cluster was added to their namespace: they follow by themselves."""

import asyncio
import time
from collections.abc import Callable

import msgspec
import pytest
from temporalio.api.workflowservice.v1 import RespondActivityTaskFailedRequest

from fairlead.core.errors import RetryLater
from fairlead.history.applying.announcements import Mark
from fairlead.history.applying.sweeps import PAGE_MAX
from fairlead.history.namespaces import Namespace, Namespaces
from fairlead.history.stream_messages import HandedOver, HandOver, PullAnswer, PullRequest
from fairlead.storage.history_contract import RunKey
from tests.history.applying.several import SHARED, Cluster, Several, check_same, run_view
from tests.history.shard_world import NAMESPACE, OneHost, complete, schedule_activity, start_request, start_timer
from tests.virtual_time import on_virtual_time

ALONE = msgspec.structs.replace(SHARED, clusters=("a",))
LOCAL = msgspec.structs.replace(NAMESPACE, active_cluster="a", clusters=("a",))
OPEN, CLOSED = "open-1", "closed-1"


def living_in(*clusters: str) -> Callable[[Namespace], Namespace]:
    """A change of a namespace, which may have been a local one."""

    def change(namespace: Namespace) -> Namespace:
        version = namespace.failover_version or SHARED.failover_version
        return msgspec.structs.replace(namespace, is_global=True, failover_version=version, clusters=clusters)

    return change


async def share(several: Several, *clusters: str) -> None:
    """Let all clusters hear in which ones the namespace lives from now on."""
    for cluster in several.clusters.values():
        await cluster.host.namespaces.change(SHARED.id, living_in(*clusters))
    await asyncio.sleep(0.1)


async def bring_all(several: Several, source: str, *targets: str) -> int:
    """Bring what a cluster says, until it has said all that it has to; how many rows there were."""
    rows = 0
    while True:
        rows += len(await several.bring(source, *targets))
        acknowledge(several, source, *targets)
        await asyncio.sleep(0.05)
        if several[source].shard._announcements.is_idle:
            return rows + len(await several.bring(source, *targets))


def acknowledge(several: Several, source: str, *targets: str) -> None:
    """What was brought is safe."""
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
    """The runs that a cluster would hear of, by their workflows."""
    found: list[str] = []
    after_id, ack_id = -1, source.shard.stream.acknowledged(cluster)
    while True:
        request = PullRequest(cluster, 0, after_id, ack_id, 1_000, 1 << 20, 0.0)
        answer = await source.host.history.client.call_shard("PullStream", 0, request, timeout_s=1.0)
        page = msgspec.msgpack.decode(answer, type=PullAnswer)
        if not page.tasks:
            return found
        found += [task.workflow_id for task in page.tasks]
        after_id = page.through_id


@pytest.mark.parametrize("before", [ALONE, LOCAL], ids=["one cluster", "local"])
@on_virtual_time
async def test_open_and_closed_runs_and_how_far_activities_are_reach_a_cluster_that_is_added(before: Namespace) -> None:
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
        # And it goes on there.
        await several.fail_over(2)
        task = await b.host.poll_activity()
        assert task is not None
        assert task.attempt == 2
        await step(b.host, complete())
        await several.bring("b", "a")
        await check_same(several, [OPEN])


@on_virtual_time
async def test_all_branches_of_a_run_reach_a_cluster_that_is_added() -> None:
    two = msgspec.structs.replace(SHARED, clusters=("a", "b"))
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
        # What was said so far is not for it.
        for name in ("a", "b"):
            several.cursors[name, "c"] = (await several[name].rows())[1]
        await several.fail_over(2, "c")
        await share(several, "a", "b", "c")
        assert c.world.runs_of(OPEN) == []
        await bring_all(several, "b", "c")
        key = RunKey(SHARED.id, OPEN, run_id)
        assert run_view(c, key) == run_view(b, key)
        # One that is not active says the same, for its cluster may be the only one that has a run.
        await bring_all(several, "a", "c")
        await several.converge()
        await check_same(several, [OPEN])


@on_virtual_time
async def test_what_is_said_again_is_for_the_cluster_that_is_new() -> None:
    two = msgspec.structs.replace(SHARED, clusters=("a", "b"))
    async with Several(("a", "b"), namespace=two) as several:
        a = several["a"]
        await end(a, CLOSED)
        said = await pulled(a, "b")
        assert await pulled(a, "c") == []
        await share(several, "a", "b", "c")
        assert await pulled(a, "b") == said
        assert (await pulled(a, "c"))[len(said) :] == [CLOSED]


@on_virtual_time
async def test_a_sweep_goes_no_further_than_its_cluster_follows_and_after_a_restart_goes_on_where_it_was() -> None:
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
        # Nobody has said that they have come.
        assert await pulled(a, "b") == flows[:PAGE_MAX]
        assert await bring_all(several, "a", "b") == count
        await check_same(several, [flows[0], flows[-1]])
        before = await pulled(a, "b")
        await a.restart()
        await asyncio.sleep(60)
        assert a.shard._announcements.is_idle
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
            # It leaves, and what is said when it is back is said anew.
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
async def test_runs_that_are_deleted_before_they_are_sent_are_left_out() -> None:
    async with Several(("a", "b"), namespace=ALONE) as several:
        a, b = several["a"], several["b"]
        for flow in (CLOSED, OPEN):
            await end(a, flow)
        await share(several, "a", "b")
        async with a.shard.lock(SHARED.id, CLOSED):
            await a.shard.delete(await a.shard.load(SHARED.id, CLOSED))
        await bring_all(several, "a", "b")
        assert b.world.runs_of(CLOSED) == []
        await check_same(several, [OPEN])


@on_virtual_time
async def test_what_is_being_written_while_the_cluster_is_added_reaches_it() -> None:
    async with Several(("a", "b"), namespace=LOCAL) as several:
        a = several["a"]
        await a.host.begin(OPEN)
        # On its way to the store, when nobody was to hear of it.
        has_come, goes_on = a.world.faults.hold("commit")
        writing = asyncio.create_task(a.host.begin("new-1"))
        await has_come.wait()
        # Will be written when the cluster is there, by somebody who has yet to hear of it.
        async with a.shard.lock(SHARED.id, OPEN):
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
async def test_a_sweep_that_a_failover_interrupts_goes_on_and_a_graceful_one_waits_for_its_end() -> None:
    async with Several(("a", "b"), namespace=ALONE) as several:
        a = several["a"]
        flows = [f"flow-{number:04}" for number in range(PAGE_MAX + 5)]
        for flow in flows:
            await a.host.begin(flow)
        await several.bring("a", "b")
        acknowledge(several, "a", "b")

        async def has_all() -> bool:
            answer = await a.host.history.client.call_shard("HandOver", 0, HandOver(SHARED.id, 0, "b"), timeout_s=1.0)
            handed = msgspec.msgpack.decode(answer, type=HandedOver)
            return handed.acks.get("b", -1) >= handed.last_id

        # It was added at another host, which this one has not heard of yet.
        other = Namespaces(a.world.store, clock=time.time)
        await other.change(SHARED.id, living_in("a", "b"))
        assert not await has_all()
        await share(several, "a", "b")
        await several.bring("a", "b")
        acknowledge(several, "a", "b")
        # All that was said so far, but not all that there is to say.
        assert not await has_all()
        # By force, it is not waited for.
        await several.fail_over(2)
        await bring_all(several, "a", "b")
        assert await has_all()
        await several.converge()
        await check_same(several, flows)


@on_virtual_time
async def test_a_cluster_that_is_connected_later_hears_of_all_runs_then() -> None:
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
async def test_a_host_that_knows_less_of_a_namespace_than_its_shard_learns_it_before_it_writes() -> None:
    async with Several(("a", "b"), namespace=LOCAL) as several:
        a = several["a"]
        await a.host.begin(OPEN)
        # Another host was the owner, heard of the cluster, and told it of all that there was.
        other = Namespaces(a.world.store, clock=time.time)
        await other.change(SHARED.id, living_in("a", "b"))
        key = f"replication/announced/0/{SHARED.id}/b"
        await a.world.store.write_metadata(key, msgspec.msgpack.encode(Mark(is_done=True)), expected_version=0)
        a.shard.lose()
        while a.shard.is_lost:  # noqa: ASYNC110 - on virtual time
            await asyncio.sleep(0.01)
        await a.host.signal(OPEN, "late")
        await several["b"].host.namespaces.change(SHARED.id, living_in("a", "b"))
        await several.bring("a", "b")
        await check_same(several, [OPEN])


@on_virtual_time
async def test_a_cluster_is_told_of_one_namespace_at_a_time_and_one_that_is_away_holds_up_no_other() -> None:
    async with Several(("a", "b"), namespace=ALONE) as several:
        a = several["a"]
        second = msgspec.structs.replace(ALONE, id="second-id", name="second")
        await a.host.namespaces.create(second)
        await end(a, CLOSED)
        await a.host.history.client.call("StartWorkflowExecution", second.id, OPEN, start_request(OPEN, "start"))
        for namespace_id in (SHARED.id, second.id):
            await a.host.namespaces.change(namespace_id, living_in("a", "b", "c"))
        await asyncio.sleep(60)
        assert [await pulled(a, "b"), await pulled(a, "c")] == [[CLOSED], [CLOSED]]
        a.shard.stream.acknowledge("b", a.shard.stream.last_id)
        await asyncio.sleep(60)
        assert [await pulled(a, "b"), await pulled(a, "c")] == [[CLOSED, OPEN], [CLOSED]]
