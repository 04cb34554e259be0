import math

import pytest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from fairlead import __version__
from fairlead.core.partitions import PartitionConfig, TaskType
from fairlead.telemetry import METRICS, Component, ConfigGauges, Kind, Metrics, PartitionGauges, ScalerGauges, render
from tests.telemetry.scrapes import OPENMETRICS, families_of, scrape, value

# Seed 001, 'Monitoring and Metrics'.
OF_SEED_001 = {
    "estimated_add_task_qps_per_tl",
    "tasklist_partition_upscale_threshold",
    "tasklist_partition_downscale_threshold",
    "task_list_partition_config_num_read",
    "task_list_partition_config_num_write",
    "task_list_partition_config_version",
}
# Fact sheet on Cadence's matching, section 3. Its names for isolation groups are left out: there are none here.
OF_CADENCE = {
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
# Fact sheet on Temporal's matching, section 6.
OF_TEMPORAL = {
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
# Fact sheet on the ecosystem, 'Operations': what public dashboards ask for. Those of the stores belong to the stores.
OF_DASHBOARDS = {"syncmatch_latency", "asyncmatch_latency", "forwarded", "service_requests", "service_errors"} | {
    "service_latency"
}


def everything() -> Metrics:
    """A process in which everything that can be shown has happened."""
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
        task_list='a "quoted"\nback\\slash name ü',
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
def test_every_name_of_the_documents_is_there_whatever_the_format(accept: str) -> None:
    content_type, content = render(everything().snapshot(), accept)
    is_openmetrics = "openmetrics" in accept
    assert content_type.startswith("application/openmetrics-text") is is_openmetrics
    assert is_openmetrics or content_type == CONTENT_TYPE_PLAIN_0_0_4
    found = families_of(content, is_openmetrics=is_openmetrics)
    expected = OF_SEED_001 | OF_CADENCE | OF_TEMPORAL | OF_DASHBOARDS
    assert expected <= found.keys()
    assert {name for metric in METRICS for name in metric.spellings} <= found.keys()
    # Under exactly that name, which is what a dashboard asks for, and with a value.
    text = content.decode()
    for name in expected:
        assert f"\n{name}{{" in text or f"\n{name}_bucket{{" in text, name


def test_what_is_declared_is_what_is_said_of_the_type() -> None:
    _, text = render(everything().snapshot(), "")
    _, openmetrics = render(everything().snapshot(), OPENMETRICS)
    for metric in METRICS:
        for name in metric.spellings:
            assert f"# TYPE {name} {metric.kind}\n" in text.decode()
            # Counters of OpenMetrics must end in "_total", which these do not.
            kind = "unknown" if metric.kind is Kind.COUNTER else metric.kind.value
            assert f"# TYPE {name} {kind}\n" in openmetrics.decode()


def test_nothing_is_shown_that_is_not_declared_but_for_the_process_itself() -> None:
    declared = {name for metric in METRICS for name in metric.spellings}
    _, content = render(everything().snapshot(), OPENMETRICS)
    others = families_of(content, is_openmetrics=True).keys() - declared
    assert {name for name in others if not name.startswith("process_")} == {"fairlead_build", "python_info"}


def test_labels_may_have_any_characters() -> None:
    series = scrape(everything())
    assert value(series, "tasks_added", taskqueue='a "quoted"\nback\\slash name ü') == 0
    metrics = Metrics()
    metrics.partition("n", "half of a pair: \ud800", TaskType.ACTIVITY, 0)
    assert value(scrape(metrics), "tasks_added", taskqueue="half of a pair: \\ud800") == 0


def test_gauges_may_be_infinite_or_no_number() -> None:
    series = scrape(everything())
    assert value(series, "task_add_rate") == math.inf
    assert math.isnan(value(series, "task_dispatch_rate"))


def test_the_process_tells_of_itself_and_of_its_version() -> None:
    series = scrape(Metrics())
    assert value(series, "fairlead_build_info", version=__version__) == 1
    assert value(series, "process_resident_memory_bytes") > 1_000_000
    assert value(series, "python_info", implementation="CPython") == 1


def test_no_description_has_characters_that_would_need_escaping() -> None:
    for metric in METRICS:
        assert metric.about
        assert not set(metric.about) & set('\\\n"|'), metric.name
