import math
from collections import Counter
from collections.abc import Callable, Collection
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.balancing import (
    TASKS_MAX,
    InvalidReport,
    InvalidRules,
    WeightedRules,
    expected_tasks,
    probabilities,
)
from fairlead.core.balancing.outstanding_polls import OutstandingPolls
from fairlead.core.balancing.round_robin import RoundRobin
from fairlead.core.balancing.weighted import ReportedLoads, Weighted
from fairlead.core.errors import FixRequest
from fairlead.core.partitions import TaskQueueId, TaskType

QUEUE = TaskQueueId("ns", "queue", TaskType.ACTIVITY)
NOW_S = 5000.0

finite = st.floats(0.0, 1e9)


def weighted(random: Callable[[], float], *, rules: WeightedRules | None = None, task_queues_max: int = 10) -> Weighted:
    return Weighted(
        rules=rules or WeightedRules(),
        random=random,
        round_robin=RoundRobin(random=random, task_queues_max=task_queues_max),
        outstanding=OutstandingPolls(random=random, task_queues_max=task_queues_max),
        task_queues_max=task_queues_max,
    )


def poll(balancer: Weighted, partitions: int, now_s: float = NOW_S) -> int:
    """The partition of a poll that ends before the next one begins."""
    partition, counts = balancer.pick(QUEUE, partitions, now_s)
    counts.give_back(partition)
    return partition


def wait(balancer: Weighted, partitions: int, now_s: float = NOW_S) -> int:
    """The partition of a poll that waits there from now on."""
    return balancer.pick(QUEUE, partitions, now_s)[0]


def report_all(balancer: Weighted, tasks: list[float], now_s: float = NOW_S) -> None:
    # The balancer keeps reports of a task queue only after the first pick.
    poll(balancer, len(tasks), now_s)
    for partition, count in enumerate(tasks):
        balancer.report(QUEUE, partition, tasks=count, now_s=now_s)


def picks_without_noise(
    tasks: list[float], *, draws: int, rules: WeightedRules | None = None, waiting: Collection[int] = ()
) -> Counter[int]:
    """Count the next pick for each of `draws` numbers, evenly spaced between 0 and 1."""
    drawn = 0.0
    balancer = weighted(lambda: drawn, rules=rules)
    report_all(balancer, tasks)
    counts = balancer._outstanding.counts(QUEUE, len(tasks))
    picks: Counter[int] = Counter()
    for step in range(draws):
        drawn = (step + 0.5) / draws
        # The order of equal partitions changes as polls come and go: restore it.
        counts.resize(len(tasks))
        for partition in waiting:
            counts.add(partition)
        picks[poll(balancer, len(tasks))] += 1
        for partition in waiting:
            counts.give_back(partition)
    return picks


def picked_in_turn(balancer: Weighted, partitions: int, now_s: float) -> bool:
    """Whether the next picks are round robin."""
    picks = [poll(balancer, partitions, now_s) for _ in range(3 * partitions)]
    return picks == [(picks[0] + step) % partitions for step in range(3 * partitions)]


@given(partitions=st.integers(1, 200), arrival_per_s=st.floats(1e-3, 1e6), wait_s=st.floats(1e-6, 1e3))
def test_all_probabilities_are_equal_without_backlog_and_with_even_arrivals(
    partitions: int, arrival_per_s: float, wait_s: float
) -> None:
    """TQ-14: B_i = 0 and lambda_i = lambda / N give P_i = 1 / N."""
    tasks = [
        expected_tasks(backlog=0, arrival_per_s=arrival_per_s / partitions, wait_s=wait_s) for _ in range(partitions)
    ]

    assert probabilities(tasks) == pytest.approx([1 / partitions] * partitions, rel=1e-12)


@given(reports=st.lists(st.tuples(finite, finite), min_size=1, max_size=30), wait_s=st.floats(0.0, 1e3))
def test_probabilities_follow_the_formula(reports: list[tuple[float, float]], wait_s: float) -> None:
    """TQ-13: P_i = (B_i + lambda_i W) / (sum B_i + W sum lambda_i)."""
    tasks = [expected_tasks(backlog=backlog, arrival_per_s=rate, wait_s=wait_s) for backlog, rate in reports]
    backlog_sum = math.fsum(backlog for backlog, _ in reports)
    rate_sum = math.fsum(rate for _, rate in reports)
    whole = backlog_sum + wait_s * rate_sum

    assert math.fsum(probabilities(tasks)) == pytest.approx(1.0)
    if whole > 1e-300:
        assert probabilities(tasks) == pytest.approx(
            [(backlog + rate * wait_s) / whole for backlog, rate in reports], rel=1e-9, abs=1e-300
        )


def test_empty_partitions_have_equal_probabilities() -> None:
    assert probabilities([0.0] * 4) == (0.25,) * 4


@pytest.mark.parametrize(
    ("backlog", "arrival_per_s", "wait_s"),
    [
        (-1, 0.0, 0.0),
        (0, -1.0, 0.0),
        (0, 1.0, -1.0),
        (0, -1.0, -1.0),
        (math.nan, 0.0, 0.0),
        (0, math.nan, 1.0),
        (0, 1.0, math.nan),
        (math.inf, 0.0, 0.0),
        (0, math.inf, 0.0),
        (0, 1e308, 1e308),
        (2 * TASKS_MAX, 0.0, 0.0),
    ],
)
def test_a_report_with_an_invalid_number_is_rejected(backlog: float, arrival_per_s: float, wait_s: float) -> None:
    with pytest.raises(InvalidReport) as raised:
        expected_tasks(backlog=backlog, arrival_per_s=arrival_per_s, wait_s=wait_s)
    assert isinstance(raised.value, FixRequest)


@pytest.mark.parametrize(
    "wrong",
    [
        {"tasks_threshold": -1.0},
        {"tasks_threshold": math.nan},
        {"floor_share": -0.1},
        {"floor_share": 1.1},
        {"floor_share": math.nan},
        {"half_life_s": 0.0},
        {"half_life_s": math.inf},
        {"half_life_s": math.nan},
    ],
)
def test_rules_with_values_out_of_range_are_rejected(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidRules):
        WeightedRules(**wrong)


def test_picks_are_proportional_to_the_backlog_above_a_floor() -> None:
    """TQ-13, for the 90 % of the picks that don't serve the floor (FL-34)."""
    tasks = [900.0, 0.0, 50.0, 7.0, 43.0]
    counts = picks_without_noise(tasks, draws=10_000)

    for partition, probability in enumerate(probabilities(tasks)):
        assert counts[partition] == pytest.approx(200 + 9_000 * probability, abs=1.0)


def test_picks_without_a_floor_are_exactly_proportional_to_the_backlog() -> None:
    """TQ-13."""
    tasks = [900.0, 0.0, 50.0, 7.0, 43.0]
    counts = picks_without_noise(tasks, draws=10_000, rules=WeightedRules(floor_share=0.0))

    for partition, probability in enumerate(probabilities(tasks)):
        assert counts[partition] == pytest.approx(10_000 * probability, abs=1.0)


def test_the_floor_takes_no_picks_if_a_poll_waits_at_every_partition() -> None:
    tasks = [900.0, 0.0, 50.0, 7.0, 43.0]
    counts = picks_without_noise(tasks, draws=10_000, waiting=[0, 1, 2, 3, 4])

    for partition, probability in enumerate(probabilities(tasks)):
        # The draws have two parts, below and above the floor, and each may be off by one.
        assert counts[partition] == pytest.approx(10_000 * probability, abs=2.0)


@pytest.mark.sim
@given(
    tasks=st.lists(st.floats(0.0, TASKS_MAX), min_size=2, max_size=12).filter(lambda tasks: max(tasks) > 100.0),
    floor_share=st.sampled_from([0.05, 0.1, 0.37, 1.0]),
    data=st.data(),
)
def test_every_partition_without_a_waiting_poll_keeps_its_part_of_the_floor(
    tasks: list[float], floor_share: float, data: st.DataObject
) -> None:
    """FL-34: each read partition keeps a positive probability, and no other partition is chosen."""
    partitions = range(len(tasks))
    # Any number of waiting polls at each partition, added in any order, so that ties are in any order too.
    waiting = data.draw(st.lists(st.sampled_from(partitions), max_size=2 * len(tasks)))
    draws = 1000
    counts = picks_without_noise(tasks, draws=draws, rules=WeightedRules(floor_share=floor_share), waiting=waiting)

    assert set(counts) <= set(partitions)
    idle = set(partitions) - set(waiting)
    for partition in idle:
        # The number of evenly spaced draws in an interval is its length, to within one.
        assert counts[partition] >= draws * floor_share / len(idle) - 1.0
        assert counts[partition] >= draws * floor_share / len(tasks) - 1.0


def test_an_empty_partition_is_picked_even_if_another_has_a_million_tasks() -> None:
    balancer = weighted(Random(1).random)
    report_all(balancer, [1e6, 0.0, 0.0, 0.0])
    counts = Counter(poll(balancer, 4) for _ in range(10_000))

    # 250 picks are expected for each, with a standard deviation below 16.
    assert all(170 < counts[partition] < 330 for partition in (1, 2, 3))


def test_the_floor_sends_only_one_poll_to_an_empty_partition() -> None:
    """TQ-3: no second poll waits at an empty partition."""
    balancer = weighted(Random(1).random)
    report_all(balancer, [1e6] + [0.0] * 7)
    counts = Counter(wait(balancer, 8) for _ in range(1000))

    assert counts == {0: 993} | dict.fromkeys(range(1, 8), 1)


def test_the_floor_sends_another_poll_to_a_partition_whose_poll_has_ended() -> None:
    balancer = weighted(lambda: 0.05)
    report_all(balancer, [1e6, 0.0, 0.0, 0.0])
    picks = [balancer.pick(QUEUE, 4, NOW_S) for _ in range(4)]
    assert {partition for partition, _ in picks} == {0, 1, 2, 3}
    assert [wait(balancer, 4) for _ in range(10)] == [0] * 10

    next(counts for partition, counts in picks if partition == 2).give_back(2)
    assert [wait(balancer, 4) for _ in range(3)] == [2, 0, 0]


def test_round_robin_polls_count_for_the_floor() -> None:
    balancer = weighted(lambda: 0.05)
    assert {wait(balancer, 3) for _ in range(3)} == {0, 1, 2}
    balancer.report(QUEUE, 1, tasks=5000.0, now_s=NOW_S)

    assert {wait(balancer, 3) for _ in range(10)} == {1}


def test_polls_chosen_by_load_count_for_the_floor() -> None:
    drawn = iter([0.0, 0.99, 0.05, 0.05])
    balancer = weighted(lambda: next(drawn))
    report_all(balancer, [0.0, 0.0, 5000.0])

    assert wait(balancer, 3) == 2
    assert {wait(balancer, 3), wait(balancer, 3)} == {0, 1}


def test_a_backlog_equal_to_the_threshold_does_not_exceed_it() -> None:
    """TQ-15: the threshold is "more than 100 tasks"."""
    for landmark_s in (NOW_S, NOW_S - 3.7, NOW_S - 1234.5):
        balancer = weighted(lambda: 0.99)
        report_all(balancer, [0.0, 0.0, 0.0], landmark_s)
        report_all(balancer, [0.0, 100.0, 100.0])
        assert picked_in_turn(balancer, 3, NOW_S)
        balancer.report(QUEUE, 1, tasks=100.001, now_s=NOW_S)
        assert not picked_in_turn(balancer, 3, NOW_S)


def test_the_arrival_rate_counts_towards_the_threshold() -> None:
    assert expected_tasks(backlog=95, arrival_per_s=600.0, wait_s=0.01) == pytest.approx(101.0)


def test_a_partition_without_reports_counts_as_empty_and_gets_polls_from_the_floor() -> None:
    balancer = weighted(Random(1).random)
    poll(balancer, 3)
    balancer.report(QUEUE, 0, tasks=3000.0, now_s=NOW_S)
    balancer.report(QUEUE, 2, tasks=1000.0, now_s=NOW_S)
    counts = Counter(poll(balancer, 3) for _ in range(10_000))

    # Each gets a third of the floor's 1,000; the rest is split 3 to 1. Standard deviations: 46, 18 and 44.
    assert counts[0] == pytest.approx(333 + 6750, abs=200)
    assert counts[1] == pytest.approx(333, abs=80)
    assert counts[2] == pytest.approx(333 + 2250, abs=200)


def test_reports_before_the_first_pick_are_ignored() -> None:
    balancer = weighted(lambda: 0.99)
    for partition in range(3):
        balancer.report(QUEUE, partition, tasks=5000.0, now_s=NOW_S)

    assert picked_in_turn(balancer, 3, NOW_S)


def test_a_report_loses_half_its_weight_in_a_half_life() -> None:
    """FL-35."""
    loads = ReportedLoads(partitions=3, half_life_s=10.0, now_s=NOW_S)
    loads.report(0, 400.0, NOW_S)
    loads.report(1, 400.0, NOW_S + 10.0)
    loads.report(2, 400.0, NOW_S + 30.0)

    assert loads.aged(NOW_S + 30.0) == pytest.approx((50.0, 100.0, 400.0))
    assert loads.aged(NOW_S + 50.0) == pytest.approx((12.5, 25.0, 100.0))


def test_new_reports_outweigh_old_ones() -> None:
    """FL-35: a report of a million tasks from long ago counts less than a recent small one."""
    balancer = weighted(Random(1).random)
    report_all(balancer, [1e6, 0.0])
    later_s = NOW_S + 1200.0
    balancer.report(QUEUE, 1, tasks=1000.0, now_s=later_s)
    counts = Counter(poll(balancer, 2, later_s) for _ in range(1000))

    # After twenty half-lives a million counts as less than one task: partition 0 gets only the floor, 50 of 1,000.
    assert 30 < counts[0] < 75


def test_selection_is_round_robin_again_when_all_reports_have_aged_below_the_threshold() -> None:
    balancer = weighted(lambda: 0.99)
    report_all(balancer, [0.0, 0.0, 1600.0])

    assert not picked_in_turn(balancer, 3, NOW_S + 239.9)
    assert picked_in_turn(balancer, 3, NOW_S + 240.1)
    assert picked_in_turn(balancer, 3, NOW_S + 1e9)


@given(
    reports=st.lists(
        st.tuples(st.integers(0, 3), st.floats(0.0, TASKS_MAX), st.floats(0.0, 4000.0)), min_size=1, max_size=30
    ),
    half_life_s=st.floats(0.5, 20.0),
)
def test_forward_decay_equals_plain_exponential_decay(
    reports: list[tuple[int, float, float]], half_life_s: float
) -> None:
    """Covers thousands of half-lives: the landmark must move before the numbers overflow."""
    loads = ReportedLoads(partitions=4, half_life_s=half_life_s, now_s=NOW_S)
    last: dict[int, tuple[float, float]] = {}
    now_s = NOW_S
    for partition, tasks, elapsed_s in reports:
        now_s += elapsed_s
        loads.report(partition, tasks, now_s)
        last[partition] = (tasks, now_s)
    expected = [
        last[partition][0] * 0.5 ** ((now_s - last[partition][1]) / half_life_s) if partition in last else 0.0
        for partition in range(4)
    ]

    assert loads.aged(now_s) == pytest.approx(expected, rel=1e-6, abs=1e-30)
    assert loads.exceeds(1.0, now_s) == (max(loads.aged(now_s)) > 1.0)


def test_a_clock_that_is_set_back_does_not_increase_a_report() -> None:
    loads = ReportedLoads(partitions=2, half_life_s=10.0, now_s=NOW_S)
    loads.report(0, 400.0, NOW_S)
    loads.report(1, 400.0, NOW_S - 1e9)

    assert loads.aged(NOW_S - 1e9) == (400.0, 400.0)
    assert not loads.exceeds(400.0, NOW_S - 1e9)


def test_a_report_from_before_the_clock_was_set_back_keeps_its_value() -> None:
    loads = ReportedLoads(partitions=2, half_life_s=10.0, now_s=NOW_S)
    loads.report(0, 101.0, NOW_S + 600.0)
    assert loads.aged(NOW_S) == pytest.approx((101.0, 0.0))
    assert not loads.exceeds(101.1, NOW_S)

    # A later report of the same size counts the same; both start to age when the clock reaches its old time again.
    loads.report(1, 101.0, NOW_S)
    assert loads.aged(NOW_S + 600.0) == pytest.approx((101.0, 101.0))
    assert loads.aged(NOW_S + 610.0) == pytest.approx((50.5, 50.5))


@given(
    steps=st.lists(
        st.tuples(st.integers(0, 3), st.floats(0.0, TASKS_MAX), st.floats(-1e4, 1e4)), min_size=1, max_size=30
    )
)
def test_clock_jumps_never_increase_a_report(steps: list[tuple[int, float, float]]) -> None:
    loads = ReportedLoads(partitions=4, half_life_s=10.0, now_s=NOW_S)
    reported = [0.0] * 4
    now_s = NOW_S
    for partition, tasks, jump_s in steps:
        now_s += jump_s
        loads.report(partition, tasks, now_s)
        reported[partition] = tasks
        assert loads.aged(now_s)[partition] == pytest.approx(tasks)
        for seen_s in (now_s, now_s - 1e5):
            aged = loads.aged(seen_s)
            assert all(held <= said * (1.0 + 1e-9) for held, said in zip(aged, reported, strict=True))


def test_added_partitions_are_tried_once_and_the_old_reports_are_kept() -> None:
    balancer = weighted(lambda: 0.99)
    report_all(balancer, [0.0, 5000.0])
    assert {poll(balancer, 4), poll(balancer, 4)} == {2, 3}
    assert {poll(balancer, 4) for _ in range(20)} == {1}

    balancer.report(QUEUE, 3, tasks=1e6, now_s=NOW_S)
    assert {poll(balancer, 4) for _ in range(20)} == {3}


def test_a_removed_partition_is_not_picked_and_its_reports_are_ignored() -> None:
    """FL-34: weights never select outside the current read partitions, even before the next report."""
    balancer = weighted(Random(1).random)
    report_all(balancer, [200.0, 100.0, 100.0, 1e9])

    picks = [poll(balancer, 3) for _ in range(500)]
    balancer.report(QUEUE, 3, tasks=1e9, now_s=NOW_S)
    balancer.report(QUEUE, -1, tasks=1e9, now_s=NOW_S)
    picks += [poll(balancer, 3) for _ in range(500)]

    assert set(picks) == {0, 1, 2}
    assert picks.count(0) == pytest.approx(483, abs=60)


def test_a_partition_that_was_removed_and_added_again_counts_as_empty() -> None:
    balancer = weighted(lambda: 0.99)
    report_all(balancer, [0.0, 0.0, 5000.0])
    poll(balancer, 2)

    assert picked_in_turn(balancer, 3, NOW_S)


def test_a_forgotten_task_queue_needs_new_reports() -> None:
    balancer = weighted(lambda: 0.99)
    report_all(balancer, [0.0, 0.0, 5000.0])
    assert not picked_in_turn(balancer, 3, NOW_S)
    balancer.forget(QUEUE)

    assert picked_in_turn(balancer, 3, NOW_S)


def test_the_reports_of_the_least_recently_used_task_queue_are_evicted() -> None:
    balancer = weighted(lambda: 0.99, task_queues_max=2)
    report_all(balancer, [0.0, 0.0, 5000.0])
    for number in range(2):
        balancer.pick(TaskQueueId("ns", f"other-{number}", TaskType.ACTIVITY), 3, NOW_S)

    assert picked_in_turn(balancer, 3, NOW_S)


def test_partitions_without_a_report_are_tried_before_polls_follow_the_load() -> None:
    """Otherwise the first partition that reports would get nearly all polls."""
    balancer = weighted(Random(1).random)
    assert poll(balancer, 16) in range(16)
    balancer.report(QUEUE, 0, tasks=5000.0, now_s=NOW_S)
    tried = {poll(balancer, 16) for _ in range(15)}
    assert len(tried) >= 14
