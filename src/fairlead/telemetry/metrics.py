"""All that a process counts, and how many series it may be."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from fairlead.core.partitions import TaskType
from fairlead.telemetry.buckets import BucketCounts, Buckets
from fairlead.telemetry.calls import CallCounts, CallMetrics
from fairlead.telemetry.declaration import OTHER, Kind, Metric
from fairlead.telemetry.events import EventCounts
from fairlead.telemetry.gauges import ConfigGauges, Gauges, HistoryGauges, PartitionGauges, ReplicationGauges, Source
from fairlead.telemetry.partition import (
    Latencies,
    PartitionLabels,
    PartitionMetrics,
    TaskListLabels,
    partition_labels,
    read_counters,
)

# Each is some forty series. One host seldom has as many partitions loaded; where it has, the rest are counted together.
PARTITION_SERIES_MAX = 1_000
# Of pollers and producers, whose caches hold more task lists than anyone can look at.
CONFIG_SERIES_MAX = 1_000
CALL_SERIES_MAX = 300

FOLDED_PARTITIONS = Metric(
    "folded_partition_count", Kind.GAUGE, (), "Partitions that are loaded and counted together, for want of room."
)
OMITTED_CONFIGS = Metric(
    "omitted_partition_config_count", Kind.GAUGE, (), "Configurations of clients that are not shown, for want of room."
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All numbers of one moment. Nothing in it changes any more, so that another thread may render it."""

    counters: list[tuple[PartitionLabels, tuple[int, ...]]]
    latencies: list[tuple[TaskListLabels, tuple[BucketCounts, ...]]]
    partitions: list[PartitionGauges]
    configs: list[ConfigGauges]
    configs_omitted: int
    partitions_folded: int
    calls: list[CallCounts]
    events: dict[Metric, dict[tuple[str, ...], int]]
    history: list[HistoryGauges]
    replication: list[ReplicationGauges]


@dataclass(slots=True, eq=False)
class _TaskListSeries:
    latencies: Latencies
    partitions: int = 0


class Metrics:
    """The registry of a process; belongs to the event loop's thread, as do all objects that it gives out.

    A partition that is unloaded keeps its series, and counts on when it is loaded again. Only when room is needed does
    the series of the one that was unloaded longest ago end. It is not added to another: a count that moves from one
    series to another looks to Prometheus like that many tasks at once. If that partition comes back its series begins
    at 0 again, which Prometheus takes for what it is. Where all are loaded and there is no room, a partition is counted
    from its first task on in the series `__other__`.
    """

    def __init__(self, *, partition_series_max: int = PARTITION_SERIES_MAX) -> None:
        self._partition_series_max = partition_series_max
        self._series: dict[PartitionLabels, PartitionMetrics] = {}
        self._shared: dict[PartitionLabels, PartitionMetrics] = {}
        # In the order in which they were unloaded.
        self._unloaded: OrderedDict[PartitionLabels, None] = OrderedDict()
        self._task_lists: dict[TaskListLabels, _TaskListSeries] = {}
        self._calls: dict[tuple[str, str], CallMetrics] = {}
        self._events = EventCounts()
        self._sources: list[Source] = []

    def partition(
        self, namespace: str, task_list: str, task_type: TaskType, partition: int, *, is_sticky: bool = False
    ) -> PartitionMetrics:
        """What a partition counts with while it is loaded; to be given back to `forget`."""
        labels = partition_labels(namespace, task_list, task_type, partition, is_sticky=is_sticky)
        counts = self._series.get(labels) or self._begin(labels)
        counts.holders += 1
        self._unloaded.pop(labels, None)
        return counts

    def forget(self, counts: PartitionMetrics) -> None:
        """A partition is unloaded. Another one of the same name may have been loaded before that."""
        counts.holders = max(0, counts.holders - 1)
        if counts.holders == 0 and counts.labels in self._series:
            self._unloaded[counts.labels] = None

    def watch(self, source: Source) -> None:
        """Ask `source` at every scrape how its partitions, or its clients, are doing."""
        self._sources.append(source)

    def calls(self, service: str, operation: str) -> CallMetrics:
        """What a method of a service counts with: the same for the same method."""
        labels = (service, operation)
        if labels not in self._calls:
            if len(self._calls) >= CALL_SERIES_MAX:
                labels = (OTHER, OTHER)
            self._calls.setdefault(labels, CallMetrics(*labels))
        return self._calls[labels]

    def count(self, event: Metric, *values: str, amount: int = 1) -> None:
        """Count something that happens rarely, one of `telemetry.events`, so many times."""
        self._events.count(event, *values, amount=amount)

    def snapshot(self) -> Snapshot:
        """All numbers of this moment. In the event loop's thread: nothing counts meanwhile, so they fit together."""
        partitions: list[PartitionGauges] = []
        configs: list[ConfigGauges] = []
        history: list[HistoryGauges] = []
        replication: list[ReplicationGauges] = []
        for gauges in self._ask():
            if isinstance(gauges, PartitionGauges):
                partitions.append(gauges)
            elif isinstance(gauges, HistoryGauges):
                history.append(gauges)
            elif isinstance(gauges, ReplicationGauges):
                replication.append(gauges)
            else:
                configs.append(gauges)
        series = [*self._series.values(), *self._shared.values()]
        return Snapshot(
            counters=[(counts.labels, read_counters(counts)) for counts in series],
            latencies=[
                (labels, tuple(buckets.read() for buckets in task_list.latencies))
                for labels, task_list in self._task_lists.items()
            ],
            partitions=partitions,
            configs=configs[:CONFIG_SERIES_MAX],
            configs_omitted=max(0, len(configs) - CONFIG_SERIES_MAX),
            partitions_folded=sum(counts.holders for counts in self._shared.values()),
            calls=[calls.read() for calls in self._calls.values()],
            events=self._events.read(),
            history=history,
            replication=replication,
        )

    def _ask(self) -> Iterable[Gauges]:
        for source in self._sources:
            yield from source()

    def _begin(self, labels: PartitionLabels) -> PartitionMetrics:
        """Begin a series, in the place of one that nobody has loaded if need be; the shared one if all are."""
        if len(self._series) >= self._partition_series_max and not self._unloaded:
            shared = labels.shared
            if shared not in self._shared:
                self._shared[shared] = self._new_counts(shared)
            return self._shared[shared]
        # Begun before the other ends: if both are of one task list, its latencies go on.
        counts = self._new_counts(labels)
        if len(self._series) >= self._partition_series_max:
            self._end(self._unloaded.popitem(last=False)[0])
        self._series[labels] = counts
        return counts

    def _new_counts(self, labels: PartitionLabels) -> PartitionMetrics:
        task_list = self._task_lists.get(labels.of_task_list)
        if task_list is None:
            latencies = Latencies(Buckets(), Buckets(), Buckets(), Buckets())
            task_list = self._task_lists[labels.of_task_list] = _TaskListSeries(latencies)
        task_list.partitions += 1
        return PartitionMetrics(labels, *task_list.latencies)

    def _end(self, labels: PartitionLabels) -> None:
        del self._series[labels]
        task_list = self._task_lists[labels.of_task_list]
        task_list.partitions -= 1
        if task_list.partitions == 0:
            del self._task_lists[labels.of_task_list]
