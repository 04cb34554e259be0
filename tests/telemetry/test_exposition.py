import math

import pytest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from fairlead import __version__
from fairlead.core.namespaces import NamespaceNames
from fairlead.core.partitions import PartitionConfig, TaskType
from fairlead.telemetry import METRICS, Component, ConfigGauges, Kind, Metrics, PartitionGauges, ScalerGauges, render
from tests.telemetry.scrapes import OPENMETRICS, families_of, scrape, value, values

# SC-14, SC-15: the metrics that the scaler's design names.
SCALER_METRICS = {
    "estimated_add_task_qps_per_tl",
    "tasklist_partition_upscale_threshold",
    "tasklist_partition_downscale_threshold",
    "task_list_partition_config_num_read",
    "task_list_partition_config_num_write",
    "task_list_partition_config_version",
}
# FL-74: other metrics of Cadence, except those for isolation groups, which Fairlead doesn't have.
CADENCE_METRICS = {
    "partition_upscale_per_tl",
    "partition_downscale_per_tl",
    "partition_drained_per_tl",
    "tasklist_partition_update_failed_per_tl",
    "task_backlog_per_tl",
    "local_to_local_matches_per_tl",
    "local_to_remote_matches_per_tl",
    "remote_to_local_matches_per_tl",
    "remote_to_remote_matches_per_tl",
}
# FL-74: metrics of Temporal's server.
TEMPORAL_METRICS = {
    "approximate_backlog_count",
    "approximate_backlog_age_seconds",
    "task_lag_per_tl",
    "tasks_added",
    "tasks_dropped",
    "poll_success",
    "poll_success_sync",
    "poll_timeouts",
    "poll_latency",
    "task_dispatch_latency",
    "task_write_latency",
    "local_to_local_matches",
    "local_to_remote_matches",
    "remote_to_local_matches",
    "remote_to_remote_matches",
    "lease_requests",
    "lease_failures",
    "condition_failed_errors",
    "no_poller_tasks",
    "pending_polls",
    "loaded_task_queue_partition_count",
    "fair_reader_stuck_detected",
    "partition_scale_read",
    "partition_scale_write",
    "partition_scale_target",
    "partition_scale_events",
}
# FL-74: metrics that public dashboards use. The tests of the stores cover the stores' metrics.
DASHBOARD_METRICS = {"syncmatch_latency", "asyncmatch_latency", "forwarded", "service_requests", "service_errors"} | {
    "service_latency"
}


def everything() -> Metrics:
    """A process in which every metric has a value."""
    metrics = Metrics()
    counts = metrics.partition("n", 'a "quoted"\nback\\slash name ü', TaskType.ACTIVITY, 0)
    for latency in (
        counts.task_write_latency,
        counts.poll_latency,
        counts.syncmatch_latency,
        counts.asyncmatch_latency,
    ):
        latency.observe(0.1)
    metrics.calls("matching", "Add").failed("UNAVAILABLE", 0.1)
    config = PartitionConfig(3, 2, 1)
    gauges = PartitionGauges(
        namespace="n",
        task_queue='a "quoted"\nback\\slash name ü',
        task_type=TaskType.ACTIVITY,
        partition=0,
        config=config,
        scaler=ScalerGauges(1.0, 2.0, 0.5, 1),
        approximate_backlog_count=1,
        approximate_backlog_age_seconds=0.25,
        task_lag_per_tl=2,
        loaded_tasks=1,
        pending_polls=0,
        task_add_rate=math.inf,
        task_dispatch_rate=math.nan,
    )
    metrics.watch(lambda: [gauges, ConfigGauges("n", "t", TaskType.WORKFLOW, Component.POLLER, config)])
    return metrics


@pytest.mark.parametrize("accept", ["", "text/plain", "*/*", OPENMETRICS, f"{OPENMETRICS};q=0.5,text/plain;q=0.2"])
def test_every_documented_metric_is_in_every_format(accept: str) -> None:
    content_type, content = render(everything().snapshot(), accept)
    is_openmetrics = "openmetrics" in accept
    assert content_type.startswith("application/openmetrics-text") is is_openmetrics
    assert is_openmetrics or content_type == CONTENT_TYPE_PLAIN_0_0_4
    found = families_of(content, is_openmetrics=is_openmetrics)
    expected = SCALER_METRICS | CADENCE_METRICS | TEMPORAL_METRICS | DASHBOARD_METRICS
    assert expected <= found.keys()
    assert {name for metric in METRICS for name in metric.spellings} <= found.keys()
    # Dashboards query exactly this name, and the metric needs a value.
    text = content.decode()
    for name in expected:
        assert f"\n{name}{{" in text or f"\n{name}_bucket{{" in text, name


def test_the_type_of_a_metric_is_as_declared() -> None:
    _, text = render(everything().snapshot(), "")
    _, openmetrics = render(everything().snapshot(), OPENMETRICS)
    for metric in METRICS:
        for name in metric.spellings:
            assert f"# TYPE {name} {metric.kind}\n" in text.decode()
            # OpenMetrics requires counters to end in "_total", which ours don't.
            kind = "unknown" if metric.kind is Kind.COUNTER else metric.kind.value
            assert f"# TYPE {name} {kind}\n" in openmetrics.decode()


def test_only_declared_metrics_and_those_of_the_process_are_shown() -> None:
    declared = {name for metric in METRICS for name in metric.spellings}
    _, content = render(everything().snapshot(), OPENMETRICS)
    others = families_of(content, is_openmetrics=True).keys() - declared
    assert {name for name in others if not name.startswith("process_")} == {"fairlead_build", "python_info"}


def test_labels_can_contain_any_characters() -> None:
    series = scrape(everything())
    assert value(series, "tasks_added", taskqueue='a "quoted"\nback\\slash name ü') == 0
    metrics = Metrics()
    metrics.partition("n", "half of a pair: \ud800", TaskType.ACTIVITY, 0)
    assert value(scrape(metrics), "tasks_added", taskqueue="half of a pair: \\ud800") == 0


def test_gauges_can_be_infinite_or_nan() -> None:
    series = scrape(everything())
    assert value(series, "task_add_rate") == math.inf
    assert math.isnan(value(series, "task_dispatch_rate"))


def test_the_metrics_include_the_process_and_its_version() -> None:
    series = scrape(Metrics())
    assert value(series, "fairlead_build_info", version=__version__) == 1
    assert value(series, "process_resident_memory_bytes") > 1_000_000
    assert value(series, "python_info", implementation="CPython") == 1


def test_no_description_has_characters_that_need_escaping() -> None:
    for metric in METRICS:
        assert metric.about
        assert not set(metric.about) & set('\\\n"|'), metric.name


def counted(metrics: Metrics, *namespaces: str) -> None:
    for number, namespace in enumerate(namespaces):
        metrics.partition(namespace, "orders", TaskType.ACTIVITY, 0).tasks_added += 1 + number


def test_labels_have_the_names_of_namespaces_and_the_versions_of_workers() -> None:
    metrics, names = Metrics(), NamespaceNames()
    names.put("id-1", "shop")
    metrics.use_names(names)
    counted(metrics, "id-1", "id-1#my%20app:v1", "unknown")
    series = scrape(metrics)
    assert value(series, "tasks_added", namespace="shop", worker_version="my app:v1") == 2
    assert value(series, "tasks_added", namespace="unknown") == 3
    of_shop = [dict(labels) for name, labels in series if name == "tasks_added" and ("namespace", "shop") in labels]
    assert sorted(labels.get("worker_version", "") for labels in of_shop) == ["", "my app:v1"]
    # A deleted namespace is renamed, and a new namespace takes its name.
    names.put("id-2", "shop")
    counted(metrics, "id-2")
    series = scrape(metrics)
    assert [value(series, "tasks_added", namespace=each) for each in ("shop", "unknown")] == [1, 3]


def test_two_namespaces_never_share_their_labels() -> None:
    """A client of matching may use a registered namespace's name as an id; `scrape` fails if a series occurs twice."""
    metrics, names = Metrics(), NamespaceNames()
    names.put("id-1", "shop")
    metrics.use_names(names)
    counted(metrics, "id-1", "shop", "id-1#app:v1", "shop#app:v1")
    series = scrape(metrics)
    assert sorted(values(series, "tasks_added", namespace="shop")) == [1, 3]
    assert sorted(values(series, "tasks_added", namespace="shop (unregistered)")) == [2, 4]


def test_the_oldest_configuration_version_of_several_clients_is_shown() -> None:
    metrics = Metrics()
    for version in (2, 1, 3):
        config = PartitionConfig(version, version, version)
        gauges = ConfigGauges("n", "orders", TaskType.ACTIVITY, Component.PRODUCER, config)
        metrics.watch(lambda gauges=gauges: [gauges])  # type: ignore[misc]
    assert value(scrape(metrics), "task_list_partition_config_version", component="producer") == 1
