"""What the history service is asked for about batch jobs, and how it works through them.

A job is worked through page by page. The targets of a page are written before they are worked on, with the counts of
the page before: a job that another host takes up goes on with that page.
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

from fairlead.core.errors import FairleadError, GiveUp, RetryElsewhere, RetryLater
from fairlead.history import entities
from fairlead.history.batches.actions import act
from fairlead.history.batches.finding import Page, finder
from fairlead.history.batches.kinds import WORKFLOW, identity_of, kind_of
from fairlead.history.batches.state import ARCHETYPE, COMPLETED, FAILED, RUNNING, BatchState, Target
from fairlead.history.entities import Archetype, EntityKey, EntityStep
from fairlead.history.refusals import Refused, already_started, not_found
from fairlead.history.scope import Operation, Scope
from fairlead.history.state.errors import NotPending, RunClosed
from fairlead.history.state.times import SECOND_NS, to_timestamp
from fairlead.rpc import Code
from fairlead.storage.history_contract import CurrentConflict
from fairlead.storage.history_visibility import BadSearch, VisibilityRow
from fairlead.telemetry import get_log

# Temporal's `worker.BatcherRPS` and `worker.BatcherConcurrency`: who asks for more operations in a second gets this.
OPERATIONS_PER_S_MAX = 50.0
CONCURRENT_MAX = 5
ATTEMPTS_MAX = 5
RETRY_FIRST_S = 0.1

_DELETE = b"delete"
_WORTH_ANOTHER_TRY = (Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED, Code.DEADLINE_EXCEEDED, Code.ABORTED)

_log = get_log("history.batches")


class PageRef(msgspec.Struct, array_like=True, frozen=True):
    """Which page of a job is to be worked through."""

    number: int


async def start(scope: Scope, request: StartBatchOperationRequest) -> Message:
    """Begin a job. Its id is used once."""
    run_id = scope.services.new_id()
    state = BatchState(request.SerializeToString(), started_ns=scope.services.clock_ns())
    try:
        await entities.create(
            scope,
            BATCH,
            request.job_id,
            run_id,
            state,
            row=_row(scope, request.job_id, run_id, state),
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


async def stop(scope: Scope, request: StopBatchOperationRequest) -> Message:
    """Let a job do no more than the page it is at."""
    run_id, _state = await _read(scope, request.job_id)

    def step(job: EntityStep[BatchState]) -> None:
        if job.state.status != RUNNING:
            raise RunClosed
        _close(scope, request.job_id, run_id, job, FAILED)

    await entities.change(scope, BATCH, request.job_id, run_id, step)
    return StopBatchOperationResponse()


async def describe(scope: Scope, request: DescribeBatchOperationRequest) -> Message:
    """How far a job has come."""
    _run_id, state = await _read(scope, request.job_id)
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


async def run(scope: Scope, key: EntityKey, data: bytes) -> None:
    """Work through a page, or delete the job when the namespace's retention is over."""
    if data == _DELETE:
        await entities.delete(scope, BATCH, key.entity_id, key.run_id)
        return
    number = msgspec.msgpack.decode(data, type=PageRef).number
    _, state = await entities.read(scope, BATCH, key.entity_id, key.run_id)
    if state.status != RUNNING or state.pages != number:
        return
    request = StartBatchOperationRequest.FromString(state.request)
    began_ns = scope.services.clock_ns()
    failures = await _work_through(scope, key.entity_id, request, state.page)
    try:
        found = finder(scope, request, state.started_ns)
        total = state.total if state.is_begun else await found.count()
        page = None if state.is_last else await found.next_page(state, _page_size(request))
    except (BadSearch, Refused) as wrong:
        _log.warning("batch job can't go on", job=key.entity_id, namespace=scope.namespace.name, error=str(wrong))
        await _fail(scope, key)
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
            _close(scope, key.entity_id, key.run_id, job, COMPLETED)
        else:
            _turn_to(job.state, page)
            job.add_task(_page_task(job.state.pages), due_ns)

    await entities.change(scope, BATCH, key.entity_id, key.run_id, step)


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


async def _fail(scope: Scope, key: EntityKey) -> None:
    def step(job: EntityStep[BatchState]) -> None:
        if job.state.status == RUNNING:
            _close(scope, key.entity_id, key.run_id, job, FAILED)
        else:
            job.skip_write = True

    await entities.change(scope, BATCH, key.entity_id, key.run_id, step)


def _close(scope: Scope, job_id: str, run_id: str, job: EntityStep[BatchState], status: int) -> None:
    """The job is over; it can be looked at for as long as the namespace's closed workflows can."""
    state = job.state
    state.status = job.status = status
    state.closed_ns = job.now_ns
    job.row = _row(scope, job_id, run_id, state)
    job.add_task(_DELETE, job.now_ns + scope.namespace.retention_ns)


async def _work_through(
    scope: Scope, job_id: str, request: StartBatchOperationRequest, targets: Sequence[Target]
) -> int:
    """Do the operation to every target of a page; how many failed."""
    slots = asyncio.Semaphore(CONCURRENT_MAX)

    async def one(target: Target) -> bool:
        async with slots:
            return await _succeeds(act(scope, job_id, request, target), scope, job_id, request, target)

    done = await asyncio.gather(*(one(target) for target in targets))
    return done.count(False)


async def _succeeds(
    first: Awaitable[None], scope: Scope, job_id: str, request: StartBatchOperationRequest, target: Target
) -> bool:
    """Whether it is done, after a few attempts if need be. What is gone or closed needs nothing done to it."""
    attempt, going = first, 1
    while True:
        try:
            await attempt
        except (RunClosed, NotPending):
            return True
        except Refused as refused:
            if refused.code == Code.NOT_FOUND:
                return True
            problem: FairleadError = refused
            is_worth_it = refused.code in _WORTH_ANOTHER_TRY
        except GiveUp as failure:
            problem, is_worth_it = failure, False
        except FairleadError as failure:
            problem, is_worth_it = failure, isinstance(failure, RetryLater | RetryElsewhere)
        else:
            return True
        if not is_worth_it or going >= ATTEMPTS_MAX:
            _log.warning(
                "batch operation failed", job=job_id, workflow_id=target.id, run_id=target.run_id, error=str(problem)
            )
            return False
        await asyncio.sleep(RETRY_FIRST_S * 2 ** (going - 1))
        attempt, going = act(scope, job_id, request, target), going + 1


def _per_s(request: StartBatchOperationRequest) -> float:
    asked = request.max_operations_per_second
    return asked if 0 < asked <= OPERATIONS_PER_S_MAX else OPERATIONS_PER_S_MAX


def _page_size(request: StartBatchOperationRequest) -> int:
    """As many as may be done in a second: all of them at once, and then no more until that second is over."""
    return max(1, ceil(_per_s(request)))


def _page_task(number: int) -> bytes:
    return msgspec.msgpack.encode(PageRef(number))


async def _read(scope: Scope, job_id: str) -> tuple[str, BatchState]:
    try:
        return await entities.read(scope, BATCH, job_id)
    except Refused as refused:
        raise not_found(f"workflow not found for ID: {job_id}") if refused.code == Code.NOT_FOUND else refused from None


def _row(scope: Scope, job_id: str, run_id: str, state: BatchState) -> VisibilityRow:
    """What lists say about the job: its operation stands where a workflow's type does."""
    kind = kind_of(StartBatchOperationRequest.FromString(state.request))
    return VisibilityRow(
        f"{scope.namespace.id}#{ARCHETYPE}",
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


BATCH = entities.register(Archetype(ARCHETYPE, BatchState, run))

OPERATIONS = {
    "StartBatchOperation": Operation(StartBatchOperationRequest, start),
    "StopBatchOperation": Operation(StopBatchOperationRequest, stop),
    "DescribeBatchOperation": Operation(DescribeBatchOperationRequest, describe),
}
