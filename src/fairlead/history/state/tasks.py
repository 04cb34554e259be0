"""Tasks that a step of a run adds to the shard's queues.

A task contains its event's id and version, and other values by which its executor checks whether the task still
applies. A task with `fire_at_ns` goes to the timer queue.
"""

from enum import IntEnum

import msgspec

from fairlead.history.state.run import ParentClose


class Task(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Base class of all tasks. `version` is the version at which the task was added."""

    version: int


class TimerTask(Task, frozen=True, tag=True, array_like=True):
    """A task that is due at a certain time."""

    fire_at_ns: int


class PushWorkflowTask(Task, frozen=True, tag=True, array_like=True):
    """Push a workflow task to matching."""

    scheduled_event_id: int
    attempt: int
    task_queue: str
    sticky: bool


class PushActivityTask(Task, frozen=True, tag=True, array_like=True):
    """Push an attempt of an activity to matching."""

    scheduled_event_id: int
    attempt: int
    stamp: int
    task_queue: str


class StartChild(Task, frozen=True, tag=True, array_like=True):
    """Start the child of an initiated event; the request id prevents a second start."""

    initiated_event_id: int
    request_id: str


class SignalExternal(Task, frozen=True, tag=True, array_like=True):
    """Send the signal of an initiated event."""

    initiated_event_id: int
    request_id: str


class CancelExternal(Task, frozen=True, tag=True, array_like=True):
    """Send the cancel request of an initiated event."""

    initiated_event_id: int
    request_id: str


class CloseRun(Task, frozen=True, tag=True, array_like=True):
    """Notify the parent and apply the parent close policies, because event `close_event_id` has closed the run.

    `notifies_parent` is false if another run of the chain follows.
    """

    close_event_id: int
    notifies_parent: bool
    children: tuple[ParentClose, ...]


class UpsertVisibility(Task, frozen=True, tag=True, array_like=True):
    """Write the run's visibility row."""


class UserTimer(TimerTask, frozen=True, tag=True, array_like=True):
    """Fire a timer."""

    timer_id: str
    started_event_id: int


class TaskTimeout(IntEnum):
    """The kind of a workflow task's timeout; the numbers of Temporal's TimeoutType."""

    START_TO_CLOSE = 1
    SCHEDULE_TO_START = 2


class WorkflowTaskTimeout(TimerTask, frozen=True, tag=True, array_like=True):
    """Time a workflow task out.

    If `in_memory`, the timeout (of a speculative task) is only in memory, not in a queue.
    """

    scheduled_event_id: int
    attempt: int
    kind: TaskTimeout
    in_memory: bool = False


class WorkflowTaskRetry(TimerTask, frozen=True, tag=True, array_like=True):
    """Push a workflow task to matching, because the backoff of its attempt is over."""

    scheduled_event_id: int
    attempt: int


class ActivityTimeoutKind(IntEnum):
    """The kind of an activity's timeout; the numbers of Temporal's TimeoutType."""

    START_TO_CLOSE = 1
    SCHEDULE_TO_START = 2
    SCHEDULE_TO_CLOSE = 3
    HEARTBEAT = 4


class ActivityTimeout(TimerTask, frozen=True, tag=True, array_like=True):
    """Time an activity out; schedule-to-close applies to all attempts together."""

    scheduled_event_id: int
    kind: ActivityTimeoutKind
    attempt: int
    stamp: int


class ActivityRetry(TimerTask, frozen=True, tag=True, array_like=True):
    """Push the next attempt of an activity to matching, because its backoff is over."""

    scheduled_event_id: int
    attempt: int
    stamp: int


class RunTimeout(TimerTask, frozen=True, tag=True, array_like=True):
    """Time the run out."""


class ExecutionTimeout(TimerTask, frozen=True, tag=True, array_like=True):
    """Time out the chain of runs: its current run is closed."""

    first_run_id: str


class WorkflowBackoff(TimerTask, frozen=True, tag=True, array_like=True):
    """Schedule the first workflow task, because the backoff of a start delay, cron schedule or retry is over."""


class DeleteAfterRetention(TimerTask, frozen=True, tag=True, array_like=True):
    """Delete the run, because the namespace's retention is over."""


class FastForwardEnd(TimerTask, frozen=True, tag=True, array_like=True):
    """End a fast-forward at its target time, and stop skipping time."""


class CallNexus(Task, frozen=True, tag=True, array_like=True):
    """Send a request to start or to cancel a Nexus operation to the workers of its endpoint."""

    scheduled_event_id: int
    attempt: int
    is_cancel: bool


class NexusCallTimeout(TimerTask, frozen=True, tag=True, array_like=True):
    """Fail a request to a Nexus handler that has timed out."""

    scheduled_event_id: int
    attempt: int
    is_cancel: bool


class NexusRetry(TimerTask, frozen=True, tag=True, array_like=True):
    """Repeat a request to a Nexus handler, because its backoff is over."""

    scheduled_event_id: int
    attempt: int
    is_cancel: bool


class NexusTimeout(TimerTask, frozen=True, tag=True, array_like=True):
    """Time a Nexus operation out; `kind` is the number of a TimeoutType."""

    scheduled_event_id: int
    kind: int


class DeliverCallback(Task, frozen=True, tag=True, array_like=True):
    """Deliver the completion callback at index `number`, because the run has closed."""

    number: int
    close_event_id: int


class DeliverUpdateCallback(Task, frozen=True, tag=True, array_like=True):
    """Report the end of an update to its callback at index `number`."""

    event_id: int
    update_id: str
    number: int


class Reapply(Task, frozen=True, tag=True, array_like=True):
    """Reapply signals and updates of branches that are not current, or of a replaced run."""


class EntityTask(Task, frozen=True, tag=True, array_like=True):
    """A task of an entity of this archetype, due at once; only the archetype's code can decode `data`."""

    archetype: str
    data: bytes


class EntityTimer(TimerTask, frozen=True, tag=True, array_like=True):
    """A timer task of an entity of this archetype; only the archetype's code can decode `data`."""

    archetype: str
    data: bytes


AnyTask = (
    PushWorkflowTask
    | PushActivityTask
    | StartChild
    | SignalExternal
    | CancelExternal
    | CloseRun
    | UpsertVisibility
    | UserTimer
    | WorkflowTaskTimeout
    | WorkflowTaskRetry
    | ActivityTimeout
    | ActivityRetry
    | RunTimeout
    | ExecutionTimeout
    | WorkflowBackoff
    | DeleteAfterRetention
    | FastForwardEnd
    | CallNexus
    | NexusCallTimeout
    | NexusRetry
    | NexusTimeout
    | DeliverCallback
    | DeliverUpdateCallback
    | Reapply
    | EntityTask
    | EntityTimer
)


class QueueRow(msgspec.Struct, array_like=True, frozen=True):
    """A task as a queue stores it, with the ids of its run."""

    namespace_id: str
    workflow_id: str
    run_id: str
    task: AnyTask
    # Nanoseconds by which the run's clock was ahead of the wall clock; queues use the wall clock.
    skipped_ns: int = 0


_encode_row = msgspec.msgpack.Encoder().encode
_decode_row = msgspec.msgpack.Decoder(QueueRow).decode


def encode_row(row: QueueRow) -> bytes:
    """Encode a row for the store."""
    return _encode_row(row)


def decode_row(stored: bytes) -> QueueRow:
    """Decode a stored row."""
    return _decode_row(stored)
