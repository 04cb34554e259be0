"""What an update must be, alone or with the start of its workflow: in Temporal's order, with its words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from temporalio.api.enums.v1 import UpdateWorkflowExecutionLifecycleStage
from temporalio.api.errordetails.v1 import PermissionDeniedFailure

from fairlead.frontend.checks import check_execution, check_length
from fairlead.history.refusals import invalid, refused
from fairlead.rpc import Code

if TYPE_CHECKING:
    import temporalio.api.workflowservice.v1 as api

    from fairlead.frontend.context import Frontend

_Stage = UpdateWorkflowExecutionLifecycleStage


def check_update(frontend: Frontend, request: api.UpdateWorkflowExecutionRequest) -> None:
    """Refuse an update that can't be sent; fill in what it leaves open."""
    check_execution(request, "workflow_execution")
    if not request.request.HasField("meta"):
        raise invalid("Update meta is not set on request.")
    meta = request.request.meta
    check_length(frontend, meta.update_id, "UpdateId length exceeds limit.")
    meta.update_id = meta.update_id or frontend.new_id()
    if not request.request.HasField("input"):
        raise invalid("Update input is not set on request.")
    if not request.request.input.name:
        raise invalid("Update name is not set on request.")
    stage = request.wait_policy.lifecycle_stage
    if stage == _Stage.UPDATE_WORKFLOW_EXECUTION_LIFECYCLE_STAGE_ADMITTED:
        raise refused(
            Code.PERMISSION_DENIED,
            "UpdateWorkflowExecution issued asynchronously and waiting on update admitted is not supported.",
            PermissionDeniedFailure(),
        )
    if not stage:
        request.wait_policy.lifecycle_stage = _Stage.UPDATE_WORKFLOW_EXECUTION_LIFECYCLE_STAGE_COMPLETED
