"""Checks that many requests share, with the messages of Temporal's server.

The checks are cheap, because most requests pass all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from temporalio.api.enums.v1 import WorkerVersioningMode

from fairlead.api.errors import ApiError, InvalidArgument, NotFound
from fairlead.api.limits import LimitedSize
from fairlead.api.times import DURATION_NS_MAX, from_duration, to_duration
from fairlead.core.partitions import RESERVED_PREFIX
from fairlead.settings import Scope
from fairlead.settings.dynamic.limits import (
    MAX_ID_LENGTH,
    USER_METADATA_DETAILS_SIZE,
    USER_METADATA_SUMMARY_SIZE,
    VISIBILITY_MAX_PAGE_SIZE,
)

if TYPE_CHECKING:
    from google.protobuf.duration_pb2 import Duration
    from google.protobuf.message import Message
    from temporalio.api.common.v1 import (
        Link,
        Memo,
        Priority,
        WorkerVersionCapabilities,
        WorkerVersionStamp,
        WorkflowExecution,
    )
    from temporalio.api.deployment.v1 import WorkerDeploymentOptions
    from temporalio.api.sdk.v1 import UserMetadata
    from temporalio.api.taskqueue.v1 import TaskQueue

    from fairlead.api.namespaces import Namespace
    from fairlead.frontend.gateway.context import Frontend

FAIRNESS_KEY_BYTES_MAX = 64
LINKS_MAX = 10
LINK_BYTES_MAX = 4000
BUILD_ID_BYTES_MAX = 255
# Maximum bytes of a deployment's name and of a build id: both must fit into one id, with a prefix.
DEPLOYMENT_FIELD_BYTES_MAX = 480
STICKY = 2
_UTF8_BYTES_MAX = 4
_RUN_ID_LENGTH = 36
_HEXADECIMAL = frozenset("0123456789abcdefABCDEF")


def is_longer(text: str, bytes_max: int) -> bool:
    """Whether the text has more than `bytes_max` bytes; does not encode short texts."""
    length = len(text)
    return length * _UTF8_BYTES_MAX > bytes_max and (length > bytes_max or len(text.encode()) > bytes_max)


def check_length(frontend: Frontend, text: str, message: str) -> None:
    """Reject an id that is too long."""
    if is_longer(text, frontend.settings.get(MAX_ID_LENGTH)):
        raise InvalidArgument(message)


def check_length_shown(frontend: Frontend, text: str, noun: str) -> None:
    """Reject an id that is too long, with its length in the message."""
    limit = frontend.settings.get(MAX_ID_LENGTH)
    if is_longer(text, limit):
        raise InvalidArgument(f"{noun} exceeds maximum allowed length ({len(text.encode())}/{limit})")


def check_identity(frontend: Frontend, identity: str) -> None:
    """Reject an identity that is too long."""
    check_length(frontend, identity, "Identity length exceeds limit.")


def is_run_id(run_id: str) -> bool:
    """Whether the text is a UUID in the form of run ids."""
    return (
        len(run_id) == _RUN_ID_LENGTH
        and run_id[8] == run_id[13] == run_id[18] == run_id[23] == "-"
        and _HEXADECIMAL.issuperset(run_id.replace("-", ""))
        and run_id.count("-") == 4
    )


def check_execution(message: Message, field: str) -> None:
    """Reject a request without a workflow id, or with an invalid run id."""
    if not message.HasField(field):
        raise InvalidArgument("Execution is not set on request.")
    execution: WorkflowExecution = getattr(message, field)
    if not execution.workflow_id:
        raise InvalidArgument("WorkflowId is not set on request.")
    if execution.run_id and not is_run_id(execution.run_id):
        raise InvalidArgument("Invalid RunId.")
    if "\0" in execution.workflow_id:
        # No store has such an id, and PostgreSQL can't look it up.
        raise NotFound(f"workflow not found for ID: {execution.workflow_id}")


def check_loadable(workflow_id: str, run_id: str) -> None:
    """Like `check_execution`, with the messages that Temporal returns when it loads the run."""
    if not workflow_id:
        raise InvalidArgument("Can't load workflow execution.  WorkflowId not set.")
    if "\0" in workflow_id:
        raise NotFound(f"workflow not found for ID: {workflow_id}")
    check_run_id(run_id)


def check_run_id(run_id: str) -> None:
    """Reject an invalid run id, with the message that Temporal returns when it loads the run."""
    if run_id and not is_run_id(run_id):
        raise InvalidArgument("RunId is not valid UUID.")


def check_task_queue(frontend: Frontend, message: Message) -> None:
    """Reject a missing task queue or an invalid name."""
    if not message.HasField("task_queue"):
        raise InvalidArgument("taskQueue is not set")
    queue: TaskQueue = message.task_queue  # type: ignore[attr-defined]
    if not queue.name:
        raise InvalidArgument("missing task queue name")
    check_length(frontend, queue.name, "taskQueue length exceeds limit")
    if queue.name.startswith(RESERVED_PREFIX):
        raise InvalidArgument(f"task queue name cannot start with reserved prefix {RESERVED_PREFIX}")
    if queue.kind == STICKY and queue.normal_name:
        check_length(frontend, queue.normal_name, "taskQueue length exceeds limit")


def check_duration(message: Message, field: str, name: str) -> None:
    """Reject a negative duration; cut one that is too long."""
    if not message.HasField(field):
        return
    duration: Duration = getattr(message, field)
    seconds, nanos = duration.seconds, duration.nanos
    problem = None
    if (seconds > 0 and nanos < 0) or (seconds < 0 and nanos > 0):
        problem = "duration has seconds and nanos with different signs"
    elif seconds < 0 or nanos < 0:
        problem = "negative duration"
    if problem is not None:
        raise InvalidArgument(f"An invalid {name} is set on request. cause: {problem}")
    if from_duration(duration) > DURATION_NS_MAX:
        duration.CopyFrom(to_duration(DURATION_NS_MAX))


def check_priority(priority: Priority) -> None:
    """Reject an invalid priority or fairness key."""
    if priority.priority_key < 0:
        raise InvalidArgument("priority key can't be negative")
    if is_longer(priority.fairness_key, FAIRNESS_KEY_BYTES_MAX):
        raise InvalidArgument("fairness key length exceeds limit")
    if priority.fairness_weight < 0:
        raise InvalidArgument("must be greater than zero")


def blob_size_max(frontend: Frontend, namespace: Namespace) -> int:
    """Maximum bytes of one payload in this namespace."""
    return frontend.limits.of(namespace.id).blob_size_max


def failure_size_kept(frontend: Frontend, namespace: Namespace) -> int:
    """Maximum bytes that are kept of a failure above its limit: the size up to which no warning is logged."""
    limits = frontend.limits.of(namespace.id)
    return min(limits.blob_size_warn, limits.blob_size_max)


def is_too_large(frontend: Frontend, namespace: Namespace, blob: Message, request: Message, subject_id: str) -> bool:
    """Whether a payload of a request is above its limit; logs a payload above the warning limit.

    `subject_id` is the id of the workflow, or of the schedule, activity, operation or batch job.
    """
    size, limits = blob.ByteSize(), frontend.limits.of(namespace.id)
    is_rejected = size > limits.blob_size_max
    if is_rejected or size > limits.blob_size_warn:
        frontend.size_warnings.check(
            LimitedSize.BLOB,
            size,
            warn=limits.blob_size_warn,
            error=limits.blob_size_max,
            namespace=namespace.name,
            workflow_id=subject_id,
            operation=_operation_of(request),
        )
    return is_rejected


def check_blob(frontend: Frontend, namespace: Namespace, blob: Message, request: Message, subject_id: str) -> None:
    """Reject a payload that is too large for an event; see `is_too_large`."""
    if is_too_large(frontend, namespace, blob, request, subject_id):
        raise InvalidArgument("Blob data size exceeds limit.")


def check_memo(frontend: Frontend, namespace: Namespace, memo: Memo, request: Message, subject_id: str) -> None:
    """Reject a memo that is too large, and log one above the warning limit."""
    size, limits = memo.ByteSize(), frontend.limits.of(namespace.id)
    frontend.size_warnings.check(
        LimitedSize.MEMO,
        size,
        warn=limits.memo_size_warn,
        error=limits.memo_size_max,
        namespace=namespace.name,
        workflow_id=subject_id,
        operation=_operation_of(request),
    )
    if size > limits.memo_size_max:
        raise InvalidArgument("Memo size exceeds limit.")


def _operation_of(request: Message) -> str:
    return request.DESCRIPTOR.name.removesuffix("Request")


def check_links(links: Iterable[Link], count: int) -> None:
    """Reject invalid links, and too many links."""
    if not count:
        return
    if count > LINKS_MAX:
        raise InvalidArgument(f"cannot attach more than {LINKS_MAX} links per request, got {count}")
    for link in links:
        size = link.ByteSize()
        if size > LINK_BYTES_MAX:
            raise InvalidArgument(f"link exceeds allowed size of {LINK_BYTES_MAX}, got {size}")
        problem = _link_problem(link)
        if problem is not None:
            raise InvalidArgument(problem)


# Required fields of a link by variant, with their names in error messages.
_LINK_FIELDS = {
    "workflow_event": (
        "workflow event", (("namespace", "namespace"), ("workflow_id", "workflow ID"), ("run_id", "run ID")),
    ),
    "nexus_operation": (
        "nexus operation", (("namespace", "namespace"), ("operation_id", "operation ID"), ("run_id", "run ID")),
    ),
    "activity": ("activity", (("namespace", "namespace"), ("activity_id", "activity ID"), ("run_id", "run ID"))),
}  # fmt: skip


def _link_problem(link: Link) -> str | None:
    variant = link.WhichOneof("variant")
    if variant == "batch_job":
        return None if link.batch_job.job_id else "batch job link must not have an empty job ID"
    if variant not in _LINK_FIELDS:
        return "unsupported link variant"
    noun, fields = _LINK_FIELDS[variant]
    for field, words in fields:
        if not getattr(getattr(link, variant), field):
            return f"{noun} link must not have an empty {words} field"
    event = link.workflow_event.event_ref
    if variant == "workflow_event" and event.event_id and not event.event_type:
        return "workflow event link ref cannot have an unspecified event type and a non-zero event ID"
    return None


def check_metadata(frontend: Frontend, namespace: Namespace, metadata: UserMetadata) -> None:
    """Reject a summary or details that are too large."""
    scope = Scope(namespace.id)
    for name, payload, setting in (
        ("summary", metadata.summary, USER_METADATA_SUMMARY_SIZE),
        ("details", metadata.details, USER_METADATA_DETAILS_SIZE),
    ):
        size, limit = payload.ByteSize(), frontend.settings.get(setting, scope)
        if size > limit:
            raise InvalidArgument(f"user_metadata.{name} exceeds size limit. Length={size} Limit={limit}")


def page_rows(frontend: Frontend, namespace: Namespace, asked: int) -> int:
    """Maximum number of rows in a page of a list."""
    largest = frontend.settings.get(VISIBILITY_MAX_PAGE_SIZE, Scope(namespace.id))
    return asked if 0 < asked <= largest else largest


def check_versioning(
    stamp: WorkerVersionCapabilities | WorkerVersionStamp, options: WorkerDeploymentOptions | None, queue: TaskQueue
) -> None:
    """Reject inconsistent versioning fields of a worker."""
    if queue.kind == STICKY and not queue.normal_name and (stamp.use_versioning or options is not None):
        raise InvalidArgument(
            "NormalName must be set on sticky queue when UseVersioning is true or DeploymentOptions are set."
        )
    if stamp.use_versioning and not stamp.build_id:
        raise InvalidArgument("WorkerVersionStamp must be present if UseVersioning is true.")
    if is_longer(stamp.build_id, BUILD_ID_BYTES_MAX):
        raise InvalidArgument("Build ID exceeds configured limit.workerBuildIdSize, use a shorter build ID.")
    if options is None or options.worker_versioning_mode != WorkerVersioningMode.WORKER_VERSIONING_MODE_VERSIONED:
        return
    if not options.deployment_name or not options.build_id:
        raise InvalidArgument("Deployment name and build id must be set together.")
    for noun, value in (("WorkerDeploymentName", options.deployment_name), ("BuildID", options.build_id)):
        problem = _deployment_problem(noun, value)
        if problem is not None:
            raise problem


def _deployment_problem(noun: str, value: str) -> ApiError | None:
    if is_longer(value, DEPLOYMENT_FIELD_BYTES_MAX):
        return InvalidArgument(f"size of {noun} larger than the maximum allowed")
    for character in (".", ":"):
        if noun == "WorkerDeploymentName" and character in value:
            return InvalidArgument(f"worker deployment name cannot contain '{character}'")
    if value.startswith("__"):
        return InvalidArgument(f"{noun} cannot start with '__'")
    return None
