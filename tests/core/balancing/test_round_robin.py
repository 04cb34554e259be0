from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.balancing.round_robin import RoundRobin
from fairlead.core.partitions import TaskQueueId, TaskType

QUEUE = TaskQueueId("ns", "queue", TaskType.ACTIVITY)


def queue(number: int) -> TaskQueueId:
    return TaskQueueId("ns", f"queue-{number}", TaskType.ACTIVITY)


@given(partitions=st.integers(1, 50), picks=st.integers(0, 300))
def test_the_numbers_of_picks_differ_by_at_most_one_while_the_partitions_stay_the_same(
    partitions: int, picks: int
) -> None:
    """TQ-11: round robin is even also with few requests."""
    balancer = RoundRobin(random=Random(1).random, task_queues_max=10)
    counts = Counter(balancer.pick(QUEUE, partitions) for _ in range(picks))

    assert sum(counts.values()) == picks
    assert set(counts) <= set(range(partitions))
    assert max(counts.values(), default=0) - min((counts[number] for number in range(partitions)), default=0) <= 1


@given(phases=st.lists(st.tuples(st.integers(1, 20), st.integers(0, 60)), min_size=1, max_size=5))
def test_picks_stay_even_after_each_change_of_the_number_of_partitions(phases: list[tuple[int, int]]) -> None:
    balancer = RoundRobin(random=Random(1).random, task_queues_max=10)
    for partitions, picks in phases:
        counts = Counter(balancer.pick(QUEUE, partitions) for _ in range(picks))
        assert set(counts) <= set(range(partitions))
        every = [counts[number] for number in range(partitions)]
        assert max(every) - min(every) <= 1


def test_clients_start_at_different_offsets() -> None:
    """FL-36: 1,000 clients over 10 partitions, within 5 standard deviations of 9.5."""
    chance = Random(1)
    starts = Counter(RoundRobin(random=chance.random, task_queues_max=10).pick(QUEUE, 10) for _ in range(1000))

    assert all(52 <= starts[partition] <= 148 for partition in range(10))


def test_one_client_starts_each_task_queue_at_a_different_offset() -> None:
    balancer = RoundRobin(random=Random(1).random, task_queues_max=1000)
    starts = Counter(balancer.pick(queue(number), 10) for number in range(1000))

    assert all(52 <= starts[partition] <= 148 for partition in range(10))


def test_task_queues_have_independent_round_robin_counters() -> None:
    together = RoundRobin(random=Random(1).random, task_queues_max=10)
    alone = RoundRobin(random=Random(1).random, task_queues_max=10)
    other = TaskQueueId("ns", "queue", TaskType.WORKFLOW)
    picks = []
    for _ in range(20):
        picks.append(together.pick(QUEUE, 7))
        together.pick(other, 7)

    assert picks == [alone.pick(QUEUE, 7) for _ in range(20)]


def test_the_least_recently_used_task_queue_is_evicted() -> None:
    drawn = iter([0.0, 0.0, 0.0, 0.0, 0.55])
    balancer = RoundRobin(random=lambda: next(drawn), task_queues_max=3)
    for number in (0, 1, 2, 0, 3):
        balancer.pick(queue(number), 10)

    # The first queue was used again before the fourth came, so the second was evicted.
    assert [balancer.pick(queue(number), 10) for number in (0, 2, 3)] == [2, 1, 1]
    assert balancer.pick(queue(1), 10) == 5


def test_task_queues_that_are_always_evicted_still_use_every_partition() -> None:
    """The task queues are one too many for the cache and are used in a cycle: each is evicted before its next use."""
    balancer = RoundRobin(random=Random(1).random, task_queues_max=100)
    met: dict[int, set[int]] = {number: set() for number in range(101)}
    for _ in range(200):
        for number, partitions in met.items():
            partitions.add(balancer.pick(queue(number), 4))

    assert all(partitions == {0, 1, 2, 3} for partitions in met.values())
