"""Which partition of a task list a request goes to."""

from collections.abc import Callable
from enum import StrEnum
from typing import assert_never

from fairlead.core.balancing.outstanding_polls import OutstandingPolls, PollCounts
from fairlead.core.balancing.round_robin import RoundRobin
from fairlead.core.balancing.weighted import Weighted, WeightedRules, expected_tasks
from fairlead.core.errors import FixRequest
from fairlead.core.partitions import TaskList

TASK_LISTS_MAX = 3_000
ROOT = 0


class InvalidBalancer(FixRequest):
    """A load balancer is asked for a memory of no task lists."""


class NotAPartition(FixRequest):
    """The partition that a test forces is none of the task list's."""


class Strategy(StrEnum):
    """The ways to select a partition, under the names that the settings give them."""

    RANDOM = "random"
    ROUND_ROBIN = "round-robin"
    WEIGHTED = "weighted"
    FEWEST_OUTSTANDING_POLLS = "fewest-outstanding-polls"


class Pick:
    """The partition that a poll goes to. Whoever asked for it calls `release` when the poll has ended, however it did.

    Only polls that are counted, by weighted and by fewest polls, do something on release, and only once.
    """

    __slots__ = ("_counts", "partition")

    def __init__(self, partition: int, counts: PollCounts | None = None) -> None:
        self.partition = partition
        self._counts = counts

    def release(self) -> None:
        """Say that the poll has ended."""
        counts, self._counts = self._counts, None
        if counts is not None:
            counts.give_back(self.partition)


class LoadBalancer:
    """Selects partitions for the requests of one client, remembering at most `task_lists_max` task lists a strategy.

    The number of partitions and the strategy come with every request, so that a change of either takes effect at once
    and nothing outside the current partitions is ever selected. `random` gives numbers drawn evenly from 0 to 1,
    without 1. `forced_read` and `forced_write` are hooks for tests: they win over every strategy.
    """

    def __init__(
        self,
        *,
        random: Callable[[], float],
        task_lists_max: int = TASK_LISTS_MAX,
        weighted: WeightedRules | None = None,
        forced_read: int | None = None,
        forced_write: int | None = None,
    ) -> None:
        if task_lists_max < 1:
            raise InvalidBalancer(f"memory of {task_lists_max} task lists: give the load balancer at least 1")
        self._random = random
        self._forced_read = forced_read
        self._forced_write = forced_write
        # Apart from each other: were reads and writes to take turns on one counter, each could meet every second
        # partition only.
        self._write_turns = RoundRobin(random=random, task_lists_max=task_lists_max)
        self._read_turns = RoundRobin(random=random, task_lists_max=task_lists_max)
        self._outstanding = OutstandingPolls(random=random, task_lists_max=task_lists_max)
        self._weighted = Weighted(
            rules=weighted or WeightedRules(),
            random=random,
            round_robin=self._read_turns,
            outstanding=self._outstanding,
            task_lists_max=task_lists_max,
        )

    def pick_write(self, task_list: TaskList, *, partitions: int, strategy: Strategy) -> int:
        """The partition that a task is added to.

        The two strategies for reads have a partner for writes: weighted writes in turn, and fewest polls at random.
        """
        if self._forced_write is not None:
            return _forced(self._forced_write, partitions)
        if partitions <= 1:
            return ROOT
        if strategy is Strategy.ROUND_ROBIN or strategy is Strategy.WEIGHTED:
            return self._write_turns.pick(task_list, partitions)
        return int(self._random() * partitions)

    def pick_read(self, task_list: TaskList, *, partitions: int, strategy: Strategy, now_s: float) -> Pick:
        """The partition that a poll waits at."""
        if self._forced_read is not None:
            return Pick(_forced(self._forced_read, partitions))
        if strategy is Strategy.FEWEST_OUTSTANDING_POLLS:
            # Counted even where there is no choice: the root's polls still wait when partitions are added to it.
            return Pick(*self._outstanding.pick(task_list, max(1, partitions)))
        if partitions <= 1:
            self._weighted.forget(task_list)
            return Pick(ROOT)
        if strategy is Strategy.WEIGHTED:
            return Pick(*self._weighted.pick(task_list, partitions, now_s))
        if strategy is Strategy.ROUND_ROBIN:
            return Pick(self._read_turns.pick(task_list, partitions))
        if strategy is Strategy.RANDOM:
            return Pick(int(self._random() * partitions))
        assert_never(strategy)

    def report(
        self, task_list: TaskList, partition: int, *, backlog: float, arrival_per_s: float, wait_s: float, now_s: float
    ) -> None:
        """Take over what a partition said of itself with its answer: what weighted selection goes by.

        `backlog` is the durable count of its tasks, `wait_s` the average time that a task waits to be matched.
        """
        tasks = expected_tasks(backlog=backlog, arrival_per_s=arrival_per_s, wait_s=wait_s)
        self._weighted.report(task_list, partition, tasks=tasks, now_s=now_s)


def _forced(partition: int, partitions: int) -> int:
    if not 0 <= partition < max(1, partitions):
        raise NotAPartition(
            f"partition {partition} is forced, but the task list has {max(1, partitions)}: "
            f"force one from 0 to {max(0, partitions - 1)}"
        )
    return partition
