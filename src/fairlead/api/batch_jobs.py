"""The operations of batch jobs: their types and targets."""

from __future__ import annotations

from typing import NamedTuple

from temporalio.api.enums.v1 import BatchOperationType, ExecutionType
from temporalio.api.workflowservice.v1 import StartBatchOperationRequest

from fairlead.api.errors import InvalidArgument
from fairlead.api.namespaces import Namespace
from fairlead.api.search.activity_queries import parse_activity_query
from fairlead.api.search.query import parse_query
from fairlead.storage.predicates import Predicate

WORKFLOW = ExecutionType.EXECUTION_TYPE_WORKFLOW
ACTIVITY = ExecutionType.EXECUTION_TYPE_ACTIVITY


class BatchKind(NamedTuple):
    """An operation of a batch job. If `only_open`, its query matches only open targets."""

    type: BatchOperationType.ValueType
    target: ExecutionType.ValueType = WORKFLOW
    only_open: bool = True


KINDS: dict[str, BatchKind] = {
    "termination_operation": BatchKind(BatchOperationType.BATCH_OPERATION_TYPE_TERMINATE_WORKFLOW),
    "signal_operation": BatchKind(BatchOperationType.BATCH_OPERATION_TYPE_SIGNAL_WORKFLOW),
    "cancellation_operation": BatchKind(BatchOperationType.BATCH_OPERATION_TYPE_CANCEL_WORKFLOW),
    "deletion_operation": BatchKind(BatchOperationType.BATCH_OPERATION_TYPE_DELETE_WORKFLOW, only_open=False),
    "reset_operation": BatchKind(BatchOperationType.BATCH_OPERATION_TYPE_RESET_WORKFLOW, only_open=False),
    "update_workflow_options_operation": BatchKind(
        BatchOperationType.BATCH_OPERATION_TYPE_UPDATE_WORKFLOW_EXECUTION_OPTIONS
    ),
    "unpause_activities_operation": BatchKind(BatchOperationType.BATCH_OPERATION_TYPE_UNPAUSE_ACTIVITY),
    "reset_activities_operation": BatchKind(BatchOperationType.BATCH_OPERATION_TYPE_RESET_ACTIVITY),
    "update_activity_options_operation": BatchKind(BatchOperationType.BATCH_OPERATION_TYPE_UPDATE_ACTIVITY_OPTIONS),
    "cancel_activities_operation": BatchKind(BatchOperationType.BATCH_OPERATION_TYPE_CANCEL_ACTIVITY, ACTIVITY),
    "terminate_activities_operation": BatchKind(BatchOperationType.BATCH_OPERATION_TYPE_TERMINATE_ACTIVITY, ACTIVITY),
    "delete_activities_operation": BatchKind(
        BatchOperationType.BATCH_OPERATION_TYPE_DELETE_ACTIVITY, ACTIVITY, only_open=False
    ),
}


def kind_of(request: StartBatchOperationRequest) -> BatchKind:
    """The kind of the job's operation."""
    return KINDS[request.WhichOneof("operation") or ""]


def where_of(namespace: Namespace, request: StartBatchOperationRequest) -> Predicate | None:
    """The predicate of the job's query; raises an API error for an invalid query."""
    parse = parse_activity_query if kind_of(request).target == ACTIVITY else parse_query
    parsed = parse(request.visibility_query, namespace.search_attributes)
    if parsed.group_by is not None:
        raise InvalidArgument("invalid visibility query: 'GROUP BY' finds no executions")
    return parsed.where


ARCHETYPE = "batch"
