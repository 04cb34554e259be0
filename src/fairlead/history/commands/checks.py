"""Checks that several commands share. A failed check fails the workflow task, with the message of Temporal's server."""

from google.protobuf.duration_pb2 import Duration
from temporalio.api.common.v1 import Memo, Priority, RetryPolicy, SearchAttributes
from temporalio.api.enums.v1 import WorkflowTaskFailedCause as Cause
from temporalio.api.taskqueue.v1 import TaskQueue

from fairlead.api.limits import LimitedSize
from fairlead.api.retry import fill_retry_policy, retry_policy_problem
from fairlead.api.search.attributes import size_problem_of
from fairlead.api.times import DURATION_NS_MAX, from_duration, to_duration
from fairlead.history.commands.task_response import TaskResponse
from fairlead.history.state.errors import BadCommand

_FAIRNESS_KEY_BYTES_MAX = 64
_RESERVED_QUEUE_PREFIX = "/_sys/"


def check(condition: bool, cause: Cause.ValueType, message: str) -> None:  # noqa: FBT001 - it reads like an assertion
    """Fail the command unless the condition holds."""
    if not condition:
        raise BadCommand(cause, message)


def check_seen(answer: TaskResponse) -> None:
    """Fail a command that closes the run while there are buffered events that the worker has not seen."""
    if answer.has_unseen:
        raise BadCommand(Cause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND, "")


def check_size(answer: TaskResponse, size: int, cause: Cause.ValueType, message: str) -> None:
    """Fail a command with a value that is too large to store, and terminate the run: a retry would not help."""
    limits = answer.transaction.limits
    if size > min(limits.blob_size_warn, limits.blob_size_max):
        answer.dependencies.warn_of_size(LimitedSize.BLOB, size, answer.command_type)
    if size > limits.blob_size_max:
        raise BadCommand(cause, message, ends_run=True)


def check_memo_size(answer: TaskResponse, memo: Memo, cause: Cause.ValueType, message: str) -> None:
    """Fail a command with a memo that is too large, and terminate the run: a retry would not help."""
    size, limits = memo.ByteSize(), answer.transaction.limits
    if size > min(limits.memo_size_warn, limits.memo_size_max):
        answer.dependencies.warn_of_size(LimitedSize.MEMO, size, answer.command_type)
    if size > limits.memo_size_max:
        raise BadCommand(cause, message, ends_run=True)


def check_count(count: int, limit: int, cause: Cause.ValueType, noun: str) -> None:
    """Fail a command that would exceed the number of pending items; a limit of 0 means no limit."""
    if 0 < limit <= count:
        raise BadCommand(cause, f"the number of {noun}, {count}, has reached the per-workflow limit of {limit}")


def check_duration(duration: Duration, cause: Cause.ValueType, message: str) -> None:
    """Fail a command with a negative duration; reduce a duration above the maximum to it.

    `{}` in the message stands for the problem.
    """
    duration_ns = from_duration(duration)
    if duration_ns < 0:
        raise BadCommand(cause, message.replace("{}", "negative duration", 1))
    if duration_ns > DURATION_NS_MAX:
        duration.CopyFrom(to_duration(DURATION_NS_MAX))


def check_retry_policy(policy: RetryPolicy, cause: Cause.ValueType, message: str = "{}") -> None:
    """Set the defaults of a retry policy, and fail a command with an invalid one."""
    fill_retry_policy(policy)
    problem = retry_policy_problem(policy)
    if problem is not None:
        raise BadCommand(cause, message.replace("{}", problem, 1))


def check_task_queue(queue: TaskQueue, default: str, limit: int) -> str | None:
    """Set the workflow's own task queue if the command names none; return the problem with the name, or None."""
    queue.name = queue.name or default
    if len(queue.name) > limit:
        return "taskQueue length exceeds limit"
    if queue.name.startswith(_RESERVED_QUEUE_PREFIX):
        return f"task queue name cannot start with reserved prefix {_RESERVED_QUEUE_PREFIX}"
    return None


def priority_problem(priority: Priority) -> str | None:
    """The problem with a priority, or None."""
    if priority.priority_key < 0:
        return "priority key can't be negative"
    if len(priority.fairness_key.encode()) > _FAIRNESS_KEY_BYTES_MAX:
        return f"fairness key length exceeds limit of {_FAIRNESS_KEY_BYTES_MAX} bytes"
    return None


def check_search_attributes(answer: TaskResponse, attributes: SearchAttributes, message: str = "{}") -> None:
    """Fail a command with unknown search attributes, or values of the wrong type. Does not check sizes."""
    problem = answer.dependencies.search_attributes_problem(attributes)
    if problem is not None:
        raise BadCommand(Cause.WORKFLOW_TASK_FAILED_CAUSE_BAD_SEARCH_ATTRIBUTES, message.replace("{}", problem, 1))


def check_search_attributes_size(attributes: SearchAttributes, cause: Cause.ValueType) -> None:
    """Fail a command with search attributes that are too large, and terminate the run: a retry would not help."""
    problem = size_problem_of(attributes)
    if problem is not None:
        raise BadCommand(cause, problem, ends_run=True)


def target_namespace_id(answer: TaskResponse, name: str, cause: Cause.ValueType) -> str:
    """The id of the namespace that a command names, or of the workflow's own if it names none."""
    own = answer.transaction.state.identity.namespace_id
    if not name or name == answer.dependencies.namespace:
        return own
    target = answer.dependencies.namespace_ids(name)
    check(target is not None, cause, f"Namespace {name} is not found.")
    check(
        target == own or answer.dependencies.cross_namespace_commands,
        cause,
        "cross namespace commands are not allowed",
    )
    return target or own
