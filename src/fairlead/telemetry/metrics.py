"""Registry of a process's metrics, with limits on the number of series."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from fairlead.core.namespaces import NamespaceNames
from fairlead.core.partitions import TaskType
from fairlead.telemetry.buckets import BucketCounts, Buckets
from fairlead.telemetry.calls import CallCounts, CallMetrics
from fairlead.telemetry.declaration import OTHER, Kind, Metric
from fairlead.telemetry.events import EventCounts
from fairlead.telemetry.gauges import (
    CertificateGauges,
    ConfigGauges,
    Gauges,
    HistoryGauges,
    PartitionGauges,
    ReplicationGauges,
    Source,
)
from fairlead.telemetry.page import NamespaceLabels
from fairlead.telemetry.partition import (
    Latencies,
    PartitionLabels,
    PartitionMetrics,
    TaskQueueLabels,
    partition_labels,
    read_counters,
)

# Maximum number of partitions with their own series, about forty each. One host seldom loads more partitions; further
# ones are counted together.
PARTITION_SERIES_MAX = 1_000
# Maximum number of configurations reported for pollers and producers: their caches hold thousands of task queues.
CONFIG_SERIES_MAX = 1_000
CALL_SERIES_MAX = 300

FOLDED_PARTITIONS = Metric(
    "folded_partition_count", Kind.GAUGE, (), "Loaded partitions above the limit of series, which are counted together."
)
OMITTED_CONFIGS = Metric(
    "omitted_partition_config_count",
    Kind.GAUGE,
    (),
    "Configurations of clients above the limit of series, which are not shown.",
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All metrics at one moment. It is immutable, so that another thread can render it."""

    # The label values of each namespace id.
    namespaces: dict[str, NamespaceLabels]
    counters: list[tuple[PartitionLabels, tuple[int, ...]]]
    latencies: list[tuple[TaskQueueLabels, tuple[BucketCounts, ...]]]
    partitions: list[PartitionGauges]
    configs: list[ConfigGauges]
    configs_omitted: int
    partitions_folded: int
    calls: list[CallCounts]
    events: dict[Metric, dict[tuple[str, ...], int]]
    history: list[HistoryGauges]
    replication: list[ReplicationGauges]
    certificates: list[CertificateGauges]


@dataclass(slots=True, eq=False)
class _TaskQueueSeries:
    latencies: Latencies
    partitions: int = 0


class Metrics:
    """The registry of a process. Use it, and the objects that it returns, only in the event loop's thread.

    An unloaded partition keeps its series, which continues when the partition is loaded again. At the limit, the series
    of the partition unloaded longest ago ends. Its counts are not added to another series: Prometheus would see a
    sudden burst of tasks. If the partition is loaded again, its series starts at 0, which Prometheus treats as a reset.
    If all partitions with a series are loaded, a further partition is counted in the series `__other__` until it is
    unloaded.
    """

    def __init__(self, *, partition_series_max: int = PARTITION_SERIES_MAX) -> None:
        self._partition_series_max = partition_series_max
        self._series: dict[PartitionLabels, PartitionMetrics] = {}
        self._shared: dict[PartitionLabels, PartitionMetrics] = {}
        # Labels of unloaded partitions, in the order of unloading.
        self._unloaded: OrderedDict[PartitionLabels, None] = OrderedDict()
        self._task_queues: dict[TaskQueueLabels, _TaskQueueSeries] = {}
        self._calls: dict[tuple[str, str], CallMetrics] = {}
        self._events = EventCounts()
        self._sources: list[Source] = []
        self._names = NamespaceNames()

    def use_names(self, names: NamespaceNames) -> None:
        """Write current names of namespaces instead of their ids in labels."""
        self._names = names

    def partition(
        self, namespace: str, task_queue: str, task_type: TaskType, partition: int, *, is_sticky: bool = False
    ) -> PartitionMetrics:
        """Counters of a partition while it is loaded; pass them to `forget` when it is unloaded."""
        labels = partition_labels(namespace, task_queue, task_type, partition, is_sticky=is_sticky)
        counts = self._series.get(labels) or self._begin(labels)
        counts.holders += 1
        self._unloaded.pop(labels, None)
        return counts

    def forget(self, counts: PartitionMetrics) -> None:
        """Record that a partition was unloaded. The same partition may have been loaded again before."""
        counts.holders = max(0, counts.holders - 1)
        if counts.holders == 0 and counts.labels in self._series:
            self._unloaded[counts.labels] = None

    def watch(self, source: Source) -> None:
        """Call `source` for its gauges at every scrape."""
        self._sources.append(source)

    def calls(self, service: str, operation: str) -> CallMetrics:
        """Counters of a service's method; the same object for the same method."""
        labels = (service, operation)
        if labels not in self._calls:
            if len(self._calls) >= CALL_SERIES_MAX:
                labels = (OTHER, OTHER)
            self._calls.setdefault(labels, CallMetrics(*labels))
        return self._calls[labels]

    def count(self, event: Metric, *values: str, amount: int = 1) -> None:
        """Count a rare event, one of `telemetry.events`, `amount` times."""
        self._events.count(event, *values, amount=amount)

    def expect(self, event: Metric, *values: str) -> None:
        """Report an event of `telemetry.events` as 0 until it happens."""
        self._events.expect(event, *values)

    def snapshot(self) -> Snapshot:
        """Take all values. Call it in the event loop's thread: nothing changes there meanwhile, so the values are
        consistent.
        """
        partitions: list[PartitionGauges] = []
        configs: list[ConfigGauges] = []
        history: list[HistoryGauges] = []
        replication: list[ReplicationGauges] = []
        certificates: list[CertificateGauges] = []
        for gauges in self.gauges():
            if isinstance(gauges, PartitionGauges):
                partitions.append(gauges)
            elif isinstance(gauges, HistoryGauges):
                history.append(gauges)
            elif isinstance(gauges, ReplicationGauges):
                replication.append(gauges)
            elif isinstance(gauges, CertificateGauges):
                certificates.append(gauges)
            else:
                configs.append(gauges)
        series = [*self._series.values(), *self._shared.values()]
        return Snapshot(
            namespaces=self._namespace_labels(
                {counts.labels.namespace for counts in series}
                | {one.namespace for one in partitions}
                | {one.namespace for one in configs}
            ),
            counters=[(counts.labels, read_counters(counts)) for counts in series],
            latencies=[
                (labels, tuple(buckets.read() for buckets in task_queue.latencies))
                for labels, task_queue in self._task_queues.items()
            ],
            partitions=partitions,
            configs=configs[:CONFIG_SERIES_MAX],
            configs_omitted=max(0, len(configs) - CONFIG_SERIES_MAX),
            partitions_folded=sum(counts.holders for counts in self._shared.values()),
            calls=[calls.read() for calls in self._calls.values()],
            events=self._events.read(),
            history=history,
            replication=replication,
            certificates=certificates,
        )

    def gauges(self) -> Iterable[Gauges]:
        """Yield the gauges of all sources. In the event loop's thread, finish without waiting."""
        for source in self._sources:
            yield from source()

    def _namespace_labels(self, namespace_ids: Iterable[str]) -> dict[str, NamespaceLabels]:
        """Label values of each id; they differ between ids, since two series must not have the same labels."""
        return {namespace_id: NamespaceLabels(*self._names.labels(namespace_id)) for namespace_id in namespace_ids}

    def _begin(self, labels: PartitionLabels) -> PartitionMetrics:
        """Begin a series; at the limit, in place of an unloaded partition's series, or as the shared series if all are
        loaded.
        """
        if len(self._series) >= self._partition_series_max and not self._unloaded:
            shared = labels.shared
            if shared not in self._shared:
                self._shared[shared] = self._new_counts(shared)
            return self._shared[shared]
        # Begin before the other series ends: if both series belong to one task queue, the queue's latencies are kept.
        counts = self._new_counts(labels)
        if len(self._series) >= self._partition_series_max:
            self._end(self._unloaded.popitem(last=False)[0])
        self._series[labels] = counts
        return counts

    def _new_counts(self, labels: PartitionLabels) -> PartitionMetrics:
        task_queue = self._task_queues.get(labels.of_task_queue)
        if task_queue is None:
            latencies = Latencies(Buckets(), Buckets(), Buckets(), Buckets())
            task_queue = self._task_queues[labels.of_task_queue] = _TaskQueueSeries(latencies)
        task_queue.partitions += 1
        return PartitionMetrics(labels, *task_queue.latencies)

    def _end(self, labels: PartitionLabels) -> None:
        del self._series[labels]
        task_queue = self._task_queues[labels.of_task_queue]
        task_queue.partitions -= 1
        if task_queue.partitions == 0:
            del self._task_queues[labels.of_task_queue]
