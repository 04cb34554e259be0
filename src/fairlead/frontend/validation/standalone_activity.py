"""Validation of requests about standalone activities, in the order and the words of Temporal's server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from temporalio.api.enums.v1 import ActivityIdConflictPolicy, ActivityIdReusePolicy

from fairlead.api.errors import ApiError, InvalidArgument, NotFound
from fairlead.api.search.attributes import problem_of
from fairlead.frontend.validation.common import (
    check_links,
    check_metadata,
    check_priority,
    check_task_queue,
    is_longer,
    is_run_id,
    is_too_large,
)
from fairlead.frontend.validation.start import check_callbacks
from fairlead.history.messages.activity_options import PATHS, read_options
from fairlead.settings import Scope
from fairlead.settings.dynamic.limits import MAX_ID_LENGTH
from fairlead.settings.dynamic.nexus import ACTIVITY_CALLBACKS_ENABLED

if TYPE_CHECKING:
    from temporalio.api.workflowservice.v1 import (
        StartActivityExecutionRequest,
        UpdateActivityExecutionOptionsRequest,
        UpdateActivityOptionsRequest,
    )

    from fairlead.api.namespaces import Namespace
    from fairlead.frontend.gateway.context import Frontend


class WithActivity(Protocol):
    """A request about one activity."""

    activity_id: str
    run_id: str


class WithRequester(WithActivity, Protocol):
    """A request to change an activity."""

    identity: str
    request_id: str


def check_activity(frontend: Frontend, request: WithActivity) -> None:
    """Reject a request without a valid activity id, or with an invalid run id."""
    if not request.activity_id:
        raise InvalidArgument("activity ID is required")
    _check_length(frontend, request.activity_id, "activity ID")
    if request.run_id and not is_run_id(request.run_id):
        raise InvalidArgument("invalid run id: must be a valid UUID")
    if "\0" in request.activity_id:
        # No store has such an id, and PostgreSQL can't look it up.
        raise NotFound(f"activity not found for ID: {request.activity_id}")


def check_requester(frontend: Frontend, request: WithRequester) -> None:
    """Check a request to change an activity; fill in its request id."""
    check_activity(frontend, request)
    request.request_id = request.request_id or frontend.new_id()
    _check_length(frontend, request.request_id, "request ID")
    _check_length(frontend, request.identity, "identity")


def check_start(frontend: Frontend, namespace: Namespace, request: StartActivityExecutionRequest) -> None:
    """Reject an activity that can't be started; fill in defaults."""
    check_task_queue(frontend, request)
    if not request.activity_id:
        raise InvalidArgument("activityId is not set")
    if not request.activity_type.name:
        raise InvalidArgument("activityType is not set")
    _check_length(frontend, request.activity_id, "activityId")
    _check_length(frontend, request.activity_type.name, "activityType")
    if "\0" in request.activity_id:
        raise InvalidArgument("activityId contains a NUL character: remove it")
    try:
        check_priority(request.priority)
    except ApiError as error:
        raise InvalidArgument(f"invalid priorities: {error}") from None
    read_options(
        request,
        task_queue=request.task_queue.name,
        activity_id=request.activity_id,
        activity_type=request.activity_type.name,
    )
    request.request_id = request.request_id or frontend.new_id()
    _check_length(frontend, request.request_id, "request ID")
    _check_length(frontend, request.identity, "identity")
    if is_too_large(frontend, namespace, request.input, request, request.activity_id):
        raise InvalidArgument("input exceeds length limit")
    check_metadata(frontend, namespace, request.user_metadata)
    if request.HasField("search_attributes"):
        problem = problem_of(request.search_attributes, namespace)
        if problem is not None:
            raise InvalidArgument(problem)
    _check_policies(request)
    if request.completion_callbacks:
        if not frontend.settings.get(ACTIVITY_CALLBACKS_ENABLED, Scope(namespace.id)):
            raise InvalidArgument("completion callbacks are not enabled for this namespace")
        check_callbacks(request.completion_callbacks)
        for callback in request.completion_callbacks:
            check_links(callback.links, len(callback.links))
    check_links(request.links, len(request.links))
    options = request.on_conflict_options
    if options.attach_completion_callbacks and not options.attach_request_id:
        raise InvalidArgument("on_conflict_options: attach_completion_callbacks requires attach_request_id to be set")


def check_update(request: UpdateActivityExecutionOptionsRequest) -> None:
    """Reject an update of options without valid paths; paths may be in JSON's camel case."""
    check_mask_or_restore(request)
    if request.restore_original:
        return
    if not request.HasField("activity_options"):
        raise InvalidArgument("ActivityOptions are not provided")
    if not request.HasField("update_mask"):
        raise InvalidArgument("UpdateMask is not provided")
    if not request.update_mask.paths:
        raise InvalidArgument("UpdateMask must specify at least one path")
    paths = [_snake(path) for path in request.update_mask.paths]
    for path, written in zip(paths, request.update_mask.paths, strict=True):
        if path not in PATHS:
            raise InvalidArgument(f'unsupported update_mask path: "{written}"')
    del request.update_mask.paths[:]
    request.update_mask.paths.extend(paths)
    check_priority(request.activity_options.priority)


def check_mask_or_restore(request: UpdateActivityExecutionOptionsRequest | UpdateActivityOptionsRequest) -> None:
    """Reject an update that has both a mask and `restore_original`."""
    if request.restore_original and request.update_mask.paths:
        raise InvalidArgument("Both UpdateMask and RestoreOriginal are provided")


def _snake(path: str) -> str:
    return "".join(f"_{character.lower()}" if character.isupper() else character for character in path)


def _check_policies(request: StartActivityExecutionRequest) -> None:
    if request.id_reuse_policy not in ActivityIdReusePolicy.values():
        raise InvalidArgument(f"unsupported ID reuse policy: {request.id_reuse_policy}")
    if request.id_conflict_policy not in ActivityIdConflictPolicy.values():
        raise InvalidArgument(f"unsupported ID conflict policy: {request.id_conflict_policy}")


def _check_length(frontend: Frontend, text: str, noun: str) -> None:
    limit = frontend.settings.get(MAX_ID_LENGTH)
    if is_longer(text, limit):
        raise InvalidArgument(f"{noun} exceeds length limit. Length={len(text.encode())} Limit={limit}")
