"""Buffered signals, which wait for the end of a workflow task, are acknowledged: no failover loses one."""

import asyncio

import msgspec
import pytest
from temporalio.api.workflowservice.v1 import TerminateWorkflowExecutionRequest

from fairlead.api.namespaces import Namespace
from fairlead.history.events import Transaction
from fairlead.history.messages.ndc import Outcome
from fairlead.history.ndc import failover, task_refresh
from tests.history.ndc.chaos import signals_on
from tests.history.ndc.several import GLOBAL_NAMESPACE, Cluster, Several, check_same
from tests.history.shard_world import complete, kinds
from tests.virtual_time import on_virtual_time

FLOW = "flow-1"


async def _held(cluster: Cluster) -> None:
    """Let a worker hold a workflow task, and buffer a signal behind it."""
    assert await cluster.host.poll() is not None
    await cluster.host.signal(FLOW, "waiting", "r1")
    assert len(cluster.state(FLOW).live.buffered) == 1


async def _signals(cluster: Cluster) -> dict[str, int]:
    current = cluster.current(FLOW)
    assert current is not None
    (key,) = [key for key in cluster.world.runs_of(FLOW) if key.run_id == current.run_id]
    return dict(await signals_on(cluster, key))


@on_virtual_time
async def test_buffered_events_are_flushed_when_the_namespace_becomes_passive() -> None:
    async with Several() as several:
        a, b = several["a"], several["b"]
        await a.host.begin(FLOW)
        await _held(a)
        await several.bring("a")
        assert await _signals(b) == {}
        await several.fail_over(2)
        # Written at the version of the cluster that acknowledged it, after the end of the task that it waited for.
        assert a.state(FLOW).versions.to_pairs() == ((5, 1),)  # type: ignore[union-attr]
        assert kinds(await a.host.events(FLOW))[3:] == ["WORKFLOW_TASK_FAILED", "WORKFLOW_EXECUTION_SIGNALED"]
        await several.converge()
        assert await _signals(b) == {"waiting": 1}
        task = await b.host.poll()
        assert task is not None
        assert "WORKFLOW_EXECUTION_SIGNALED" in kinds(task.history.events)
        await several.converge()
        await check_same(several, [FLOW])


@on_virtual_time
async def test_buffered_events_are_flushed_before_another_clusters_events_are_applied() -> None:
    async with Several() as several:
        a, b = several["a"], several["b"]
        await a.host.begin(FLOW)
        task = await a.host.poll()
        assert task is not None
        await several.bring("a")
        await several.fail_over(2, "b", "c")
        await a.host.signal(FLOW, "waiting", "r1")
        await b.host.call("TerminateWorkflowExecution", FLOW, _terminate())
        # A does not know of the failover yet.
        assert await several.bring("b", "a") == [Outcome.REBUILT]
        assert a.branches(FLOW) == {((5, 1),), ((3, 1), (5, 2))}
        await several.fail_over(2, "a")
        await several.converge()
        await asyncio.sleep(1)
        await several.converge()
        await check_same(several, [FLOW])


@on_virtual_time
async def test_events_buffered_after_a_failover_get_the_new_version() -> None:
    """The task has version 1, the signal version 2: cluster B may write only at version 2."""
    async with Several() as several:
        a, b = several["a"], several["b"]
        await a.host.begin(FLOW)
        assert await a.host.poll() is not None
        await several.bring("a")
        await several.fail_over(2)
        await b.host.signal(FLOW, "waiting", "r1")
        assert len(b.state(FLOW).live.buffered) == 1
        await several.fail_over(3)
        assert b.branches(FLOW) == {((3, 1), (5, 2))}
        await several.converge()
        assert await _signals(several["c"]) == {"waiting": 1}
        await check_same(several, [FLOW])


@pytest.mark.parametrize("is_lost", [False, True])
@on_virtual_time
async def test_an_interrupted_flush_is_completed_when_the_shard_is_opened_again(is_lost: bool) -> None:
    async with Several() as several:
        a, b = several["a"], several["b"]
        await a.host.begin(FLOW)
        await _held(a)
        await several.bring("a")
        has_come, goes_on = a.world.faults.hold("commit")
        failing_over = asyncio.create_task(several.fail_over(2))
        await has_come.wait()
        if is_lost:
            failing_over.cancel()
            await asyncio.gather(failing_over, return_exceptions=True)
            closing = asyncio.create_task(a.world.close())
            await asyncio.sleep(0.1)
            goes_on.set()
            await closing
            await a.start()
            await several.fail_over(2)
        else:
            goes_on.set()
            await failing_over
        await a.settle()
        assert not a.state(FLOW).live.buffered
        await several.converge()
        assert await _signals(b) == {"waiting": 1}


def _terminate() -> TerminateWorkflowExecutionRequest:
    request = TerminateWorkflowExecutionRequest(reason="test")
    request.workflow_execution.workflow_id = FLOW
    return request


@on_virtual_time
async def test_events_buffered_before_a_namespace_became_global_get_this_clusters_version() -> None:
    local = msgspec.structs.replace(GLOBAL_NAMESPACE, is_global=False, failover_version=0)
    async with Several(("a", "b"), namespace=local) as several:
        a = several["a"]
        await a.host.begin(FLOW)
        await _held(a)
        for cluster in several.clusters.values():
            await cluster.host.namespaces.change(
                GLOBAL_NAMESPACE.id, lambda now: msgspec.structs.replace(now, is_global=True)
            )
        await several.fail_over(1)
        await several.fail_over(2)
        assert a.state(FLOW).live.buffered == []
        assert a.state(FLOW).versions.to_pairs() == ((3, 0), (5, 1))  # type: ignore[union-attr]
        await several.converge()
        assert await _signals(several["b"]) == {"waiting": 1}
        await check_same(several, [FLOW])


@on_virtual_time
async def test_a_run_whose_failover_fails_blocks_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Several(("a", "b")) as several:
        a, b = several["a"], several["b"]
        names = [f"flow-{number}" for number in range(5)]
        for name in names:
            await a.host.begin(name)
        await several.bring("a")
        original = task_refresh.refresh
        broken = {"flow-2"}

        def refresh(transaction: Transaction) -> None:
            if transaction.state.identity.workflow_id in broken:
                raise RuntimeError("it is broken")
            original(transaction)

        monkeypatch.setattr(failover, "refresh", refresh)
        for cluster in several.clusters.values():
            await cluster.host.namespaces.change(GLOBAL_NAMESPACE.id, moved_to_b)
        await asyncio.sleep(100)
        taken = set()
        for _ in range(4):
            task = await b.host.poll()
            assert task is not None
            taken.add(task.workflow_execution.workflow_id)
            await b.host.respond(task, [complete()])
        assert taken == {*names} - broken
        broken.clear()
        await b.settle()
        task = await b.host.poll()
        assert task is not None
        assert task.workflow_execution.workflow_id == "flow-2"


def moved_to_b(namespace: Namespace) -> Namespace:
    return msgspec.structs.replace(namespace, failover_version=2, active_cluster="b")
