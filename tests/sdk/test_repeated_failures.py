"""Workflow tasks and activities that fail every time are retried with a growing backoff, without end."""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
import pytest_asyncio
from temporalio import activity
from temporalio.api.enums.v1 import QueryResultType
from temporalio.api.enums.v1 import WorkflowTaskFailedCause as Cause
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    PollWorkflowTaskQueueRequest,
    PollWorkflowTaskQueueResponse,
    RespondQueryTaskCompletedRequest,
    RespondWorkflowTaskCompletedRequest,
    RespondWorkflowTaskFailedRequest,
)
from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.common import RetryPolicy
from temporalio.worker import Worker

from fairlead.api.retry import FREE_ATTEMPTS
from fairlead.testing import FairleadServer

NAMESPACE = "default"
# The backoff doubles from a millisecond after the free attempts, so these take about a second.
ATTEMPTS = FREE_ATTEMPTS + 10
TOOK_S_MIN = 0.9


@pytest_asyncio.fixture
async def client() -> AsyncIterator[Client]:
    async with FairleadServer.start() as server:
        yield await server.connect()


async def poll(client: Client, queue: str) -> PollWorkflowTaskQueueResponse:
    return await client.workflow_service.poll_workflow_task_queue(
        PollWorkflowTaskQueueRequest(namespace=NAMESPACE, task_queue=TaskQueue(name=queue))
    )


async def complete(client: Client, task: PollWorkflowTaskQueueResponse) -> None:
    await client.workflow_service.respond_workflow_task_completed(
        RespondWorkflowTaskCompletedRequest(namespace=NAMESPACE, task_token=task.task_token)
    )


async def fail_all(client: Client, queue: str) -> list[int]:
    """Fail the workflow tasks that come; returns their attempts."""
    attempts = []
    for _ in range(ATTEMPTS):
        task = await poll(client, queue)
        attempts.append(task.attempt)
        await client.workflow_service.respond_workflow_task_failed(
            RespondWorkflowTaskFailedRequest(
                namespace=NAMESPACE,
                task_token=task.task_token,
                cause=Cause.WORKFLOW_TASK_FAILED_CAUSE_WORKFLOW_WORKER_UNHANDLED_FAILURE,
            )
        )
    return attempts


async def test_workflow_tasks_that_fail_do_not_spin(client: Client) -> None:
    await client.start_workflow("Unknown", id="fails", task_queue="queue")
    begun_s = time.monotonic()
    assert await fail_all(client, "queue") == list(range(1, ATTEMPTS + 1))
    assert time.monotonic() - begun_s >= TOOK_S_MIN


async def test_workflow_tasks_with_an_update_that_fail_do_not_spin(client: Client) -> None:
    handle = await client.start_workflow("Unknown", id="updated", task_queue="queue")
    await complete(client, await poll(client, "queue"))
    updating = asyncio.create_task(handle.execute_update("change"))
    begun_s = time.monotonic()
    await fail_all(client, "queue")
    assert time.monotonic() - begun_s >= TOOK_S_MIN
    updating.cancel()


async def test_a_query_that_fails_is_not_retried(client: Client) -> None:
    handle = await client.start_workflow("Unknown", id="queried", task_queue="queue")
    await complete(client, await poll(client, "queue"))
    querying = asyncio.create_task(handle.query("anything"))
    task = await poll(client, "queue")
    await client.workflow_service.respond_query_task_completed(
        RespondQueryTaskCompletedRequest(
            namespace=NAMESPACE,
            task_token=task.task_token,
            completed_type=QueryResultType.QUERY_RESULT_TYPE_FAILED,
            error_message="no",
        )
    )
    with pytest.raises(WorkflowQueryFailedError, match="no"):
        await querying
    # The next workflow task is for the signal.
    polling = asyncio.create_task(poll(client, "queue"))
    await handle.signal("go")
    assert not (await polling).HasField("query")


async def test_a_standalone_activity_without_a_backoff_does_not_spin(client: Client) -> None:
    attempts: list[float] = []
    enough = asyncio.Event()

    @activity.defn
    async def fails() -> None:
        attempts.append(time.monotonic())
        if len(attempts) == ATTEMPTS:
            enough.set()
        raise RuntimeError("again")

    async with Worker(client, task_queue="queue", activities=[fails]):
        moment = timedelta(microseconds=1)
        policy = RetryPolicy(initial_interval=moment, maximum_interval=moment, backoff_coefficient=1)
        handle = await client.start_activity(
            fails, id="alone", task_queue="queue", start_to_close_timeout=timedelta(minutes=1), retry_policy=policy
        )
        await enough.wait()
        await handle.terminate()
    assert attempts[-1] - attempts[0] >= TOOK_S_MIN
