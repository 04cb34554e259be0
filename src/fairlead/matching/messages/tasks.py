"""Messages that add tasks, poll for tasks, and report backlogs."""

from enum import IntEnum

from msgspec import Struct

from fairlead.core.concurrency import Full
from fairlead.core.partitions import Partition, PartitionConfig
from fairlead.matching.messages.base import Message
from fairlead.rpc.hosts.caller import Method


class QueueKind(IntEnum):
    """How a task queue is used; its numbers equal Temporal's `TaskQueueKind`."""

    NORMAL = 1
    STICKY = 2  # Belongs to one worker, and is never partitioned.


class TaskOwner(IntEnum):
    """The service that decides, when a task is matched, whether it may still start."""

    CLIENT = 0  # No service: the poll gets the payload.
    HISTORY = 1  # The history service, which builds the response to the poll.


class NewTask(Struct, frozen=True):
    """A task to add, encoded by field names. `created_s` is the wall-clock time at which it was first added.

    `owner` is None for a task from the store, or from a host of an older release: the starter then determines it.
    """

    priority: int
    fairness_key: str
    weight: float
    payload: bytes
    created_s: float = 0.0
    owner: TaskOwner | None = None


class BacklogReport(Message, frozen=True):
    """A partition's report of its backlog, part of every poll response. The balancer and the root use it."""

    partition: int
    tasks: int  # Number of stored tasks, loaded or not.
    age_s: float  # Age of the oldest loaded task; 0 if none is loaded.
    adds_per_s: float
    wait_s: float  # Recent average of the time that a task waited for a poll.


class AddRequest(Message, frozen=True):
    """Add a task, see `handlers.add_task`."""

    partition: Partition
    task: NewTask
    kind: QueueKind = QueueKind.NORMAL
    # Configuration with which the caller chose the partition; None if the caller had none.
    config: PartitionConfig | None = None
    # Child partition that forwards the task. The task is matched within `wait_s` or returned, and never stored.
    forwarded_from: int | None = None
    wait_s: float = 0.0
    # Query task: matched within `wait_s`, before all waiting tasks, or returned; its caller waits for the result.
    is_transient: bool = False


class AddResponse(Message, frozen=True):
    """Response to an add. A task that is not `is_started` is stored, or, if it was forwarded, not matched."""

    is_started: bool
    config: PartitionConfig
    was_forwarded: bool = False
    # The limit on running activities that put the task off, if the task was forwarded; see `Full`.
    full: Full | None = None


class PollRequest(Message, frozen=True):
    """Wait for a task, see `handlers.poll_task`."""

    partition: Partition
    identity: str
    poll_id: str
    timeout_s: float
    kind: QueueKind = QueueKind.NORMAL
    config: PartitionConfig | None = None
    # The worker's own limit on tasks a second over the whole task queue; None if it sets none.
    rate_per_s: float | None = None
    # Child partition that forwards the poll.
    forwarded_from: int | None = None
    # The root sent the poll down to the oldest backlog: the poll takes a task from there, or returns at once.
    is_sent_down: bool = False
    # The worker's description of itself, for the starter and for describe requests; opaque to matching.
    worker: bytes = b""


class PollResponse(Message, frozen=True):
    """`task` is the starter's response (for plain tasks the payload), or None if no task came in time."""

    task: bytes | None
    config: PartitionConfig
    report: BacklogReport
    was_backlog: bool = False
    was_forwarded: bool = False


class RecallRequest(Message, frozen=True):
    """End the wait of a forwarded poll at once. The poll's response is empty if it has no task yet."""

    partition: Partition
    poll_id: str


class RecallResponse(Message, frozen=True):
    """Whether the poll was still waiting."""

    was_waiting: bool


class ReportRequest(Message, frozen=True):
    """Report to the root (`partition`) a backlog without polls."""

    partition: Partition
    report: BacklogReport


class ReportResponse(Message, frozen=True):
    """The root's response to a report, with its configuration."""

    config: PartitionConfig


class FreeSlotRequest(Message, frozen=True):
    """A slot of a limit on running activities has become free: a parked task of the key may be tried."""

    partition: Partition
    fairness_key: str


class FreeSlotResponse(Message, frozen=True):
    """The response to a report of a free slot; `partitions` is the number of partitions to report to."""

    partitions: int


class ShutdownRequest(Message, frozen=True):
    """Shut down the worker of a sticky task queue, and return its waiting tasks."""

    partition: Partition


class ShutdownResponse(Message, frozen=True):
    """Payloads of the waiting tasks, which are no longer stored: the caller must find another worker for them."""

    payloads: list[bytes]


class ReviewRequest(Message, frozen=True):
    """Review all tasks that wait in a partition: drop the tasks that no longer belong there.

    The starter gets `worker` instead of a worker's description, which tells it that this is a review and not a poll. If
    it returns GONE for a task, the task is dropped.
    """

    partition: Partition
    worker: bytes


class ReviewResponse(Message, frozen=True):
    """`is_done`: all loaded tasks were reviewed within the time. `partitions` is the number of partitions to review."""

    is_done: bool
    partitions: int


ADD = Method("matching.Add", AddRequest, AddResponse)
POLL = Method("matching.Poll", PollRequest, PollResponse)
RECALL = Method("matching.Recall", RecallRequest, RecallResponse)
REPORT = Method("matching.Report", ReportRequest, ReportResponse)
FREE_SLOT = Method("matching.FreeSlot", FreeSlotRequest, FreeSlotResponse)
SHUTDOWN = Method("matching.Shutdown", ShutdownRequest, ShutdownResponse)
REVIEW = Method("matching.Review", ReviewRequest, ReviewResponse)
