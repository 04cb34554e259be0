"""Helpers that run batch jobs on a server, and workflows for these jobs."""

import asyncio
import time
from typing import Any

from temporalio.api.batch.v1 import BatchOperationTermination
from temporalio.api.enums.v1 import BatchOperationState
from temporalio.api.workflowservice.v1 import (
    DescribeBatchOperationRequest,
    DescribeBatchOperationResponse,
    ListBatchOperationsRequest,
    ListBatchOperationsResponse,
    StartBatchOperationRequest,
    StopBatchOperationRequest,
)
from temporalio.client import Client

from tests.patience import PATIENCE_S

NAMESPACE = "default"
RUNNING = BatchOperationState.BATCH_OPERATION_STATE_RUNNING
COMPLETED = BatchOperationState.BATCH_OPERATION_STATE_COMPLETED
FAILED = BatchOperationState.BATCH_OPERATION_STATE_FAILED
END_S_MAX = PATIENCE_S


async def start_many(client: Client, count: int, prefix: str = "w") -> list[str]:
    """Start `count` workflows that have no worker."""
    ids = [f"{prefix}-{number}" for number in range(count)]
    for workflow_id in ids:
        await client.start_workflow("Nobody", id=workflow_id, task_queue="nobody")
    return ids


async def begin(client: Client, job_id: str, **fields: Any) -> None:
    """Start a job; by default it terminates workflows."""
    if not any(name.endswith("_operation") for name in fields):
        fields["termination_operation"] = BatchOperationTermination(identity="operator")
    request = StartBatchOperationRequest(namespace=NAMESPACE, job_id=job_id, reason="because", **fields)
    await client.workflow_service.start_batch_operation(request)


async def describe(client: Client, job_id: str) -> DescribeBatchOperationResponse:
    request = DescribeBatchOperationRequest(namespace=NAMESPACE, job_id=job_id)
    return await client.workflow_service.describe_batch_operation(request)


async def stop(client: Client, job_id: str) -> None:
    request = StopBatchOperationRequest(namespace=NAMESPACE, job_id=job_id, reason="enough", identity="operator")
    await client.workflow_service.stop_batch_operation(request)


async def jobs(client: Client, **fields: Any) -> ListBatchOperationsResponse:
    request = ListBatchOperationsRequest(namespace=NAMESPACE, **fields)
    return await client.workflow_service.list_batch_operations(request)


async def ended(client: Client, job_id: str) -> DescribeBatchOperationResponse:
    """Wait for the end of a job; return its description."""
    end_s = time.monotonic() + END_S_MAX
    while True:
        answer = await describe(client, job_id)
        if answer.state != RUNNING:
            return answer
        assert time.monotonic() < end_s, answer
        await asyncio.sleep(0.02)


async def run(client: Client, job_id: str, **fields: Any) -> DescribeBatchOperationResponse:
    """Start a job and wait for its end; return its description."""
    await begin(client, job_id, **fields)
    return await ended(client, job_id)


def counts(answer: DescribeBatchOperationResponse) -> tuple[int, int, int]:
    """Total, complete and failed."""
    return answer.total_operation_count, answer.complete_operation_count, answer.failure_operation_count


async def statuses(client: Client, query: str = "") -> dict[str, str]:
    """By workflow id: the status of each run that the query finds."""
    return {each.id: each.status.name if each.status else "" async for each in client.list_workflows(query)}
