"""A snapshot as Prometheus reads it."""

from collections.abc import Callable, Iterable

from prometheus_client import PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import InfoMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4 as CONTENT_TYPE_TEXT
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as CONTENT_TYPE_OPENMETRICS
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from fairlead import __version__
from fairlead.core.partitions import PartitionConfig
from fairlead.telemetry.buckets import merge
from fairlead.telemetry.calls import SERVICE_ERROR_WITH_TYPE, SERVICE_ERRORS, SERVICE_LATENCY, SERVICE_REQUESTS
from fairlead.telemetry.gauges import (
    CONFIGS,
    GAUGE_FOLDS,
    HISTORY_TASKS,
    LOADED_PARTITIONS,
    OWNED_SHARDS,
    PARTITION_GAUGES,
    REPLICATION_BACKLOG,
    REPLICATION_DELAY,
    REPLICATION_DLQ_SIZE,
    REPLICATION_LAG,
    REPLICATION_LATENCY,
    RUNS_IN_MEMORY,
    SCALER,
    Component,
    PartitionGauges,
    read_gauges,
)
from fairlead.telemetry.metrics import FOLDED_PARTITIONS, OMITTED_CONFIGS, Snapshot
from fairlead.telemetry.page import Labels, Page
from fairlead.telemetry.partition import (
    LATENCIES,
    PARTITION_COUNTERS,
    PARTITION_SCALE_EVENTS,
    SCALE_EVENT_INDEXES,
    TASK_DISPATCH_LATENCY,
    Latencies,
    PartitionLabels,
    TaskListLabels,
    partition_labels,
)

_SYNC = Latencies._fields.index("syncmatch_latency")
_ASYNC = Latencies._fields.index("asyncmatch_latency")


class _Process:
    """What the library tells of the process, and which version of Fairlead it is."""

    def __init__(self) -> None:
        self._collectors = (ProcessCollector(registry=None), PlatformCollector(registry=None))

    def collect(self) -> Iterable[Family]:
        yield InfoMetricFamily("fairlead_build", "What is running.", {"version": __version__})
        for collector in self._collectors:
            yield from collector.collect()


_PROCESS = _Process()
# The library has no types for it.
_openmetrics: Callable[[_Process], bytes] = generate_openmetrics


def render(snapshot: Snapshot, accept: str) -> tuple[str, bytes]:
    """The content type, OpenMetrics if `accept` (a request's header) asks for it, and the content."""
    is_openmetrics = "application/openmetrics-text" in accept
    page = Page(is_openmetrics=is_openmetrics)
    for write in _WRITERS:
        write(page, snapshot)
    # The library's part comes last, with what OpenMetrics has at the end.
    if is_openmetrics:
        return CONTENT_TYPE_OPENMETRICS, page.encode() + _openmetrics(_PROCESS)
    return CONTENT_TYPE_TEXT, page.encode() + generate_latest(_PROCESS)


def _write_counters(page: Page, snapshot: Snapshot) -> None:
    for index, metric in enumerate(PARTITION_COUNTERS):
        page.values(metric, [(labels, counts[index]) for labels, counts in snapshot.counters])
    events = [(labels, sum(counts[index] for index in SCALE_EVENT_INDEXES)) for labels, counts in snapshot.counters]
    page.values(PARTITION_SCALE_EVENTS, events)


def _write_latencies(page: Page, snapshot: Snapshot) -> None:
    for index, metric in enumerate(LATENCIES):
        page.histogram(metric, [(labels, of_all[index]) for labels, of_all in snapshot.latencies])
    dispatches = [(labels, merge(of_all[_SYNC], of_all[_ASYNC])) for labels, of_all in snapshot.latencies]
    page.histogram(TASK_DISPATCH_LATENCY, dispatches)


def _write_gauges(page: Page, snapshot: Snapshot) -> None:
    rows: dict[PartitionLabels, list[tuple[float | None, ...]]] = {}
    loaded: dict[TaskListLabels, int] = {}
    placed = {labels for labels, _ in snapshot.counters}
    for one in snapshot.partitions:
        labels = _labels_of(one)
        if labels not in placed:
            labels = labels.shared
        rows.setdefault(labels, []).append(read_gauges(one))
        loaded[labels.of_task_list] = loaded.get(labels.of_task_list, 0) + 1
    for index, (metric, fold) in enumerate(zip(PARTITION_GAUGES, GAUGE_FOLDS, strict=True)):
        folded = []
        for labels, of_all in rows.items():
            known = [value for values in of_all if (value := values[index]) is not None]
            if known:
                folded.append((labels, fold(known)))
        page.values(metric, folded)
    page.values(LOADED_PARTITIONS, loaded.items())


def _write_configs(page: Page, snapshot: Snapshot) -> None:
    configs: dict[Labels, PartitionConfig] = {}
    scalers: dict[Labels, tuple[float, ...]] = {}
    placed = {labels for labels, _ in snapshot.counters}
    for one in snapshot.partitions:
        labels = _labels_of(one)
        # Configurations have no sum: those that are counted together have none to show.
        if labels not in placed or one.is_sticky or one.config is None:
            continue
        component = Component.PARTITION if one.partition else Component.ROOT
        configs[*labels, component.value] = one.config
        if one.scaler is not None:
            scalers[labels.of_task_list] = (*one.scaler, one.config.read, one.config.write)
    for client in snapshot.configs:
        # A poller and a producer are of the task list: their label `partition` is empty, which is as if it had none.
        task_list = partition_labels(client.namespace, client.task_list, client.task_type, 0).of_task_list
        configs[*task_list, "", client.component.value] = client.config
    columns: list[Callable[[PartitionConfig], int]] = [
        lambda config: config.read,
        lambda config: config.write,
        lambda config: config.version,
    ]
    for metric, column in zip(CONFIGS, columns, strict=True):
        page.values(metric, [(labels, column(config)) for labels, config in configs.items()])
    for index, metric in enumerate(SCALER):
        page.values(metric, [(labels, values[index]) for labels, values in scalers.items()])


def _write_calls(page: Page, snapshot: Snapshot) -> None:
    calls = [((one.service, one.operation), one) for one in snapshot.calls]
    page.values(SERVICE_REQUESTS, [(labels, one.requests) for labels, one in calls])
    page.values(SERVICE_ERRORS, [(labels, sum(one.errors.values())) for labels, one in calls])
    kinds = [((*labels, kind), count) for labels, one in calls for kind, count in one.errors.items()]
    page.values(SERVICE_ERROR_WITH_TYPE, kinds)
    page.histogram(SERVICE_LATENCY, [(labels, one.latency) for labels, one in calls])


def _write_history(page: Page, snapshot: Snapshot) -> None:
    page.values(OWNED_SHARDS, [((), one.shards) for one in snapshot.history])
    page.values(RUNS_IN_MEMORY, [((), one.runs) for one in snapshot.history])
    page.values(HISTORY_TASKS, [((queue,), count) for one in snapshot.history for queue, count in one.tasks.items()])


def _write_replication(page: Page, snapshot: Snapshot) -> None:
    sources = [((one.source_cluster,), one) for one in snapshot.replication]
    page.values(REPLICATION_LAG, [(labels, one.lag_tasks) for labels, one in sources])
    page.values(REPLICATION_DELAY, [(labels, one.lag_s) for labels, one in sources])
    page.values(REPLICATION_BACKLOG, [(labels, one.outstanding) for labels, one in sources])
    page.values(REPLICATION_DLQ_SIZE, [(labels, one.dead_letters) for labels, one in sources])
    page.histogram(REPLICATION_LATENCY, [(labels, one.latency) for labels, one in sources])


def _write_process(page: Page, snapshot: Snapshot) -> None:
    for event, series in snapshot.events.items():
        page.values(event, series.items())
    page.values(FOLDED_PARTITIONS, [((), snapshot.partitions_folded)])
    page.values(OMITTED_CONFIGS, [((), snapshot.configs_omitted)])


def _labels_of(one: PartitionGauges) -> PartitionLabels:
    return partition_labels(one.namespace, one.task_list, one.task_type, one.partition, is_sticky=one.is_sticky)


_WRITERS = (
    _write_counters,
    _write_latencies,
    _write_gauges,
    _write_configs,
    _write_history,
    _write_replication,
    _write_calls,
    _write_process,
)
