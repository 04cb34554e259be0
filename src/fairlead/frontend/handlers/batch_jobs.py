"""Batch jobs: requests are validated here and executed by the history service; lists are read from the store."""

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

from fairlead.api.batch_jobs import ARCHETYPE, kind_of, where_of
from fairlead.api.entity_namespaces import entity_namespace_id
from fairlead.api.error_details import exhausted
from fairlead.api.errors import ApiError, InvalidArgument, NotFound
from fairlead.api.times import to_timestamp
from fairlead.frontend.validation.common import check_blob, check_length, check_run_id, page_rows
from fairlead.settings import Scope
from fairlead.settings.dynamic.limits import MAX_CONCURRENT_BATCH_OPERATIONS
from fairlead.storage.predicates import IsNull
from fairlead.storage.visibility import INT64_MAX, LATEST_FIRST, BadSearch, Column, cursor_of

if TYPE_CHECKING:
    import temporalio.api.workflowservice.v1 as api
    from temporalio.api.batch.v1 import BatchOperationUpdateActivityOptions

    from fairlead.api.namespaces import Namespace
    from fairlead.frontend.gateway.context import Frontend, Handler
    from fairlead.rpc import Call

TOKEN_BYTES_MAX: Final = 4096
_REQUIRED: Final = (
    "must provide required parameters: BatchType,Reason,Namespace, AND one of (Query OR Executions OR TargetExecutions)"
)
_RESET_TYPES: Final = (ResetType.RESET_TYPE_FIRST_WORKFLOW_TASK, ResetType.RESET_TYPE_LAST_WORKFLOW_TASK)
_MALFORMED: Final = re.compile(r"invalid query: malformed SQL query: syntax error at position (\d+)(.*)", re.DOTALL)

DIFFERENCES = (
    "A batch job's max_operations_per_second applies to small jobs too, and may be below 1.",
    (
        "Terminations and cancel requests of a batch job have the identity of the job's requester; cancel "
        "requests also have the reason."
    ),
    "The description of a stopped batch job still has the number of completed operations.",
    "A batch operation that fails with a permanent error counts as failed without retries.",
    (
        "A batch job that restores activity options needs no mask. One that changes them needs a mask and a "
        "selection of activities: if one is missing, Temporal's server fails for each workflow, or crashes."
    ),
)


class JobPageToken(msgspec.Struct, array_like=True, frozen=True):
    """The last job of a page."""

    close_time_ns: int
    start_time_ns: int
    run_id: str


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(JobPageToken).decode


async def start(frontend: Frontend, request: api.StartBatchOperationRequest, _: Call) -> bytes:
    """Start a job."""
    namespace = await frontend.namespaces.find(request.namespace)
    _check_job_id(request.job_id)
    _check_targets(request)
    _check_operation(request)
    check_length(frontend, request.job_id, "WorkflowId exceeds length limit.")
    if "\0" in request.job_id:
        raise InvalidArgument("JobId contains a NUL character: remove it.")
    check_blob(frontend, namespace, request, request, request.job_id)
    if request.visibility_query:
        _check_query(namespace, request)
    await _check_room(frontend, namespace)
    return await frontend.history.call("StartBatchOperation", namespace.id, request.job_id, request)


async def stop(frontend: Frontend, request: api.StopBatchOperationRequest, _: Call) -> bytes:
    """Stop a job."""
    namespace = await frontend.namespaces.find(request.namespace)
    _check_job_id(request.job_id)
    if not request.reason:
        raise InvalidArgument("Reason is not set on request.")
    _check_known(request.job_id)
    return await frontend.history.call("StopBatchOperation", namespace.id, request.job_id, request)


async def describe(frontend: Frontend, request: api.DescribeBatchOperationRequest, _: Call) -> bytes:
    """Describe a job's progress."""
    namespace = await frontend.namespaces.find(request.namespace)
    _check_job_id(request.job_id)
    _check_known(request.job_id)
    return await frontend.history.call("DescribeBatchOperation", namespace.id, request.job_id, request)


async def list_jobs(frontend: Frontend, request: api.ListBatchOperationsRequest, _: Call) -> Message:
    """List all jobs: running ones first, then closed ones, latest first."""
    namespace = await frontend.namespaces.find(request.namespace)
    limit = page_rows(frontend, namespace, request.page_size)
    after = _position(request.next_page_token) if request.next_page_token else None
    # Read one row more, to know whether there is another page.
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
    return entity_namespace_id(namespace.id, ARCHETYPE)


def _check_job_id(job_id: str) -> None:
    if not job_id:
        raise InvalidArgument("JobId is not set on request.")


def _check_known(job_id: str) -> None:
    if "\0" in job_id:
        # No store has such an id, and PostgreSQL can't look it up.
        raise NotFound(f"workflow not found for ID: {job_id}")


def _check_targets(request: api.StartBatchOperationRequest) -> None:
    """Reject a request without exactly one of query, executions and target executions, or with invalid targets."""
    ways = [bool(request.visibility_query), bool(request.executions), bool(request.target_executions)]
    if sum(ways) > 1:
        raise InvalidArgument("visibility query, executions, and target executions are mutually exclusive")
    operation = request.WhichOneof("operation")
    if operation is None or not request.reason or not any(ways):
        raise InvalidArgument(_REQUIRED)
    wanted = kind_of(request).target
    for position, execution in enumerate(request.target_executions):
        if execution.type != wanted:
            name = "".join(word.capitalize() for word in operation.split("_"))
            raise InvalidArgument(
                f"target_executions[{position}] has type {_type_name(execution.type)}, but operation "
                f"*workflowservice.StartBatchOperationRequest_{name} requires {_type_name(wanted)}"
            )
    named = [(execution.business_id, execution.run_id) for execution in request.target_executions]
    named += [(execution.workflow_id, execution.run_id) for execution in request.executions]
    for target_id, run_id in named:
        check_run_id(run_id)
        if "\0" in target_id:
            raise InvalidArgument("The id of an execution contains a NUL character: remove it.")


def _type_name(number: ExecutionType.ValueType) -> str:
    if number not in ExecutionType.values():
        return str(number)
    return ExecutionType.Name(number).removeprefix("EXECUTION_TYPE_").title().replace("_", "")


def _check_operation(request: api.StartBatchOperationRequest) -> None:
    """Reject an operation without its required parameters."""
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
            problem = _update_problem(request.update_activity_options_operation)
    if problem is not None:
        raise InvalidArgument(problem)


def _update_problem(update: BatchOperationUpdateActivityOptions) -> str | None:
    if update.restore_original:
        has_options = update.activity_options.ListFields() or update.update_mask.paths
        return "cannot set both activity options and restore original" if has_options else None
    if not update.HasField("activity_options"):
        return "Either activity type must be set, or restore original should be set to true"
    if not update.HasField("update_mask"):
        return "UpdateMask is not provided"
    return None if update.type or update.match_all else "must provide ActivityType or MatchAll"


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
    """Reject a query with a syntax error. A valid query that is unsupported here makes the job fail instead."""
    try:
        where_of(namespace, request)
    except ApiError as error:
        if str(error).startswith("invalid visibility query"):
            raise
        malformed = _MALFORMED.fullmatch(str(error))
        if malformed is not None:
            # Temporal's two parsers count positions differently.
            position = int(malformed[1]) - 1
            raise InvalidArgument(
                f"invalid visibility query: syntax error at position {position}{malformed[2]}"
            ) from None
    except BadSearch:
        return


async def _check_room(frontend: Frontend, namespace: Namespace) -> None:
    """Reject another job while the maximum number of jobs is running."""
    limit = frontend.settings.get(MAX_CONCURRENT_BATCH_OPERATIONS, Scope(namespace.id))
    groups = await frontend.store.count_visibility(_rows_of(namespace), IsNull(Column.CLOSE_TIME_NS))
    if sum(group.rows for group in groups) >= limit:
        raise exhausted(
            "Max concurrent batch operations is reached",
            ResourceExhaustedCause.RESOURCE_EXHAUSTED_CAUSE_CONCURRENT_LIMIT,
        )


def _position(token: bytes) -> tuple[int, int, str]:
    """The position after which the list continues."""
    try:
        decoded = _decode(token) if len(token) <= TOKEN_BYTES_MAX else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        decoded = None
    if (
        decoded is None
        or "\0" in decoded.run_id
        or max(abs(decoded.close_time_ns), abs(decoded.start_time_ns)) > INT64_MAX
    ):
        raise InvalidArgument("Invalid NextPageToken.")
    return decoded.close_time_ns, decoded.start_time_ns, decoded.run_id


METHODS: dict[str, Handler] = {
    "StartBatchOperation": start,
    "StopBatchOperation": stop,
    "DescribeBatchOperation": describe,
    "ListBatchOperations": list_jobs,
}
