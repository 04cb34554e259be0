"""What a request about an activity that stands alone must be: in Temporal's order, with its words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from temporalio.api.enums.v1 import ActivityIdConflictPolicy, ActivityIdReusePolicy

from fairlead.frontend.checks import (
    blob_size_max,
    check_links,
    check_priority,
    check_task_queue,
    is_longer,
    is_run_id,
)
from fairlead.history.refusals import Refused, invalid, not_found
from fairlead.history.search.attributes import problem_of
from fairlead.history.standalone.options import PATHS, read_options
from fairlead.settings.limits import MAX_ID_LENGTH

if TYPE_CHECKING:
    from temporalio.api.workflowservice.v1 import StartActivityExecutionRequest, UpdateActivityExecutionOptionsRequest

    from fairlead.frontend.context import Frontend
    from fairlead.history.namespaces import Namespace

SUMMARY_BYTES_MAX = 400
DETAILS_BYTES_MAX = 20_000


class WithActivity(Protocol):
    """A request about one activity."""

    activity_id: str
    run_id: str


class WithRequester(WithActivity, Protocol):
    """A request to change one, and by whom."""

    identity: str
    request_id: str


def check_activity(frontend: Frontend, request: WithActivity) -> None:
    """Refuse a request that does not say which activity, or names a run that can't be."""
    if not request.activity_id:
        raise invalid("activity ID is required")
    _check_length(frontend, request.activity_id, "activity ID")
    if request.run_id and not is_run_id(request.run_id):
        raise invalid("invalid run id: must be a valid UUID")
    if "\0" in request.activity_id:
        # No store has such an id, and not every store can be asked for it.
        raise not_found(f"activity not found for ID: {request.activity_id}")


def check_requester(frontend: Frontend, request: WithRequester) -> None:
    """The same for a change; one that does not say which request it is of is of a new one."""
    check_activity(frontend, request)
    request.request_id = request.request_id or frontend.new_id()
    _check_length(frontend, request.request_id, "request ID")
    _check_length(frontend, request.identity, "identity")


def check_start(frontend: Frontend, namespace: Namespace, request: StartActivityExecutionRequest) -> None:
    """Refuse what can't be started; fill in what the request leaves open."""
    check_task_queue(frontend, request)
    if not request.activity_id:
        raise invalid("activityId is not set")
    if not request.activity_type.name:
        raise invalid("activityType is not set")
    _check_length(frontend, request.activity_id, "activityId")
    _check_length(frontend, request.activity_type.name, "activityType")
    if "\0" in request.activity_id:
        raise invalid("activityId has a character of code 0: leave it out")
    try:
        check_priority(request.priority)
    except Refused as refused:
        raise invalid(f"invalid priorities: {refused}") from None
    read_options(
        request,
        task_queue=request.task_queue.name,
        activity_id=request.activity_id,
        activity_type=request.activity_type.name,
    )
    request.request_id = request.request_id or frontend.new_id()
    _check_length(frontend, request.request_id, "request ID")
    _check_length(frontend, request.identity, "identity")
    if request.input.ByteSize() > blob_size_max(frontend, namespace):
        raise invalid("input exceeds length limit")
    _check_metadata(request)
    if request.HasField("search_attributes"):
        problem = problem_of(request.search_attributes, namespace)
        if problem is not None:
            raise invalid(problem)
    _check_policies(request)
    if request.completion_callbacks:
        raise invalid("completion callbacks are not enabled for this namespace")
    check_links(request.links, len(request.links))
    options = request.on_conflict_options
    if options.attach_completion_callbacks and not options.attach_request_id:
        raise invalid("on_conflict_options: attach_completion_callbacks requires attach_request_id to be set")


def check_update(request: UpdateActivityExecutionOptionsRequest) -> None:
    """Refuse an update of options that does not say of which; paths may be written in the way of JSON."""
    if request.restore_original:
        if request.HasField("update_mask"):
            raise invalid("Both UpdateMask and RestoreOriginal are provided")
        return
    if not request.HasField("update_mask"):
        raise invalid("UpdateMask is not provided")
    if not request.update_mask.paths:
        raise invalid("UpdateMask must specify at least one path")
    paths = [_snake(path) for path in request.update_mask.paths]
    for path, written in zip(paths, request.update_mask.paths, strict=True):
        if path not in PATHS:
            raise invalid(f'unsupported update_mask path: "{written}"')
    del request.update_mask.paths[:]
    request.update_mask.paths.extend(paths)
    check_priority(request.activity_options.priority)


def _snake(path: str) -> str:
    return "".join(f"_{character.lower()}" if character.isupper() else character for character in path)


def _check_metadata(request: StartActivityExecutionRequest) -> None:
    metadata = request.user_metadata
    for name, payload, limit in (
        ("summary", metadata.summary, SUMMARY_BYTES_MAX),
        ("details", metadata.details, DETAILS_BYTES_MAX),
    ):
        size = payload.ByteSize()
        if size > limit:
            raise invalid(f"user_metadata.{name} exceeds size limit. Length={size} Limit={limit}")


def _check_policies(request: StartActivityExecutionRequest) -> None:
    if request.id_reuse_policy not in ActivityIdReusePolicy.values():
        raise invalid(f"unsupported ID reuse policy: {request.id_reuse_policy}")
    if request.id_conflict_policy not in ActivityIdConflictPolicy.values():
        raise invalid(f"unsupported ID conflict policy: {request.id_conflict_policy}")


def _check_length(frontend: Frontend, text: str, noun: str) -> None:
    limit = frontend.settings.get(MAX_ID_LENGTH)
    if is_longer(text, limit):
        raise invalid(f"{noun} exceeds length limit. Length={len(text.encode())} Limit={limit}")
