"""Backfilled runs, as applied by a cluster that does not have them yet."""

from typing import Any

import msgspec
import pytest

from fairlead.api.errors import ApiError
from fairlead.history.messages.ndc import Outcome
from fairlead.history.messages.progress import PROGRESS
from fairlead.history.messages.stream import (
    PullRequest,
    PullResponse,
    ReadBranchRequest,
    ReadBranchResponse,
    ReplicationTask,
)
from fairlead.replication.applier import Applier, BranchGone
from fairlead.replication.dead_letters import dead_letter_of
from fairlead.replication.messages import RemoteReadBranch
from fairlead.telemetry import Metrics
from tests.history.ndc.several import GLOBAL_NAMESPACE, Cluster, Several, check_same
from tests.virtual_time import on_virtual_time

FLOW = "flow-1"
TWO = msgspec.structs.replace(GLOBAL_NAMESPACE, clusters=("a", "b"))


class Reached:
    """A cluster whose branches can be read."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def read_branch(self, request: RemoteReadBranch) -> ReadBranchResponse:
        asked = ReadBranchRequest(*msgspec.structs.astuple(request)[1:])
        answer = await self._cluster.host.call("ReadBranch", request.workflow_id, asked)
        return msgspec.msgpack.decode(answer, type=ReadBranchResponse)


def applier(source: Cluster, target: Cluster) -> Applier:
    remote: Any = Reached(source)
    return Applier(source.name, remote=lambda: remote, history=target.host.history.client, metrics=Metrics())


async def backfilled(several: Several, *, source: str, to: str) -> list[ReplicationTask]:
    """The backfill tasks that a cluster writes for one that is added to the namespace."""
    rows_before = (await several[source].rows())[1]
    for cluster in several.clusters.values():
        await cluster.host.namespaces.change(
            GLOBAL_NAMESPACE.id,
            lambda namespace: msgspec.structs.replace(namespace, clusters=GLOBAL_NAMESPACE.clusters),
        )
        await cluster.settle()
    request = PullRequest(to, 0, rows_before, -1, 1_000, 1 << 20, 0.0)
    answer = await several[source].host.history.client.call_shard("PullStream", 0, request, timeout_s=1.0)
    return [task for task in msgspec.msgpack.decode(answer, type=PullResponse).tasks if task.first_event_id == PROGRESS]


@on_virtual_time
async def test_all_branches_of_a_run_are_applied_when_they_are_backfilled_together() -> None:
    async with Several(namespace=TWO) as several:
        a, b, c = several["a"], several["b"], several["c"]
        await a.host.begin(FLOW)
        await several.bring("a", "b")
        await several.fail_over(2, "b")
        await a.host.signal(FLOW, "lost")
        await b.host.signal(FLOW, "won")
        await several.fail_over(2, "a", "c")
        await several.bring("b", "a")
        await several.bring("a", "b")
        tasks = await backfilled(several, source="b", to="c")
        assert len(tasks) == 2
        await applier(b, c).apply_together(tasks)
        assert c.branches(FLOW) == b.branches(FLOW)
        await several.converge()
        await check_same(several, [FLOW])


@on_virtual_time
async def test_a_backfilled_run_that_is_deleted_before_it_is_fetched_makes_no_dead_letter() -> None:
    async with Several(namespace=TWO) as several:
        a, c = several["a"], several["c"]
        await a.host.begin(FLOW)
        (task,) = await backfilled(several, source="a", to="c")
        async with a.shard.lock(GLOBAL_NAMESPACE.id, FLOW):
            await a.shard.writer.delete(await a.shard.load(GLOBAL_NAMESPACE.id, FLOW))
        assert await applier(a, c).apply(task) == Outcome.DUPLICATE
        assert c.world.runs_of(FLOW) == []
        # An unknown namespace, by contrast, is retried.
        with pytest.raises(ApiError):
            await applier(a, c).apply(msgspec.structs.replace(task, namespace_id="not-known-yet"))


@on_virtual_time
async def test_replaying_the_dead_letter_of_a_backfill_fetches_the_run() -> None:
    async with Several(namespace=TWO) as several:
        a, c = several["a"], several["c"]
        await a.host.begin(FLOW)
        (task,) = await backfilled(several, source="a", to="c")
        dead_letter = dead_letter_of(task, source="a", shard_id=0, error="no", attempts=1, dead_ns=0)
        await applier(a, c).replay(dead_letter)
        assert c.branches(FLOW) == a.branches(FLOW)
        await several.converge()
        await check_same(several, [FLOW])
        async with a.shard.lock(GLOBAL_NAMESPACE.id, FLOW):
            await a.shard.writer.delete(await a.shard.load(GLOBAL_NAMESPACE.id, FLOW))
        with pytest.raises(BranchGone, match="does not have the run any more"):
            await applier(a, c).replay(dead_letter)
