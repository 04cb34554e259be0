"""`fairlead admin failover` on two real servers: its text and JSON output, and its errors."""

import json

import pytest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest

from fairlead.core.errors import RetryLater
from fairlead.history.messages.stream import PullResponse
from fairlead.replication.puller import Puller
from fairlead.testing import FairleadClusters, FairleadServer
from tests.cli.admin.conftest import Admin
from tests.cli.thread import run_in_thread

pytestmark = pytest.mark.timeout(120)


async def version(server: FairleadServer) -> tuple[str, int]:
    client = await server.connect()
    described = await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace="shared"))
    return described.replication_config.active_cluster_name, described.failover_version


async def test_a_namespace_fails_over_to_another_cluster_and_back() -> None:
    async with FairleadClusters.start("a", "b") as clusters:
        at_a, at_b = (clusters.admin_address(name) for name in "ab")
        there = await run_in_thread("admin", "failover", "shared", "--to", "b", "--graceful", "--address", at_b)
        assert (there.code, there.err) == (0, "")
        assert "namespace shared is active in cluster b, at version 2" in there.out
        await clusters.until_active("b")
        back = await run_in_thread("admin", "failover", "shared", "--to", "a", "--address", at_a, "-o", "json")
        assert back.code == 0
        assert json.loads(back.out)["namespace"] == {"active_cluster": "a", "failover_version": 11}
        assert await version(clusters["a"]) == ("a", 11)


async def test_a_mistake_is_reported_in_one_line_that_says_what_to_do() -> None:
    async with FairleadClusters.start("a", "b") as clusters:
        address = clusters.admin_address("a")
        for arguments, words in (
            (("shared", "--to", "x"), "cluster 'x' is not known here; the known clusters are: a, b"),
            (("default", "--to", "b"), "namespace 'default' is not global: promote it first"),
            (("nope", "--to", "b"), "Namespace nope is not found"),
        ):
            refused = await run_in_thread("admin", "failover", *arguments, "--address", address)
            assert (refused.code, refused.out) == (2, "")
            assert words in refused.line


async def test_a_waiting_failover_reports_its_progress_and_the_reason_of_its_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    take = Puller._take

    def take_unless_in_b(self: Puller, answer: PullResponse, now_s: float) -> None:
        if self._here == "b":
            raise RetryLater("not now")
        take(self, answer, now_s)

    async with FairleadClusters.start("a", "b") as clusters:
        monkeypatch.setattr(Puller, "_take", take_unless_in_b)
        client = await clusters["a"].connect()
        await client.start_workflow("Any", id="unseen", task_queue="q")
        waited = await run_in_thread(
            *("admin", "failover", "shared", "--to", "b", "--graceful"),
            *("--timeout", "3s", "--address", clusters.admin_address("a")),
        )
        assert waited.code == 1
        assert " of 4 shards ready" in waited.err
        assert "stays active in 'a'" in waited.err
        assert await version(clusters["a"]) == ("a", 1)


async def test_an_unreachable_target_cluster_is_reported_at_once() -> None:
    async with FairleadClusters.start("a", "b") as clusters:
        await clusters.stop("b")
        reported = await run_in_thread(
            "admin", "failover", "shared", "--to", "b", "--graceful", "--address", clusters.admin_address("a")
        )
        assert reported.code == 1
        assert "cluster 'b' does not respond to cluster 'a'" in reported.err
        assert await version(clusters["a"]) == ("a", 1)


async def test_a_cluster_without_remote_clusters_reports_that(admin: Admin) -> None:
    refused = await admin.run("failover", "default", "--to", "b")
    assert refused.code == 2
    assert "this cluster has no remote clusters" in refused.line
