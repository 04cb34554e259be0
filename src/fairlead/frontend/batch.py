"""Batch jobs: what a request must be, then the history service works through it; lists come from the store."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec
from google.protobuf.message import Message
from temporalio.api.enums.v1 import (
    BatchOperationState,
    BatchOperationType,
    ExecutionType,
    ResetType,
    ResourceExhaustedCause,
)
from temporalio.api.workflowservice.v1 import ListBatchOperationsResponse

from fairlead.frontend.checks import blob_size_max, check_length, check_run_id
from fairlead.history.batches.finding import where_of
from fairlead.history.batches.kinds import kind_of
from fairlead.history.batches.state import ARCHETYPE
from fairlead.history.refusals import Refused, exhausted, invalid, not_found
from fairlead.history.state.times import to_timestamp
from fairlead.settings import Scope
from fairlead.settings.limits import MAX_CONCURRENT_BATCH_OPERATIONS
from fairlead.storage.history_visibility import INT64_MAX, LATEST_FIRST, BadSearch, Column, IsNull, cursor_of

if TYPE_CHECKING:
    import temporalio.api.workflowservice.v1 as api

    from fairlead.frontend.context import Frontend, Handler
    from fairlead.history.namespaces import Namespace
    from fairlead.rpc import Call

PAGE_ROWS_MAX: Final = 1000
TOKEN_BYTES_MAX: Final = 4096
_REQUIRED: Final = (
    "must provide required parameters: BatchType,Reason,Namespace, AND one of (Query OR Executions OR TargetExecutions)"
)
_RESET_TYPES: Final = (ResetType.RESET_TYPE_FIRST_WORKFLOW_TASK, ResetType.RESET_TYPE_LAST_WORKFLOW_TASK)
_MALFORMED: Final = re.compile(r"invalid query: malformed SQL query: syntax error at position (\d+)(.*)", re.DOTALL)

DIFFERENCES = (
    "A batch job's max_operations_per_second holds for small jobs too, and may be below 1.",
    "What a batch job terminates or cancels says who asked for the job, and a cancellation says why.",
    "A batch job that was stopped still says how many operations were done.",
    "A batch operation that is refused for good is not tried again before it counts as failed.",
)


class PageToken(msgspec.Struct, array_like=True, frozen=True):
    """Where a page of the list of jobs ended."""

    close_time_ns: int
    start_time_ns: int
    run_id: str


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(PageToken).decode


async def start(frontend: Frontend, request: api.StartBatchOperationRequest, _: Call) -> bytes:
    """Begin a job."""
    namespace = await frontend.namespaces.find(request.namespace)
    _check_job_id(request.job_id)
    _check_targets(request)
    _check_operation(request)
    check_length(frontend, request.job_id, "WorkflowId exceeds length limit.")
    if "\0" in request.job_id:
        raise invalid("JobId has a character of code 0: leave it out.")
    if request.ByteSize() > blob_size_max(frontend, namespace):
        raise invalid("Blob data size exceeds limit.")
    if request.visibility_query:
        _check_query(namespace, request)
    await _check_room(frontend, namespace)
    return await frontend.history.call("StartBatchOperation", namespace.id, request.job_id, request)


async def stop(frontend: Frontend, request: api.StopBatchOperationRequest, _: Call) -> bytes:
    """Let a job do no more."""
    namespace = await frontend.namespaces.find(request.namespace)
    _check_job_id(request.job_id)
    if not request.reason:
        raise invalid("Reason is not set on request.")
    _check_known(request.job_id)
    return await frontend.history.call("StopBatchOperation", namespace.id, request.job_id, request)


async def describe(frontend: Frontend, request: api.DescribeBatchOperationRequest, _: Call) -> bytes:
    """How far a job has come."""
    namespace = await frontend.namespaces.find(request.namespace)
    _check_job_id(request.job_id)
    _check_known(request.job_id)
    return await frontend.history.call("DescribeBatchOperation", namespace.id, request.job_id, request)


async def list_jobs(frontend: Frontend, request: api.ListBatchOperationsRequest, _: Call) -> Message:
    """All jobs, those that run first and then the last closed."""
    namespace = await frontend.namespaces.find(request.namespace)
    wanted = request.page_size
    limit = wanted if 0 < wanted <= PAGE_ROWS_MAX else PAGE_ROWS_MAX
    after = _place(request.next_page_token) if request.next_page_token else None
    # One more, to know whether there is another page.
    rows = await frontend.store.list_visibility(_rows_of(namespace), None, after=after, limit=limit + 1)
    answer = ListBatchOperationsResponse()
    for row in rows[:limit]:
        info = answer.operation_info.add(
            job_id=row.workflow_id,
            state=BatchOperationState.ValueType(row.status),
            start_time=to_timestamp(row.start_time_ns),
            operation_type=BatchOperationType.ValueType(int(row.workflow_type)),
        )
        if row.close_time_ns is not None:
            info.close_time.CopyFrom(to_timestamp(row.close_time_ns))
    if len(rows) > limit:
        answer.next_page_token = _encode(cursor_of(rows[limit - 1], LATEST_FIRST))
    return answer


def _rows_of(namespace: Namespace) -> str:
    return f"{namespace.id}#{ARCHETYPE}"


def _check_job_id(job_id: str) -> None:
    if not job_id:
        raise invalid("JobId is not set on request.")


def _check_known(job_id: str) -> None:
    if "\0" in job_id:
        # No store has such an id, and not every store can be asked for it.
        raise not_found(f"workflow not found for ID: {job_id}")


def _check_targets(request: api.StartBatchOperationRequest) -> None:
    """One of three ways to say what the job is for, and all that can be known to be wrong with it."""
    ways = [bool(request.visibility_query), bool(request.executions), bool(request.target_executions)]
    if sum(ways) > 1:
        raise invalid("visibility query, executions, and target executions are mutually exclusive")
    operation = request.WhichOneof("operation")
    if operation is None or not request.reason or not any(ways):
        raise invalid(_REQUIRED)
    wanted = kind_of(request).target
    for place, execution in enumerate(request.target_executions):
        if execution.type != wanted:
            name = "".join(word.capitalize() for word in operation.split("_"))
            raise invalid(
                f"target_executions[{place}] has type {_type_name(execution.type)}, but operation "
                f"*workflowservice.StartBatchOperationRequest_{name} requires {_type_name(wanted)}"
            )
    named = [(execution.business_id, execution.run_id) for execution in request.target_executions]
    named += [(execution.workflow_id, execution.run_id) for execution in request.executions]
    for target_id, run_id in named:
        check_run_id(run_id)
        if "\0" in target_id:
            raise invalid("An execution has a character of code 0 in its id: leave it out.")


def _type_name(number: ExecutionType.ValueType) -> str:
    if number not in ExecutionType.values():
        return str(number)
    return ExecutionType.Name(number).removeprefix("EXECUTION_TYPE_").title().replace("_", "")


def _check_operation(request: api.StartBatchOperationRequest) -> None:
    """Refuse an operation that says too little to be done."""
    problem: str | None = None
    match request.WhichOneof("operation"):
        case "signal_operation":
            problem = None if request.signal_operation.signal else "must provide signal name"
        case "reset_operation":
            problem = _reset_problem(request)
        case "update_workflow_options_operation":
            wanted = request.update_workflow_options_operation
            is_whole = wanted.HasField("workflow_execution_options") and wanted.HasField("update_mask")
            problem = None if is_whole else "must provide UpdateOptions"
        case "unpause_activities_operation":
            unpause = request.unpause_activities_operation
            if unpause.WhichOneof("activity") is None:
                problem = "activity filter must be set"
            elif not unpause.type and not unpause.match_all:
                problem = "Either activity type must be set, or match all should be set to true"
        case "reset_activities_operation":
            reset = request.reset_activities_operation
            problem = None if reset.type or reset.match_all else "must provide ActivityType or MatchAll"
        case "update_activity_options_operation":
            update = request.update_activity_options_operation
            if not update.type and not update.restore_original:
                problem = "Either activity type must be set, or restore original should be set to true"
    if problem is not None:
        raise invalid(problem)


def _reset_problem(request: api.StartBatchOperationRequest) -> str | None:
    operation = request.reset_operation
    if operation.HasField("options"):
        return None if operation.options.WhichOneof("target") else "batch reset missing target"
    if operation.reset_type in _RESET_TYPES:
        return None
    known = operation.reset_type in ResetType.values()
    name = ResetType.Name(operation.reset_type).removeprefix("RESET_TYPE_") if known else str(operation.reset_type)
    return f"unknown batch reset type {name.title().replace('_', '')}"


def _check_query(namespace: Namespace, request: api.StartBatchOperationRequest) -> None:
    """Refuse what is no query. One that is, but can't be asked here, makes the job fail instead."""
    try:
        where_of(namespace, request)
    except Refused as refused:
        if str(refused).startswith("invalid visibility query"):
            raise
        malformed = _MALFORMED.fullmatch(str(refused))
        if malformed is not None:
            # Temporal's two parsers count from different places.
            position = int(malformed[1]) - 1
            raise invalid(f"invalid visibility query: syntax error at position {position}{malformed[2]}") from None
    except BadSearch:
        return


async def _check_room(frontend: Frontend, namespace: Namespace) -> None:
    """Refuse another job while there are as many as may run at a time."""
    limit = frontend.settings.get(MAX_CONCURRENT_BATCH_OPERATIONS, Scope(namespace.id))
    groups = await frontend.store.count_visibility(_rows_of(namespace), IsNull(Column.CLOSE_TIME_NS))
    if sum(group.rows for group in groups) >= limit:
        raise exhausted(
            "Max concurrent batch operations is reached",
            ResourceExhaustedCause.RESOURCE_EXHAUSTED_CAUSE_CONCURRENT_LIMIT,
        )


def _place(token: bytes) -> tuple[int, int, str]:
    """Where the list goes on."""
    try:
        decoded = _decode(token) if len(token) <= TOKEN_BYTES_MAX else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        decoded = None
    if (
        decoded is None
        or "\0" in decoded.run_id
        or max(abs(decoded.close_time_ns), abs(decoded.start_time_ns)) > INT64_MAX
    ):
        raise invalid("Invalid NextPageToken.")
    return decoded.close_time_ns, decoded.start_time_ns, decoded.run_id


METHODS: dict[str, Handler] = {
    "StartBatchOperation": start,
    "StopBatchOperation": stop,
    "DescribeBatchOperation": describe,
    "ListBatchOperations": list_jobs,
}
