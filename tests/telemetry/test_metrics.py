from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.partitions import STICKY, PartitionConfig, TaskType
from fairlead.telemetry import (
    DYNAMIC_CONFIG_RELOADS,
    MEMBERSHIP_CHANGED,
    OTHER,
    Component,
    ConfigGauges,
    Metrics,
    PartitionGauges,
    PartitionMetrics,
    ScalerGauges,
)
from fairlead.telemetry.calls import ERROR_KINDS_MAX
from fairlead.telemetry.events import EVENT_SERIES_MAX
from fairlead.telemetry.metrics import CALL_SERIES_MAX, CONFIG_SERIES_MAX
from fairlead.telemetry.partition import PARTITION_COUNTERS, Latencies
from tests.telemetry.scrapes import scrape, value, values

ACTIVITY, WORKFLOW = TaskType.ACTIVITY, TaskType.WORKFLOW


def test_the_counts_of_a_partition_have_its_labels() -> None:
    metrics = Metrics()
    counts = metrics.partition("orders", "checkout", ACTIVITY, 3)
    counts.tasks_added += 2
    counts.local_to_remote_matches += 1
    series = scrape(metrics)
    labels = {"namespace": "orders", "taskqueue": "checkout", "task_type": "Activity", "partition": "3"}
    assert series["tasks_added", tuple(sorted(labels.items()))] == 2
    assert value(series, "local_to_remote_matches", **labels) == 1
    assert value(series, "local_to_remote_matches_per_tl", **labels) == 1
    assert value(series, "poll_success", **labels) == 0


def test_a_loaded_partition_keeps_its_counts() -> None:
    metrics = Metrics()
    counts = metrics.partition("n", "t", ACTIVITY, 1)
    assert metrics.partition("n", "t", ACTIVITY, 1) is counts
    for other in [("m", "t", ACTIVITY, 1), ("n", "u", ACTIVITY, 1), ("n", "t", WORKFLOW, 1), ("n", "t", ACTIVITY, 2)]:
        assert metrics.partition(*other) is not counts


def test_an_unloaded_partition_keeps_its_series_and_continues_it_when_loaded_again() -> None:
    metrics = Metrics()
    counts = metrics.partition("n", "t", ACTIVITY, 0)
    counts.tasks_added += 5
    metrics.forget(counts)
    assert value(scrape(metrics), "tasks_added") == 5
    metrics.partition("n", "t", ACTIVITY, 0).tasks_added += 1
    assert value(scrape(metrics), "tasks_added") == 6


def test_the_series_of_the_partition_that_was_unloaded_first_is_evicted() -> None:
    metrics = Metrics(partition_series_max=2)
    first, second = metrics.partition("n", "t", ACTIVITY, 0), metrics.partition("n", "t", ACTIVITY, 1)
    metrics.forget(second)
    metrics.forget(first)
    metrics.partition("n", "t", ACTIVITY, 2)
    assert {dict(labels)["partition"] for name, labels in scrape(metrics) if name == "tasks_added"} == {"0", "2"}


def test_the_series_of_a_loaded_partition_is_never_evicted() -> None:
    """The partition is loaded again before it is unloaded, as when its lease returns while it is closing."""
    metrics = Metrics(partition_series_max=1)
    old = metrics.partition("n", "t", ACTIVITY, 0)
    metrics.partition("n", "t", ACTIVITY, 0)
    metrics.forget(old)
    metrics.partition("n", "t", ACTIVITY, 1)
    assert values(scrape(metrics), "tasks_added", partition="0") == [0]


def test_the_series_of_a_partition_that_was_loaded_again_is_not_evicted() -> None:
    metrics = Metrics(partition_series_max=1)
    metrics.forget(metrics.partition("n", "t", ACTIVITY, 0))
    metrics.partition("n", "t", ACTIVITY, 0)
    metrics.partition("n", "t", ACTIVITY, 1)
    assert values(scrape(metrics), "tasks_added", partition="0") == [0]


def test_partitions_above_the_bound_share_one_series() -> None:
    metrics = Metrics(partition_series_max=1)
    metrics.partition("n", "t", ACTIVITY, 0)
    folded = [metrics.partition("n", f"t{number}", ACTIVITY, number) for number in range(5)]
    for counts in folded:
        counts.tasks_added += 1
        counts.poll_latency.observe(1.0)
    metrics.partition("n", "t", WORKFLOW, 0).tasks_added += 10
    series = scrape(metrics)
    labels = {"namespace": OTHER, "taskqueue": OTHER}
    assert value(series, "tasks_added", task_type="Activity", partition=OTHER, **labels) == 5
    assert value(series, "tasks_added", task_type="Workflow", partition=OTHER, **labels) == 10
    assert value(series, "poll_latency_count", task_type="Activity", **labels) == 5
    assert value(series, "folded_partition_count") == 6
    for counts in folded:
        metrics.forget(counts)
    assert value(scrape(metrics), "folded_partition_count") == 1


def test_all_sticky_task_queues_of_a_namespace_share_one_series() -> None:
    """Each worker has its own sticky task queue, with a name that is never used again."""
    metrics = Metrics()
    for number in range(3):
        metrics.partition("n", f"worker-{number}", WORKFLOW, 0, is_sticky=True).tasks_added += 1
    assert value(scrape(metrics), "tasks_added", taskqueue=STICKY, partition=STICKY) == 3


def test_the_partitions_of_a_task_queue_share_its_latencies() -> None:
    metrics = Metrics()
    for number in range(3):
        metrics.partition("n", "t", ACTIVITY, number).task_write_latency.observe(0.003)
    series = scrape(metrics)
    assert value(series, "task_write_latency_count", taskqueue="t") == 3
    assert value(series, "task_write_latency_bucket", taskqueue="t", le="0.0025") == 0
    assert value(series, "task_write_latency_bucket", taskqueue="t", le="0.005") == 3
    assert value(series, "task_write_latency_bucket", taskqueue="t", le="+Inf") == 3
    assert value(series, "task_write_latency_sum", taskqueue="t") == pytest.approx(0.009)
    assert values(series, "poll_latency_count") == []


def test_the_latencies_of_a_task_queue_end_with_its_last_partition() -> None:
    metrics = Metrics(partition_series_max=2)
    for number in range(2):
        counts = metrics.partition("n", "t", ACTIVITY, number)
        counts.poll_latency.observe(1.0)
        metrics.forget(counts)
    metrics.partition("n", "u", ACTIVITY, 0)
    assert values(scrape(metrics), "poll_latency_count", taskqueue="t") == [2]
    metrics.partition("n", "u", ACTIVITY, 1)
    assert values(scrape(metrics), "poll_latency_count", taskqueue="t") == []


def test_the_dispatch_latency_covers_sync_and_async_matches() -> None:
    metrics = Metrics()
    counts = metrics.partition("n", "t", ACTIVITY, 0)
    counts.syncmatch_latency.observe(0.001)
    counts.asyncmatch_latency.observe(20.0)
    series = scrape(metrics)
    assert value(series, "task_dispatch_latency_bucket", le="0.001") == 1
    assert value(series, "task_dispatch_latency_bucket", le="10.0") == 1
    assert value(series, "task_dispatch_latency_bucket", le="30.0") == 2
    assert value(series, "syncmatch_latency_count") == 1
    assert value(series, "asyncmatch_latency_count") == 1


def test_the_scale_events_are_the_sum_of_upscales_downscales_and_drains() -> None:
    metrics = Metrics()
    root = metrics.partition("n", "t", ACTIVITY, 0)
    root.partition_upscale_per_tl += 1
    root.partition_downscale_per_tl += 10
    root.partition_drained_per_tl += 100
    root.tasklist_partition_update_failed_per_tl += 1000
    assert value(scrape(metrics), "partition_scale_events") == 111


def partition(
    number: int, *, count: float | None = None, age_s: float | None = None, **more: object
) -> PartitionGauges:
    labels = {"namespace": "n", "task_queue": "t", "task_type": ACTIVITY, "partition": number}
    values = {"approximate_backlog_count": count, "approximate_backlog_age_seconds": age_s}
    return PartitionGauges(**(labels | values | more))  # type: ignore[arg-type]


def test_gauges_are_read_at_every_scrape() -> None:
    metrics = Metrics()
    metrics.partition("n", "t", ACTIVITY, 0)
    backlog = [7.0]
    metrics.watch(lambda: [partition(0, count=backlog[0], age_s=1.5)])
    series = scrape(metrics)
    assert value(series, "approximate_backlog_count", partition="0", taskqueue="t") == 7
    assert value(series, "task_backlog_per_tl", partition="0", taskqueue="t") == 7
    assert value(series, "approximate_backlog_age_seconds") == 1.5
    assert value(series, "loaded_task_queue_partition_count", taskqueue="t") == 1
    backlog[0] = 8.0
    assert value(scrape(metrics), "approximate_backlog_count") == 8


def test_an_unknown_gauge_is_not_shown() -> None:
    metrics = Metrics()
    metrics.partition("n", "t", ACTIVITY, 0)
    metrics.watch(lambda: [partition(0, count=0.0)])
    series = scrape(metrics)
    assert values(series, "approximate_backlog_count") == [0]
    assert values(series, "approximate_backlog_age_seconds") == []
    assert values(series, "estimated_add_task_qps_per_tl") == []
    assert values(series, "task_list_partition_config_version") == []


def test_the_gauges_of_partitions_above_the_bound_are_combined() -> None:
    metrics = Metrics(partition_series_max=1)
    for number in range(4):
        metrics.partition("n", "t", ACTIVITY, number)
    config = PartitionConfig(3, 4, 4)
    metrics.watch(lambda: [partition(number, count=10.0, age_s=float(number), config=config) for number in range(4)])
    series = scrape(metrics)
    assert value(series, "approximate_backlog_count", partition="0") == 10
    assert value(series, "approximate_backlog_count", partition=OTHER) == 30
    assert value(series, "approximate_backlog_age_seconds", partition=OTHER) == 3
    assert value(series, "loaded_task_queue_partition_count", taskqueue=OTHER) == 3
    assert values(series, "task_list_partition_config_version") == [3]


def test_every_component_shows_the_configuration_that_it_uses() -> None:
    """SC-15: root, other partitions, pollers and producers."""
    metrics = Metrics()
    for number in range(2):
        metrics.partition("n", "t", ACTIVITY, number)
    new, old = PartitionConfig(8, 4, 2), PartitionConfig(7, 4, 4)
    metrics.watch(lambda: [partition(0, config=new), partition(1, config=old)])
    metrics.watch(
        lambda: [ConfigGauges("n", "t", ACTIVITY, who, old) for who in (Component.POLLER, Component.PRODUCER)]
    )
    series = scrape(metrics)
    name = "task_list_partition_config_"
    assert value(series, f"{name}version", component="root", partition="0") == 8
    assert value(series, f"{name}num_read", component="root") == 4
    assert value(series, f"{name}num_write", component="root") == 2
    assert value(series, f"{name}version", component="partition", partition="1") == 7
    assert value(series, f"{name}version", component="poller", taskqueue="t") == 7
    assert value(series, f"{name}num_write", component="producer", taskqueue="t") == 4


def test_client_configurations_above_the_bound_are_omitted_and_counted() -> None:
    metrics = Metrics()
    config = PartitionConfig(1, 1, 1)
    rows = [
        ConfigGauges("n", f"t{number}", ACTIVITY, Component.POLLER, config) for number in range(CONFIG_SERIES_MAX + 3)
    ]
    metrics.watch(lambda: rows)
    series = scrape(metrics)
    assert len(values(series, "task_list_partition_config_version")) == CONFIG_SERIES_MAX
    assert value(series, "omitted_partition_config_count") == 3


def test_a_root_shows_the_values_of_its_scaler() -> None:
    """SC-14."""
    metrics = Metrics()
    metrics.partition("n", "t", ACTIVITY, 0)
    scaler = ScalerGauges(qps=310.0, upscale_threshold_qps=400.0, downscale_threshold_qps=150.0, target=3)
    metrics.watch(lambda: [partition(0, config=PartitionConfig(5, 4, 2), scaler=scaler)])
    series = scrape(metrics)
    assert value(series, "estimated_add_task_qps_per_tl", taskqueue="t") == 310
    assert value(series, "tasklist_partition_upscale_threshold") == 400
    assert value(series, "tasklist_partition_downscale_threshold") == 150
    assert value(series, "partition_scale_target") == 3
    assert value(series, "partition_scale_read") == 4
    assert value(series, "partition_scale_write") == 2


def test_a_method_counts_requests_errors_by_type_and_latency() -> None:
    metrics = Metrics()
    add = metrics.calls("matching", "Add")
    add.answered(0.002)
    add.failed("UNAVAILABLE", 0.5)
    add.failed("UNAVAILABLE", 0.5)
    assert metrics.calls("matching", "Add") is add
    series = scrape(metrics)
    labels = {"service_name": "matching", "operation": "Add"}
    assert value(series, "service_requests", **labels) == 3
    assert value(series, "service_errors", **labels) == 2
    assert value(series, "service_error_with_type", error_type="UNAVAILABLE", **labels) == 2
    assert value(series, "service_latency_count", **labels) == 3
    assert value(series, "service_latency_bucket", le="0.0025", **labels) == 1


def test_the_numbers_of_methods_and_error_types_are_bounded() -> None:
    metrics = Metrics()
    for number in range(CALL_SERIES_MAX + 50):
        metrics.calls("s", f"m{number}").answered(1.0)
    call = metrics.calls("s", "m0")
    for number in range(ERROR_KINDS_MAX + 7):
        call.failed(f"kind {number}", 1.0)
    series = scrape(metrics)
    assert len(values(series, "service_requests")) == CALL_SERIES_MAX + 1
    assert value(series, "service_requests", operation=OTHER) == 50
    assert value(series, "service_error_with_type", error_type=OTHER) == 7
    assert len(values(series, "service_error_with_type")) == ERROR_KINDS_MAX + 1
    assert value(series, "service_errors", operation="m0") == ERROR_KINDS_MAX + 7


def test_rare_events_are_counted_by_their_labels() -> None:
    metrics = Metrics()
    assert value(scrape(metrics), "membership_changed_count") == 0
    metrics.count(MEMBERSHIP_CHANGED)
    metrics.count(DYNAMIC_CONFIG_RELOADS, "refused")
    metrics.count(DYNAMIC_CONFIG_RELOADS, "refused")
    series = scrape(metrics)
    assert value(series, "membership_changed_count") == 1
    assert value(series, "dynamic_config_reloads", outcome="refused") == 2


def test_the_series_of_rare_events_are_bounded_and_need_their_labels() -> None:
    metrics = Metrics()
    for number in range(EVENT_SERIES_MAX + 5):
        metrics.count(DYNAMIC_CONFIG_RELOADS, f"outcome {number}")
    assert value(scrape(metrics), "dynamic_config_reloads", outcome=OTHER) == 5
    with pytest.raises(TypeError, match="outcome"):
        metrics.count(DYNAMIC_CONFIG_RELOADS)


STEPS = st.lists(
    st.tuples(st.sampled_from(["load", "unload", "count", "scrape"]), st.integers(0, 5), st.integers(1, 5)), max_size=60
)
ADDED = [metric.name for metric in PARTITION_COUNTERS].index("tasks_added")
POLLS = Latencies._fields.index("poll_latency")


def counted(metrics: Metrics) -> dict[tuple[str, ...], int]:
    """Two metrics of a scrape, by their labels: adds by partition, and polls by task queue."""
    snapshot = metrics.snapshot()
    found: dict[tuple[str, ...], int] = {("added", *labels): counts[ADDED] for labels, counts in snapshot.counters}
    return found | {("polls", *labels): sum(of_all[POLLS].counts) for labels, of_all in snapshot.latencies}


@pytest.mark.sim
@given(STEPS, st.integers(1, 6))
def test_counters_never_decrease_and_nothing_is_counted_twice(
    steps: list[tuple[str, int, int]], partition_series_max: int
) -> None:
    """In any order of loads and unloads, no series counts more than the events that happened.

    Prometheus reads a counter that is lower than before as restarted at 0.
    """
    metrics = Metrics(partition_series_max=partition_series_max)
    held: dict[int, list[PartitionMetrics]] = {number: [] for number in range(6)}
    true: Counter[str] = Counter()
    taken_for_new: Counter[str] = Counter()
    seen: dict[tuple[str, ...], int] = {}
    loaded_since: set[int] = set()
    for step, number, count in [*steps, ("scrape", 0, 0)]:
        if step == "load":
            held[number].append(metrics.partition("n", f"t{number % 2}", ACTIVITY, number))
        elif step == "unload" and held[number]:
            metrics.forget(held[number].pop(0))
            if not held[number]:
                loaded_since.discard(number)
        elif step == "count" and held[number]:
            held[number][-1].tasks_added += count
            held[number][-1].poll_latency.observe(1.0)
            true["added"] += count
            true["polls"] += 1
        elif step == "scrape":
            now = counted(metrics)
            for key, total in now.items():
                before = seen.get(key, 0)
                taken_for_new[key[0]] += total - before if total >= before else total
            for key, before in seen.items():
                labels = [(f"t{one % 2}", "Activity", str(one)) for one in loaded_since if partition_key(one) in seen]
                is_loaded = any(key[2:] in (of_partition, of_partition[:2]) for of_partition in labels)
                if is_loaded or partition_series_max == 6:
                    assert now[key] >= before, f"{key} decreased"
            assert taken_for_new <= true
            if partition_series_max == 6:
                assert taken_for_new == true
            # One more series is for all other partitions.
            assert sum(name == "added" for name, *_ in now) <= partition_series_max + 1
            seen, loaded_since = now, {number for number, holding in held.items() if holding}


def partition_key(number: int) -> tuple[str, ...]:
    return ("added", "n", f"t{number % 2}", "Activity", str(number))
