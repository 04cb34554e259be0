"""What has to be done after a step of a run: the rows of its shard's queues.

Each names the event it was made for, with its version, and whatever else tells whether it still means something when
its turn comes. A task with `fire_at_ns` is for the timer queue.
"""

from enum import IntEnum

import msgspec

from fairlead.history.state.run import ParentClose


class Task(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """The base of them all: the version at which it was made."""

    version: int


class TimerTask(Task, frozen=True, tag=True, array_like=True):
    """A task that is due at a time."""

    fire_at_ns: int


class PushWorkflowTask(Task, frozen=True, tag=True, array_like=True):
    """Hand a workflow task to matching."""

    scheduled_event_id: int
    attempt: int
    task_queue: str
    sticky: bool


class PushActivityTask(Task, frozen=True, tag=True, array_like=True):
    """Hand an attempt of an activity to matching."""

    scheduled_event_id: int
    attempt: int
    stamp: int
    task_queue: str


class StartChild(Task, frozen=True, tag=True, array_like=True):
    """Start the child that an initiated event asks for; the request id makes that once."""

    initiated_event_id: int
    request_id: str


class SignalExternal(Task, frozen=True, tag=True, array_like=True):
    """Send the signal that an initiated event asks for."""

    initiated_event_id: int
    request_id: str


class CancelExternal(Task, frozen=True, tag=True, array_like=True):
    """Send the cancellation that an initiated event asks for."""

    initiated_event_id: int
    request_id: str


class CloseRun(Task, frozen=True, tag=True, array_like=True):
    """Tell the parent, and see to the children: the run has closed, and what was its end is in `close_event_id`.

    `tells_parent` is false where another run of the same workflow goes on.
    """

    close_event_id: int
    tells_parent: bool
    children: tuple[ParentClose, ...]


class UpsertVisibility(Task, frozen=True, tag=True, array_like=True):
    """Write the run's visibility row anew."""


class UserTimer(TimerTask, frozen=True, tag=True, array_like=True):
    """Fire a timer."""

    timer_id: str
    started_event_id: int


class TaskTimeout(IntEnum):
    """Which of a workflow task's two times ran out, by the numbers of Temporal's TimeoutType."""

    START_TO_CLOSE = 1
    SCHEDULE_TO_START = 2


class WorkflowTaskTimeout(TimerTask, frozen=True, tag=True, array_like=True):
    """Time a workflow task out. A speculative one's is kept in memory, not in a queue, and so it says so."""

    scheduled_event_id: int
    attempt: int
    kind: TaskTimeout
    in_memory: bool = False


class ActivityTimeoutKind(IntEnum):
    """Which of an activity's times ran out, by the numbers of Temporal's TimeoutType."""

    START_TO_CLOSE = 1
    SCHEDULE_TO_START = 2
    SCHEDULE_TO_CLOSE = 3
    HEARTBEAT = 4


class ActivityTimeout(TimerTask, frozen=True, tag=True, array_like=True):
    """Time an activity out; schedule-to-close is for all of its attempts."""

    scheduled_event_id: int
    kind: ActivityTimeoutKind
    attempt: int
    stamp: int


class ActivityRetry(TimerTask, frozen=True, tag=True, array_like=True):
    """The backoff is over: hand the next attempt to matching."""

    scheduled_event_id: int
    attempt: int
    stamp: int


class RunTimeout(TimerTask, frozen=True, tag=True, array_like=True):
    """Time the run out."""


class ExecutionTimeout(TimerTask, frozen=True, tag=True, array_like=True):
    """Time the chain of runs out, whichever of them is current then."""

    first_run_id: str


class WorkflowBackoff(TimerTask, frozen=True, tag=True, array_like=True):
    """The start delay, the cron schedule's or the retry's time is over: schedule the first workflow task."""


class DeleteAfterRetention(TimerTask, frozen=True, tag=True, array_like=True):
    """The namespace's retention is over: delete the run."""


class CallNexus(Task, frozen=True, tag=True, array_like=True):
    """Hand a request to start, or to cancel, a Nexus operation to the workers of its endpoint."""

    scheduled_event_id: int
    attempt: int
    is_cancel: bool


class NexusCallTimeout(TimerTask, frozen=True, tag=True, array_like=True):
    """Nobody has answered a request to a Nexus handler: give it up."""

    scheduled_event_id: int
    attempt: int
    is_cancel: bool


class NexusRetry(TimerTask, frozen=True, tag=True, array_like=True):
    """The backoff is over: make the request again."""

    scheduled_event_id: int
    attempt: int
    is_cancel: bool


class NexusTimeout(TimerTask, frozen=True, tag=True, array_like=True):
    """Time a Nexus operation out; `kind` is the number of a TimeoutType."""

    scheduled_event_id: int
    kind: int


class DeliverCallback(Task, frozen=True, tag=True, array_like=True):
    """The run has closed: tell the one who registered a callback, by its place among them."""

    number: int
    close_event_id: int


class Reapply(Task, frozen=True, tag=True, array_like=True):
    """Bring signals and updates of a line, or a run, that has lost to the one that has won."""


class EntityTask(Task, frozen=True, tag=True, array_like=True):
    """Something that an entity of the archetype wants done at once: `data` says what, and only it can read that."""

    archetype: str
    data: bytes


class EntityTimer(TimerTask, frozen=True, tag=True, array_like=True):
    """The same, at a time."""

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
    | ActivityTimeout
    | ActivityRetry
    | RunTimeout
    | ExecutionTimeout
    | WorkflowBackoff
    | DeleteAfterRetention
    | CallNexus
    | NexusCallTimeout
    | NexusRetry
    | NexusTimeout
    | DeliverCallback
    | Reapply
    | EntityTask
    | EntityTimer
)


class QueueRow(msgspec.Struct, array_like=True, frozen=True):
    """A task as its queue keeps it, with the run that it is of."""

    namespace_id: str
    workflow_id: str
    run_id: str
    task: AnyTask


_encode_row = msgspec.msgpack.Encoder().encode
_decode_row = msgspec.msgpack.Decoder(QueueRow).decode


def encode_row(row: QueueRow) -> bytes:
    """The row as it is stored."""
    return _encode_row(row)


def decode_row(stored: bytes) -> QueueRow:
    """The row that was stored."""
    return _decode_row(stored)
