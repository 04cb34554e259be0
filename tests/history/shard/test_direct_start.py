"""A workflow task for which a poll waits is started in the step that schedules it, in one commit, exactly once."""

import asyncio
from collections.abc import Callable

import pytest
from temporalio.api.workflowservice.v1 import PollWorkflowTaskQueueResponse, RespondActivityTaskCompletedRequest

from fairlead.core.partitions import TaskQueueId, TaskType
from fairlead.history.shard.queues import TRANSFER
from fairlead.history.state.tasks import PushWorkflowTask
from fairlead.matching.messages import QueueKind
from fairlead.storage.tasks import StoreUnavailable
from tests.history.shard_world import NAMESPACE, OneHost, World, complete, kinds, schedule_activity
from tests.virtual_time import on_virtual_time

STARTED = ["WORKFLOW_EXECUTION_STARTED", "WORKFLOW_TASK_SCHEDULED", "WORKFLOW_TASK_STARTED"]


def _count_commits(world: World) -> Callable[[], int]:
    commits = 0

    async def count(operation: str) -> None:
        nonlocal commits
        commits += operation == "commit"

    world.faults.on_before = count
    return lambda: commits


async def _waiting_poll(host: OneHost) -> "asyncio.Task[PollWorkflowTaskQueueResponse | None]":
    polling = asyncio.create_task(host.poll())
    # The first poll of a task queue loads its partition, and learns its configuration within a second.
    await asyncio.sleep(2)
    return polling


@on_virtual_time
async def test_a_start_for_which_a_poll_waits_takes_one_commit_and_no_transfer_task() -> None:
    world = World()
    host = await world.start()
    polling = asyncio.create_task(host.poll())
    await asyncio.sleep(2)
    commits = _count_commits(world)
    await host.begin("one")
    assert commits() == 1
    task = await polling
    assert task is not None
    assert task.workflow_execution.workflow_id == "one"
    assert kinds(task.history.events) == STARTED
    assert task.history.events[2].workflow_task_started_event_attributes.history_size_bytes > 0
    assert not [row for row in await world.stored_rows(TRANSFER) if isinstance(row.task, PushWorkflowTask)]
    await host.respond(task, [complete()])
    assert kinds(await host.events("one"))[-1] == "WORKFLOW_EXECUTION_COMPLETED"
    await world.close()


@on_virtual_time
async def test_without_a_waiting_poll_the_task_is_added_to_matching() -> None:
    world = World()
    host = await world.start()
    await host.begin("one")
    task = await host.poll()
    assert task is not None
    assert kinds(task.history.events) == STARTED
    await world.close()


@on_virtual_time
async def test_the_poll_continues_to_wait_if_the_commit_fails() -> None:
    world = World()
    host = await world.start()
    polling = await _waiting_poll(host)
    world.faults.fail_once("commit", StoreUnavailable("the disk is full: nothing was changed"))
    with pytest.raises(StoreUnavailable):
        await host.begin("one")
    await asyncio.sleep(1)
    assert not polling.done()
    await host.begin("two")
    task = await polling
    assert task is not None
    assert task.workflow_execution.workflow_id == "two"
    await world.close()


@on_virtual_time
async def test_the_worker_gets_the_task_of_a_caller_that_was_cancelled_during_the_commit() -> None:
    world = World()
    host = await world.start()
    polling = await _waiting_poll(host)
    has_come, goes_on = world.faults.hold("commit")
    starting = asyncio.create_task(host.begin("one"))
    await has_come.wait()
    starting.cancel()
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await starting
    task = await polling
    assert task is not None
    assert task.workflow_execution.workflow_id == "one"
    await world.close()


@on_virtual_time
async def test_a_task_whose_poll_has_ended_times_out_and_another_worker_gets_it() -> None:
    world = World()
    host = await world.start()
    polling = await _waiting_poll(host)
    has_come, goes_on = world.faults.hold("commit")
    starting = asyncio.create_task(host.begin("one"))
    await has_come.wait()
    polling.cancel()
    goes_on.set()
    await starting
    task = await host.poll()
    assert task is not None
    assert task.attempt == 2
    await host.respond(task, [complete()])
    await world.close()


@on_virtual_time
async def test_a_completed_activity_starts_the_next_workflow_task_for_a_sticky_poll_in_the_same_commit() -> None:
    world = World()
    host = await world.start()
    await host.begin("one")
    task = await host.poll()
    assert task is not None
    sticky = TaskQueueId(NAMESPACE.id, "sticky", TaskType.WORKFLOW)
    polling = asyncio.create_task(host.matching.poll(sticky, "worker", timeout_s=60, kind=QueueKind.STICKY))
    await asyncio.sleep(1)
    await host.respond(
        task,
        [schedule_activity()],
        sticky_attributes={
            "worker_task_queue": {"name": "sticky"},
            "schedule_to_start_timeout": {"seconds": 5},
        },
    )
    activity = await host.poll_activity()
    assert activity is not None
    commits = _count_commits(world)
    await host.call(
        "RespondActivityTaskCompleted", "one", RespondActivityTaskCompletedRequest(task_token=activity.task_token)
    )
    assert commits() == 1
    answer = await polling
    assert answer.task is not None
    assert not [row for row in await world.stored_rows(TRANSFER) if _is_push_to(row.task, "sticky")]
    await world.close()


def _is_push_to(task: object, task_queue: str) -> bool:
    return isinstance(task, PushWorkflowTask) and task.task_queue == task_queue


@on_virtual_time
async def test_a_workflow_id_in_use_is_found_by_the_commit_and_its_poll_continues_to_wait() -> None:
    world = World()
    host = await world.start()
    await host.begin("one", "first-request")
    host.shard.current_runs._rows.clear()
    again = await host.begin("one", "first-request")
    current = world.current("one")
    assert current is not None
    assert again == current.run_id
    assert len(world.runs_of("one")) == 1
    await world.close()
