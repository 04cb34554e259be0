"""What is so at the moment of a scrape: given by those who know, when they are asked."""

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
    TASK_LIST_LABELS,
    Kind,
    Metric,
    declared_in,
    folds_of,
    gauge,
)


class Component(StrEnum):
    """Who goes by a partition configuration (seed 001): the versions of all four should agree but for a moment."""

    ROOT = "root"
    PARTITION = "partition"
    POLLER = "poller"
    PRODUCER = "producer"


class ScalerGauges(NamedTuple):
    """What the scaler of a task list saw at its last tick. `target` is the number of write partitions it wants."""

    qps: float
    upscale_threshold_qps: float
    downscale_threshold_qps: float
    target: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionGauges:
    """How a loaded partition is doing. `scaler` is of a root that has one, `config` what the partition goes by."""

    namespace: str
    task_list: str
    task_type: TaskType
    partition: int
    is_sticky: bool = False
    config: PartitionConfig | None = None
    scaler: ScalerGauges | None = None

    approximate_backlog_count: float | None = gauge(
        "Tasks in the backlog, by the durable count.", "task_backlog_per_tl", fold=sum
    )
    approximate_backlog_age_seconds: float | None = gauge(
        "Age of the oldest task of the backlog that is loaded; 0 if there is none.", fold=max
    )
    task_lag_per_tl: float | None = gauge("Task ids between the last one written and the ack level.", fold=max)
    loaded_tasks: float | None = gauge("Tasks of the backlog that are in memory.", fold=sum)
    pending_polls: float | None = gauge("Polls that wait for a task.", fold=sum)
    task_add_rate: float | None = gauge("Tasks added a second, over the last half minute.", fold=sum)
    task_dispatch_rate: float | None = gauge("Tasks started a second, over the last half minute.", fold=sum)


class ConfigGauges(NamedTuple):
    """The partition configuration that a client of a task list has at hand. `component` is a poller or a producer."""

    namespace: str
    task_list: str
    task_type: TaskType
    component: Component
    config: PartitionConfig


class HistoryGauges(NamedTuple):
    """What the history service of this host holds. `tasks` are those of each queue that are in memory and not done."""

    shards: int
    runs: int
    tasks: dict[str, int]


class ReplicationGauges(NamedTuple):
    """How far this host is with one other cluster's streams, those of them that it pulls taken together.

    `lag_s` is the age of the oldest task that may not be taken in, `latency` from the write there until now.
    """

    source_cluster: str
    lag_tasks: int
    lag_s: float
    outstanding: int
    dead_letters: int
    latency: BucketCounts


Gauges = PartitionGauges | ConfigGauges | HistoryGauges | ReplicationGauges
Source = Callable[[], Iterable[Gauges]]

PARTITION_GAUGES = declared_in(PartitionGauges, Kind.GAUGE, PARTITION_LABELS)
# Reads them all, in that order.
read_gauges = attrgetter(*(metric.name for metric in PARTITION_GAUGES))
GAUGE_FOLDS = folds_of(PartitionGauges)

LOADED_PARTITIONS = Metric(
    "loaded_task_queue_partition_count", Kind.GAUGE, TASK_LIST_LABELS, "Partitions that are loaded at this host."
)
OWNED_SHARDS = Metric("numshards_gauge", Kind.GAUGE, (), "Shards of workflows that this host owns.")
RUNS_IN_MEMORY = Metric("mutable_state_cache_count", Kind.GAUGE, (), "Runs of workflows that are in memory.")
HISTORY_TASKS = Metric(
    "pending_tasks", Kind.GAUGE, ("queue",), "Tasks of the shards' queues that are in memory and not done, timers too."
)
SOURCE_LABELS = ("source_cluster",)
REPLICATION_LAG = Metric(
    "replication_tasks_lag",
    Kind.GAUGE,
    SOURCE_LABELS,
    "Tasks that another cluster has written and this host has not taken in yet.",
)
REPLICATION_DELAY = Metric(
    "replication_tasks_delay",
    Kind.GAUGE,
    SOURCE_LABELS,
    "Seconds since the oldest of them was written; where nothing comes, since the last time that all had come.",
)
REPLICATION_BACKLOG = Metric(
    "replication_tasks_recv_backlog", Kind.GAUGE, SOURCE_LABELS, "Those of them that have come and are in memory."
)
REPLICATION_DLQ_SIZE = Metric(
    "replication_dlq_size", Kind.GAUGE, SOURCE_LABELS, "Dead letters of the streams that this host pulls."
)
REPLICATION_LATENCY = Metric(
    "replication_latency",
    Kind.HISTOGRAM,
    SOURCE_LABELS,
    "From the write in the other cluster until it is taken in here.",
)
REPLICATION = (REPLICATION_LAG, REPLICATION_DELAY, REPLICATION_BACKLOG, REPLICATION_DLQ_SIZE, REPLICATION_LATENCY)
HISTORY = (OWNED_SHARDS, RUNS_IN_MEMORY, HISTORY_TASKS)
# In the order of `PartitionConfig.read`, `.write` and `.version`.
CONFIGS = (
    Metric("task_list_partition_config_num_read", Kind.GAUGE, CONFIG_LABELS, "Partitions that are polled."),
    Metric("task_list_partition_config_num_write", Kind.GAUGE, CONFIG_LABELS, "Partitions that also take new tasks."),
    Metric("task_list_partition_config_version", Kind.GAUGE, CONFIG_LABELS, "Version of the partition configuration."),
)
# In the order of `ScalerGauges`, then of the root's `PartitionConfig.read` and `.write`.
SCALER = (
    Metric(
        "estimated_add_task_qps_per_tl",
        Kind.GAUGE,
        TASK_LIST_LABELS,
        "Tasks added a second to the whole task list, as the scaler counts them. It should be between the thresholds.",
    ),
    Metric(
        "tasklist_partition_upscale_threshold",
        Kind.GAUGE,
        TASK_LIST_LABELS,
        "Tasks a second above which partitions are added.",
    ),
    Metric(
        "tasklist_partition_downscale_threshold",
        Kind.GAUGE,
        TASK_LIST_LABELS,
        "Tasks a second below which partitions are taken away.",
    ),
    Metric("partition_scale_target", Kind.GAUGE, TASK_LIST_LABELS, "Write partitions that the scaler wants."),
    Metric("partition_scale_read", Kind.GAUGE, TASK_LIST_LABELS, "Read partitions, as the root has them."),
    Metric("partition_scale_write", Kind.GAUGE, TASK_LIST_LABELS, "Write partitions, as the root has them."),
)
