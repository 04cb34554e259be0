"""The operations of batch jobs: their types, requesters and targets."""

from google.protobuf.message import Message
from temporalio.api.workflowservice.v1 import StartBatchOperationRequest

from fairlead.history.entities.batch_jobs.state import Target


def operation_of(request: StartBatchOperationRequest) -> Message:
    """The message of the operation with its parameters."""
    operation: Message = getattr(request, request.WhichOneof("operation") or "")
    return operation


def identity_of(request: StartBatchOperationRequest) -> str:
    """The identity of the requester; empty if the operation has none."""
    return getattr(operation_of(request), "identity", "")


def named_targets(request: StartBatchOperationRequest) -> list[Target]:
    """The targets in the request; none if it has a query."""
    workflows = [Target(execution.workflow_id, execution.run_id) for execution in request.executions]
    return workflows + [Target(execution.business_id, execution.run_id) for execution in request.target_executions]
