"""Failovers between real servers on loopback: the active cluster, its version, and the results of calls meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from temporalio.api.enums.v1 import ReplicationState
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, DescribeNamespaceResponse
from temporalio.client import Client

from fairlead.api.clusters import Clusters
from fairlead.core.errors import FixRequest, RetryLater
from fairlead.core.versions import ClusterVersions
from fairlead.replication.failover import CannotFailOver, check_target, moved_to
from fairlead.replication.grpc_remote import GrpcRemote
from fairlead.replication.messages import FailOverRequest
from fairlead.testing import FairleadClusters
from tests.patience import until
from tests.replication.connected_cluster import shared

pytestmark = pytest.mark.timeout(120)
NOW_NS = 77
CLUSTERS = Clusters("a", ClusterVersions(10, {"a": 1, "b": 2}), ["b"])


@pytest.fixture
async def clusters() -> AsyncIterator[FairleadClusters]:
    async with FairleadClusters.start("a", "b", "c") as running:
        yield running


async def described(client: Client, namespace: str = "shared") -> DescribeNamespaceResponse:
    return await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=namespace))


async def fail_over(clusters: FairleadClusters, at: str, request: FailOverRequest) -> int:
    remote = GrpcRemote(clusters[at].address, here="test")
    try:
        return (await remote.fail_over(request)).failover_version
    finally:
        await remote.close()


def test_a_failover_raises_the_version_to_the_targets_next_one() -> None:
    at_a = shared(version=1)
    at_b = moved_to(at_a, "b", clusters=CLUSTERS, now_ns=NOW_NS)
    assert (at_b.active_cluster, at_b.failover_version, at_b.failovers) == ("b", 2, ((2, NOW_NS),))
    back = moved_to(replace(at_b, handover_until_ns=5, handover_to="a"), "a", clusters=CLUSTERS, now_ns=NOW_NS + 1)
    assert (back.active_cluster, back.failover_version) == ("a", 11)
    assert back.failovers == ((2, NOW_NS), (11, NOW_NS + 1))
    assert (back.handover_until_ns, back.handover_to) == (0, "")
    again = moved_to(back, "b", clusters=CLUSTERS, now_ns=NOW_NS + 2, is_graceful=True)
    assert again.failover_origins == ((2, "a", False), (11, "b", False), (12, "a", True))
    assert moved_to(back, "a", clusters=CLUSTERS, now_ns=99) == back


def test_an_impossible_failover_is_refused_with_what_to_do() -> None:
    with pytest.raises(CannotFailOver, match="is not global: promote it first"):
        check_target(replace(shared(), is_global=False), "b", CLUSTERS)
    with pytest.raises(CannotFailOver, match="'x' is not known here; the known clusters are: a, b"):
        check_target(shared(), "x", CLUSTERS)
    with pytest.raises(CannotFailOver, match="'b' is not one of the clusters of namespace 'orders'"):
        check_target(shared(clusters=("a",)), "b", CLUSTERS)


async def test_a_graceful_failover_can_be_requested_at_any_cluster(clusters: FairleadClusters) -> None:
    assert await clusters.fail_over("b", asked="c") == 2
    await clusters.until_active("b")
    assert await clusters.fail_over("c", asked="c") == 3
    assert await clusters.fail_over("a", asked="c") == 11
    await clusters.until_active("a")
    for name in clusters.names:
        now = await described(await clusters[name].connect())
        assert (now.failover_version, now.replication_config.active_cluster_name) == (11, "a")
        assert [status.failover_version for status in now.failover_history] == [2, 3, 11]
        assert now.replication_config.state == ReplicationState.REPLICATION_STATE_NORMAL


async def test_a_failover_to_the_active_cluster_changes_nothing(clusters: FairleadClusters) -> None:
    for is_graceful in (True, False):
        assert await clusters.fail_over("a", is_graceful=is_graceful, asked="b") == 1


async def test_bad_requests_are_refused_and_nothing_changes(clusters: FairleadClusters) -> None:
    for request, words in (
        (FailOverRequest("shared", "x", False, 1.0), "cluster 'x' is not known here"),
        (FailOverRequest("default", "b", False, 1.0), "is not global"),
        (FailOverRequest("nope", "b", False, 1.0), "Namespace nope is not found"),
        (FailOverRequest("shared", "b", True, 0.0), "must be above 0"),
    ):
        with pytest.raises(FixRequest, match=words):
            await fail_over(clusters, "a", request)
    assert (await described(await clusters["a"].connect())).failover_version == 1


async def test_a_graceful_failover_to_an_unreachable_cluster_changes_nothing(clusters: FairleadClusters) -> None:
    client = await clusters["a"].connect()
    await client.start_workflow("Any", id="before", task_queue="q")
    await clusters.stop("b")
    await client.start_workflow("Any", id="unseen", task_queue="q")
    with pytest.raises(RetryLater, match=r"cluster 'b' does not respond to cluster 'a' .*: check that it runs"):
        await fail_over(clusters, "a", FailOverRequest("shared", "b", True, 1.0))
    now = await described(client)
    assert (now.failover_version, now.replication_config.active_cluster_name) == (1, "a")
    assert now.replication_config.state == ReplicationState.REPLICATION_STATE_NORMAL
    # Writes continue as before.
    async with asyncio.timeout(2):
        await client.start_workflow("Any", id="after", task_queue="q")


async def test_the_error_of_a_failover_names_the_cluster_that_does_not_respond_and_what_to_do(
    clusters: FairleadClusters,
) -> None:
    await clusters.stop("c")
    with pytest.raises(RetryLater, match=r"cluster 'c' does not respond to cluster 'a' .*: check that it runs"):
        await fail_over(clusters, "a", FailOverRequest("shared", "c", is_graceful=False, timeout_s=10.0))
    await clusters.stop("a")
    with pytest.raises(RetryLater, match=r"'a', where namespace 'shared' is active, does not respond .* without --gr"):
        await fail_over(clusters, "b", FailOverRequest("shared", "b", is_graceful=True, timeout_s=10.0))
    now = await described(await clusters["b"].connect())
    assert now.replication_config.active_cluster_name == "a"


async def some_more(started: list[str]) -> None:
    """Wait until more workflows have been started."""
    wanted = len(started) + 5
    await until(lambda: len(started) >= wanted)


async def test_no_call_fails_during_a_graceful_failover(clusters: FairleadClusters) -> None:
    clients = [await clusters[name].connect() for name in clusters.names]
    is_over = False
    started: list[str] = []

    async def start_on(number: int, client: Client) -> None:
        while not is_over:
            workflow_id = f"w-{number}-{len(started)}"
            await client.start_workflow("Any", id=workflow_id, task_queue="q")
            started.append(workflow_id)

    starting = [asyncio.create_task(start_on(number, client)) for number, client in enumerate(clients)]
    for to in ("b", "c", "a", "b"):
        await some_more(started)
        await clusters.fail_over(to)
    await some_more(started)
    is_over = True
    await asyncio.gather(*starting)
    assert len(started) > 20
    # All of them are in the cluster that is now active: nothing was lost.
    for workflow_id in started:
        assert (await clients[1].get_workflow_handle(workflow_id).describe()).id == workflow_id


async def test_writes_continue_as_soon_as_a_handover_ends(clusters: FairleadClusters) -> None:
    client = await clusters["a"].connect()
    await clusters.fail_over("b")
    await clusters.fail_over("a", is_graceful=False)
    # Well before the longest time that writes may wait.
    async with asyncio.timeout(5):
        await client.start_workflow("Any", id="after", task_queue="q")


async def test_a_forced_failover_works_without_the_old_cluster_which_gets_it_by_replication_later(
    tmp_path: Path,
) -> None:
    async with FairleadClusters.start("a", "b", folder=tmp_path) as clusters:
        client = await clusters["a"].connect()
        await client.start_workflow("Any", id="w", task_queue="q")
        await clusters.fail_over("b", is_graceful=True)
        await clusters.fail_over("a", is_graceful=True)
        await clusters.stop("a")
        assert await clusters.fail_over("b", is_graceful=False) == 12
        other = await clusters["b"].connect()
        await other.get_workflow_handle("w").signal("hello")
        await clusters.restart("a")
        await clusters.until_active("b")
        again = await clusters["a"].connect()
        # The cluster is now passive, and forwards the call.
        await again.get_workflow_handle("w").signal("hello again")
        history = await other.get_workflow_handle("w").fetch_history()
        assert [event.version for event in history.events][-2:] == [12, 12]
