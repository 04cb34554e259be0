"""The runs of a workflow id: the newest is the current one, in any order of arrival, and at most one is open."""

import msgspec
import pytest
from temporalio.api.command.v1 import Command
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest

from fairlead.history.messages.stream import PullRequest, PullResponse
from fairlead.history.state.run import ClosedBy
from fairlead.telemetry import REPLICATION_TASKS_SKIPPED
from tests.history.ndc.chaos import signals_on
from tests.history.ndc.several import GLOBAL_NAMESPACE, Cluster, Several, check_one_open, check_same, deliver
from tests.history.shard_world import command
from tests.virtual_time import on_virtual_time

FLOW = "flow-1"


def _continue_as_new() -> Command:
    made = command("CONTINUE_AS_NEW_WORKFLOW_EXECUTION")
    attributes = made.continue_as_new_workflow_execution_command_attributes
    attributes.workflow_type.name = "flow"
    attributes.task_queue.name = "queue"
    return made


async def _listed(cluster: Cluster) -> set[str]:
    found = await cluster.world.store.list_visibility(GLOBAL_NAMESPACE.id, None, limit=100)
    return {row.run_id for row in found}


@pytest.mark.parametrize("is_reversed", [False, True])
@on_virtual_time
async def test_a_run_that_arrives_after_its_successor_is_a_zombie_until_it_closes(is_reversed: bool) -> None:
    """NDC-12: the older run arrives after the newer one."""
    async with Several(("a", "b")) as several:
        a, b = several["a"], several["b"]
        first = await a.host.begin(FLOW)
        task = await a.host.poll()
        assert task is not None
        await a.host.respond(task, [_continue_as_new()])
        current = a.current(FLOW)
        assert current is not None
        rows, _ = await a.rows()
        of_first = [row for row in rows if row.row.run_id == first]
        of_second = [row for row in rows if row.row.run_id != first]
        if is_reversed:
            for row in of_second:
                await deliver(a, b, row)
            await deliver(a, b, of_first[0])
            assert b.state(FLOW, first).is_zombie
            assert first not in await _listed(b)
        for row in [*of_first, *of_second]:
            await deliver(a, b, row)
            check_one_open(b, FLOW)
        assert not b.state(FLOW, first).is_open
        assert await _listed(b) == {first, current.run_id}
        await check_same(several, [FLOW])


@pytest.mark.parametrize("first_to_hear", ["a", "b"])
@on_virtual_time
async def test_the_newer_of_two_concurrent_runs_stays_current_and_gets_the_others_signals(
    first_to_hear: str,
) -> None:
    async with Several(("a", "b")) as several:
        a, b = several["a"], several["b"]
        lost = await a.host.begin(FLOW)
        await several.fail_over(2, "b")
        won = await b.host.begin(FLOW, "other")
        await a.host.signal(FLOW, "told", "r1")
        order = ("b", "a") if first_to_hear == "a" else ("a", "b")
        for source in order:
            await several.bring(source)
            for cluster in (a, b):
                check_one_open(cluster, FLOW)
        await several.fail_over(2, "a")
        await several.converge()
        assert a.state(FLOW, lost).closed_by == ClosedBy.NEWER_RUN
        (key,) = [key for key in b.world.runs_of(FLOW) if key.run_id == won]
        assert dict(await signals_on(b, key)) == {"told": 1}
        await check_same(several, [FLOW])


@on_virtual_time
async def test_deleting_a_run_deletes_all_its_branches() -> None:
    async with Several(("a", "b")) as several:
        a, b = several["a"], several["b"]
        run_id = await a.host.begin(FLOW)
        await several.bring("a")
        await several.fail_over(2, "b")
        await a.host.signal(FLOW, "lost", "r1")
        await b.host.signal(FLOW, "won", "r2")
        await several.fail_over(2, "a")
        await several.converge()
        state = b.state(FLOW, run_id)
        branch_ids = [state.identity.branch_id, *(side.branch_id for side in state.live.branches)]
        assert len(branch_ids) == 2
        request = DeleteWorkflowExecutionRequest()
        request.workflow_execution.workflow_id = FLOW
        request.workflow_execution.run_id = run_id
        await b.host.call("DeleteWorkflowExecution", FLOW, request)
        for branch_id in branch_ids:
            assert await b.world.store.read_branch(state.identity.tree_id, branch_id, 1, 100, limit_bytes=1000) == []


@on_virtual_time
async def test_the_batches_of_a_deleted_run_that_are_not_sent_are_counted() -> None:
    async with Several(("a", "b")) as several:
        a = several["a"]
        await a.host.begin(FLOW)
        request = DeleteWorkflowExecutionRequest()
        request.workflow_execution.workflow_id = FLOW
        await a.host.call("DeleteWorkflowExecution", FLOW, request)
        # The new host has no events in memory.
        await a.restart()
        pull = PullRequest("b", 0, -1, -1, 100, 1 << 20, 0.0)
        answer = await a.host.history.client.call_shard("PullStream", 0, pull, timeout_s=1.0)
        tasks = msgspec.msgpack.decode(answer, type=PullResponse).tasks
        assert {task.is_gone for task in tasks} == {True}
        assert a.shard.services.metrics.snapshot().events[REPLICATION_TASKS_SKIPPED] == {("b",): len(tasks)}
