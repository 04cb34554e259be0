import math
from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.balancing import (
    TASK_QUEUES_MAX,
    InvalidBalancer,
    InvalidReport,
    LoadBalancer,
    NotAPartition,
    Strategy,
    WeightedRules,
)
from fairlead.core.errors import FixRequest
from fairlead.core.partitions import TaskQueueId, TaskType

QUEUE = TaskQueueId("ns", "queue", TaskType.ACTIVITY)
NOW_S = 5000.0

every_strategy = pytest.mark.parametrize("strategy", list(Strategy))


def balancer(
    seed: int = 1, *, forced_read: int | None = None, forced_write: int | None = None, floor_share: float = 0.1
) -> LoadBalancer:
    return LoadBalancer(
        random=Random(seed).random,
        weighted=WeightedRules(floor_share=floor_share),
        forced_read=forced_read,
        forced_write=forced_write,
    )


def reads(chosen: LoadBalancer, strategy: Strategy, *, partitions: int, count: int) -> Counter[int]:
    """Count the picks of polls that each end before the next one begins."""
    counts: Counter[int] = Counter()
    for _ in range(count):
        pick = chosen.pick_read(QUEUE, partitions=partitions, strategy=strategy, now_s=NOW_S)
        counts[pick.partition] += 1
        pick.release()
    return counts


def writes(chosen: LoadBalancer, strategy: Strategy, *, partitions: int, count: int) -> Counter[int]:
    return Counter(chosen.pick_write(QUEUE, partitions=partitions, strategy=strategy) for _ in range(count))


@every_strategy
@pytest.mark.parametrize("partitions", [-1, 0, 1])
def test_the_root_is_picked_for_a_task_queue_of_one_partition(strategy: Strategy, partitions: int) -> None:
    assert reads(balancer(), strategy, partitions=partitions, count=50) == {0: 50}
    assert writes(balancer(), strategy, partitions=partitions, count=50) == {0: 50}


@every_strategy
def test_every_strategy_spreads_evenly_without_a_backlog(strategy: Strategy) -> None:
    """TQ-2: 8,000 random picks over 8 partitions give about 1,000 each, with a standard deviation of 30."""
    for counts in (
        reads(balancer(), strategy, partitions=8, count=8000),
        writes(balancer(), strategy, partitions=8, count=8000),
    ):
        assert all(850 < counts[partition] < 1150 for partition in range(8))


@pytest.mark.parametrize(
    ("strategy", "in_turn"),
    [
        (Strategy.RANDOM, False),
        (Strategy.ROUND_ROBIN, True),
        (Strategy.WEIGHTED, True),
        (Strategy.FEWEST_OUTSTANDING_POLLS, False),
    ],
)
def test_writes_are_round_robin_or_random(strategy: Strategy, in_turn: bool) -> None:
    """MC-1: with the strategy of fewest polls for reads, writes are uniformly random."""
    counts = writes(balancer(), strategy, partitions=8, count=8000)

    assert (set(counts.values()) == {1000}) is in_turn


def test_a_random_number_is_mapped_to_partitions_by_equal_intervals() -> None:
    """TQ-10."""
    drawn = iter([0.0, 0.2499, 0.25, 0.5, 0.75, math.nextafter(1.0, 0.0)])
    chosen = LoadBalancer(random=lambda: next(drawn))
    picks = [chosen.pick_read(QUEUE, partitions=4, strategy=Strategy.RANDOM, now_s=NOW_S).partition for _ in range(6)]

    assert picks == [0, 0, 1, 2, 3, 3]


@pytest.mark.parametrize("strategy", [Strategy.ROUND_ROBIN, Strategy.WEIGHTED])
def test_reads_and_writes_have_separate_round_robin_counters(strategy: Strategy) -> None:
    chosen = balancer()
    both = [
        (
            chosen.pick_read(QUEUE, partitions=4, strategy=strategy, now_s=NOW_S).partition,
            chosen.pick_write(QUEUE, partitions=4, strategy=strategy),
        )
        for _ in range(8)
    ]

    assert Counter(read for read, _ in both) == dict.fromkeys(range(4), 2)
    assert Counter(write for _, write in both) == dict.fromkeys(range(4), 2)


def test_backlog_reports_affect_only_weighted_reads() -> None:
    for strategy in Strategy:
        chosen = balancer()
        chosen.pick_read(QUEUE, partitions=4, strategy=strategy, now_s=NOW_S).release()
        for partition in range(4):
            chosen.report(
                QUEUE, partition, backlog=9000 if partition == 2 else 0, arrival_per_s=0.0, wait_s=0.0, now_s=NOW_S
            )
        share = reads(chosen, strategy, partitions=4, count=4000)[2] / 4000
        assert share == pytest.approx(0.925 if strategy is Strategy.WEIGHTED else 0.25, abs=0.03)


def test_a_weighted_poll_is_counted_until_it_is_released() -> None:
    chosen = LoadBalancer(random=lambda: 0.05)
    chosen.pick_read(QUEUE, partitions=3, strategy=Strategy.WEIGHTED, now_s=NOW_S).release()
    chosen.report(QUEUE, 1, backlog=9000, arrival_per_s=0.0, wait_s=0.0, now_s=NOW_S)
    waiting = [chosen.pick_read(QUEUE, partitions=3, strategy=Strategy.WEIGHTED, now_s=NOW_S) for _ in range(3)]
    assert {pick.partition for pick in waiting} == {0, 1, 2}

    # Only the first release counts. A second one would make the partition look free while the next poll waits there.
    ended = next(pick for pick in waiting if pick.partition == 0)
    ended.release()
    ended.release()
    again = [chosen.pick_read(QUEUE, partitions=3, strategy=Strategy.WEIGHTED, now_s=NOW_S) for _ in range(3)]
    assert [pick.partition for pick in again] == [0, 1, 1]


def test_the_arrival_rate_counts_as_load_without_a_backlog() -> None:
    """TQ-12: L_i = B_i + lambda_i W."""
    chosen = balancer(floor_share=0.001)
    chosen.pick_read(QUEUE, partitions=2, strategy=Strategy.WEIGHTED, now_s=NOW_S)
    chosen.report(QUEUE, 0, backlog=0, arrival_per_s=3000.0, wait_s=0.1, now_s=NOW_S)
    chosen.report(QUEUE, 1, backlog=60, arrival_per_s=400.0, wait_s=0.1, now_s=NOW_S)

    assert reads(chosen, Strategy.WEIGHTED, partitions=2, count=4000)[0] / 4000 == pytest.approx(0.75, abs=0.03)


def test_reports_are_dropped_when_a_task_queue_is_reduced_to_its_root() -> None:
    chosen = balancer(floor_share=0.001)
    chosen.pick_read(QUEUE, partitions=2, strategy=Strategy.WEIGHTED, now_s=NOW_S)
    for partition, backlog in enumerate((0, 9000)):
        chosen.report(QUEUE, partition, backlog=backlog, arrival_per_s=0.0, wait_s=0.0, now_s=NOW_S)
    assert reads(chosen, Strategy.WEIGHTED, partitions=2, count=100)[1] > 90
    chosen.pick_read(QUEUE, partitions=1, strategy=Strategy.WEIGHTED, now_s=NOW_S)

    assert reads(chosen, Strategy.WEIGHTED, partitions=2, count=100) == {0: 50, 1: 50}


def test_a_report_with_a_negative_backlog_is_rejected() -> None:
    with pytest.raises(InvalidReport, match="-5"):
        balancer().report(QUEUE, 0, backlog=-5, arrival_per_s=0.0, wait_s=0.0, now_s=NOW_S)


@every_strategy
def test_a_forced_partition_overrides_every_strategy(strategy: Strategy) -> None:
    """MC-4."""
    chosen = balancer(forced_read=2, forced_write=3)

    assert reads(chosen, strategy, partitions=4, count=20) == {2: 20}
    assert writes(chosen, strategy, partitions=4, count=20) == {3: 20}


def test_the_root_can_be_forced_for_reads_only() -> None:
    chosen = balancer(forced_read=0)

    assert reads(chosen, Strategy.RANDOM, partitions=4, count=20) == {0: 20}
    assert set(writes(chosen, Strategy.ROUND_ROBIN, partitions=4, count=20)) == {0, 1, 2, 3}
    assert reads(chosen, Strategy.RANDOM, partitions=0, count=20) == {0: 20}


@pytest.mark.parametrize(("forced", "partitions"), [(4, 4), (1, 1), (1, 0), (-1, 4)])
def test_a_forced_partition_that_does_not_exist_is_rejected(forced: int, partitions: int) -> None:
    with pytest.raises(NotAPartition, match=f"partition {forced} is forced") as raised:
        balancer(forced_read=forced).pick_read(QUEUE, partitions=partitions, strategy=Strategy.RANDOM, now_s=NOW_S)
    assert isinstance(raised.value, FixRequest)
    with pytest.raises(NotAPartition, match="force one from 0 to"):
        balancer(forced_write=forced).pick_write(QUEUE, partitions=partitions, strategy=Strategy.RANDOM)


def test_a_balancer_needs_room_for_at_least_one_task_queue() -> None:
    with pytest.raises(InvalidBalancer, match="at least 1"):
        LoadBalancer(random=Random(1).random, task_queues_max=0)


def test_the_number_of_task_queues_that_a_balancer_keeps_is_bounded() -> None:
    chosen = balancer()
    for number in range(TASK_QUEUES_MAX + 500):
        task_queue = TaskQueueId("ns", f"queue-{number}", TaskType.ACTIVITY)
        for strategy in Strategy:
            chosen.pick_read(task_queue, partitions=4, strategy=strategy, now_s=NOW_S)
            chosen.pick_write(task_queue, partitions=4, strategy=strategy)

    for memory in (
        chosen._read_turns._last_picks,
        chosen._write_turns._last_picks,
        chosen._weighted._loads,
        chosen._outstanding._counts,
    ):
        assert len(memory) == TASK_QUEUES_MAX


@pytest.mark.sim
@given(data=st.data(), seed=st.integers(0, 1000))
def test_only_current_partitions_are_picked(data: st.DataObject, seed: int) -> None:
    """FL-34, while strategies, numbers of partitions and reports change in any order."""
    chosen = balancer(seed)
    now_s = NOW_S
    steps = data.draw(
        st.lists(
            st.tuples(
                st.sampled_from(Strategy),
                st.integers(1, 6),
                st.integers(-1, 7),
                st.sampled_from([0, 50, 101, 10**9]),
                st.sampled_from([0.0, 1.0, 100.0, 1e5]),
            ),
            max_size=60,
        )
    )
    for strategy, partitions, reporter, backlog, elapsed_s in steps:
        now_s += elapsed_s
        pick = chosen.pick_read(QUEUE, partitions=partitions, strategy=strategy, now_s=now_s)
        assert 0 <= pick.partition < partitions
        assert 0 <= chosen.pick_write(QUEUE, partitions=partitions, strategy=strategy) < partitions
        chosen.report(QUEUE, reporter, backlog=backlog, arrival_per_s=1.0, wait_s=0.01, now_s=now_s)
        if backlog == 0:
            pick.release()
