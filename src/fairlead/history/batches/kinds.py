"""The operations that a batch job can do: what each is called, who asked for it, and which targets it is for."""

from typing import NamedTuple

from google.protobuf.message import Message
from temporalio.api.enums.v1 import BatchOperationType, ExecutionType
from temporalio.api.workflowservice.v1 import StartBatchOperationRequest

from fairlead.history.batches.state import Target

WORKFLOW = ExecutionType.EXECUTION_TYPE_WORKFLOW
ACTIVITY = ExecutionType.EXECUTION_TYPE_ACTIVITY


class BatchKind(NamedTuple):
    """One of the operations. `only_open`: a query finds only what is open."""

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
    """Which operation a job does."""
    return KINDS[request.WhichOneof("operation") or ""]


def operation_of(request: StartBatchOperationRequest) -> Message:
    """The operation with its parameters."""
    operation: Message = getattr(request, request.WhichOneof("operation") or "")
    return operation


def identity_of(request: StartBatchOperationRequest) -> str:
    """Who asked for the job; an operation without that says nothing."""
    return getattr(operation_of(request), "identity", "")


def named_targets(request: StartBatchOperationRequest) -> list[Target]:
    """The targets that the request names; none if it has a query."""
    workflows = [Target(execution.workflow_id, execution.run_id) for execution in request.executions]
    return workflows + [Target(execution.business_id, execution.run_id) for execution in request.target_executions]
