"""Batches of other clusters: appended, forked, switched to, backfilled; whatever the order, all end with the same."""

from collections import Counter

import pytest
from temporalio.api.workflowservice.v1 import RespondActivityTaskCompletedRequest, SignalWorkflowExecutionRequest

from fairlead.history.applying.messages import Outcome
from fairlead.history.clusters import is_not_active
from fairlead.history.refusals import Refused
from fairlead.history.state import RunClosed
from tests.history.applying.several import Several, batch_of, check_same
from tests.history.shard_world import complete, kinds, schedule_activity, signal_request, start_timer
from tests.virtual_time import on_virtual_time

FLOW = "flow-1"


@on_virtual_time
async def test_without_conflict_every_cluster_has_the_versions_of_the_document() -> None:
    """Seed 004, version history without data conflict."""
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
async def test_with_a_conflict_both_have_the_tree_of_the_document() -> None:
    """Seed 004, version history with data conflict: B writes event 4 at version 2, C at version 3."""
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
        # C, which is active, has taken over the signal that was lost: exactly once.
        line = await c.host.events(FLOW)
        names = Counter(
            event.workflow_execution_signaled_event_attributes.signal_name
            for event in line
            if event.HasField("workflow_execution_signaled_event_attributes")
        )
        assert names == {"third": 1, "won": 1, "lost": 1}
        assert c.state(FLOW).versions.to_pairs() == ((2, 1), (3, 2), (5, 3))  # type: ignore[union-attr]
        await check_same(several, [FLOW])


@on_virtual_time
async def test_a_cluster_where_the_namespace_is_not_active_writes_nothing_and_names_the_one_that_does() -> None:
    async with Several() as several:
        a, b = several["a"], several["b"]
        await a.host.begin(FLOW)
        await several.bring("a")
        for call in (b.host.signal(FLOW, "no"), b.host.begin("flow-2")):
            with pytest.raises(Refused) as refused:
                await call
            assert is_not_active(refused.value)
        assert b.branches(FLOW) == {((2, 1),)}
        await several.fail_over(2, "a")
        with pytest.raises(Refused):
            await a.host.signal(FLOW, "no")
        assert await b.world.stored_rows("transfer") == []


@on_virtual_time
async def test_a_worker_of_the_next_cluster_takes_up_all_that_was_pending() -> None:
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
async def test_a_batch_that_comes_twice_or_early_changes_nothing() -> None:
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
