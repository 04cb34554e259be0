"""The causes that a diagnosis can find, and a finding with its evidence."""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Final

from msgspec import Struct, structs

from fairlead.console import text
from fairlead.console.stuck_facts import QueueFacts, TaskFacts


class Cause(StrEnum):
    """The cause for which a workflow is stuck."""

    CLOSED = "closed"
    ACTIVITY_NOT_PENDING = "activity not pending"
    PAUSED = "workflow paused"
    NO_WORKER = "no worker"
    NO_WORKER_OF_VERSION = "no worker of the version"
    NO_WORKER_OF_TYPE = "no worker with the type"
    TASK_FAILING = "workflow task fails again and again"
    STICKY_GONE = "worker with the cached workflow is gone"
    RATE_LIMIT = "rate limit"
    KEY_LIMIT = "limit of the fairness key"
    RUNNING_LIMIT = "limit on running activities"
    KEY_RUNNING_LIMIT = "limit on running activities of the fairness key"
    PARTITION_WITHOUT_POLLS = "partition without polls"
    WORKERS_BUSY = "workers busy"
    ACTIVITY_PAUSED = "activity paused"
    BACKING_OFF = "waits for the next attempt"
    NO_HEARTBEAT = "worker hangs"
    TASK_HANGS = "workflow task hangs"
    RUNNING = "activity runs"
    NEXUS = "Nexus operation"
    QUEUE_UNKNOWN = "task queue not readable"
    DISPATCHING = "about to be dispatched"
    WAITS_FOR_TIMER = "waits for a timer"
    WAITS_FOR_CHILD = "waits for a child workflow"
    WAITS_FOR_SIGNAL = "waits for a signal or update"


# The order of the findings: causes that an operator must fix come before those that end without help.
ORDER: Final = {cause: number for number, cause in enumerate(Cause)}
# Causes that end without an operator's help.
CALM: Final = frozenset(
    (
        *(Cause.CLOSED, Cause.ACTIVITY_NOT_PENDING, Cause.RUNNING, Cause.DISPATCHING),
        *(Cause.WAITS_FOR_TIMER, Cause.WAITS_FOR_CHILD, Cause.WAITS_FOR_SIGNAL),
    )
)

# Causes that several activities of a run share if they wait in the same task queue.
SHARED: Final = frozenset(
    (
        *(Cause.NO_WORKER, Cause.NO_WORKER_OF_VERSION, Cause.RATE_LIMIT, Cause.KEY_LIMIT, Cause.RUNNING_LIMIT),
        *(Cause.KEY_RUNNING_LIMIT, Cause.PARTITION_WITHOUT_POLLS, Cause.WORKERS_BUSY, Cause.DISPATCHING),
        *(Cause.RUNNING, Cause.ACTIVITY_PAUSED, Cause.NO_WORKER_OF_TYPE),
    )
)

# Causes that name the fairness key.
BY_KEY: Final = frozenset((Cause.KEY_LIMIT, Cause.KEY_RUNNING_LIMIT))


class OtherActivity(Struct, frozen=True, kw_only=True):
    """An activity with the same reason as the first one of a finding."""

    id: str
    since_s: float | None = None
    partition: int | None = None
    position: int | None = None
    fairness_key: str = ""


class Finding(Struct, frozen=True, kw_only=True):
    """One reason: a sentence, since when, what to do, and the evidence as pairs of name and value."""

    cause: Cause
    sentence: str
    advice: str
    since_s: float | None = None
    until_s: float | None = None
    evidence: list[tuple[str, str]] = []
    is_calm: bool = False
    # Id of the activity that the finding is about; empty for the workflow itself.
    activity: str = ""
    # Task queue and type that the finding is about.
    queue: str = ""
    queue_type: str = ""
    # Type of the activity, its fairness key, and its place in the backlog.
    activity_type: str = ""
    fairness_key: str = ""
    partition: int | None = None
    position: int | None = None
    others: list[OtherActivity] = []


def grouped(findings: Iterable[Finding]) -> list[Finding]:
    """The findings in their order, with activities that wait for the same reason at the first one of them."""
    found: dict[tuple[object, ...], Finding] = {}
    for number, one in enumerate(findings):
        is_shared = one.cause in SHARED and one.activity and one.queue
        by_key = one.fairness_key if one.cause in BY_KEY else ""
        key = (one.cause, one.queue, one.activity_type, by_key) if is_shared else (number,)
        first = found.setdefault(key, one)
        if first is not one:
            other = OtherActivity(
                id=one.activity,
                since_s=one.since_s,
                partition=one.partition,
                position=one.position,
                fairness_key=one.fairness_key,
            )
            found[key] = structs.replace(first, others=[*first.others, other])
    return [*found.values()]


def evidence_of(task: TaskFacts) -> Iterator[tuple[str, str]]:
    """The facts about a task and its task queue, as pairs of name and value."""
    yield "State", task.state
    if task.attempt > 1:
        yield "Attempt", f"{task.attempt} of {task.attempts_max}" if task.attempts_max else str(task.attempt)
    if task.failure:
        yield "Last failure", task.failure
    if task.worker:
        yield "Last worker", task.worker
    if task.version:
        yield "Needs worker version", task.version
    queue = task.queue
    if queue is None:
        return
    yield "Task queue", f"{queue.name} ({queue.type}){', sticky' if task.is_sticky else ''}"
    # The figures of a task queue that could not be read are not known.
    if not queue.problem:
        yield from _evidence_of_queue(queue)


def _evidence_of_queue(queue: QueueFacts) -> Iterator[tuple[str, str]]:
    yield (
        "Backlog",
        text.plural(queue.backlog, "task")
        + (f", the oldest waits {text.duration(queue.oldest_s)}" if queue.oldest_s else ""),
    )
    if queue.partition is not None:
        yield "Partition", str(queue.partition)
    if queue.position is not None:
        yield "Position in the fair backlog", str(queue.position)
    yield "Dispatched", f"{text.number(queue.dispatches_per_s)} tasks per second"
    if queue.polls is not None:
        yield "Waiting polls", text.number(queue.polls)
    yield (
        "Rate limit",
        (
            "none"
            if queue.rate_per_s is None
            else f"{text.number(queue.rate_per_s)} tasks per second, {queue.rate_source}"
        ),
    )
    if queue.running_max:
        yield "Running activities", f"{queue.running} of {queue.running_max}"
    if queue.key_running_max:
        yield "Running activities of the fairness key", f"{queue.key_running} of {queue.key_running_max}"
    if queue.key or queue.key_rate_per_s is not None:
        rate, source = queue.key_rate_per_s, queue.key_rate_source
        limit = "no limit" if rate is None else f"{text.number(rate)} tasks per second for weight 1 ({source})"
        yield (
            "Fairness key",
            (
                f"{queue.key or '(none)'}: weight {text.number(queue.key_weight)}, {limit}, "
                f"{text.plural(queue.key_waiting, 'task')} waiting"
            ),
        )
