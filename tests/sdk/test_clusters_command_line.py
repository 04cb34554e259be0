"""The official command line on two clusters, each its own process: they are connected, then failed over."""

import asyncio
import json
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.cli.processes import FAIRLEAD
from tests.frontend.served import TEMPORAL, needs_command_line
from tests.patience import PATIENCE_S

pytestmark = [needs_command_line, pytest.mark.timeout(240)]
READY_S_MAX = PATIENCE_S
COMMAND_S_MAX = PATIENCE_S
KNOWN_S_MAX = PATIENCE_S


class CommandFailed(Exception):
    """The command failed; the message is its output."""


class Cluster:
    """A server, and `temporal` for it."""

    def __init__(self, address: str) -> None:
        self.address = address

    async def temporal(self, *arguments: str) -> Any:
        """Run the command; returns its output, decoded if it is JSON."""
        process = await asyncio.create_subprocess_exec(
            *(str(TEMPORAL), *arguments, "--address", self.address, "-o", "json"), stdout=PIPE, stderr=PIPE
        )
        async with asyncio.timeout(COMMAND_S_MAX):
            output, errors = await process.communicate()
        if process.returncode:
            raise CommandFailed(errors.decode())
        try:
            return json.loads(output)
        except json.JSONDecodeError:
            return output.decode()

    async def until(self, active: str, is_so: Callable[[Any], bool] = lambda _described: True) -> Any:
        """Wait until the cluster shows the namespace as active in a cluster, with these other fields."""
        async with asyncio.timeout(KNOWN_S_MAX):
            while True:
                try:
                    described = await self.temporal("operator", "namespace", "describe", "-n", "orders")
                    if described["replicationConfig"]["activeClusterName"] == active and is_so(described):
                        return described
                except CommandFailed as error:
                    if "not found" not in str(error):
                        raise
                await asyncio.sleep(0.1)


@asynccontextmanager
async def cluster(*arguments: str) -> AsyncIterator[Cluster]:
    """Run a cluster as a process, which ends when its input is closed."""
    process = await asyncio.create_subprocess_exec(
        *(str(FAIRLEAD), "server", "start-dev", "--port", "0", "--stop-with-input", *arguments),
        stdin=PIPE,
        stdout=PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    address = ""
    try:
        async with asyncio.timeout(READY_S_MAX):
            async for line in process.stdout:
                if line.startswith(b"Server:"):
                    address = line.split()[1].decode()
                if line.startswith(b"Ready"):
                    break
        yield Cluster(address)
    finally:
        process.stdin.close()
        await asyncio.wait_for(process.wait(), READY_S_MAX)


async def test_clusters_are_added_shared_with_failed_over_and_removed() -> None:
    async with (
        cluster("--cluster-name", "a") as a,
        cluster("--cluster-name", "b", "--cluster-initial-version", "2") as b,
    ):
        for one, other in ((a, b), (b, a)):
            await one.temporal(
                *("operator", "cluster", "upsert", "--frontend-address", other.address),
                *("--enable-connection", "--enable-replication"),
            )
        listed = await a.temporal("operator", "cluster", "list")
        assert [(one["clusterName"], one["initialFailoverVersion"]) for one in listed] == [("a", "1"), ("b", "2")]
        assert listed[1]["address"] == b.address
        assert listed[1]["isConnectionEnabled"]
        assert (await b.temporal("operator", "cluster", "describe"))["clusterName"] == "b"
        assert (await a.temporal("operator", "cluster", "health"))["status"] == "SERVING"

        create = ("operator", "namespace", "create", "-n", "orders", "--retention", "3d", "--global")
        await a.temporal(*create, "--active-cluster", "a", "--cluster", "a", "--cluster", "b")
        at_a, at_b = await a.until("a"), await b.until("a")
        assert at_a["namespaceInfo"]["id"] == at_b["namespaceInfo"]["id"]
        assert (at_b["isGlobalNamespace"], at_b["failoverVersion"]) == (True, "1")

        # The request goes to the cluster that becomes active, which notifies the other cluster; then it is configured
        # there.
        await b.temporal("operator", "namespace", "update", "-n", "orders", "--active-cluster", "b")
        assert (await a.until("b"))["failoverVersion"] == "2"
        await a.temporal("operator", "namespace", "update", "-n", "orders", "--description", "of both")
        await b.until("b", lambda described: described["namespaceInfo"].get("description") == "of both")

        # A start in the passive cluster creates the workflow in the active cluster.
        await a.temporal("workflow", "start", "-n", "orders", "--type", "Any", "--task-queue", "q", "-w", "w")
        assert (await b.temporal("workflow", "describe", "-n", "orders", "-w", "w"))["workflowExecutionInfo"]

        with pytest.raises(CommandFailed, match="Cluster b is used by namespace orders: remove it there first"):
            await a.temporal("operator", "cluster", "remove", "--name", "b")
        with pytest.raises(CommandFailed, match="is in clusters a, b"):
            await a.temporal("operator", "namespace", "delete", "-n", "orders", "--yes")
        await b.temporal("operator", "namespace", "update", "-n", "orders", "--cluster", "b")
        await a.until("b", lambda described: len(described["replicationConfig"]["clusters"]) == 1)
        await a.temporal("operator", "namespace", "delete", "-n", "orders", "--yes")


async def test_invalid_commands_about_clusters_are_refused() -> None:
    async with cluster("--cluster-name", "a") as a, cluster() as alone:
        upsert = ("operator", "cluster", "upsert", "--enable-connection", "--frontend-address")
        # The reason is only in the log: `allowedAddresses` does not list the address.
        with pytest.raises(CommandFailed, match=r"no cluster responds at 127\.0\.0\.1:1: check that it runs, "):
            await a.temporal(*upsert, "127.0.0.1:1")
        with pytest.raises(CommandFailed, match="Cannot update current cluster metadata from rpc calls"):
            await a.temporal(*upsert, a.address)
        # A server without `cluster` in its configuration can't be connected, in either direction.
        with pytest.raises(CommandFailed, match=f"no cluster responds at {alone.address}"):
            await a.temporal(*upsert, alone.address)
        with pytest.raises(CommandFailed, match="This cluster has no cluster configuration"):
            await alone.temporal(*upsert, a.address)
        create = ("operator", "namespace", "create", "-n", "orders")
        with pytest.raises(CommandFailed, match="Cannot register global namespace when not enabled"):
            await alone.temporal(*create, "--global")
        with pytest.raises(CommandFailed, match="Invalid cluster name: x"):
            await a.temporal(*create, "--global", "--active-cluster", "a", "--cluster", "x")
        with pytest.raises(CommandFailed, match="The cluster to be deleted cannot be found"):
            await a.temporal("operator", "cluster", "remove", "--name", "x")


async def test_a_local_namespace_is_promoted() -> None:
    async with cluster("--cluster-name", "a", "--namespace", "orders") as a:
        before = await a.until("a")
        assert not before.get("isGlobalNamespace")
        await a.temporal("operator", "namespace", "update", "-n", "orders", "--promote-global")
        after = await a.until("a")
        assert (after["isGlobalNamespace"], after["failoverVersion"]) == (True, "1")
        assert after["namespaceInfo"]["id"] == before["namespaceInfo"]["id"]
