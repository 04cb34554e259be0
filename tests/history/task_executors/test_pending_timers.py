"""Timers that have no effect any more are dropped without an executor; all others are executed."""

import asyncio
from collections import Counter

import pytest
from temporalio.api.workflowservice.v1 import RespondActivityTaskCompletedRequest

from fairlead.history import task_executors
from fairlead.history.shard.queue import DELETE_INTERVAL_S
from fairlead.history.state import tasks
from tests.history.shard_world import OneHost, World, complete, kinds, schedule_activity
from tests.virtual_time import on_virtual_time

# Seconds after which all timeouts of the tests have fired.
ALL_TIMEOUTS_S = 120
# The activity's other timeouts are a day.
NOT_YET_DUE = ["ActivityTimeout", "ActivityTimeout", "DeleteAfterRetention"]


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> Counter[type[tasks.Task]]:
    """Number of executed tasks by type."""
    counts: Counter[type[tasks.Task]] = Counter()
    for kind, executor in task_executors.TASK_EXECUTORS.items():

        async def execute(*arguments: object, kind: type[tasks.Task] = kind, executor: object = executor) -> None:
            counts[kind] += 1
            await executor(*arguments)  # type: ignore[operator]

        monkeypatch.setitem(task_executors.TASK_EXECUTORS, kind, execute)
    return counts


async def _run_workflow(host: OneHost) -> None:
    """A workflow with one activity, completed in time."""
    await host.begin("one")
    task = await host.poll()
    assert task is not None
    await host.respond(task, [schedule_activity()])
    activity = await host.poll_activity()
    assert activity is not None
    request = RespondActivityTaskCompletedRequest(task_token=activity.task_token, identity="worker")
    await host.call("RespondActivityTaskCompleted", "one", request)
    task = await host.poll()
    assert task is not None
    await host.respond(task, [complete()])


async def _timers_left(world: World) -> list[str]:
    return [type(row.task).__name__ for row in await world.stored_rows("timer")]


@on_virtual_time
async def test_timeouts_of_an_ended_workflow_are_dropped_without_being_executed(
    executed: Counter[type[tasks.Task]],
) -> None:
    world = World()
    host = await world.start()
    await _run_workflow(host)
    left = ["ActivityTimeout", "WorkflowTaskTimeout", "WorkflowTaskTimeout"]
    assert sorted(await _timers_left(world)) == sorted([*NOT_YET_DUE, *left])

    await asyncio.sleep(ALL_TIMEOUTS_S)

    assert executed[tasks.WorkflowTaskTimeout] == executed[tasks.ActivityTimeout] == 0
    assert sorted(await _timers_left(world)) == NOT_YET_DUE
    await world.close()


@on_virtual_time
async def test_timeouts_of_a_run_that_is_not_in_memory_are_executed_and_do_nothing(
    executed: Counter[type[tasks.Task]],
) -> None:
    world = World()
    host = await world.start()
    await _run_workflow(host)
    # The transfer tasks of the closed run read it once more.
    await asyncio.sleep(1)
    host.shard.runs.clear()

    await asyncio.sleep(ALL_TIMEOUTS_S)

    # The first of them loads the run.
    assert (executed[tasks.ActivityTimeout], executed[tasks.WorkflowTaskTimeout]) == (1, 0)
    assert sorted(await _timers_left(world)) == NOT_YET_DUE
    await world.close()


@on_virtual_time
async def test_the_timeout_of_a_pending_task_is_executed(executed: Counter[type[tasks.Task]]) -> None:
    world = World()
    host = await world.start()
    await host.begin("one")
    assert await host.poll() is not None

    await asyncio.sleep(ALL_TIMEOUTS_S)

    assert executed[tasks.WorkflowTaskTimeout] == 1
    assert "WORKFLOW_TASK_TIMED_OUT" in kinds(await host.events("one"))
    await world.close()


@on_virtual_time
async def test_a_timeout_that_is_due_during_a_step_is_decided_after_the_step(
    executed: Counter[type[tasks.Task]],
) -> None:
    world = World()
    host = await world.start()
    await host.begin("one")
    task = await host.poll()
    assert task is not None
    has_come, goes_on = world.faults.hold("commit")
    responding = asyncio.create_task(host.respond(task, [complete()]))
    await has_come.wait()
    # The worker's response is in memory, but not written, when the timeout of its task is due.
    await asyncio.sleep(ALL_TIMEOUTS_S)
    assert executed[tasks.WorkflowTaskTimeout] == 1
    goes_on.set()
    await responding
    await asyncio.sleep(DELETE_INTERVAL_S + 1)
    assert await _timers_left(world) == ["DeleteAfterRetention"]
    await world.close()
