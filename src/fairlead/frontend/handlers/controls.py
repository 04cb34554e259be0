"""Handlers for operators who control a run and its activities: pause, unpause, reset, change options."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from fairlead.api.errors import InvalidArgument, Unimplemented
from fairlead.frontend.handlers.time_skipping import check_time_skipping
from fairlead.frontend.validation.common import check_length, check_loadable, check_priority
from fairlead.frontend.validation.standalone_activity import check_mask_or_restore
from fairlead.frontend.validation.start import check_override
from fairlead.settings import Scope
from fairlead.settings.dynamic.limits import WORKFLOW_PAUSE_ENABLED

if TYPE_CHECKING:
    import temporalio.api.workflowservice.v1 as api
    from google.protobuf.descriptor import Descriptor

    from fairlead.frontend.gateway.context import Frontend, Handler
    from fairlead.rpc import Call

    Pause: TypeAlias = api.PauseWorkflowExecutionRequest | api.UnpauseWorkflowExecutionRequest
    ActivityControl: TypeAlias = (
        api.PauseActivityRequest
        | api.UnpauseActivityRequest
        | api.ResetActivityRequest
        | api.UpdateActivityOptionsRequest
    )


async def pause(frontend: Frontend, request: api.PauseWorkflowExecutionRequest, _: Call) -> bytes:
    """Pause a run."""
    namespace = await frontend.namespaces.find(request.namespace)
    if not frontend.settings.get(WORKFLOW_PAUSE_ENABLED, Scope(namespace.id)):
        raise Unimplemented(f"workflow pause is not enabled for namespace: {namespace.name}")
    return await _pass_pause("PauseWorkflowExecution", frontend, request)


async def unpause(frontend: Frontend, request: api.UnpauseWorkflowExecutionRequest, _: Call) -> bytes:
    """Unpause a run."""
    return await _pass_pause("UnpauseWorkflowExecution", frontend, request)


async def pause_activity(frontend: Frontend, request: api.PauseActivityRequest, _: Call) -> bytes:
    """Pause an activity: begin no further attempts."""
    return await _pass_activity("PauseActivity", frontend, request)


async def unpause_activity(frontend: Frontend, request: api.UnpauseActivityRequest, _: Call) -> bytes:
    """Unpause an activity."""
    return await _pass_activity("UnpauseActivity", frontend, request)


async def reset_activity(frontend: Frontend, request: api.ResetActivityRequest, _: Call) -> bytes:
    """Reset an activity: count its attempts from 1 again."""
    return await _pass_activity("ResetActivity", frontend, request)


async def update_activity_options(frontend: Frontend, request: api.UpdateActivityOptionsRequest, _: Call) -> bytes:
    """Change the timeouts, the retry policy or the task queue of an activity."""
    return await _pass_activity("UpdateActivityOptions", frontend, request)


async def update_options(frontend: Frontend, request: api.UpdateWorkflowExecutionOptionsRequest, _: Call) -> bytes:
    """Change the versioning override or the priority of a run."""
    namespace = await frontend.namespaces.find(request.namespace)
    execution = request.workflow_execution
    if not execution.workflow_id:
        raise InvalidArgument("WorkflowId is not set on request.")
    if not request.HasField("update_mask"):
        raise InvalidArgument("UpdateMask is required")
    if not request.HasField("workflow_execution_options"):
        raise InvalidArgument("WorkflowExecutionOptions is required")
    options = request.workflow_execution_options
    for path in request.update_mask.paths:
        if not is_path(path, options.DESCRIPTOR):
            raise InvalidArgument(
                f'error parsing UpdateMask: proto: invalid path "{path}" for message "{options.DESCRIPTOR.full_name}"'
            )
    check_priority(options.priority)
    check_loadable(execution.workflow_id, execution.run_id)
    if options.HasField("versioning_override"):
        check_override(options.versioning_override)
    if options.HasField("time_skipping_config"):
        check_time_skipping(frontend, namespace, options.time_skipping_config)
    return await frontend.history.call("UpdateWorkflowExecutionOptions", namespace.id, execution.workflow_id, request)


def is_path(path: str, message: Descriptor | None) -> bool:
    """Whether the path is valid in a field mask for this message type."""
    for name in path.split("."):
        field = None if message is None else message.fields_by_name.get(name)
        if field is None:
            return False
        message = None if field.is_repeated else field.message_type
    return True


async def _pass_pause(method: str, frontend: Frontend, request: Pause) -> bytes:
    namespace = await frontend.namespaces.find(request.namespace)
    check_length(frontend, request.reason, "reason is too long.")
    check_length(frontend, request.request_id, "request id is too long.")
    check_length(frontend, request.identity, "identity is too long.")
    check_loadable(request.workflow_id, request.run_id)
    return await frontend.history.call(method, namespace.id, request.workflow_id, request)


async def _pass_activity(method: str, frontend: Frontend, request: ActivityControl) -> bytes:
    namespace = await frontend.namespaces.find(request.namespace)
    execution = request.execution
    if not execution.workflow_id:
        raise InvalidArgument("WorkflowId is not set on request.")
    if request.WhichOneof("activity") is None:
        raise InvalidArgument("Either Activity.Id or Activity.Type should be set on request.")
    if method == "UpdateActivityOptions":
        _check_activity_options(request)  # type: ignore[arg-type]
    check_loadable(execution.workflow_id, execution.run_id)
    return await frontend.history.call(method, namespace.id, execution.workflow_id, request)


def _check_activity_options(request: api.UpdateActivityOptionsRequest) -> None:
    check_priority(request.activity_options.priority)
    check_mask_or_restore(request)


METHODS: dict[str, Handler] = {
    "PauseWorkflowExecution": pause,
    "UnpauseWorkflowExecution": unpause,
    "PauseActivity": pause_activity,
    "UnpauseActivity": unpause_activity,
    "ResetActivity": reset_activity,
    "UpdateActivityOptions": update_activity_options,
    "UpdateWorkflowExecutionOptions": update_options,
}
