"""Counters of one loaded partition: plain attributes, so that counting takes one addition and no lookup."""

from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from fairlead.core.partitions import STICKY, TaskType
from fairlead.telemetry.buckets import Buckets
from fairlead.telemetry.declaration import (
    OTHER,
    PARTITION_LABELS,
    TASK_QUEUE_LABELS,
    Kind,
    Metric,
    counter,
    declared_in,
)


class TaskQueueLabels(NamedTuple):
    """Labels of a task queue's series; the type is spelled as in Temporal's dashboards."""

    namespace: str
    task_queue: str
    task_type: str


class PartitionLabels(NamedTuple):
    """Labels of a partition's series."""

    namespace: str
    task_queue: str
    task_type: str
    partition: str

    @property
    def of_task_queue(self) -> TaskQueueLabels:
        """Labels of its task queue."""
        return TaskQueueLabels(self.namespace, self.task_queue, self.task_type)

    @property
    def shared(self) -> "PartitionLabels":
        """Labels of the series that all partitions above the limit on series share."""
        return PartitionLabels(OTHER, OTHER, self.task_type, OTHER)


_SPELLED = {task_type: task_type.name.title() for task_type in TaskType}


def partition_labels(
    namespace: str, task_queue: str, task_type: TaskType, partition: int, *, is_sticky: bool = False
) -> PartitionLabels:
    """Labels of a partition; all sticky task queues of a namespace share the same labels."""
    spelled = _SPELLED[task_type]
    if is_sticky:
        return PartitionLabels(namespace, STICKY, spelled, STICKY)
    return PartitionLabels(namespace, task_queue, spelled, str(partition))


class Latencies(NamedTuple):
    """Latency histograms of a task queue. Its partitions share them, since each histogram has a series for each bound.

    Each task is observed in one of the two match latencies, which together are `task_dispatch_latency`.
    """

    task_write_latency: Buckets
    poll_latency: Buckets
    syncmatch_latency: Buckets
    asyncmatch_latency: Buckets


@dataclass(slots=True, eq=False)
class PartitionMetrics:
    """Counters of one partition: `counts.tasks_added += 1`, `counts.poll_latency.observe(seconds)`.

    Use it only in the event loop's thread. `holders` is the number of loaded partitions that use this object; only the
    registry changes it.
    """

    labels: PartitionLabels
    task_write_latency: Buckets
    poll_latency: Buckets
    syncmatch_latency: Buckets
    asyncmatch_latency: Buckets
    holders: int = 0

    tasks_added: int = counter("Tasks added here, started at once or stored; without forwarded ones.")
    no_poller_tasks: int = counter("Tasks added when no worker had polled recently.")
    sync_matches: int = counter("Tasks that a waiting poll got at once, so that they were never stored.")
    backlog_matches: int = counter("Tasks of the backlog that a poll got.")
    local_to_local_matches: int = counter(
        "Matches of a task added here and a poll received here.", "local_to_local_matches_per_tl"
    )
    local_to_remote_matches: int = counter(
        "Matches of a task added here and a poll that another partition forwarded or sent down.",
        "local_to_remote_matches_per_tl",
    )
    remote_to_local_matches: int = counter(
        "Matches of a task that another partition forwarded and a poll received here.",
        "remote_to_local_matches_per_tl",
    )
    remote_to_remote_matches: int = counter(
        "Matches of a task and a poll that were both forwarded by other partitions.", "remote_to_remote_matches_per_tl"
    )
    tasks_dropped: int = counter("Tasks dropped at their start, because they were no longer valid.")

    forwarded: int = counter("Tasks and polls that child partitions forwarded to this one.")
    forwarded_tasks: int = counter("Tasks offered to the parent.")
    forwarded_tasks_matched: int = counter("Tasks offered to the parent and started there.")
    forwarded_tasks_failed: int = counter("Tasks offered to the parent and not started there, for any reason.")
    forwarded_tasks_throttled: int = counter("Tasks not offered to the parent because of the forwarder's limits.")
    forwarded_polls: int = counter("Polls offered to the parent.")
    forwarded_polls_matched: int = counter("Polls offered to the parent that returned a task.")
    forwarded_polls_failed: int = counter("Polls offered to the parent that returned an error.")
    forwarded_polls_throttled: int = counter("Polls not offered to the parent because of the forwarder's limits.")
    polls_sent_down: int = counter("Polls that the root sent to the partition with the oldest backlog.")
    polls_sent_down_matched: int = counter("Polls that the root sent down and that returned a task.")

    poll_success: int = counter("Polls that returned a task.")
    poll_success_sync: int = counter("Polls that returned a task that was just added and never stored.")
    poll_timeouts: int = counter("Polls that returned without a task.")
    poll_cancelled: int = counter("Polls whose caller cancelled or disconnected before the response.")

    appends_refused: int = counter("Adds that failed because too many tasks waited to be stored.")
    stale_configs: int = counter("Requests with an old partition configuration; the response has the new one.")
    lease_requests: int = counter("Attempts to acquire or renew the partition's lease.")
    lease_failures: int = counter("Failed attempts to acquire or renew the partition's lease.")
    condition_failed_errors: int = counter("Writes that failed in the store because the partition has another owner.")
    fair_reader_stuck_detected: int = counter("Times that the backlog's reader was found stuck and was restarted.")

    partition_upscale_per_tl: int = counter("Times that the scaler added partitions; counted at the root.")
    partition_downscale_per_tl: int = counter(
        "Times that the scaler closed partitions to new tasks; counted at the root."
    )
    partition_drained_per_tl: int = counter("Times that the scaler removed drained partitions; counted at the root.")
    tasklist_partition_update_failed_per_tl: int = counter(
        "Times that a new partition configuration could not be stored; counted at the root."
    )


PARTITION_COUNTERS = declared_in(PartitionMetrics, Kind.COUNTER, PARTITION_LABELS)
# Reads all counters of a partition, in the order of PARTITION_COUNTERS.
read_counters = attrgetter(*(metric.name for metric in PARTITION_COUNTERS))

# Temporal's name for the sum of three counters of Cadence.
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
    TASK_QUEUE_LABELS,
    "Seconds from the first add of a task until its start.",
)
# In the order of `Latencies`.
LATENCIES = (
    Metric("task_write_latency", Kind.HISTOGRAM, TASK_QUEUE_LABELS, "Seconds until an added task was durable."),
    Metric(
        "poll_latency",
        Kind.HISTOGRAM,
        TASK_QUEUE_LABELS,
        "Seconds until a poll got a response, with or without a task.",
    ),
    Metric(
        "syncmatch_latency",
        Kind.HISTOGRAM,
        TASK_QUEUE_LABELS,
        "Seconds from the first add of a task until its start, for tasks that were never stored.",
    ),
    Metric(
        "asyncmatch_latency",
        Kind.HISTOGRAM,
        TASK_QUEUE_LABELS,
        "Seconds from the first add of a task until its start, for tasks from the backlog.",
    ),
)
