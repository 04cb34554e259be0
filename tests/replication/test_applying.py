"""Announcements of runs, as a cluster takes them in that does not have the runs."""

from typing import Any

import msgspec
import pytest

from fairlead.history.applying.messages import Outcome
from fairlead.history.refusals import Refused
from fairlead.history.stream_messages import (
    PullAnswer,
    PullRequest,
    ReadLineAnswer,
    ReadLineRequest,
    ReplicationTask,
)
from fairlead.history.stream_rows import PROGRESS
from fairlead.replication.applying import Applier, LineGone
from fairlead.replication.dead_letters import letter_of
from fairlead.replication.messages import RemoteReadLine
from fairlead.telemetry import Metrics
from tests.history.applying.several import SHARED, Cluster, Several, check_same
from tests.virtual_time import on_virtual_time

FLOW = "flow-1"
TWO = msgspec.structs.replace(SHARED, clusters=("a", "b"))


class Reached:
    """A cluster whose lines can be asked for."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def read_line(self, request: RemoteReadLine) -> ReadLineAnswer:
        asked = ReadLineRequest(*msgspec.structs.astuple(request)[1:])
        answer = await self._cluster.host.call("ReadLine", request.workflow_id, asked)
        return msgspec.msgpack.decode(answer, type=ReadLineAnswer)


def applier(source: Cluster, target: Cluster) -> Applier:
    remote: Any = Reached(source)
    return Applier(source.name, remote=lambda: remote, history=target.host.history.client, metrics=Metrics())


async def announced(several: Several, *, source: str, to: str) -> list[ReplicationTask]:
    """What a cluster says of its runs to one that is added to their namespace."""
    rows_before = (await several[source].rows())[1]
    for cluster in several.clusters.values():
        await cluster.host.namespaces.change(
            SHARED.id, lambda namespace: msgspec.structs.replace(namespace, clusters=SHARED.clusters)
        )
        await cluster.settle()
    request = PullRequest(to, 0, rows_before, -1, 1_000, 1 << 20, 0.0)
    answer = await several[source].host.history.client.call_shard("PullStream", 0, request, timeout_s=1.0)
    return [task for task in msgspec.msgpack.decode(answer, type=PullAnswer).tasks if task.first_event_id == PROGRESS]


@on_virtual_time
async def test_all_branches_of_a_run_that_are_announced_together_are_taken_in() -> None:
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
        tasks = await announced(several, source="b", to="c")
        assert len(tasks) == 2
        await applier(b, c).apply_together(tasks)
        assert c.branches(FLOW) == b.branches(FLOW)
        await several.converge()
        await check_same(several, [FLOW])


@on_virtual_time
async def test_a_run_that_is_deleted_before_it_is_fetched_is_no_dead_letter() -> None:
    async with Several(namespace=TWO) as several:
        a, c = several["a"], several["c"]
        await a.host.begin(FLOW)
        (task,) = await announced(several, source="a", to="c")
        async with a.shard.lock(SHARED.id, FLOW):
            await a.shard.delete(await a.shard.load(SHARED.id, FLOW))
        assert await applier(a, c).apply(task) == Outcome.DUPLICATE
        assert c.world.runs_of(FLOW) == []
        # But that the namespace is not known here is to be tried again.
        with pytest.raises(Refused):
            await applier(a, c).apply(msgspec.structs.replace(task, namespace_id="not-known-yet"))


@on_virtual_time
async def test_a_dead_letter_of_an_announcement_brings_the_run_when_it_is_replayed() -> None:
    async with Several(namespace=TWO) as several:
        a, c = several["a"], several["c"]
        await a.host.begin(FLOW)
        (task,) = await announced(several, source="a", to="c")
        letter = letter_of(task, source="a", shard_id=0, error="no", attempts=1, dead_ns=0)
        await applier(a, c).replay(letter)
        assert c.branches(FLOW) == a.branches(FLOW)
        await several.converge()
        await check_same(several, [FLOW])
        async with a.shard.lock(SHARED.id, FLOW):
            await a.shard.delete(await a.shard.load(SHARED.id, FLOW))
        with pytest.raises(LineGone, match="does not have it any more"):
            await applier(a, c).replay(letter)
