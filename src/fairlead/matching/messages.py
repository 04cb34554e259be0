"""What is said between the hosts of the matching service, and what its clients say to it."""

from dataclasses import dataclass
from enum import IntEnum
from math import inf

from msgspec import Struct

from fairlead.cluster.calls import Method
from fairlead.core.errors import FixRequest, RetryElsewhere
from fairlead.core.partitions import DrainReport, Partition, PartitionConfig


class TaskListKind(IntEnum):
    """How a task list is used; the numbers are those of Temporal's `TaskQueueKind`."""

    NORMAL = 1
    STICKY = 2  # One worker's own: never partitioned.


class StaleConfig(RetryElsewhere):
    """A request was sent by an old partition configuration: nothing was done. `config` is the one to go by now."""

    def __init__(self, message: str, config: PartitionConfig) -> None:
        super().__init__(message)
        self.config = config


class StickyWorkerGone(RetryElsewhere):
    """A task was to go to one worker's own task list, and that worker is not there: nothing was done.

    Nothing changes by asking again: the task belongs on the normal task list.
    """


class ScalerIsOn(FixRequest):
    """The number of partitions was to be changed by hand while the adaptive scaler governs it."""


class NotARoot(FixRequest):
    """Something was asked of a partition that only the root, partition 0 of a normal task list, can do."""


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task that is to be kept until a worker takes it. `created_s` is when it was first added, by the wall clock."""

    priority: int
    fairness_key: str
    weight: float
    payload: bytes
    created_s: float = 0.0


class Message(Struct, frozen=True, array_like=True):
    """Encoded by position: fields are only ever added, at the end, with a default."""


class BacklogReport(Message, frozen=True):
    """What a partition says of its backlog with every answer: what balancing, and polls sent down, go by."""

    partition: int
    tasks: int  # The durable count, not what happens to be in memory.
    age_s: float  # Of the oldest task that is loaded; 0 if there is none.
    adds_per_s: float
    wait_s: float  # How long a task waited to be matched, on average of late.


class AddRequest(Message, frozen=True):
    """Take a task in, see `Partition.add`."""

    partition: Partition
    task: NewTask
    kind: TaskListKind = TaskListKind.NORMAL
    # By which the caller chose the partition; None where it did not choose.
    config: PartitionConfig | None = None
    # The child that offers the task: it is matched, within `wait_s`, or refused; never stored.
    forwarded_from: int | None = None
    wait_s: float = 0.0
    # Likewise matched within `wait_s` or refused, and ahead of all that waits: whoever offers it waits for its result.
    is_transient: bool = False


class AddAnswer(Message, frozen=True):
    """`is_started`: a poll has started the task. If not: it is stored, or, where it was forwarded, it was refused."""

    is_started: bool
    config: PartitionConfig
    was_forwarded: bool = False


class PollRequest(Message, frozen=True):
    """Wait for a task, see `Partition.poll`."""

    partition: Partition
    identity: str
    poll_id: str
    timeout_s: float
    kind: TaskListKind = TaskListKind.NORMAL
    config: PartitionConfig | None = None
    # The worker's own limit on tasks a second over the whole task list; None: it has none.
    rate_per_s: float | None = None
    # The child that the poll came to first: it goes no further up than the root.
    forwarded_from: int | None = None
    # The root sent it to where the oldest backlog is: it takes what is there, or goes back.
    is_sent_down: bool = False
    # What the worker says of itself: for whoever starts the task, and for those who ask who polls. Not looked into.
    worker: bytes = b""


class PollAnswer(Message, frozen=True):
    """`task` is what starting the task returned, which for plain tasks is their payload; None: none came in time."""

    task: bytes | None
    config: PartitionConfig
    report: BacklogReport
    was_backlog: bool = False
    was_forwarded: bool = False


class RecallRequest(Message, frozen=True):
    """Let a poll that was forwarded wait no longer: it is answered at once, empty if it has no task yet."""

    partition: Partition
    poll_id: str


class RecallAnswer(Message, frozen=True):
    """Whether the poll was still there."""

    was_waiting: bool


class ReportRequest(Message, frozen=True):
    """A partition tells the root (`partition`) what backlog it has and no polls for."""

    partition: Partition
    report: BacklogReport


class ReportAnswer(Message, frozen=True):
    """The root has taken note."""

    config: PartitionConfig


class RateRule(Message, frozen=True):
    """A rate limit that a call has set, or lifted again (None): and who did, when, and why."""

    rate_per_s: float | None
    reason: str
    identity: str
    updated_s: float


class DispatchRules(Message, frozen=True):
    """How a task list dispatches, as calls have set it; what they leave open the settings and the workers say.

    Rates are those of the whole task list; that of keys is for a weight of 1.
    """

    version: int = 0
    queue_rate: RateRule | None = None
    key_rate: RateRule | None = None
    weights: dict[str, float] = {}


class PushRequest(Message, frozen=True):
    """The root tells a partition the configuration and the rules in force."""

    partition: Partition
    config: PartitionConfig
    rules: DispatchRules = DispatchRules()


class PushAnswer(Message, frozen=True):
    """The version that the partition goes by from now on: that of the push, or a higher one."""

    version: int


class PollerInfo(Message, frozen=True):
    """A worker that polled of late."""

    identity: str
    seen_s: float
    rate_per_s: float | None = None
    worker: bytes = b""


class RateSource(IntEnum):
    """Who has set the limit that holds; the numbers are those of Temporal's `RateLimitSource`."""

    CALL = 1
    WORKER = 2
    SETTING = 3


class PriorityStats(Message, frozen=True):
    """How one priority of a partition is doing."""

    priority: int
    tasks: int
    age_s: float
    adds_per_s: float
    dispatches_per_s: float


class KeyInfo(Message, frozen=True):
    """A fairness key as a partition sees it. `lead` is how many rounds its last task stands behind those served now.

    `tasks_waiting` follows from that and from its weight: an estimate of all its tasks in the backlog, loaded or not.
    `tasks_dispatched` counts since the partition was loaded.
    """

    fairness_key: str
    weight: float
    tasks_loaded: int
    tasks_dispatched: int
    lead: float
    tasks_waiting: int = 0


class PriorityInfo(Message, frozen=True):
    """How far one priority of a backlog has come: A, R and M, each as (pass, id)."""

    priority: int
    ack_level: tuple[int, int]
    read_level: tuple[int, int]
    max_level: tuple[int, int]


class DescribeRequest(Message, frozen=True):
    """Say how a partition is doing. `with_drain` has the store counted, `keys_max` is how many keys to list."""

    partition: Partition
    kind: TaskListKind = TaskListKind.NORMAL
    with_drain: bool = False
    keys_max: int = 0


class DescribeAnswer(Message, frozen=True):
    """What a partition says of itself."""

    partition: int
    host: str
    config: PartitionConfig
    report: BacklogReport
    dispatches_per_s: float
    polls_waiting: int
    tasks_loaded: int
    range_id: int
    pollers: list[PollerInfo]
    priorities: list[PriorityInfo]
    # Tasks a second that were added here since the scaler's window began, forwarded ones left out.
    scaler_adds_per_s: float
    rate_limit_per_s: float
    drain: DrainReport | None = None
    keys: list[KeyInfo] = []
    by_priority: list[PriorityStats] = []
    # The limit of the whole task list, infinity if there is none, and whose it is.
    whole_rate_per_s: float = inf
    rate_source: RateSource = RateSource.SETTING
    rules: DispatchRules = DispatchRules()


class UpdateRequest(Message, frozen=True):
    """Change the number of partitions by hand: at the root, with the guardrails of `core.partitions.change`."""

    partition: Partition
    read: int
    write: int
    force: bool = False


class UpdateAnswer(Message, frozen=True):
    """What was in force, and what is now."""

    before: PartitionConfig
    after: PartitionConfig


class RateChange(Message, frozen=True):
    """Set a rate limit, or lift it (None)."""

    rate_per_s: float | None
    reason: str = ""


class ConfigureRequest(Message, frozen=True):
    """Change the rules of a task list: at the root. What is not given stays as it is."""

    partition: Partition
    identity: str = ""
    queue_rate: RateChange | None = None
    key_rate: RateChange | None = None
    set_weights: dict[str, float] = {}
    unset_weights: list[str] = []


class ConfigureAnswer(Message, frozen=True):
    """The rules in force now."""

    rules: DispatchRules


class ShutdownRequest(Message, frozen=True):
    """The worker of a sticky task list goes: what waits there is given back."""

    partition: Partition


class ShutdownAnswer(Message, frozen=True):
    """What waited there, and is kept no longer: the payloads, for whoever wants them done to find another worker."""

    payloads: list[bytes]


class ReviewRequest(Message, frozen=True):
    """Ask of all tasks that wait in a partition whether they belong there: `worker` says that this is no poll.

    It is what whoever starts tasks is given in place of a worker: a task that is gone then is kept no longer.
    """

    partition: Partition
    worker: bytes


class ReviewAnswer(Message, frozen=True):
    """`is_done`: all that were loaded have been asked; else there was no time for it. `partitions` are to be asked."""

    is_done: bool
    partitions: int


class ExplainRequest(Message, frozen=True):
    """What the scaler of a task list decided, and why: at the root."""

    partition: Partition


class DecisionInfo(Message, frozen=True):
    """One decision of the scaler; see `core.scaling.Decision`."""

    at_s: float
    action: str
    qps: float
    upscale_threshold_qps: float
    downscale_threshold_qps: float
    before: PartitionConfig
    after: PartitionConfig
    reason: str


class ExplainAnswer(Message, frozen=True):
    """`changes` are the latest decisions that changed something, the newest last; `latest` is the last of all."""

    enabled: bool
    config: PartitionConfig
    latest: DecisionInfo | None
    changes: list[DecisionInfo]
    acknowledged: dict[int, int]  # By partition: the version that it was last known to go by.


class ListRequest(Message, frozen=True):
    """The task lists that a host has loaded, or that the store knows."""

    namespace_id: str | None = None
    after: tuple[str, str, int] | None = None
    limit: int = 1000


class ListAnswer(Message, frozen=True):
    """Partitions in order; `partitions` are the queues of the store as (namespace id, name, type)."""

    partitions: list[tuple[str, str, int]]


ADD = Method("matching.Add", AddRequest, AddAnswer)
POLL = Method("matching.Poll", PollRequest, PollAnswer)
RECALL = Method("matching.Recall", RecallRequest, RecallAnswer)
REPORT = Method("matching.Report", ReportRequest, ReportAnswer)
PUSH = Method("matching.Push", PushRequest, PushAnswer)
DESCRIBE = Method("matching.Describe", DescribeRequest, DescribeAnswer)
UPDATE = Method("matching.Update", UpdateRequest, UpdateAnswer)
CONFIGURE = Method("matching.Configure", ConfigureRequest, ConfigureAnswer)
SHUTDOWN = Method("matching.Shutdown", ShutdownRequest, ShutdownAnswer)
REVIEW = Method("matching.Review", ReviewRequest, ReviewAnswer)
EXPLAIN = Method("matching.Explain", ExplainRequest, ExplainAnswer)
LIST = Method("matching.List", ListRequest, ListAnswer)
