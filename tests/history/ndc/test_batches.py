"""Batches of other clusters: appended, forked, switched to, backfilled; in any order, all clusters end the same."""

from collections import Counter
from collections.abc import Sequence

import msgspec
import pytest
from temporalio.api.history.v1 import History
from temporalio.api.workflowservice.v1 import (
    ResetWorkflowExecutionRequest,
    RespondActivityTaskCompletedRequest,
    SignalWorkflowExecutionRequest,
)

from fairlead.api.errors import ApiError, NotActive
from fairlead.core.versions import ClusterVersions, MalformedBatch, UnownedVersion
from fairlead.history.messages.ndc import Outcome, ReplicatedBatch
from fairlead.history.shard.stream import REPLICATION
from fairlead.history.shard.stream_rows import decode_row
from fairlead.history.state import RunClosed
from fairlead.storage.history import TaskKey
from tests.history.ndc.several import INCREMENT, Cluster, Several, batch_of, check_same, fill
from tests.history.shard_world import complete, kinds, schedule_activity, signal_request, start_timer
from tests.virtual_time import on_virtual_time

FLOW = "flow-1"


@on_virtual_time
async def test_without_a_conflict_every_cluster_has_the_version_history_of_the_document() -> None:
    """NDC-7: the example without a conflict."""
    async with Several() as several:
        a, b = several["a"], several["b"]
        await a.host.begin(FLOW)
        assert await several.bring("a", "b") == [Outcome.CREATED]
        await a.host.signal(FLOW, "one", "r1")
        await several.bring("a", "b")
        assert a.branches(FLOW) == b.branches(FLOW) == {((3, 1),)}
        await several.fail_over(2)
        await b.host.signal(FLOW, "two", "r2")
        assert await several.bring("b", "a") == [Outcome.APPLIED]
        assert a.branches(FLOW) == b.branches(FLOW) == {((3, 1), (4, 2))}
        await b.host.signal(FLOW, "three", "r3")
        await several.converge()
        assert a.branches(FLOW) == b.branches(FLOW) == {((3, 1), (5, 2))}
        await check_same(several, [FLOW])


@on_virtual_time
async def test_with_a_conflict_both_clusters_have_the_branches_of_the_document() -> None:
    """NDC-8, NDC-10: B writes event 4 at version 2, C at version 3; B rebuilds its state."""
    async with Several() as several:
        a, b, c = several["a"], several["b"], several["c"]
        await a.host.begin(FLOW)
        await several.bring("a")
        await several.fail_over(2)
        await b.host.signal(FLOW, "third", "r3")
        await several.bring("b")
        assert b.branches(FLOW) == c.branches(FLOW) == {((2, 1), (3, 2))}
        await several.fail_over(3, "c")
        await b.host.signal(FLOW, "lost", "r4b")
        await c.host.signal(FLOW, "won", "r4c")
        await several.fail_over(3, "a", "b")
        assert await several.bring("c", "b") == [Outcome.REBUILT]
        assert await several.bring("b", "c") == [Outcome.FORKED]
        tree = {((2, 1), (4, 2)), ((2, 1), (3, 2), (4, 3))}
        assert b.branches(FLOW) == tree
        assert b.state(FLOW).versions.to_pairs() == ((2, 1), (3, 2), (4, 3))  # type: ignore[union-attr]
        await several.converge()
        # C, the active cluster, has reapplied the lost signal exactly once.
        events = await c.host.events(FLOW)
        names = Counter(
            event.workflow_execution_signaled_event_attributes.signal_name
            for event in events
            if event.HasField("workflow_execution_signaled_event_attributes")
        )
        assert names == {"third": 1, "won": 1, "lost": 1}
        assert c.state(FLOW).versions.to_pairs() == ((2, 1), (3, 2), (5, 3))  # type: ignore[union-attr]
        await check_same(several, [FLOW])


@on_virtual_time
async def test_a_passive_cluster_writes_nothing_and_names_the_active_one() -> None:
    async with Several() as several:
        a, b = several["a"], several["b"]
        await a.host.begin(FLOW)
        await several.bring("a")
        for call in (b.host.signal(FLOW, "no"), b.host.begin("flow-2")):
            with pytest.raises(NotActive):
                await call
        assert b.branches(FLOW) == {((2, 1),)}
        await several.fail_over(2, "a")
        with pytest.raises(ApiError):
            await a.host.signal(FLOW, "no")
        assert await b.world.stored_rows("transfer") == []


@on_virtual_time
async def test_a_worker_of_the_new_active_cluster_gets_everything_pending() -> None:
    async with Several() as several:
        a, b = several["a"], several["b"]
        await a.host.begin(FLOW)
        task = await a.host.poll()
        assert task is not None
        await a.host.respond(task, [schedule_activity(), start_timer(30)])
        await several.bring("a")
        assert await b.world.stored_rows("timer") == []
        await several.fail_over(2)
        activity = await b.host.poll_activity()
        assert activity is not None
        await b.host.call(
            "RespondActivityTaskCompleted", FLOW, RespondActivityTaskCompletedRequest(task_token=activity.task_token)
        )
        task = await b.host.poll()
        assert task is not None
        await b.host.respond(task)
        task = await b.host.poll(timeout_s=60)
        assert task is not None
        assert "TIMER_FIRED" in kinds(task.history.events)
        await b.host.respond(task, [complete()])
        await several.converge()
        await check_same(several, [FLOW])
        assert await a.world.stored_rows("transfer") == []


@on_virtual_time
async def test_a_repeated_or_early_batch_changes_nothing() -> None:
    async with Several() as several:
        a, b = several["a"], several["b"]
        await a.host.begin(FLOW)
        await a.host.signal(FLOW, "one", "r1")
        await a.host.signal(FLOW, "two", "r2")
        first, second, third = [batch_of("a", row) for row in (await a.rows())[0]]
        answer = await b.apply(third)
        assert (answer.outcome, answer.missing_from, answer.missing_to) == (Outcome.GAP, 1, 4)
        assert b.current(FLOW) is None
        await b.apply(first)
        answer = await b.apply(third)
        assert (answer.outcome, answer.missing_from, answer.missing_to) == (Outcome.GAP, 3, 4)
        await b.apply(second)
        assert (await b.apply(third)).outcome == Outcome.APPLIED
        for batch in (first, second, third):
            assert (await b.apply(batch)).outcome == Outcome.DUPLICATE
        await several.converge()
        await check_same(several, [FLOW])


@on_virtual_time
async def test_a_zombie_refuses_writes_as_a_closed_run_does() -> None:
    """NDC-13."""
    async with Several() as several:
        a, b = several["a"], several["b"]
        first = await a.host.begin(FLOW)
        await several.fail_over(2, "b", "c")
        second = await b.host.begin(FLOW, "other")
        await several.bring("a", "b")
        assert b.state(FLOW, first).is_zombie
        current = b.current(FLOW)
        assert current is not None
        assert current.run_id == second
        with pytest.raises(RunClosed):
            await b.host.call("SignalWorkflowExecution", FLOW, _signal_to(first))
        await several.fail_over(2, "a")
        await several.converge()
        await check_same(several, [FLOW])
        assert not a.state(FLOW, first).is_open


def _signal_to(run_id: str) -> SignalWorkflowExecutionRequest:
    request = signal_request(FLOW, "x")
    request.workflow_execution.run_id = run_id
    return request


@on_virtual_time
async def test_batches_applied_together_are_stored_like_batches_applied_one_by_one() -> None:
    async with Several() as several:
        a, b, c = several["a"], several["b"], several["c"]
        await a.host.begin(FLOW)
        for number in range(5):
            await a.host.signal(FLOW, f"s{number}", f"r{number}")
        rows, _ = await a.rows(-1)
        batches = [batch_of("a", streamed) for streamed in rows]
        assert len(batches) > 4
        assert (await b.apply(together(batches))).outcome == Outcome.CREATED
        # We may already have the start of a batch: only the rest is applied.
        assert (await c.apply(batches[0])).outcome == Outcome.CREATED
        assert (await c.apply(batches[1])).outcome == Outcome.APPLIED
        assert (await c.apply(together(batches[1:3]))).outcome == Outcome.APPLIED
        assert (await c.apply(together(batches[1:]))).outcome == Outcome.APPLIED
        assert (await c.apply(together(batches))).outcome == Outcome.DUPLICATE
        stored = [await stored_batches(cluster) for cluster in (a, b, c)]
        assert stored[0] == stored[1] == stored[2]
        for cluster in (b, c):
            kept = await cluster.world.store.read_tasks(0, REPLICATION, after=TaskKey(0, -1), until_ns=None, limit=100)
            assert [decode_row(row).items for _, row in kept] == [streamed.row.items for streamed in rows]
        await check_same(several, [FLOW])


@on_virtual_time
async def test_batches_applied_together_to_a_losing_branch_are_written_there() -> None:
    async with Several() as several:
        a, b = several["a"], several["b"]
        await a.host.begin(FLOW)
        await several.bring("a")
        await several.fail_over(2, "b")
        for number in range(3):
            await a.host.signal(FLOW, f"lost-{number}", f"a{number}")
        await b.host.signal(FLOW, "won", "b0")
        rows, _ = await a.rows(several.cursors["a", "b"])
        lost = [batch_of("a", streamed) for streamed in rows]
        assert (await b.apply(together(lost[:2]))).outcome == Outcome.FORKED
        assert (await b.apply(together(lost[1:]))).outcome == Outcome.BACKFILLED
        await several.fail_over(2)
        await several.converge()
        await check_same(several, [FLOW])


@on_virtual_time
async def test_a_branch_can_be_continued_after_a_cluster_that_wrote_to_it_was_removed() -> None:
    async with Several() as several:
        a, b, c = several["a"], several["b"], several["c"]
        await a.host.begin(FLOW)
        await several.bring("a")
        await several.fail_over(3)
        await c.host.signal(FLOW, "of-the-removed", "r1")
        assert await several.bring("c", "a") == [Outcome.APPLIED]
        await several.fail_over(11)
        left = ClusterVersions(INCREMENT, {"a": 1, "b": 2})
        a.shard.services.clusters.update(left, ["b"])
        b.shard.services.clusters.update(left, ["a"])
        await a.host.signal(FLOW, "after", "r2")
        # Events of the removed cluster arrive from A as well.
        assert await several.bring("a", "b") == [Outcome.APPLIED]
        assert b.branches(FLOW) == a.branches(FLOW) == {((2, 1), (3, 3), (4, 11))}
        # Version 13 could be a later one of the removed cluster, but belongs to no cluster now: it is rejected.
        ((*_, last), _) = await a.rows()
        batch = batch_of("a", last)
        history = History.FromString(batch.events)
        history.events[0].version = 13
        forged = msgspec.structs.replace(
            batch, items=((2, 1), (3, 3), (4, 13)), events=history.SerializeToString(), source="a"
        )
        with pytest.raises(UnownedVersion):
            await b.apply(forged)


@on_virtual_time
async def test_the_reset_time_of_a_run_is_that_of_the_current_branch() -> None:
    async with Several() as several:
        a, b = several["a"], several["b"]
        first = await a.host.begin(FLOW)
        task = await a.host.poll()
        assert task is not None
        await a.host.respond(task)
        await several.fail_over(11, "a")
        await several.fail_over(2, "b")
        reset = ResetWorkflowExecutionRequest(workflow_task_finish_event_id=4, request_id="reset")
        reset.workflow_execution.workflow_id, reset.workflow_execution.run_id = FLOW, first
        await a.host.call("ResetWorkflowExecution", FLOW, reset)
        rows, _ = await a.rows()
        fork_id = a.state(FLOW).identity.run_id
        (reset_there,) = [streamed for streamed in rows if streamed.row.run_id == fork_id]
        # The events that the reset run shares with its base arrive before the base itself; then B writes to the reset
        # run.
        gap = await b.apply(batch_of("a", reset_there))
        assert gap.outcome == Outcome.GAP
        await fill(a, b, reset_there, gap)
        lost = signal_request(FLOW, "lost", "r1")
        lost.workflow_execution.run_id = fork_id
        await b.host.call("SignalWorkflowExecution", FLOW, lost)
        assert (await b.apply(batch_of("a", reset_there))).outcome == Outcome.REBUILT
        ours, theirs = a.state(FLOW, fork_id).live, b.state(FLOW, fork_id).live
        assert ours.last_reset_ns
        assert (theirs.last_reset_ns, theirs.original_started_ns) == (ours.last_reset_ns, ours.original_started_ns)


@pytest.mark.parametrize("sizes", [(0, -1), (1, 2, 3), (-5, 5)])
@on_virtual_time
async def test_batches_with_wrong_sizes_are_refused(sizes: tuple[int, ...]) -> None:
    async with Several() as several:
        a, b = several["a"], several["b"]
        await a.host.begin(FLOW)
        rows, _ = await a.rows(-1)
        batch = msgspec.structs.replace(batch_of("a", rows[0]), sizes=sizes)
        with pytest.raises(MalformedBatch):
            await b.apply(batch)
        assert b.current(FLOW) is None


def together(batches: Sequence[ReplicatedBatch]) -> ReplicatedBatch:
    return msgspec.structs.replace(
        batches[0],
        items=batches[-1].items,
        events=b"".join(batch.events for batch in batches),
        sizes=tuple(len(batch.events) for batch in batches),
    )


async def stored_batches(cluster: Cluster) -> list[tuple[int, int, bytes]]:
    identity = cluster.state(FLOW).identity
    stored = await cluster.world.store.read_branch(identity.tree_id, identity.branch_id, 1, 1000, limit_bytes=1 << 20)
    return [(batch.first_event_id, batch.last_event_id, batch.payload) for batch in stored]
