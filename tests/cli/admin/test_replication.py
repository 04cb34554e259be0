"""`fairlead admin replication|dlq|history`: their output, also for a cluster without remote clusters."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from google.protobuf.duration_pb2 import Duration
from temporalio.api.replication.v1 import ClusterReplicationConfig
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client

from fairlead.cli.admin.dead_letters import dead_letters_report
from fairlead.cli.admin.histories import tree_report
from fairlead.cli.admin.replication import status_report
from fairlead.history.messages.stream import BranchesResponse
from fairlead.replication.dead_letters import DeadLetter
from fairlead.replication.puller import StreamStatus
from fairlead.replication.service import StatusResponse
from fairlead.report import DualCell, as_json, table_as_plain
from fairlead.rpc.hosts.caller import UnknownMethod, Unreachable
from fairlead.server import Server
from fairlead.settings.static.clusters import ClusterConfig, RemoteClusterConfig
from fairlead.settings.static.config import Address, Role, StaticConfig
from tests.cli.admin.conftest import Admin
from tests.cli.thread import run_in_thread
from tests.ports import free_port
from tests.server.test_server import IN_MEMORY


def stream(source: str, shard_id: int, lag_tasks: int, lag_s: float, error: str = "") -> StreamStatus:
    return StreamStatus(source, shard_id, "h", 5, 9, lag_tasks, lag_s, 1, 2, error)


def test_the_replication_streams_of_all_hosts_are_listed_together() -> None:
    report = status_report(
        {
            "h:1": StatusResponse("a", (stream("c", 1, 3, 0.5), stream("b", 0, 1, 0.1))),
            "h:2": StatusResponse("a", (stream("c", 0, 4, 2.5, "connection refused"),)),
            "h:3": Unreachable("connection refused"),
            "h:4": UnknownMethod("it has another role"),
        }
    )
    assert report.summary == "cluster a pulls 3 streams of 2 other clusters; it is behind by 8 tasks"
    assert [tuple(row) for row in report.tables[0].rows] == [
        ("b", 1, 1, 0.1, 1, 2, None),
        ("c", 2, 7, 2.5, 2, 4, "connection refused"),
    ]
    assert [row[:2] for row in report.tables[1].rows] == [("b", 0), ("c", 0), ("c", 1)]
    assert [tuple(row) for row in report.tables[2].rows] == [("h:3", "connection refused")]


def test_an_unreached_cluster_is_listed_and_an_error_shared_by_its_streams_is_shown_once() -> None:
    report = status_report(
        {
            "h:1": StatusResponse(
                "a", tuple(stream("c", shard, 0, 0.0, "refused") for shard in range(2)), (("b", "no route to host"),)
            ),
            "h:2": StatusResponse("a", (stream("c", 2, 0, 0.0, "timed out"),), (("b", "no route to host"),)),
        }
    )
    assert [tuple(row) for row in report.tables[0].rows] == [
        ("b", 0, None, None, None, None, "no route to host"),
        ("c", 3, 0, 0.0, 3, 6, "refused"),
    ]
    assert [row[-1] for row in report.tables[1].rows] == [DualCell("", "refused"), DualCell("", "refused"), "timed out"]
    streams = json.loads(as_json(report))["streams"]
    assert [one["error"] for one in streams] == ["refused", "refused", "timed out"]


def test_a_dead_letter_is_shown_with_everything_needed_to_decide_about_it() -> None:
    dead_letter = DeadLetter("b", 3, 17, "n", "w", "r", 4, 6, ((3, 1), (6, 12)), "MalformedBatch: a gap", 10, 0)
    report = dead_letters_report([dead_letter], is_all=False)
    assert report.summary == "1 dead letter, and more: raise --limit to see them"
    assert table_as_plain(report.tables[0]) == [
        {
            "task_id": 17,
            "source": "b",
            "shard": 3,
            "workflow_id": "w",
            "run_id": "r",
            "events": "4-6",
            "version": 12,
            "attempts": 10,
            "since": "1970-01-01T00:00:00+00:00",
            "error": "MalformedBatch: a gap",
        }
    ]


def test_the_branches_of_a_run_are_drawn_as_in_the_design_document() -> None:
    """NDC-8: the example with a conflict, in cluster B's final state."""
    answer = BranchesResponse("r", (("x", ((2, 1), (3, 2), (4, 3))), ("y", ((2, 1), (4, 2)))), 1, is_zombie=False)
    report = tree_report("w", answer)
    assert report.summary == "run r of w has 2 branches"
    assert table_as_plain(report.tables[0]) == ["1-2 v1, 3 v2", "├─ 4 v2", "└─ 4 v3  <- current"]
    assert [row[:4] for row in report.tables[1].rows] == [("x", True, 4, 3), ("y", False, 4, 2)]
    assert '"version_history"' in as_json(report)


async def test_a_cluster_that_is_alone_says_so(admin: Admin) -> None:
    for arguments in (("replication", "status"), ("dlq", "list"), ("dlq", "merge"), ("dlq", "purge", "--all")):
        done = await admin.run(*arguments)
        assert done.code != 0
        assert "has no remote clusters" in done.err
    assert "say which dead letters to purge" in (await admin.run("dlq", "purge")).err


@asynccontextmanager
async def serving(config: StaticConfig) -> AsyncIterator[Server]:
    server = Server(config)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def asked(server: Server, *arguments: str) -> Any:
    done = await run_in_thread("admin", "--address", server.address, *arguments, "-o", "json")
    assert done.code == 0, done.err
    return json.loads(done.out)


def member(name: str, version: int, other: str, other_version: int, *, port: int, other_port: int) -> StaticConfig:
    remotes = {other: RemoteClusterConfig(other_version, f"127.0.0.1:{other_port}")}
    return replace(
        IN_MEMORY,
        roles=frozenset(Role),
        frontend_listen=Address("127.0.0.1", port),
        history_shards=2,
        cluster=ClusterConfig(name, version, 10, remotes),
    )


async def test_two_clusters_show_their_replication_lag_and_the_state_of_a_run() -> None:
    ports = [free_port(), free_port()]
    a = member("a", 1, "b", 2, port=ports[0], other_port=ports[1])
    b = member("b", 2, "a", 1, port=ports[1], other_port=ports[0])
    async with serving(a) as first, serving(b) as second:
        assert first.frontend_address is not None
        client = await Client.connect(first.frontend_address)
        await client.workflow_service.register_namespace(
            RegisterNamespaceRequest(
                namespace="shared",
                is_global_namespace=True,
                active_cluster_name="a",
                clusters=[ClusterReplicationConfig(cluster_name=name) for name in ("a", "b")],
                workflow_execution_retention_period=Duration(seconds=86_400),
            )
        )
        shared = await Client.connect(first.frontend_address, namespace="shared")
        handle = await shared.start_workflow("Any", id="order-1", task_queue="none")
        tree = ("history", "tree", "order-1", "--namespace", "shared")
        assert (await asked(first, *tree))["tree"] == ["1-2 v1  <- current"]
        async with asyncio.timeout(20):
            done = await run_in_thread("admin", "--address", second.address, *tree, "-o", "json")
            while done.code != 0:
                await asyncio.sleep(0.2)
                done = await run_in_thread("admin", "--address", second.address, *tree, "-o", "json")
        reported = json.loads(done.out)
        assert reported["tree"] == ["1-2 v1  <- current"]
        assert reported["headline"] == f"run {handle.result_run_id} of order-1 has 1 branch"
        status = await asked(second, "replication", "status")
        assert [row["source"] for row in status["clusters"]] == ["a"]
        assert status["headline"] == "cluster b pulls 2 streams of 1 other cluster; it is behind by 0 tasks"
        assert (await asked(second, "dlq", "list"))["dead_letters"] == []
        missing = await run_in_thread(
            "admin", "--address", first.address, "history", "tree", "order-2", "--namespace", "shared"
        )
        assert missing.code != 0
        assert "order-2" in missing.err
