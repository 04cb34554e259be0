"""Handlers of the history service for batch jobs, and their execution.

A job is executed page by page. The targets of a page are stored before they are processed, with the counts of the
previous pages. If another host takes over the job, it continues with the stored page.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from math import ceil

import msgspec
from google.protobuf.message import Message
from temporalio.api.common.v1 import Execution
from temporalio.api.enums.v1 import BatchOperationState
from temporalio.api.workflowservice.v1 import (
    DescribeBatchOperationRequest,
    DescribeBatchOperationResponse,
    StartBatchOperationRequest,
    StartBatchOperationResponse,
    StopBatchOperationRequest,
    StopBatchOperationResponse,
)

from fairlead.aio.backoff import Backoff
from fairlead.api.batch_jobs import ARCHETYPE, WORKFLOW, kind_of
from fairlead.api.entity_namespaces import entity_namespace_id
from fairlead.api.error_details import already_started
from fairlead.api.errors import ApiError, Gone, NotFound
from fairlead.api.times import SECOND_NS, to_timestamp
from fairlead.core.errors import FairleadError, RetryElsewhere, RetryLater
from fairlead.history.entities import entity
from fairlead.history.entities.batch_jobs.actions import act
from fairlead.history.entities.batch_jobs.kinds import identity_of
from fairlead.history.entities.batch_jobs.state import COMPLETED, FAILED, RUNNING, BatchState, Target
from fairlead.history.entities.batch_jobs.targets import Page, finder
from fairlead.history.entities.entity import Archetype, EntityKey, EntityStep
from fairlead.history.shard.context import Operation, OperationContext
from fairlead.history.state.errors import RunClosed
from fairlead.storage.history_conflicts import CurrentConflict
from fairlead.storage.visibility import BadSearch, VisibilityRow
from fairlead.telemetry import get_log

# Maximum operations per second and in parallel: the defaults of Temporal's `worker.BatcherRPS` and
# `worker.BatcherConcurrency`.
OPERATIONS_PER_S_MAX = 50.0
CONCURRENT_MAX = 5
ATTEMPTS_MAX = 5
RETRY_FIRST_S, RETRY_S_MAX = 0.1, 1.0

_DELETE = b"delete"

_log = get_log("history.batches")


class PageRef(msgspec.Struct, array_like=True, frozen=True):
    """The page of a job to process."""

    number: int


async def start(context: OperationContext, request: StartBatchOperationRequest) -> Message:
    """Start a job. A job id can be used only once."""
    run_id = context.services.new_id()
    state = BatchState(request.SerializeToString(), started_ns=context.services.clock_ns())
    try:
        await entity.create(
            context,
            BATCH,
            request.job_id,
            run_id,
            state,
            row=_row(context, request.job_id, run_id, state),
            tasks=[(_page_task(0), 0)],
            replace_closed=False,
        )
    except CurrentConflict as conflict:
        present = conflict.present
        if present is None:
            raise
        how = (
            "already finished. WorkflowId: {}, RunId: {}. Workflow Id reuse policy: reject duplicate workflow Id."
            if present.is_closed
            else "is already running. WorkflowId: {}, RunId: {}."
        )
        raise already_started(
            f"Workflow execution {how.format(request.job_id, present.run_id)}",
            request_id=present.request_id,
            run_id=present.run_id,
        ) from None
    return StartBatchOperationResponse()


async def stop(context: OperationContext, request: StopBatchOperationRequest) -> Message:
    """Stop a job after the current page."""
    run_id, _state = await _read(context, request.job_id)

    def step(job: EntityStep[BatchState]) -> None:
        if job.state.status != RUNNING:
            raise RunClosed
        _close(context, request.job_id, run_id, job, FAILED)

    await entity.change(context, BATCH, request.job_id, run_id, step)
    return StopBatchOperationResponse()


async def describe(context: OperationContext, request: DescribeBatchOperationRequest) -> Message:
    """Describe a job's progress."""
    _run_id, state = await _read(context, request.job_id)
    asked = StartBatchOperationRequest.FromString(state.request)
    answer = DescribeBatchOperationResponse(
        operation_type=kind_of(asked).type,
        job_id=request.job_id,
        state=BatchOperationState.ValueType(state.status),
        start_time=to_timestamp(state.started_ns),
        total_operation_count=state.total,
        complete_operation_count=state.complete,
        failure_operation_count=state.failures,
        identity=identity_of(asked),
        reason=asked.reason,
        query=asked.visibility_query,
        executions=[
            Execution(type=WORKFLOW, business_id=named.workflow_id, run_id=named.run_id) for named in asked.executions
        ],
    )
    answer.executions.extend(asked.target_executions)
    if state.closed_ns:
        answer.close_time.CopyFrom(to_timestamp(state.closed_ns))
    return answer


async def run(context: OperationContext, key: EntityKey, data: bytes) -> None:
    """Process a page, or delete the job after the namespace's retention."""
    if data == _DELETE:
        await entity.delete(context, BATCH, key.entity_id, key.run_id)
        return
    number = msgspec.msgpack.decode(data, type=PageRef).number
    _, state = await entity.read(context, BATCH, key.entity_id, key.run_id)
    if state.status != RUNNING or state.pages != number:
        return
    request = StartBatchOperationRequest.FromString(state.request)
    began_ns = context.services.clock_ns()
    failures = await _work_through(context, key.entity_id, request, state.page)
    try:
        found = finder(context, request, state.started_ns)
        total = state.total if state.is_begun else await found.count()
        page = None if state.is_last else await found.next_page(state, _page_size(request))
    except (BadSearch, ApiError) as wrong:
        _log.warning("batch job failed", job=key.entity_id, namespace=context.namespace.name, error=str(wrong))
        await _fail(context, key)
        return
    due_ns = began_ns + int(len(state.page) / _per_s(request) * SECOND_NS) if state.page else 0

    def step(job: EntityStep[BatchState]) -> None:
        if job.state.status != RUNNING or job.state.pages != number:
            job.skip_write = True
            return
        _count(job.state, failures)
        job.state.is_begun = True
        job.state.total = total
        if page is None or not page.targets:
            _close(context, key.entity_id, key.run_id, job, COMPLETED)
        else:
            _turn_to(job.state, page)
            job.add_task(_page_task(job.state.pages), due_ns)

    await entity.change(context, BATCH, key.entity_id, key.run_id, step)


def _count(state: BatchState, failures: int) -> None:
    state.complete += len(state.page) - failures
    state.failures += failures
    state.pages += 1
    state.page = []


def _turn_to(state: BatchState, page: Page) -> None:
    state.page = page.targets
    state.after = page.after
    state.taken = page.taken
    state.is_last = page.is_last


async def _fail(context: OperationContext, key: EntityKey) -> None:
    def step(job: EntityStep[BatchState]) -> None:
        if job.state.status == RUNNING:
            _close(context, key.entity_id, key.run_id, job, FAILED)
        else:
            job.skip_write = True

    await entity.change(context, BATCH, key.entity_id, key.run_id, step)


def _close(context: OperationContext, job_id: str, run_id: str, job: EntityStep[BatchState], status: int) -> None:
    """Close the job; it can be listed and described until the namespace's retention is over."""
    state = job.state
    state.status = job.status = status
    state.closed_ns = job.now_ns
    job.row = _row(context, job_id, run_id, state)
    job.add_task(_DELETE, job.now_ns + context.namespace.retention_ns)


async def _work_through(
    context: OperationContext, job_id: str, request: StartBatchOperationRequest, targets: Sequence[Target]
) -> int:
    """Apply the operation to every target of a page; return the number of failures."""
    slots = asyncio.Semaphore(CONCURRENT_MAX)

    async def one(target: Target) -> bool:
        async with slots:
            return await _succeeds(act(context, job_id, request, target), context, job_id, request, target)

    done = await asyncio.gather(*(one(target) for target in targets))
    return done.count(False)


async def _succeeds(
    first: Awaitable[None], context: OperationContext, job_id: str, request: StartBatchOperationRequest, target: Target
) -> bool:
    """Whether the operation succeeded, if necessary after a few retries.

    If the target is closed or doesn't exist, that counts as success.
    """
    attempt, going = first, 1
    backoff = Backoff(RETRY_FIRST_S, RETRY_S_MAX, random=context.services.uniform)
    while True:
        try:
            await attempt
        except (NotFound, Gone):
            return True
        except FairleadError as failure:
            problem, is_worth_it = failure, isinstance(failure, RetryLater | RetryElsewhere)
        else:
            return True
        if not is_worth_it or going >= ATTEMPTS_MAX:
            _log.warning(
                "batch operation failed", job=job_id, workflow_id=target.id, run_id=target.run_id, error=str(problem)
            )
            return False
        await asyncio.sleep(backoff.next_s())
        attempt, going = act(context, job_id, request, target), going + 1


def _per_s(request: StartBatchOperationRequest) -> float:
    asked = request.max_operations_per_second
    return asked if 0 < asked <= OPERATIONS_PER_S_MAX else OPERATIONS_PER_S_MAX


def _page_size(request: StartBatchOperationRequest) -> int:
    """Number of targets in a page: the operations of one second. The next page waits until the second is over."""
    return max(1, ceil(_per_s(request)))


def _page_task(number: int) -> bytes:
    return msgspec.msgpack.encode(PageRef(number))


async def _read(context: OperationContext, job_id: str) -> tuple[str, BatchState]:
    try:
        return await entity.read(context, BATCH, job_id)
    except NotFound:
        raise NotFound(f"workflow not found for ID: {job_id}") from None


def _row(context: OperationContext, job_id: str, run_id: str, state: BatchState) -> VisibilityRow:
    """The visibility row of the job; the operation's type is in the column for the workflow type."""
    kind = kind_of(StartBatchOperationRequest.FromString(state.request))
    return VisibilityRow(
        entity_namespace_id(context.namespace.id, ARCHETYPE),
        run_id,
        job_id,
        str(int(kind.type)),
        state.status,
        state.started_ns,
        state.started_ns,
        "",
        close_time_ns=state.closed_ns or None,
        execution_duration_ns=state.closed_ns - state.started_ns if state.closed_ns else None,
    )


def is_pending(state: BatchState, data: bytes, _fire_at_ns: int) -> bool:
    """Whether a timer will have an effect; the deletion of a finished job does not count."""
    return data != _DELETE and state.status == RUNNING


BATCH = entity.register(Archetype(ARCHETYPE, BatchState, run, is_pending))

OPERATIONS = {
    "StartBatchOperation": Operation(StartBatchOperationRequest, start),
    "StopBatchOperation": Operation(StopBatchOperationRequest, stop),
    "DescribeBatchOperation": Operation(DescribeBatchOperationRequest, describe),
}
