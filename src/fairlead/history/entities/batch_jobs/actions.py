"""The operation of a batch job on one target."""

from collections.abc import Callable
from uuid import NAMESPACE_OID, uuid5

from google.protobuf.message import Message
from temporalio.api.batch.v1 import BatchOperationResetActivities, BatchOperationUpdateActivityOptions
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import ResetReapplyType
from temporalio.api.workflowservice.v1 import (
    DeleteActivityExecutionRequest,
    DeleteWorkflowExecutionRequest,
    RequestCancelActivityExecutionRequest,
    RequestCancelWorkflowExecutionRequest,
    ResetActivityRequest,
    ResetWorkflowExecutionRequest,
    SignalWorkflowExecutionRequest,
    StartBatchOperationRequest,
    TerminateActivityExecutionRequest,
    TerminateWorkflowExecutionRequest,
    UnpauseActivityRequest,
    UpdateActivityOptionsRequest,
    UpdateWorkflowExecutionOptionsRequest,
)

from fairlead.history.entities.batch_jobs.reset_points import reset_point
from fairlead.history.entities.batch_jobs.state import Target
from fairlead.history.events.field_copies import copy_set
from fairlead.history.shard.context import OperationContext

Call = tuple[str, Message]
Build = Callable[[StartBatchOperationRequest, Target, str], Call]


async def act(context: OperationContext, job_id: str, request: StartBatchOperationRequest, target: Target) -> None:
    """Carry out the operation.

    The request id depends only on the job and the target, so that a retry does not take effect twice.
    """
    kind = request.WhichOneof("operation") or ""
    request_id = str(uuid5(NAMESPACE_OID, f"{context.namespace.id} {job_id} {target.id} {target.run_id}"))
    if kind == "reset_operation":
        name, message = await _reset(context, request, target, request_id)
    else:
        name, message = _BUILD[kind](request, target, request_id)
    await context.services.history.call(name, context.namespace.id, target.id, message)


def _execution(target: Target) -> WorkflowExecution:
    return WorkflowExecution(workflow_id=target.id, run_id=target.run_id)


def _terminate(request: StartBatchOperationRequest, target: Target, _request_id: str) -> Call:
    operation = request.termination_operation
    message = TerminateWorkflowExecutionRequest(
        workflow_execution=_execution(target), reason=request.reason, identity=operation.identity
    )
    copy_set(operation, message, ("details",))
    return "TerminateWorkflowExecution", message


def _signal(request: StartBatchOperationRequest, target: Target, request_id: str) -> Call:
    operation = request.signal_operation
    message = SignalWorkflowExecutionRequest(
        workflow_execution=_execution(target),
        signal_name=operation.signal,
        identity=operation.identity,
        request_id=request_id,
    )
    copy_set(operation, message, ("input", "header"))
    return "SignalWorkflowExecution", message


def _cancel(request: StartBatchOperationRequest, target: Target, request_id: str) -> Call:
    return "RequestCancelWorkflowExecution", RequestCancelWorkflowExecutionRequest(
        workflow_execution=_execution(target),
        identity=request.cancellation_operation.identity,
        request_id=request_id,
        reason=request.reason,
    )


def _delete(_request: StartBatchOperationRequest, target: Target, _request_id: str) -> Call:
    return "DeleteWorkflowExecution", DeleteWorkflowExecutionRequest(workflow_execution=_execution(target))


async def _reset(
    context: OperationContext, request: StartBatchOperationRequest, target: Target, request_id: str
) -> Call:
    operation = request.reset_operation
    options = operation.options
    point = await reset_point(context, operation, target)
    reapply_type = options.reset_reapply_type if operation.HasField("options") else operation.reset_reapply_type
    message = ResetWorkflowExecutionRequest(
        workflow_execution=_execution(Target(target.id, point.run_id)),
        reason=request.reason,
        workflow_task_finish_event_id=point.event_id,
        request_id=request_id,
        reset_reapply_type=reapply_type or ResetReapplyType.RESET_REAPPLY_TYPE_ALL_ELIGIBLE,
        reset_reapply_exclude_types=options.reset_reapply_exclude_types,
        post_reset_operations=operation.post_reset_operations,
        identity=operation.identity,
    )
    return "ResetWorkflowExecution", message


def _update_workflow(request: StartBatchOperationRequest, target: Target, _request_id: str) -> Call:
    operation = request.update_workflow_options_operation
    return "UpdateWorkflowExecutionOptions", UpdateWorkflowExecutionOptionsRequest(
        workflow_execution=_execution(target),
        workflow_execution_options=operation.workflow_execution_options,
        update_mask=operation.update_mask,
        identity=operation.identity,
    )


def _unpause_activities(request: StartBatchOperationRequest, target: Target, _request_id: str) -> Call:
    operation = request.unpause_activities_operation
    message = UnpauseActivityRequest(
        execution=_execution(target),
        identity=operation.identity,
        reset_attempts=operation.reset_attempts,
        reset_heartbeat=operation.reset_heartbeat,
    )
    copy_set(operation, message, ("jitter",))
    if operation.match_all:
        message.unpause_all = True
    else:
        message.type = operation.type
    return "UnpauseActivity", message


def _reset_activities(request: StartBatchOperationRequest, target: Target, _request_id: str) -> Call:
    operation = request.reset_activities_operation
    message = ResetActivityRequest(
        execution=_execution(target),
        identity=operation.identity,
        reset_heartbeat=operation.reset_heartbeat,
        keep_paused=operation.keep_paused,
        restore_original_options=operation.restore_original_options,
    )
    copy_set(operation, message, ("jitter",))
    _choose(message, operation)
    return "ResetActivity", message


def _update_activities(request: StartBatchOperationRequest, target: Target, _request_id: str) -> Call:
    operation = request.update_activity_options_operation
    message = UpdateActivityOptionsRequest(
        execution=_execution(target), identity=operation.identity, restore_original=operation.restore_original
    )
    copy_set(operation, message, ("activity_options", "update_mask"))
    _choose(message, operation)
    return "UpdateActivityOptions", message


def _choose(
    message: ResetActivityRequest | UpdateActivityOptionsRequest,
    operation: BatchOperationResetActivities | BatchOperationUpdateActivityOptions,
) -> None:
    if operation.type:
        message.type = operation.type
    else:
        message.match_all = True


def _cancel_activity(request: StartBatchOperationRequest, target: Target, request_id: str) -> Call:
    operation = request.cancel_activities_operation
    return "RequestCancelActivityExecution", RequestCancelActivityExecutionRequest(
        activity_id=target.id,
        run_id=target.run_id,
        identity=operation.identity,
        request_id=request_id,
        reason=operation.reason or request.reason,
    )


def _terminate_activity(request: StartBatchOperationRequest, target: Target, request_id: str) -> Call:
    operation = request.terminate_activities_operation
    return "TerminateActivityExecution", TerminateActivityExecutionRequest(
        activity_id=target.id,
        run_id=target.run_id,
        identity=operation.identity,
        request_id=request_id,
        reason=operation.reason or request.reason,
    )


def _delete_activity(_request: StartBatchOperationRequest, target: Target, _request_id: str) -> Call:
    return "DeleteActivityExecution", DeleteActivityExecutionRequest(activity_id=target.id, run_id=target.run_id)


_BUILD: dict[str, Build] = {
    "termination_operation": _terminate,
    "signal_operation": _signal,
    "cancellation_operation": _cancel,
    "deletion_operation": _delete,
    "update_workflow_options_operation": _update_workflow,
    "unpause_activities_operation": _unpause_activities,
    "reset_activities_operation": _reset_activities,
    "update_activity_options_operation": _update_activities,
    "cancel_activities_operation": _cancel_activity,
    "terminate_activities_operation": _terminate_activity,
    "delete_activities_operation": _delete_activity,
}
