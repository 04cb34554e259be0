"""Time series: fine and coarse points, missing ones, and the bound on their number."""

from fairlead.console.sampler import CPU, STARTS, Sampler
from fairlead.console.series import COARSE_S, FINE_POINTS, FINE_S, IDLE_S, Point, TimeSeries
from fairlead.core.partitions import TaskType
from fairlead.telemetry import Metrics
from fairlead.telemetry.gauges import PartitionGauges

NAME = ("backlog",)
HOUR_S = 3_600.0


def test_the_last_hour_has_points_of_ten_seconds_and_the_last_half_day_of_a_minute() -> None:
    series = TimeSeries()
    for at_s in range(0, 50_000, FINE_S):
        series.record(NAME, at_s + 1, at_s)
    now_s = 49_990.0
    fine = series.points(NAME, span_s=HOUR_S, now_s=now_s)
    assert len(fine) == FINE_POINTS
    assert fine[-1] == Point(49_990.0, 49_991.0)
    coarse = series.points(NAME, span_s=12 * HOUR_S, now_s=now_s)
    assert len(coarse) == 720
    assert coarse[-2].at_s == 49_920.0
    assert coarse[-2].value == sum(49_920 + step * FINE_S + 1 for step in range(6)) / 6


def test_a_time_without_values_has_points_without_value() -> None:
    series = TimeSeries()
    series.record(NAME, 1.0, 100.0)
    series.record(NAME, 2.0, 130.0)
    values = [point.value for point in series.points(NAME, span_s=HOUR_S, now_s=130.0)]
    assert values == [1.0, None, None, 2.0]
    series.record(NAME, 3.0, 1e9)
    assert [point.value for point in series.points(NAME, span_s=60.0, now_s=1e9)][-1] == 3.0
    assert len(series.points(NAME, span_s=1e10, now_s=1e9)) <= 720


def test_values_of_one_point_are_averaged() -> None:
    series = TimeSeries()
    for value in (1.0, 2.0, 6.0):
        series.record(NAME, value, 100.0)
    assert series.points(NAME, span_s=COARSE_S, now_s=100.0) == [Point(100.0, 3.0)]


def test_zeros_begin_no_series_and_the_series_that_was_idle_longest_ends_first() -> None:
    series = TimeSeries(series_max=2)
    series.record(("a",), 0.0, 10.0)
    assert len(series) == 0
    series.record(("a",), 1.0, 10.0)
    series.record(("b",), 1.0, 10.0)
    series.record(("a",), 1.0, 20.0)
    later_s = 10.0 + IDLE_S
    series.record(("b",), 0.0, later_s)
    series.record(("c",), 1.0, later_s)
    assert series.names() == [("a",), ("c",)]
    assert series.points(("b",), span_s=HOUR_S, now_s=later_s) == []


def test_with_more_busy_objects_than_series_the_first_ones_keep_their_curves() -> None:
    series = TimeSeries(series_max=3)
    for at_s in range(0, 1_000, FINE_S):
        for number in range(10):
            series.record((str(number),), 1.0, at_s)
    assert series.names() == [("0",), ("1",), ("2",)]
    assert len(series.points(("0",), span_s=HOUR_S, now_s=990.0)) == 100


def test_the_series_of_the_process_begin_without_room() -> None:
    series = TimeSeries(series_max=1)
    series.record(("a",), 1.0, 10.0)
    series.record(("cpu",), 0.0, 10.0, begins_at_zero=True)
    assert ("cpu",) in series.names()


def test_a_sample_records_the_process_and_the_sums_of_each_task_queue() -> None:
    metrics, series = Metrics(), TimeSeries()
    now_s, cpu_s = 1_000.0, 5.0
    sampler = Sampler(metrics, series, clock=lambda: now_s, cpu_s=lambda: cpu_s)

    def gauges(partition: int, *, is_sticky: bool = False) -> PartitionGauges:
        return PartitionGauges(
            namespace="n",
            task_queue="q",
            task_type=TaskType.ACTIVITY,
            partition=partition,
            is_sticky=is_sticky,
            approximate_backlog_count=3,
            pending_polls=1,
        )

    metrics.watch(lambda: [gauges(0), gauges(1), gauges(2, is_sticky=True)])
    sampler.sample()
    metrics.calls("frontend", "StartWorkflowExecution").answered(0.1)
    now_s, cpu_s = 1_010.0, 7.0
    sampler.sample()

    def last(*name: str) -> float | None:
        return series.points(name, span_s=HOUR_S, now_s=now_s)[-1].value

    assert last("queue", "n", "q", "activity", "backlog") == 6.0
    assert last("backlog") == 6.0
    assert last("polls") == 2.0
    assert round(last(*STARTS) or 0, 3) == 0.1
    assert round(last(*CPU) or 0, 3) == 0.2
