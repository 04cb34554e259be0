"""Checks that many requests share, with the words of Temporal's server. They are cheap: most requests pass them all.

Lengths are those of the UTF-8 form, as Temporal counts them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from temporalio.api.enums.v1 import WorkerVersioningMode

from fairlead.core.partitions import RESERVED_PREFIX
from fairlead.history.refusals import Refused, invalid, not_found
from fairlead.history.state.times import DURATION_NS_MAX, from_duration, to_duration
from fairlead.settings import Scope
from fairlead.settings.limits import BLOB_SIZE_ERROR, MAX_ID_LENGTH

if TYPE_CHECKING:
    from google.protobuf.duration_pb2 import Duration
    from google.protobuf.message import Message
    from temporalio.api.common.v1 import (
        Link,
        Priority,
        WorkerVersionCapabilities,
        WorkerVersionStamp,
        WorkflowExecution,
    )
    from temporalio.api.deployment.v1 import WorkerDeploymentOptions
    from temporalio.api.taskqueue.v1 import TaskQueue

    from fairlead.frontend.context import Frontend
    from fairlead.history.namespaces import Namespace

FAIRNESS_KEY_BYTES_MAX = 64
LINKS_MAX = 10
LINK_BYTES_MAX = 4000
BUILD_ID_BYTES_MAX = 255
# Both of a deployment's two names have to fit into one id, with a prefix.
DEPLOYMENT_FIELD_BYTES_MAX = 480
STICKY = 2
_UTF8_BYTES_MAX = 4
_RUN_ID_LENGTH = 36
_HEXADECIMAL = frozenset("0123456789abcdefABCDEF")


def is_longer(text: str, bytes_max: int) -> bool:
    """Whether the text has more bytes than that; for short texts, which most are, without counting them."""
    length = len(text)
    return length * _UTF8_BYTES_MAX > bytes_max and (length > bytes_max or len(text.encode()) > bytes_max)


def check_length(frontend: Frontend, text: str, message: str) -> None:
    """Refuse an id that is longer than ids may be."""
    if is_longer(text, frontend.settings.get(MAX_ID_LENGTH)):
        raise invalid(message)


def check_length_told(frontend: Frontend, text: str, noun: str) -> None:
    """Refuse an id that is longer than ids may be, and say how long it is."""
    limit = frontend.settings.get(MAX_ID_LENGTH)
    if is_longer(text, limit):
        raise invalid(f"{noun} exceeds maximum allowed length ({len(text.encode())}/{limit})")


def check_identity(frontend: Frontend, identity: str) -> None:
    """Refuse a worker whose name is too long."""
    check_length(frontend, identity, "Identity length exceeds limit.")


def is_run_id(run_id: str) -> bool:
    """Whether this is a UUID as run ids are written."""
    return (
        len(run_id) == _RUN_ID_LENGTH
        and run_id[8] == run_id[13] == run_id[18] == run_id[23] == "-"
        and _HEXADECIMAL.issuperset(run_id.replace("-", ""))
        and run_id.count("-") == 4
    )


def check_execution(message: Message, field: str) -> None:
    """Refuse a request that does not say which workflow, or names a run that can't be."""
    if not message.HasField(field):
        raise invalid("Execution is not set on request.")
    execution: WorkflowExecution = getattr(message, field)
    if not execution.workflow_id:
        raise invalid("WorkflowId is not set on request.")
    if execution.run_id and not is_run_id(execution.run_id):
        raise invalid("Invalid RunId.")
    if "\0" in execution.workflow_id:
        # No store has such an id, and not every store can be asked for it.
        raise not_found(f"workflow not found for ID: {execution.workflow_id}")


def check_loadable(workflow_id: str, run_id: str) -> None:
    """The same, where Temporal finds out only when it looks for the run."""
    if not workflow_id:
        raise invalid("Can't load workflow execution.  WorkflowId not set.")
    if "\0" in workflow_id:
        raise not_found(f"workflow not found for ID: {workflow_id}")
    check_run_id(run_id)


def check_run_id(run_id: str) -> None:
    """Refuse a run id that is none, where Temporal finds out only when it looks for the run."""
    if run_id and not is_run_id(run_id):
        raise invalid("RunId is not valid UUID.")


def check_task_queue(frontend: Frontend, message: Message) -> None:
    """Refuse a task queue that is missing, or whose name can't be one."""
    if not message.HasField("task_queue"):
        raise invalid("taskQueue is not set")
    queue: TaskQueue = message.task_queue  # type: ignore[attr-defined]
    if not queue.name:
        raise invalid("missing task queue name")
    check_length(frontend, queue.name, "taskQueue length exceeds limit")
    if queue.name.startswith(RESERVED_PREFIX):
        raise invalid(f"task queue name cannot start with reserved prefix {RESERVED_PREFIX}")
    if queue.kind == STICKY and queue.normal_name:
        check_length(frontend, queue.normal_name, "taskQueue length exceeds limit")


def check_duration(message: Message, field: str, name: str) -> None:
    """Refuse a duration below zero; one past all bounds is cut."""
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
        raise invalid(f"An invalid {name} is set on request. cause: {problem}")
    if from_duration(duration) > DURATION_NS_MAX:
        duration.CopyFrom(to_duration(DURATION_NS_MAX))


def check_priority(priority: Priority) -> None:
    """Refuse a priority or a fairness key that can't be."""
    if priority.priority_key < 0:
        raise invalid("priority key can't be negative")
    if is_longer(priority.fairness_key, FAIRNESS_KEY_BYTES_MAX):
        raise invalid("fairness key length exceeds limit")
    if priority.fairness_weight < 0:
        raise invalid("must be greater than zero")


def blob_size_max(frontend: Frontend, namespace: Namespace) -> int:
    """How many bytes one payload may have in this namespace."""
    return frontend.settings.get(BLOB_SIZE_ERROR, Scope(namespace.id))


def check_blob(frontend: Frontend, namespace: Namespace, blob: Message) -> None:
    """Refuse payloads that are too large to be an event's."""
    if blob.ByteSize() > blob_size_max(frontend, namespace):
        raise invalid("Blob data size exceeds limit.")


def check_links(links: Iterable[Link], count: int) -> None:
    """Refuse links that lead nowhere, and too many of them."""
    if not count:
        return
    if count > LINKS_MAX:
        raise invalid(f"cannot attach more than {LINKS_MAX} links per request, got {count}")
    for link in links:
        size = link.ByteSize()
        if size > LINK_BYTES_MAX:
            raise invalid(f"link exceeds allowed size of {LINK_BYTES_MAX}, got {size}")
        problem = _link_problem(link)
        if problem is not None:
            raise invalid(problem)


def _link_problem(link: Link) -> str | None:
    variant = link.WhichOneof("variant")
    if variant == "workflow_event":
        event = link.workflow_event
        for value, noun in (
            (event.namespace, "namespace"),
            (event.workflow_id, "workflow ID"),
            (event.run_id, "run ID"),
        ):
            if not value:
                return f"workflow event link must not have an empty {noun} field"
        if event.event_ref.event_id and not event.event_ref.event_type:
            return "workflow event link ref cannot have an unspecified event type and a non-zero event ID"
        return None
    if variant == "batch_job":
        return None if link.batch_job.job_id else "batch job link must not have an empty job ID"
    return "unsupported link variant"


def check_versioning(
    stamp: WorkerVersionCapabilities | WorkerVersionStamp, options: WorkerDeploymentOptions | None, queue: TaskQueue
) -> None:
    """Refuse a worker that says of its version what can't be."""
    if queue.kind == STICKY and not queue.normal_name and (stamp.use_versioning or options is not None):
        raise invalid("NormalName must be set on sticky queue when UseVersioning is true or DeploymentOptions are set.")
    if stamp.use_versioning and not stamp.build_id:
        raise invalid("WorkerVersionStamp must be present if UseVersioning is true.")
    if is_longer(stamp.build_id, BUILD_ID_BYTES_MAX):
        raise invalid("Build ID exceeds configured limit.workerBuildIdSize, use a shorter build ID.")
    if options is None or options.worker_versioning_mode != WorkerVersioningMode.WORKER_VERSIONING_MODE_VERSIONED:
        return
    if not options.deployment_name or not options.build_id:
        raise invalid("Deployment name and build id must be set together.")
    for noun, value in (("WorkerDeploymentName", options.deployment_name), ("BuildID", options.build_id)):
        problem = _deployment_problem(noun, value)
        if problem is not None:
            raise problem


def _deployment_problem(noun: str, value: str) -> Refused | None:
    if is_longer(value, DEPLOYMENT_FIELD_BYTES_MAX):
        return invalid(f"size of {noun} larger than the maximum allowed")
    for character in (".", ":"):
        if noun == "WorkerDeploymentName" and character in value:
            return invalid(f"worker deployment name cannot contain '{character}'")
    if value.startswith("__"):
        return invalid(f"{noun} cannot start with '__'")
    return None
