"""Renders a snapshot for Prometheus."""

from collections.abc import Callable

from fairlead.core.partitions import PartitionConfig
from fairlead.telemetry.buckets import merge
from fairlead.telemetry.calls import SERVICE_ERROR_WITH_TYPE, SERVICE_ERRORS, SERVICE_LATENCY, SERVICE_REQUESTS
from fairlead.telemetry.gauges import (
    ACTIVITY_SLOTS,
    CERTIFICATES_EXPIRED,
    CERTIFICATES_EXPIRING,
    CERTIFICATES_NEXT_END,
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
    TaskQueueLabels,
    partition_labels,
)

_SYNC = Latencies._fields.index("syncmatch_latency")
_ASYNC = Latencies._fields.index("asyncmatch_latency")


def render(snapshot: Snapshot, accept: str) -> tuple[str, bytes]:
    """Content type and content: OpenMetrics if the request's header `accept` asks for it, else Prometheus text."""
    # Imported at the first scrape: the library takes 30 ms to load, and most development servers are never scraped.
    from fairlead.telemetry.process_metrics import CONTENT_TYPE_OPENMETRICS, CONTENT_TYPE_TEXT, render_process  # noqa: PLC0415

    is_openmetrics = "application/openmetrics-text" in accept
    page = Page(is_openmetrics=is_openmetrics, namespaces=snapshot.namespaces)
    for write in _WRITERS:
        write(page, snapshot)
    # The library's part comes last: it ends with OpenMetrics' end marker.
    content = page.encode() + render_process(is_openmetrics=is_openmetrics)
    return (CONTENT_TYPE_OPENMETRICS if is_openmetrics else CONTENT_TYPE_TEXT), content


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
    loaded: dict[TaskQueueLabels, int] = {}
    placed = {labels for labels, _ in snapshot.counters}
    for one in snapshot.partitions:
        labels = _labels_of(one)
        if labels not in placed:
            labels = labels.shared
        rows.setdefault(labels, []).append(read_gauges(one))
        loaded[labels.of_task_queue] = loaded.get(labels.of_task_queue, 0) + 1
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
        # Configurations can't be summed, so partitions that are counted together report none.
        if labels not in placed or one.is_sticky or one.config is None:
            continue
        component = Component.PARTITION if one.partition else Component.ROOT
        configs[*labels, component.value] = one.config
        if one.scaler is not None:
            scalers[labels.of_task_queue] = (*one.scaler, one.config.read, one.config.write)
    for client in snapshot.configs:
        # Pollers and producers belong to the task queue: an empty label `partition` is the same as no label.
        task_queue = partition_labels(client.namespace, client.task_queue, client.task_type, 0).of_task_queue
        key = (*task_queue, "", client.component.value)
        # Two clients of a process may use different versions: report the older one, which shows the delay.
        if key not in configs or client.config.version < configs[key].version:
            configs[key] = client.config
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
    page.values(ACTIVITY_SLOTS, [((), one.activity_slots) for one in snapshot.history])
    page.values(HISTORY_TASKS, [((queue,), count) for one in snapshot.history for queue, count in one.tasks.items()])


def _write_replication(page: Page, snapshot: Snapshot) -> None:
    sources = [((one.source_cluster,), one) for one in snapshot.replication]
    page.values(REPLICATION_LAG, [(labels, one.lag_tasks) for labels, one in sources])
    page.values(REPLICATION_DELAY, [(labels, one.lag_s) for labels, one in sources])
    page.values(REPLICATION_BACKLOG, [(labels, one.outstanding) for labels, one in sources])
    page.values(REPLICATION_DLQ_SIZE, [(labels, one.dead_letters) for labels, one in sources])
    page.histogram(REPLICATION_LATENCY, [(labels, one.latency) for labels, one in sources])


def _write_certificates(page: Page, snapshot: Snapshot) -> None:
    found = snapshot.certificates
    page.values(CERTIFICATES_EXPIRED, [((), one.expired) for one in found])
    page.values(CERTIFICATES_EXPIRING, [((), one.expiring) for one in found])
    page.values(CERTIFICATES_NEXT_END, [((), one.next_end_s) for one in found if one.next_end_s is not None])


def _write_process(page: Page, snapshot: Snapshot) -> None:
    for event, series in snapshot.events.items():
        page.values(event, series.items())
    page.values(FOLDED_PARTITIONS, [((), snapshot.partitions_folded)])
    page.values(OMITTED_CONFIGS, [((), snapshot.configs_omitted)])


def _labels_of(one: PartitionGauges) -> PartitionLabels:
    return partition_labels(one.namespace, one.task_queue, one.task_type, one.partition, is_sticky=one.is_sticky)


_WRITERS = (
    _write_counters,
    _write_latencies,
    _write_gauges,
    _write_configs,
    _write_history,
    _write_replication,
    _write_calls,
    _write_certificates,
    _write_process,
)
