"""Checks that several commands share. A check that fails makes the workflow task fail, with Temporal's words."""

from google.protobuf.duration_pb2 import Duration
from temporalio.api.common.v1 import Priority, RetryPolicy, SearchAttributes
from temporalio.api.enums.v1 import WorkflowTaskFailedCause as Cause
from temporalio.api.taskqueue.v1 import TaskQueue

from fairlead.history.commands.answer import Answer
from fairlead.history.state.errors import BadCommand
from fairlead.history.state.retry import fill_retry_policy, retry_policy_problem
from fairlead.history.state.times import DURATION_NS_MAX, from_duration, to_duration

_FAIRNESS_KEY_BYTES_MAX = 64
_RESERVED_QUEUE_PREFIX = "/_sys/"


def check(condition: bool, cause: Cause.ValueType, message: str) -> None:  # noqa: FBT001 - it reads like an assertion
    """Refuse the command unless the condition holds."""
    if not condition:
        raise BadCommand(cause, message)


def check_seen(answer: Answer) -> None:
    """Refuse to end the run while there is something that the worker has not seen."""
    if answer.has_unseen:
        raise BadCommand(Cause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND, "")


def check_size(answer: Answer, size: int, cause: Cause.ValueType, message: str) -> None:
    """Refuse what is too large to be stored. Trying again does not make it smaller, so the run ends."""
    if size > answer.transaction.limits.blob_size_max:
        raise BadCommand(cause, message, ends_run=True)


def check_count(count: int, limit: int, cause: Cause.ValueType, noun: str) -> None:
    """Refuse one more of what may be pending only so many times; 0 is no limit."""
    if 0 < limit <= count:
        raise BadCommand(cause, f"the number of {noun}, {count}, has reached the per-workflow limit of {limit}")


def check_duration(duration: Duration, cause: Cause.ValueType, message: str) -> None:
    """Refuse a negative duration, where the message has `{}` for the reason; cut one that is past all bounds."""
    duration_ns = from_duration(duration)
    if duration_ns < 0:
        raise BadCommand(cause, message.replace("{}", "negative duration", 1))
    if duration_ns > DURATION_NS_MAX:
        duration.CopyFrom(to_duration(DURATION_NS_MAX))


def check_retry_policy(policy: RetryPolicy, cause: Cause.ValueType, message: str = "{}") -> None:
    """Fill in what a policy leaves open, and refuse one that makes no sense."""
    fill_retry_policy(policy)
    problem = retry_policy_problem(policy)
    if problem is not None:
        raise BadCommand(cause, message.replace("{}", problem, 1))


def check_task_queue(queue: TaskQueue, default: str, limit: int) -> str | None:
    """Fill in the workflow's own queue where none is named; what is wrong with the name, or None."""
    queue.name = queue.name or default
    if len(queue.name) > limit:
        return "taskQueue length exceeds limit"
    if queue.name.startswith(_RESERVED_QUEUE_PREFIX):
        return f"task queue name cannot start with reserved prefix {_RESERVED_QUEUE_PREFIX}"
    return None


def priority_problem(priority: Priority) -> str | None:
    """What is wrong with a priority, or None."""
    if priority.priority_key < 0:
        return "priority key can't be negative"
    if len(priority.fairness_key.encode()) > _FAIRNESS_KEY_BYTES_MAX:
        return f"fairness key length exceeds limit of {_FAIRNESS_KEY_BYTES_MAX} bytes"
    return None


def check_search_attributes(answer: Answer, attributes: SearchAttributes, message: str = "{}") -> None:
    """Refuse attributes that the namespace does not have, or values of another type."""
    problem = answer.surroundings.search_attributes_problem(attributes)
    if problem is not None:
        raise BadCommand(Cause.WORKFLOW_TASK_FAILED_CAUSE_BAD_SEARCH_ATTRIBUTES, message.replace("{}", problem, 1))


def target_namespace_id(answer: Answer, name: str, cause: Cause.ValueType) -> str:
    """The id of the namespace that a command is for: the workflow's own where it names none."""
    own = answer.transaction.state.identity.namespace_id
    if not name or name == answer.surroundings.namespace:
        return own
    target = answer.surroundings.namespace_ids(name)
    check(target is not None, cause, f"Namespace {name} is not found.")
    check(
        target == own or answer.surroundings.cross_namespace_commands,
        cause,
        "cross namespace commands are not allowed",
    )
    return target or own
