"""What the hosts of a scenario's own cluster have counted, by partition: read from their metrics."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fairlead.core.partitions import TaskList
from fairlead.telemetry import Snapshot
from fairlead.telemetry.partition import LATENCIES, PARTITION_COUNTERS, partition_labels

_NAMES = tuple(metric.name for metric in PARTITION_COUNTERS)
_WRITES = [metric.name for metric in LATENCIES].index("task_write_latency")


@dataclass(frozen=True, slots=True)
class ServerCounts:
    """Counters by partition and name, those of all hosts that had it together; and the tasks that were stored."""

    partitions: Mapping[int, Counter[str]]
    tasks_written: int

    def total(self, name: str) -> int:
        """A counter of all partitions together."""
        return sum(counts[name] for counts in self.partitions.values())


def server_counts(snapshots: Iterable[Snapshot], task_list: TaskList) -> ServerCounts:
    """What was counted for one task list."""
    root = partition_labels(task_list.namespace_id, task_list.name, task_list.type, 0)
    partitions: dict[int, Counter[str]] = {}
    tasks_written = 0
    for snapshot in snapshots:
        for labels, values in snapshot.counters:
            if labels.of_task_list == root.of_task_list:
                counts = partitions.setdefault(int(labels.partition), Counter())
                counts.update(dict(zip(_NAMES, values, strict=True)))
        for of_task_list, latencies in snapshot.latencies:
            if of_task_list == root.of_task_list:
                tasks_written += sum(latencies[_WRITES].counts)
    return ServerCounts(partitions, tasks_written)
