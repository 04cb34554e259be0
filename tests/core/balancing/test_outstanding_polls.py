from collections import Counter
from random import Random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from fairlead.core.balancing import LoadBalancer, Pick, Strategy
from fairlead.core.balancing.outstanding_polls import PollCounts
from fairlead.core.partitions import TaskQueueId, TaskType

QUEUE = TaskQueueId("ns", "queue", TaskType.ACTIVITY)


class PollsAgainstACount(RuleBasedStateMachine):
    """Compares the counts with a plain list of waiting polls; every pick must be one of the partitions with the fewest.

    Polls that are balanced by weight are counted too.
    """

    held = Bundle("held")
    released = Bundle("released")

    def __init__(self) -> None:
        super().__init__()
        self.drawn = 0.0
        self.balancer = LoadBalancer(random=lambda: self.drawn)
        self.partitions = 4
        self.waiting: Counter[int] = Counter()
        self.counts: PollCounts | None = None

    @rule(partitions=st.integers(1, 9))
    def change_partitions(self, partitions: int) -> None:
        self.partitions = partitions

    @rule(target=held, drawn=st.floats(0.0, 1.0, exclude_max=True))
    def poll(self, drawn: float) -> Pick:
        self.drawn = drawn
        pick = self.balancer.pick_read(
            QUEUE, partitions=self.partitions, strategy=Strategy.FEWEST_OUTSTANDING_POLLS, now_s=0.0
        )
        fewest = min(self.waiting[partition] for partition in range(self.partitions))
        assert 0 <= pick.partition < self.partitions
        assert self.waiting[pick.partition] == fewest
        self.waiting[pick.partition] += 1
        self.counts = pick._counts
        return pick

    @rule(target=held, drawn=st.floats(0.0, 1.0, exclude_max=True), heaviest=st.integers(0, 8))
    def poll_by_weight(self, drawn: float, heaviest: int) -> Pick:
        self.drawn = drawn
        self.balancer.report(QUEUE, heaviest, backlog=500, arrival_per_s=0.0, wait_s=0.0, now_s=0.0)
        pick = self.balancer.pick_read(QUEUE, partitions=self.partitions, strategy=Strategy.WEIGHTED, now_s=0.0)
        assert 0 <= pick.partition < self.partitions
        # A task queue with one partition needs no choice, and its polls are not counted.
        if self.partitions > 1:
            self.waiting[pick.partition] += 1
            self.counts = pick._counts
        return pick

    @rule(target=released, pick=consumes(held))
    def end(self, pick: Pick) -> Pick:
        self.waiting[pick.partition] -= pick._counts is not None
        pick.release()
        return pick

    @rule(pick=released)
    def end_again(self, pick: Pick) -> None:
        pick.release()

    @invariant()
    def counts_are_as_in_the_model(self) -> None:
        assert min(self.waiting.values(), default=0) >= 0
        if self.counts is not None:
            assert [self.counts.outstanding(partition) for partition in range(9)] == [
                self.waiting[partition] for partition in range(9)
            ]
            # There are only as many buckets as the largest count needs, and no state of removed partitions without
            # polls.
            assert len(self.counts._buckets) == max(self.counts._counts) + 1
            assert self.counts.fewest == min(self.counts._counts)
            assert all(self.counts._removed.values())


TestPollsAgainstACount = pytest.mark.sim(PollsAgainstACount.TestCase)


def fewest(balancer: LoadBalancer, partitions: int, task_queue: TaskQueueId = QUEUE) -> Pick:
    return balancer.pick_read(task_queue, partitions=partitions, strategy=Strategy.FEWEST_OUTSTANDING_POLLS, now_s=0.0)


def test_the_numbers_of_waiting_polls_differ_by_at_most_one() -> None:
    """MC-2: a new poll goes to the partition with the fewest waiting polls."""
    balancer = LoadBalancer(random=Random(1).random)
    counts = Counter(fewest(balancer, 7).partition for _ in range(100))

    assert sorted(counts.values()) == [14] * 5 + [15] * 2


def test_a_partition_whose_polls_have_ended_is_picked_next() -> None:
    balancer = LoadBalancer(random=Random(1).random)
    picks = [fewest(balancer, 4) for _ in range(12)]
    ended = [pick for pick in picks if pick.partition == 2]
    for pick in ended:
        pick.release()

    assert [fewest(balancer, 4).partition for _ in ended] == [2, 2, 2]


def test_ties_are_broken_uniformly_at_random() -> None:
    """4,000 picks among four equal partitions: 1,000 each, with a standard deviation of 27."""
    balancer = LoadBalancer(random=Random(1).random)
    counts: Counter[int] = Counter()
    for _ in range(4000):
        pick = fewest(balancer, 4)
        counts[pick.partition] += 1
        pick.release()

    assert all(865 < counts[partition] < 1135 for partition in range(4))


def test_the_end_of_a_poll_of_an_evicted_task_queue_does_not_change_the_new_counts() -> None:
    balancer = LoadBalancer(random=lambda: 0.0, task_queues_max=1)
    old = fewest(balancer, 2)
    fewest(balancer, 2, TaskQueueId("ns", "other", TaskType.ACTIVITY))
    new = fewest(balancer, 2)
    old.release()

    assert (old.partition, new.partition) == (0, 0)
    # If the end of the old poll counted here, partition 0 would look free and be picked again.
    assert fewest(balancer, 2).partition == 1


def test_polls_at_a_single_partition_still_count_after_partitions_are_added() -> None:
    balancer = LoadBalancer(random=lambda: 0.0)
    for _ in range(3):
        assert fewest(balancer, 1).partition == 0

    assert Counter(fewest(balancer, 2).partition for _ in range(3)) == {1: 3}


def test_polls_at_a_removed_partition_still_count_when_it_is_added_again() -> None:
    balancer = LoadBalancer(random=lambda: 0.0)
    picks = [fewest(balancer, 3) for _ in range(6)]
    assert fewest(balancer, 1).partition == 0
    next(pick for pick in picks if pick.partition == 2).release()

    # The numbers of waiting polls are now 3, 2 and 1.
    assert fewest(balancer, 3).partition == 2
    assert {fewest(balancer, 3).partition for _ in range(2)} == {1, 2}


def test_added_polls_count_like_taken_polls() -> None:
    counts = PollCounts(3)
    for partition in (2, 2, 0, 2):
        counts.add(partition)
    assert [counts.outstanding(partition) for partition in range(3)] == [1, 0, 3]
    assert counts.fewest == 0

    counts.add(1)
    assert counts.fewest == 1
    assert {counts.take(0.0), counts.take(0.0)} == {0, 1}
    counts.give_back(2)
    assert [counts.outstanding(partition) for partition in range(3)] == [2, 2, 2]


def test_polls_of_one_strategy_count_for_the_other_strategy() -> None:
    balancer = LoadBalancer(random=lambda: 0.0)
    picks = [balancer.pick_read(QUEUE, partitions=3, strategy=Strategy.WEIGHTED, now_s=0.0) for _ in range(2)]

    assert [pick.partition for pick in picks] == [0, 1]
    assert fewest(balancer, 3).partition == 2
