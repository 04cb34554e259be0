"""What one partition counts while it is loaded: plain numbers, so that an event costs an addition and no lookup."""

from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from fairlead.core.partitions import STICKY, TaskType
from fairlead.telemetry.buckets import Buckets
from fairlead.telemetry.declaration import (
    OTHER,
    PARTITION_LABELS,
    TASK_LIST_LABELS,
    Kind,
    Metric,
    counter,
    declared_in,
)


class TaskListLabels(NamedTuple):
    """By which the series of a task list is told from others; the type is spelled as Temporal's dashboards have it."""

    namespace: str
    task_list: str
    task_type: str


class PartitionLabels(NamedTuple):
    """By which the series of a partition is told from others."""

    namespace: str
    task_list: str
    task_type: str
    partition: str

    @property
    def of_task_list(self) -> TaskListLabels:
        """Those of its task list."""
        return TaskListLabels(self.namespace, self.task_list, self.task_type)

    @property
    def shared(self) -> "PartitionLabels":
        """Those under which it counts together with others, where there is no room for its own."""
        return PartitionLabels(OTHER, OTHER, self.task_type, OTHER)


def partition_labels(
    namespace: str, task_list: str, task_type: TaskType, partition: int, *, is_sticky: bool = False
) -> PartitionLabels:
    """The labels of a partition; all sticky task lists of a namespace have the same."""
    spelled = task_type.name.title()
    if is_sticky:
        return PartitionLabels(namespace, STICKY, spelled, STICKY)
    return PartitionLabels(namespace, task_list, spelled, str(partition))


class Latencies(NamedTuple):
    """How long things take in a task list: its partitions share these, since each is as many series as it has bounds.

    Observed per task: one of the two match latencies, which together are `task_dispatch_latency`.
    """

    task_write_latency: Buckets
    poll_latency: Buckets
    syncmatch_latency: Buckets
    asyncmatch_latency: Buckets


@dataclass(slots=True, eq=False)
class PartitionMetrics:
    """What happened in one partition, ever: `counts.tasks_added += 1`, `counts.poll_latency.observe(seconds)`.

    Belongs to the event loop's thread. `holders` is the registry's: how many have it loaded.
    """

    labels: PartitionLabels
    task_write_latency: Buckets
    poll_latency: Buckets
    syncmatch_latency: Buckets
    asyncmatch_latency: Buckets
    holders: int = 0

    tasks_added: int = counter("Tasks that were taken in here, started at once or stored; forwarded ones left out.")
    no_poller_tasks: int = counter("Tasks that were added when no worker had polled of late.")
    sync_matches: int = counter("Tasks that a waiting poll took at once, so that they were never stored.")
    backlog_matches: int = counter("Tasks of the backlog that a poll took.")
    local_to_local_matches: int = counter(
        "Matches of a task that was added here and a poll that came here.", "local_to_local_matches_per_tl"
    )
    local_to_remote_matches: int = counter(
        "Matches of a task that was added here and a poll that another partition forwarded or sent down.",
        "local_to_remote_matches_per_tl",
    )
    remote_to_local_matches: int = counter(
        "Matches of a task that another partition forwarded and a poll that came here.",
        "remote_to_local_matches_per_tl",
    )
    remote_to_remote_matches: int = counter(
        "Matches of a task and a poll that other partitions forwarded, both.", "remote_to_remote_matches_per_tl"
    )
    tasks_dropped: int = counter("Tasks that nobody needed any more when they were to be started.")

    forwarded: int = counter("Tasks and polls that child partitions forwarded to this one.")
    forwarded_tasks: int = counter("Tasks that were offered to the parent.")
    forwarded_tasks_matched: int = counter("Tasks that were offered to the parent and started there.")
    forwarded_tasks_failed: int = counter("Tasks that were offered to the parent in vain, whatever the reason.")
    forwarded_tasks_throttled: int = counter("Tasks that the forwarder's limits kept from being offered to the parent.")
    forwarded_polls: int = counter("Polls that were offered to the parent.")
    forwarded_polls_matched: int = counter("Polls that were offered to the parent and came back with a task.")
    forwarded_polls_failed: int = counter("Polls that were offered to the parent and came back with an error.")
    forwarded_polls_throttled: int = counter("Polls that the forwarder's limits kept from being offered to the parent.")
    polls_sent_down: int = counter("Polls that the root sent to the partition with the oldest backlog.")
    polls_sent_down_matched: int = counter("Polls that the root sent down and that came back with a task.")

    poll_success: int = counter("Polls that were answered with a task.")
    poll_success_sync: int = counter("Polls that were answered with a task that had just come.")
    poll_timeouts: int = counter("Polls that were answered empty.")
    poll_cancelled: int = counter("Polls whose caller went away before they were answered.")

    appends_refused: int = counter("Tasks that were refused because too many were waiting to be stored.")
    stale_configs: int = counter("Requests by an old partition configuration, answered with the new one.")
    lease_requests: int = counter("Times that the lease on the partition was taken or renewed.")
    lease_failures: int = counter("Times that this failed.")
    condition_failed_errors: int = counter("Writes that the store refused because the partition has another owner.")
    fair_reader_stuck_detected: int = counter("Times that the reader of the backlog was found stuck and set going.")

    partition_upscale_per_tl: int = counter("Times that the scaler added partitions; at the root.")
    partition_downscale_per_tl: int = counter("Times that the scaler closed partitions to new tasks; at the root.")
    partition_drained_per_tl: int = counter("Times that the scaler took away drained partitions; at the root.")
    tasklist_partition_update_failed_per_tl: int = counter(
        "Times that a new partition configuration could not be stored; at the root."
    )


PARTITION_COUNTERS = declared_in(PartitionMetrics, Kind.COUNTER, PARTITION_LABELS)
# Reads them all, in that order.
read_counters = attrgetter(*(metric.name for metric in PARTITION_COUNTERS))

# Temporal's name for what Cadence counts as three.
PARTITION_SCALE_EVENTS = Metric(
    "partition_scale_events",
    Kind.COUNTER,
    PARTITION_LABELS,
    "Changes of the number of partitions by the scaler: upscale, downscale and drained together.",
)
SCALE_EVENT_INDEXES = tuple(
    index
    for index, metric in enumerate(PARTITION_COUNTERS)
    if metric.name in {"partition_upscale_per_tl", "partition_downscale_per_tl", "partition_drained_per_tl"}
)

TASK_DISPATCH_LATENCY = Metric(
    "task_dispatch_latency",
    Kind.HISTOGRAM,
    TASK_LIST_LABELS,
    "Seconds from when a task was first added until it was started.",
)
# In the order of `Latencies`.
LATENCIES = (
    Metric("task_write_latency", Kind.HISTOGRAM, TASK_LIST_LABELS, "Seconds until a task that was added was durable."),
    Metric("poll_latency", Kind.HISTOGRAM, TASK_LIST_LABELS, "Seconds until a poll was answered, empty or not."),
    Metric(
        "syncmatch_latency",
        Kind.HISTOGRAM,
        TASK_LIST_LABELS,
        "Seconds from when a task was first added until it was started, of those that were never stored.",
    ),
    Metric(
        "asyncmatch_latency",
        Kind.HISTOGRAM,
        TASK_LIST_LABELS,
        "Seconds from when a task was first added until it was started, of those that came from the backlog.",
    ),
)
