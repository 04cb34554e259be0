"""Messages that describe partitions, the scaler's decisions, and the task queues in the store."""

from enum import IntEnum
from math import inf

from fairlead.core.partitions import DrainReport, Partition, PartitionConfig, PartitionCounts
from fairlead.matching.messages.base import Message
from fairlead.matching.messages.config import DispatchRules
from fairlead.matching.messages.tasks import BacklogReport, QueueKind
from fairlead.rpc.hosts.caller import Method


class PollerInfo(Message, frozen=True):
    """A worker that polled recently."""

    identity: str
    seen_s: float
    rate_per_s: float | None = None
    worker: bytes = b""


class RateSource(IntEnum):
    """The source of the rate limit in force; its numbers equal Temporal's `RateLimitSource`."""

    CALL = 1
    WORKER = 2
    SETTING = 3


class PriorityStats(Message, frozen=True):
    """Figures of one priority of a partition."""

    priority: int
    tasks: int
    age_s: float
    adds_per_s: float
    dispatches_per_s: float


class KeyInfo(Message, frozen=True):
    """Figures of one fairness key in a partition.

    `lead` is how many rounds the key's last task is behind the tasks that are dispatched now. `tasks_waiting` is an
    estimate of all its tasks in the backlog, loaded or not, from its lead and its weight. `tasks_dispatched` counts
    since the partition was loaded, `dispatched_lately` the last `DescribeResponse.keys_window_s` seconds. `is_held`:
    polls wait, and a limit of the key holds its tasks back.
    """

    fairness_key: str
    weight: float
    tasks_loaded: int
    tasks_dispatched: int
    lead: float
    tasks_waiting: int = 0
    dispatched_lately: int = 0
    is_held: bool = False


class Forwarded(Message, frozen=True):
    """Tasks and polls that a partition offered to its parent since it was loaded, and a second lately."""

    tasks: int
    polls: int
    tasks_per_s: float
    polls_per_s: float


class PriorityInfo(Message, frozen=True):
    """Ack, read and max level of one priority of a backlog, each as (pass, id)."""

    priority: int
    ack_level: tuple[int, int]
    read_level: tuple[int, int]
    max_level: tuple[int, int]


class CountsInfo(Message, frozen=True):
    """The source of a task queue's counts, and the counts in both sources; only the root has them.

    `database` is None until counts were written to the database. `outside` are partitions above the counts that may
    hold tasks; the root drains them.
    """

    is_from_settings: bool
    settings: PartitionCounts
    database: PartitionCounts | None
    outside: list[int]


class DescribeRequest(Message, frozen=True):
    """Describe a partition. `with_drain`: count the tasks in the store. `keys_max`: number of fairness keys to list."""

    partition: Partition
    kind: QueueKind = QueueKind.NORMAL
    with_drain: bool = False
    keys_max: int = 0


class DescribeResponse(Message, frozen=True):
    """Description of a partition."""

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
    # Rate of added tasks over the scaler's window, without forwarded tasks.
    scaler_adds_per_s: float
    rate_limit_per_s: float
    drain: DrainReport | None = None
    keys: list[KeyInfo] = []  # noqa: RUF012 - msgspec copies it
    by_priority: list[PriorityStats] = []  # noqa: RUF012 - msgspec copies it
    # Rate limit of the whole task queue, infinity if there is none, and its source.
    whole_rate_per_s: float = inf
    rate_source: RateSource = RateSource.SETTING
    rules: DispatchRules = DispatchRules()
    counts: CountsInfo | None = None
    # None at a root, and from hosts of an older release.
    forwarded: Forwarded | None = None
    # Number of all fairness keys, of which `keys` lists the first; 0 if unknown, or if no keys were requested.
    keys_total: int = 0
    # Seconds of `KeyInfo.dispatched_lately`; 0 if not known.
    keys_window_s: float = 0.0


class ExplainRequest(Message, frozen=True):
    """Request the scaler's latest decisions, at the root."""

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


class ScalerClocks(Message, frozen=True):
    """The scaler's state between two ticks; see `core.scaling.ScalerState`."""

    ticked_s: float | None = None
    thresholds_qps: tuple[float, float] | None = None
    above_since_s: float | None = None
    below_since_s: float | None = None
    below_peak_qps: float = 0.0


class ExplainResponse(Message, frozen=True):
    """`changes` are the latest decisions that changed the counts, the newest last; `latest` is the last decision.

    `waits_for` gives the reason why an enabled scaler does not decide now, or is empty.
    """

    enabled: bool
    config: PartitionConfig
    latest: DecisionInfo | None
    changes: list[DecisionInfo]
    acknowledged: dict[int, int]  # Configuration version that each partition last acknowledged, by partition.
    waits_for: str = ""
    # None from hosts of an older release.
    clocks: ScalerClocks | None = None
    # When the root began to record changes; earlier ones are not known. 0: not known.
    changes_since_s: float = 0.0


class ListRequest(Message, frozen=True):
    """List the queues in the store."""

    namespace_id: str | None = None
    after: tuple[str, str, int] | None = None
    limit: int = 1000


class ListResponse(Message, frozen=True):
    """Queues of the store in order, each as (namespace id, partition name, type)."""

    partitions: list[tuple[str, str, int]]


DESCRIBE = Method("matching.Describe", DescribeRequest, DescribeResponse)
EXPLAIN = Method("matching.Explain", ExplainRequest, ExplainResponse)
LIST = Method("matching.List", ListRequest, ListResponse)
