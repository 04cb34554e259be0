"""The counters of a scenario's own cluster by partition, read from the metrics of its hosts."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fairlead.core.partitions import TaskQueueId
from fairlead.telemetry import Snapshot
from fairlead.telemetry.partition import LATENCIES, PARTITION_COUNTERS, partition_labels

_NAMES = tuple(metric.name for metric in PARTITION_COUNTERS)
_WRITES = [metric.name for metric in LATENCIES].index("task_write_latency")


@dataclass(frozen=True, slots=True)
class ServerCounts:
    """Counters by partition and name, summed over all hosts that had the partition; and the number of tasks stored."""

    partitions: Mapping[int, Counter[str]]
    tasks_written: int

    def total(self, name: str) -> int:
        """Return the sum of a counter over all partitions."""
        return sum(counts[name] for counts in self.partitions.values())


def server_counts(snapshots: Iterable[Snapshot], task_queue: TaskQueueId) -> ServerCounts:
    """Return the counters of one task queue."""
    root = partition_labels(task_queue.namespace_id, task_queue.name, task_queue.type, 0)
    partitions: dict[int, Counter[str]] = {}
    tasks_written = 0
    for snapshot in snapshots:
        for labels, values in snapshot.counters:
            if labels.of_task_queue == root.of_task_queue:
                counts = partitions.setdefault(int(labels.partition), Counter())
                counts.update(dict(zip(_NAMES, values, strict=True)))
        for of_task_queue, latencies in snapshot.latencies:
            if of_task_queue == root.of_task_queue:
                tasks_written += sum(latencies[_WRITES].counts)
    return ServerCounts(partitions, tasks_written)
