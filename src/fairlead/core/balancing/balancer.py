"""Chooses the partition of a task queue for a request."""

from collections.abc import Callable
from enum import StrEnum
from typing import assert_never

from fairlead.core.balancing.outstanding_polls import OutstandingPolls, PollCounts
from fairlead.core.balancing.round_robin import RoundRobin
from fairlead.core.balancing.weighted import Weighted, WeightedRules, expected_tasks
from fairlead.core.errors import FixRequest
from fairlead.core.partitions import TaskQueueId

TASK_QUEUES_MAX = 3_000
ROOT = 0


class InvalidBalancer(FixRequest):
    """A load balancer must remember at least one task queue."""


class NotAPartition(FixRequest):
    """The task queue does not have the partition that a test forces."""


class Strategy(StrEnum):
    """The strategies for choosing a partition, by their names in the settings."""

    RANDOM = "random"
    ROUND_ROBIN = "round-robin"
    WEIGHTED = "weighted"
    FEWEST_OUTSTANDING_POLLS = "fewest-outstanding-polls"


class Pick:
    """The partition chosen for a poll. The caller calls `release` when the poll has ended, with or without a task.

    Release has an effect only for strategies that count polls (weighted and fewest polls), and only once.
    """

    __slots__ = ("_counts", "partition")

    def __init__(self, partition: int, counts: PollCounts | None = None) -> None:
        self.partition = partition
        self._counts = counts

    def release(self) -> None:
        """Uncount the poll, which has ended."""
        counts, self._counts = self._counts, None
        if counts is not None:
            counts.give_back(self.partition)


class LoadBalancer:
    """Chooses partitions for the requests of one client; each strategy remembers at most `task_queues_max` task queues.

    The number of partitions and the strategy are arguments of each call, so that a change takes effect at once, and
    only current partitions are chosen. `random` returns uniform random numbers in [0, 1). `forced_read` and
    `forced_write` are hooks for tests: they override every strategy.
    """

    def __init__(
        self,
        *,
        random: Callable[[], float],
        task_queues_max: int = TASK_QUEUES_MAX,
        weighted: WeightedRules | None = None,
        forced_read: int | None = None,
        forced_write: int | None = None,
    ) -> None:
        if task_queues_max < 1:
            raise InvalidBalancer(f"task_queues_max is {task_queues_max}: give at least 1")
        self._random = random
        self._forced_read = forced_read
        self._forced_write = forced_write
        # Two counters: with a shared one, alternating reads and writes would each reach only every second partition.
        self._write_turns = RoundRobin(random=random, task_queues_max=task_queues_max)
        self._read_turns = RoundRobin(random=random, task_queues_max=task_queues_max)
        self._outstanding = OutstandingPolls(random=random, task_queues_max=task_queues_max)
        self._weighted = Weighted(
            rules=weighted or WeightedRules(),
            random=random,
            round_robin=self._read_turns,
            outstanding=self._outstanding,
            task_queues_max=task_queues_max,
        )

    def pick_write(self, task_queue: TaskQueueId, *, partitions: int, strategy: Strategy) -> int:
        """Return the partition to add a task to.

        Two strategies apply only to reads. Writes then use round robin in place of weighted, and random in place of
        fewest polls.
        """
        if self._forced_write is not None:
            return _forced(self._forced_write, partitions)
        if partitions <= 1:
            return ROOT
        if strategy is Strategy.ROUND_ROBIN or strategy is Strategy.WEIGHTED:
            return self._write_turns.pick(task_queue, partitions)
        return int(self._random() * partitions)

    def pick_read(self, task_queue: TaskQueueId, *, partitions: int, strategy: Strategy, now_s: float) -> Pick:
        """Return the partition to poll."""
        if self._forced_read is not None:
            return Pick(_forced(self._forced_read, partitions))
        if strategy is Strategy.FEWEST_OUTSTANDING_POLLS:
            # Count polls even with one partition: the root's polls still wait when partitions are added.
            return Pick(*self._outstanding.pick(task_queue, max(1, partitions)))
        if partitions <= 1:
            self._weighted.forget(task_queue)
            return Pick(ROOT)
        if strategy is Strategy.WEIGHTED:
            return Pick(*self._weighted.pick(task_queue, partitions, now_s))
        if strategy is Strategy.ROUND_ROBIN:
            return Pick(self._read_turns.pick(task_queue, partitions))
        if strategy is Strategy.RANDOM:
            return Pick(int(self._random() * partitions))
        assert_never(strategy)

    def report(
        self,
        task_queue: TaskQueueId,
        partition: int,
        *,
        backlog: float,
        arrival_per_s: float,
        wait_s: float,
        now_s: float,
    ) -> None:
        """Record a partition's report from a response; the weighted strategy uses it.

        `backlog` is the number of its stored tasks, `wait_s` the average time that a task waits for a poll.
        """
        tasks = expected_tasks(backlog=backlog, arrival_per_s=arrival_per_s, wait_s=wait_s)
        self._weighted.report(task_queue, partition, tasks=tasks, now_s=now_s)


def _forced(partition: int, partitions: int) -> int:
    if not 0 <= partition < max(1, partitions):
        raise NotAPartition(
            f"partition {partition} is forced, but the task queue has {max(1, partitions)}: "
            f"force one from 0 to {max(0, partitions - 1)}"
        )
    return partition
