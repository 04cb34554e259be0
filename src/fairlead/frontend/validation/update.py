"""Validation of updates, alone or with the start of their workflow, in the order and the words of Temporal's server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from temporalio.api.enums.v1 import UpdateWorkflowExecutionLifecycleStage
from temporalio.api.errordetails.v1 import PermissionDeniedFailure

from fairlead.api.error_details import packed
from fairlead.api.errors import InvalidArgument, PermissionDenied
from fairlead.frontend.validation.common import check_execution, check_length, check_links
from fairlead.frontend.validation.start import check_callbacks
from fairlead.settings import Scope
from fairlead.settings.dynamic.nexus import UPDATE_CALLBACKS_ENABLED

if TYPE_CHECKING:
    import temporalio.api.workflowservice.v1 as api

    from fairlead.frontend.gateway.context import Frontend

_Stage = UpdateWorkflowExecutionLifecycleStage


def check_update(frontend: Frontend, request: api.UpdateWorkflowExecutionRequest) -> None:
    """Reject an invalid update; fill in defaults."""
    check_execution(request, "workflow_execution")
    if not request.request.HasField("meta"):
        raise InvalidArgument("Update meta is not set on request.")
    meta = request.request.meta
    check_length(frontend, meta.update_id, "UpdateId length exceeds limit.")
    meta.update_id = meta.update_id or frontend.new_id()
    if not request.request.HasField("input"):
        raise InvalidArgument("Update input is not set on request.")
    if not request.request.input.name:
        raise InvalidArgument("Update name is not set on request.")
    _check_callbacks(frontend, request)
    stage = request.wait_policy.lifecycle_stage
    if stage == _Stage.UPDATE_WORKFLOW_EXECUTION_LIFECYCLE_STAGE_ADMITTED:
        raise PermissionDenied(
            "UpdateWorkflowExecution issued asynchronously and waiting on update admitted is not supported.",
            packed(PermissionDeniedFailure()),
        )
    if not stage:
        request.wait_policy.lifecycle_stage = _Stage.UPDATE_WORKFLOW_EXECUTION_LIFECYCLE_STAGE_COMPLETED


def _check_callbacks(frontend: Frontend, request: api.UpdateWorkflowExecutionRequest) -> None:
    """Reject invalid callbacks; drop all callbacks if the namespace's setting does not enable them."""
    asked = request.request
    if not asked.completion_callbacks:
        return
    if not asked.request_id:
        raise InvalidArgument("invalid *update.Request: request_id is required when completion_callbacks are set")
    check_length(frontend, asked.request_id, "RequestId length exceeds limit.")
    if not frontend.settings.get(UPDATE_CALLBACKS_ENABLED, Scope(request.namespace)):
        del asked.completion_callbacks[:]
        return
    check_callbacks(asked.completion_callbacks)
    for callback in asked.completion_callbacks:
        check_links(callback.links, len(callback.links))
