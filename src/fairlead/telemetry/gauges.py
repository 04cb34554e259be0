"""Gauges: current values that their sources report at each scrape."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import NamedTuple

from fairlead.core.partitions import PartitionConfig, TaskType
from fairlead.telemetry.buckets import BucketCounts
from fairlead.telemetry.declaration import (
    CONFIG_LABELS,
    PARTITION_LABELS,
    TASK_QUEUE_LABELS,
    Kind,
    Metric,
    declared_in,
    folds_of,
    gauge,
)


class Component(StrEnum):
    """The components that report their partition configuration (SC-15). All values agree, except shortly after a
    change.
    """

    ROOT = "root"
    PARTITION = "partition"
    POLLER = "poller"
    PRODUCER = "producer"


class ScalerGauges(NamedTuple):
    """Values of a task queue's scaler at its last tick. `target` is the number of write partitions that the scaler
    chose.
    """

    qps: float
    upscale_threshold_qps: float
    downscale_threshold_qps: float
    target: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionGauges:
    """Gauges of a loaded partition. Only a root with a scaler has `scaler`; `config` is the configuration in use."""

    namespace: str
    task_queue: str
    task_type: TaskType
    partition: int
    is_sticky: bool = False
    config: PartitionConfig | None = None
    scaler: ScalerGauges | None = None

    approximate_backlog_count: float | None = gauge(
        "Tasks in the backlog, as counted in the store.", "task_backlog_per_tl", fold=sum
    )
    approximate_backlog_age_seconds: float | None = gauge(
        "Age of the oldest loaded task of the backlog; 0 without a loaded task.", fold=max
    )
    task_lag_per_tl: float | None = gauge("Difference between the last task id written and the ack level.", fold=max)
    loaded_tasks: float | None = gauge("Tasks of the backlog that are in memory.", fold=sum)
    pending_polls: float | None = gauge("Polls waiting for a task.", fold=sum)
    task_add_rate: float | None = gauge("Tasks added per second, over the last half minute.", fold=sum)
    task_dispatch_rate: float | None = gauge("Tasks started per second, over the last half minute.", fold=sum)


class ConfigGauges(NamedTuple):
    """The partition configuration that a client of a task queue uses. `component` is a poller or a producer."""

    namespace: str
    task_queue: str
    task_type: TaskType
    component: Component
    config: PartitionConfig


class HistoryGauges(NamedTuple):
    """Numbers of this host's history service. `tasks` counts, by queue, the tasks in memory that are not done."""

    shards: int
    runs: int
    tasks: dict[str, int]
    activity_slots: int = 0


class ReplicationGauges(NamedTuple):
    """Progress of this host with the streams of one other cluster, summed over the streams.

    `lag_s` is the age of the oldest task that may not be applied yet; `latency` is the time from the write in the other
    cluster until it is applied here.
    """

    source_cluster: str
    lag_tasks: int
    lag_s: float
    outstanding: int
    dead_letters: int
    latency: BucketCounts


class CertificateGauges(NamedTuple):
    """Certificates of a process: the number of expired ones and of those that expire soon; seconds until the next
    expiry.
    """

    expired: int
    expiring: int
    next_end_s: float | None


Gauges = PartitionGauges | ConfigGauges | HistoryGauges | ReplicationGauges | CertificateGauges
Source = Callable[[], Iterable[Gauges]]

PARTITION_GAUGES = declared_in(PartitionGauges, Kind.GAUGE, PARTITION_LABELS)
# Reads all gauges of a partition, in the order of PARTITION_GAUGES.
read_gauges = attrgetter(*(metric.name for metric in PARTITION_GAUGES))
GAUGE_FOLDS = folds_of(PartitionGauges)

LOADED_PARTITIONS = Metric(
    "loaded_task_queue_partition_count", Kind.GAUGE, TASK_QUEUE_LABELS, "Partitions loaded on this host."
)
OWNED_SHARDS = Metric("numshards_gauge", Kind.GAUGE, (), "History shards that this host owns.")
RUNS_IN_MEMORY = Metric("mutable_state_cache_count", Kind.GAUGE, (), "Workflow runs in memory.")
ACTIVITY_SLOTS = Metric(
    "activity_slots",
    Kind.GAUGE,
    (),
    "Running activities of this host's shards in task queues with a limit on running activities.",
)
HISTORY_TASKS = Metric(
    "pending_tasks",
    Kind.GAUGE,
    ("queue",),
    "Tasks of the shards' queues, including timers, that are in memory and not done.",
)
CERTIFICATES_EXPIRED = Metric(
    "certificates_expired", Kind.GAUGE, (), "TLS certificates of this process that are no longer valid."
)
CERTIFICATES_EXPIRING = Metric(
    "certificates_expiring",
    Kind.GAUGE,
    (),
    "TLS certificates of this process that expire within `tls.expirationChecks.warningWindow`.",
)
CERTIFICATES_NEXT_END = Metric(
    "certificates_next_expiry_seconds",
    Kind.GAUGE,
    (),
    "Seconds until the next expiry of a TLS certificate of this process.",
)
CERTIFICATES = (CERTIFICATES_EXPIRED, CERTIFICATES_EXPIRING, CERTIFICATES_NEXT_END)
SOURCE_LABELS = ("source_cluster",)
REPLICATION_LAG = Metric(
    "replication_tasks_lag",
    Kind.GAUGE,
    SOURCE_LABELS,
    "Replication tasks that another cluster has written and this host has not applied yet.",
)
REPLICATION_DELAY = Metric(
    "replication_tasks_delay",
    Kind.GAUGE,
    SOURCE_LABELS,
    "Seconds since the oldest unapplied replication task was written; if no tasks arrive, seconds since this host "
    "last had all of them.",
)
REPLICATION_BACKLOG = Metric(
    "replication_tasks_recv_backlog",
    Kind.GAUGE,
    SOURCE_LABELS,
    "Received replication tasks that are in memory and not applied.",
)
REPLICATION_DLQ_SIZE = Metric(
    "replication_dlq_size", Kind.GAUGE, SOURCE_LABELS, "Number of dead letters of the streams that this host pulls."
)
REPLICATION_LATENCY = Metric(
    "replication_latency",
    Kind.HISTOGRAM,
    SOURCE_LABELS,
    "Seconds from the write in the other cluster until it is applied here.",
)
REPLICATION = (REPLICATION_LAG, REPLICATION_DELAY, REPLICATION_BACKLOG, REPLICATION_DLQ_SIZE, REPLICATION_LATENCY)
HISTORY = (OWNED_SHARDS, RUNS_IN_MEMORY, ACTIVITY_SLOTS, HISTORY_TASKS)
# In the order of `PartitionConfig.read`, `.write` and `.version`.
CONFIGS = (
    Metric("task_list_partition_config_num_read", Kind.GAUGE, CONFIG_LABELS, "Partitions that are polled."),
    Metric("task_list_partition_config_num_write", Kind.GAUGE, CONFIG_LABELS, "Partitions that also get new tasks."),
    Metric("task_list_partition_config_version", Kind.GAUGE, CONFIG_LABELS, "Version of the partition configuration."),
)
# In the order of `ScalerGauges`, then of the root's `PartitionConfig.read` and `.write`.
SCALER = (
    Metric(
        "estimated_add_task_qps_per_tl",
        Kind.GAUGE,
        TASK_QUEUE_LABELS,
        "Tasks added per second to the whole task queue, as the scaler counts. It should be between the thresholds.",
    ),
    Metric(
        "tasklist_partition_upscale_threshold",
        Kind.GAUGE,
        TASK_QUEUE_LABELS,
        "Tasks per second above which partitions are added.",
    ),
    Metric(
        "tasklist_partition_downscale_threshold",
        Kind.GAUGE,
        TASK_QUEUE_LABELS,
        "Tasks per second below which partitions are removed.",
    ),
    Metric("partition_scale_target", Kind.GAUGE, TASK_QUEUE_LABELS, "Write partitions that the scaler wants."),
    Metric("partition_scale_read", Kind.GAUGE, TASK_QUEUE_LABELS, "Read partitions in the root's configuration."),
    Metric("partition_scale_write", Kind.GAUGE, TASK_QUEUE_LABELS, "Write partitions in the root's configuration."),
)
