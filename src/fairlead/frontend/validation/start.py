"""Validation of starts, with or without a signal, in the order and the words of Temporal's server."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from temporalio.api.enums.v1 import VersioningBehavior, WorkflowIdConflictPolicy, WorkflowIdReusePolicy

from fairlead.api import cron
from fairlead.api.errors import InvalidArgument, Unimplemented
from fairlead.api.retry import fill_retry_policy, retry_policy_problem
from fairlead.api.search.attributes import problem_of
from fairlead.api.start_requests import complete_request
from fairlead.api.worker_versions import partition_version
from fairlead.frontend.handlers.time_skipping import check_time_skipping
from fairlead.frontend.validation.common import (
    check_blob,
    check_duration,
    check_length,
    check_length_shown,
    check_links,
    check_memo,
    check_priority,
    check_task_queue,
    is_longer,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from temporalio.api.common.v1 import Callback, Link
    from temporalio.api.workflow.v1 import VersioningOverride
    from temporalio.api.workflowservice.v1 import (
        SignalWithStartWorkflowExecutionRequest,
        StartWorkflowExecutionRequest,
    )

    from fairlead.api.namespaces import Namespace
    from fairlead.frontend.gateway.context import Frontend

    AnyStart = StartWorkflowExecutionRequest | SignalWithStartWorkflowExecutionRequest

CALLBACKS_MAX = 2000
CALLBACK_URL_BYTES_MAX = 1000
CALLBACK_HEADER_BYTES_MAX = 8192
# URL of callbacks that stay within the cluster.
SYSTEM_CALLBACK_URL = "temporal://system"
_TIMEOUTS = (
    ("workflow_execution_timeout", "WorkflowExecutionTimeoutSeconds"),
    ("workflow_run_timeout", "WorkflowRunTimeoutSeconds"),
    ("workflow_task_timeout", "WorkflowTaskTimeoutSeconds"),
)
_Reuse = WorkflowIdReusePolicy
_Conflict = WorkflowIdConflictPolicy
_Behavior = VersioningBehavior
_ALLOW_DUPLICATE = WorkflowIdReusePolicy.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE
_FAIL = WorkflowIdConflictPolicy.WORKFLOW_ID_CONFLICT_POLICY_FAIL
_REUSE_POLICIES = frozenset(WorkflowIdReusePolicy.values())
_CONFLICT_POLICIES = frozenset(WorkflowIdConflictPolicy.values())


def check_start(frontend: Frontend, namespace: Namespace, request: StartWorkflowExecutionRequest) -> None:
    """Reject a start that is invalid; fill in defaults."""
    _check_workflow_id(frontend, request.workflow_id)
    _check_retry_policy(request)
    _check_delay(request)
    _check_cron(request.cron_schedule)
    if not request.workflow_type.name:
        raise InvalidArgument("WorkflowType is not set on request.")
    check_length(frontend, request.workflow_type.name, "WorkflowType length exceeds limit.")
    check_task_queue(frontend, request)
    _check_timeouts(request)
    if not request.request_id:
        request.request_id = frontend.new_id()
    check_length(frontend, request.request_id, "RequestId length exceeds limit.")
    _check_policies(request)
    if request.HasField("on_conflict_options"):
        options = request.on_conflict_options
        if options.attach_completion_callbacks and not options.attach_request_id:
            raise InvalidArgument("attaching request ID is required for attaching completion callbacks")
    _check_search_attributes(namespace, request)
    if request.HasField("priority"):
        check_priority(request.priority)
    if request.completion_callbacks or request.links:
        _check_callbacks(request)
    _check_sizes(frontend, namespace, request)
    if request.HasField("versioning_override"):
        check_override(request.versioning_override)
    if request.HasField("time_skipping_config"):
        check_time_skipping(frontend, namespace, request.time_skipping_config)
    if not request.workflow_id_reuse_policy:
        request.workflow_id_reuse_policy = _ALLOW_DUPLICATE
    if not request.workflow_id_conflict_policy:
        request.workflow_id_conflict_policy = _FAIL
    complete_request(request, frontend.limits.of(namespace.id))


def check_signal_with_start(
    frontend: Frontend, namespace: Namespace, request: SignalWithStartWorkflowExecutionRequest
) -> None:
    """Reject a signal-with-start that is invalid; fill in defaults."""
    _check_cron(request.cron_schedule)
    _check_workflow_id(frontend, request.workflow_id)
    if not request.signal_name:
        raise InvalidArgument("signal not set")
    check_length_shown(frontend, request.signal_name, "signal name")
    if not request.workflow_type.name:
        raise InvalidArgument("workflow type not set")
    check_length_shown(frontend, request.workflow_type.name, "workflow type name")
    check_task_queue(frontend, request)
    request.request_id = request.request_id or frontend.new_id()
    check_length_shown(frontend, request.request_id, "Request ID")
    _check_timeouts(request)
    _check_retry_policy(request)
    _check_delay(request)
    _check_policies(request)
    if request.workflow_id_conflict_policy == _Conflict.WORKFLOW_ID_CONFLICT_POLICY_FAIL:
        raise InvalidArgument(
            "Invalid WorkflowIDConflictPolicy: WORKFLOW_ID_CONFLICT_POLICY_FAIL is not supported for this operation."
        )
    _check_search_attributes(namespace, request)
    check_priority(request.priority)
    check_links(request.links, len(request.links))
    _check_sizes(frontend, namespace, request)
    if request.HasField("versioning_override"):
        check_override(request.versioning_override)
    if request.HasField("time_skipping_config"):
        check_time_skipping(frontend, namespace, request.time_skipping_config)
    check_blob(frontend, namespace, request.signal_input, request, request.workflow_id)
    request.workflow_id_reuse_policy = (
        request.workflow_id_reuse_policy or _Reuse.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE
    )
    request.workflow_id_conflict_policy = (
        request.workflow_id_conflict_policy or _Conflict.WORKFLOW_ID_CONFLICT_POLICY_USE_EXISTING
    )
    # `complete_request` uses only fields that both requests have.
    complete_request(request, frontend.limits.of(namespace.id))  # type: ignore[arg-type]


def check_override(override: VersioningOverride) -> None:
    """Reject a versioning override that contradicts itself."""
    if override.auto_upgrade:
        return
    problem = None
    if override.HasField("pinned"):
        if not override.pinned.HasField("version"):
            problem = "must provide version if override is pinned."
        elif not override.pinned.behavior:
            problem = "must specify pinned override behavior if override is pinned."
    elif override.behavior == _Behavior.VERSIONING_BEHAVIOR_PINNED:
        problem = _old_pin_problem(override)
    elif override.behavior == _Behavior.VERSIONING_BEHAVIOR_AUTO_UPGRADE:
        if override.HasField("deployment"):
            problem = "only provide deployment if behavior is 'PINNED'"
        elif override.pinned_version:
            problem = "only provide pinned version if behavior is 'PINNED'"
    elif override.behavior == _Behavior.VERSIONING_BEHAVIOR_UNSPECIFIED:
        problem = "override behavior is required"
    else:
        problem = f"override behavior {override.behavior} not recognized"
    if problem is not None:
        raise InvalidArgument(problem)


def _old_pin_problem(override: VersioningOverride) -> str | None:
    if override.HasField("deployment"):
        name = override.deployment.series_name
        if not name:
            return "deployment name cannot be empty"
        if "." in name or ":" in name:
            return "deployment name cannot contain '.' or ':'"
        return None if override.deployment.build_id else "deployment build ID cannot be empty"
    version = override.pinned_version
    if not version:
        return "must provide deployment (deprecated) or pinned version if behavior is 'PINNED'"
    deployment, _, build_id = partition_version(version)
    if not deployment or not build_id:
        return f'invalid version string "{version}", expected format is "<deployment_name>.<build_id>"'
    return None


def _check_workflow_id(frontend: Frontend, workflow_id: str) -> None:
    if not workflow_id:
        raise InvalidArgument("WorkflowId is not set on request.")
    check_length_shown(frontend, workflow_id, "WorkflowId")
    if "\0" in workflow_id:
        raise InvalidArgument("WorkflowId contains a NUL character: remove it.")


def _check_retry_policy(request: AnyStart) -> None:
    if request.HasField("retry_policy"):
        fill_retry_policy(request.retry_policy)
        problem = retry_policy_problem(request.retry_policy)
        if problem is not None:
            raise InvalidArgument(problem)


def _check_delay(request: AnyStart) -> None:
    if request.HasField("workflow_start_delay"):
        if request.cron_schedule:
            raise InvalidArgument("CronSchedule and WorkflowStartDelay may not be used together.")
        check_duration(request, "workflow_start_delay", "WorkflowStartDelaySeconds")


def _check_cron(schedule: str) -> None:
    if schedule:
        try:
            cron.check_schedule(schedule)
        except cron.BadSchedule:
            raise InvalidArgument("invalid CronSchedule.") from None


def _check_timeouts(request: AnyStart) -> None:
    for field, name in _TIMEOUTS:
        check_duration(request, field, name)


def _check_policies(request: AnyStart) -> None:
    reuse, conflict = request.workflow_id_reuse_policy, request.workflow_id_conflict_policy
    # Temporal's server rejects unknown policies only when it needs them.
    if reuse not in _REUSE_POLICIES:
        raise InvalidArgument(f"Invalid WorkflowIDReusePolicy: {reuse} is not known.")
    if conflict not in _CONFLICT_POLICIES:
        raise InvalidArgument(f"Invalid WorkflowIDConflictPolicy: {conflict} is not known.")
    if not conflict or not reuse:
        return
    if reuse == _Reuse.WORKFLOW_ID_REUSE_POLICY_TERMINATE_IF_RUNNING:
        raise InvalidArgument(
            "Invalid WorkflowIDReusePolicy: WORKFLOW_ID_REUSE_POLICY_TERMINATE_IF_RUNNING cannot be used together with "
            "a WorkflowIDConflictPolicy"
        )
    if (
        reuse == _Reuse.WORKFLOW_ID_REUSE_POLICY_REJECT_DUPLICATE
        and conflict == _Conflict.WORKFLOW_ID_CONFLICT_POLICY_TERMINATE_EXISTING
    ):
        raise InvalidArgument(
            "Invalid WorkflowIDReusePolicy: WORKFLOW_ID_REUSE_POLICY_REJECT_DUPLICATE cannot be used together with "
            "WorkflowIdConflictPolicy WORKFLOW_ID_CONFLICT_POLICY_TERMINATE_EXISTING"
        )


def _check_search_attributes(namespace: Namespace, request: AnyStart) -> None:
    if not request.HasField("search_attributes"):
        return
    problem = problem_of(request.search_attributes, namespace)
    if problem is not None:
        raise InvalidArgument(problem)


def _check_sizes(frontend: Frontend, namespace: Namespace, request: AnyStart) -> None:
    if request.HasField("input"):
        check_blob(frontend, namespace, request.input, request, request.workflow_id)
    if request.HasField("memo"):
        check_memo(frontend, namespace, request.memo, request, request.workflow_id)


def check_callbacks(callbacks: Sequence[Callback]) -> None:
    """Reject invalid callbacks, and too many of them."""
    if len(callbacks) > CALLBACKS_MAX:
        raise InvalidArgument(f"cannot attach more than {CALLBACKS_MAX} callbacks to an execution")
    for callback in callbacks:
        _check_callback(callback)


def _check_callbacks(request: StartWorkflowExecutionRequest) -> None:
    callbacks = request.completion_callbacks
    check_callbacks(callbacks)
    _leave_out_links_of_callbacks(request)
    links: list[Link] = [*request.links]
    for callback in callbacks:
        links += callback.links
    check_links(links, len(links))


def _check_callback(callback: Callback) -> None:
    variant = callback.WhichOneof("variant")
    if variant == "internal":
        return
    if variant is None:
        raise Unimplemented("unknown callback variant: <nil>")
    problem = _url_problem(callback.nexus.url)
    if problem is not None:
        raise InvalidArgument(f"invalid url: {problem}")
    header = callback.nexus.header
    if sum(len(name.encode()) + len(value.encode()) for name, value in header.items()) > CALLBACK_HEADER_BYTES_MAX:
        raise InvalidArgument(
            f"invalid header: header size longer than max allowed size of {CALLBACK_HEADER_BYTES_MAX}"
        )
    lower = {name.lower(): value for name, value in header.items()}
    header.clear()
    header.update(lower)


def _url_problem(url: str) -> str | None:
    if is_longer(url, CALLBACK_URL_BYTES_MAX):
        return f"url length longer than max length allowed of {CALLBACK_URL_BYTES_MAX}"
    if url == SYSTEM_CALLBACK_URL:
        return None
    try:
        parts = urlsplit(url)
    except ValueError:
        return f"unknown scheme: {url}"
    if parts.scheme not in ("http", "https"):
        return f"unknown scheme: {url}"
    if not parts.netloc:
        return "missing host"
    # As in Temporal's server, external addresses must be allowed explicitly, and this server allows none.
    return f"url does not match any configured callback address: {url}"


def _leave_out_links_of_callbacks(request: StartWorkflowExecutionRequest) -> None:
    """Drop links that a callback has too, so that each is recorded once."""
    if not request.links:
        return
    known = [link for callback in request.completion_callbacks if callback.HasField("nexus") for link in callback.links]
    if known:
        own = [link for link in request.links if link not in known]
        del request.links[:]
        request.links.extend(own)
