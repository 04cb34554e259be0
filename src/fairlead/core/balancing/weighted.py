"""Choice of partitions in proportion to their tasks, by their latest reports."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp2, isfinite

from fairlead.core.balancing.load_tree import LoadTree
from fairlead.core.balancing.outstanding_polls import OutstandingPolls, PollCounts
from fairlead.core.balancing.recently_used import RecentlyUsed
from fairlead.core.balancing.round_robin import RoundRobin
from fairlead.core.errors import FixRequest
from fairlead.core.partitions import TaskQueueId

# Number of tasks in a report: more than any store holds, and small enough that no arithmetic here overflows a float.
TASKS_MAX = 1e18
# Number of half-lives: loads are stored multiplied by up to two to this power, see `ReportedLoads`.
_HALF_LIVES_MAX = 256.0


class InvalidReport(FixRequest):
    """A number in a partition's report is negative, infinite, not a number, or too large."""


class InvalidRules(FixRequest):
    """A setting of the weighted selection is out of range."""


@dataclass(frozen=True, slots=True)
class WeightedRules:
    """Settings of the weighted selection.

    `tasks_threshold`: selection is by weight if some partition holds more tasks than this, else round robin.
    `floor_share`: the share of selections for partitions at which no poll of this client waits, if there are such
    partitions. So each of N partitions has a waiting poll or is selected with a probability of at least
    `floor_share / N`, regardless of the size of the other backlogs: no partition starves, and each keeps reporting.
    With 0, the probability of a partition is its share of all tasks; a partition without tasks is polled again only
    when the reports of the other partitions have aged.
    `half_life_s`: a report counts half after this time, a quarter after twice this time. It must not be shorter than a
    long poll, so that a full partition is not forgotten while polls wait at empty ones.
    """

    tasks_threshold: float = 100.0
    floor_share: float = 0.1
    half_life_s: float = 60.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.tasks_threshold <= TASKS_MAX:
            raise InvalidRules(f"threshold of {self.tasks_threshold} tasks: choose one from 0 to {TASKS_MAX:g}")
        if not 0.0 <= self.floor_share <= 1.0:
            raise InvalidRules(f"floor share {self.floor_share}: choose a share from 0 to 1")
        if not (self.half_life_s > 0.0 and isfinite(self.half_life_s)):
            raise InvalidRules(f"half-life of {self.half_life_s} s: choose a finite time above 0")


def expected_tasks(*, backlog: float, arrival_per_s: float, wait_s: float) -> float:
    """Return how many tasks a partition holds: its backlog and, by Little's law, the tasks that pass through it."""
    tasks = backlog + arrival_per_s * wait_s
    # Rejects negative numbers, infinities and NaN (every comparison with NaN is false).
    if not (backlog >= 0.0 and arrival_per_s >= 0.0 and wait_s >= 0.0 and tasks <= TASKS_MAX):
        raise InvalidReport(
            f"report of backlog {backlog}, {arrival_per_s} arrivals/s and a wait of {wait_s} s: "
            f"send finite numbers from 0, together at most {TASKS_MAX:g} tasks"
        )
    return tasks


def probabilities(tasks: Sequence[float]) -> tuple[float, ...]:
    """Return the probability of each partition: its share of all tasks, or equal shares if there are no tasks."""
    total = sum(tasks)
    return tuple(share / total for share in tasks) if total > 0.0 else (1.0 / len(tasks),) * len(tasks)


class ReportedLoads:
    """The latest reported loads of one task queue's partitions, which age without being updated.

    Ageing multiplies all loads by the same factor. So old loads are not shrunk; instead new loads are stored multiplied
    by two to the power of the half-lives since a landmark. Shares can be computed from these products. To compare a
    load with a number of tasks, that number is multiplied in the same way.

    A partition that has not reported counts as empty, and one poll tries it. When the clock is set back, the latest
    time stays in use until the clock has caught up: otherwise loads would count for more than was reported.
    """

    __slots__ = ("_half_life_s", "_landmark_s", "_latest_s", "_tree", "_untried", "partitions")

    def __init__(self, *, partitions: int, half_life_s: float, now_s: float) -> None:
        self.partitions = partitions
        self._half_life_s = half_life_s
        self._landmark_s = now_s
        self._latest_s = now_s
        self._tree = LoadTree([0.0] * partitions)
        self._untried = dict.fromkeys(range(partitions))

    def resize(self, partitions: int) -> None:
        """Change the number of partitions: new partitions count as empty, removed partitions are forgotten."""
        kept = min(partitions, self.partitions)
        added = partitions - kept
        self._tree = LoadTree([self._tree[partition] for partition in range(kept)] + [0.0] * added)
        self._untried = dict.fromkeys([*(one for one in self._untried if one < kept), *range(kept, partitions)])
        self.partitions = partitions

    def take_untried(self) -> int | None:
        """Take a partition that has neither reported nor been tried, to learn its load soon; None if there is none."""
        return self._untried.popitem()[0] if self._untried else None

    def tried(self, partition: int) -> None:
        """Record that a poll tries `partition`."""
        self._untried.pop(partition, None)

    def report(self, partition: int, tasks: float, now_s: float) -> None:
        """Set the load of `partition`; ignored if the task queue does not have that partition."""
        if not 0 <= partition < self.partitions:
            return
        self.tried(partition)
        half_lives = self._half_lives(now_s)
        if half_lives > _HALF_LIVES_MAX:
            self._move_landmark()
            half_lives = 0.0
        self._tree[partition] = tasks * exp2(half_lives)

    def exceeds(self, tasks: float, now_s: float) -> bool:
        """Whether the aged load of some partition is above this number of tasks."""
        half_lives = self._half_lives(now_s)
        # After this many half-lives, even the largest load has aged to less than one task.
        if half_lives > 2.0 * _HALF_LIVES_MAX:
            return False
        return self._tree.largest > tasks * exp2(half_lives)

    def aged(self, now_s: float) -> tuple[float, ...]:
        """Return the aged load of each partition."""
        factor = exp2(-self._half_lives(now_s))
        return tuple(self._tree[partition] * factor for partition in range(self.partitions))

    def draw(self, share: float) -> int:
        """Choose a partition in proportion to its load; `share` is a uniform random number from 0 to 1."""
        return self._tree.draw(share)

    def _half_lives(self, now_s: float) -> float:
        """Return the half-lives since the landmark, at the latest time seen."""
        self._latest_s = max(self._latest_s, now_s)
        return (self._latest_s - self._landmark_s) / self._half_life_s

    def _move_landmark(self) -> None:
        """Store all loads relative to the latest time. Takes linear time, once in 256 half-lives."""
        self._tree = LoadTree(self.aged(self._latest_s))
        self._landmark_s = self._latest_s


class Weighted:
    """Chooses partitions for polls by their load, and round robin while no load exceeds the threshold.

    At each choice by load, each of N partitions has a waiting poll of this client, or a probability of at least
    `floor_share / N`. So a partition that was empty, silent or unreachable is found when that changes. The floor sends
    at most one poll to each partition: a second one would only wait beside the first.
    """

    __slots__ = ("_loads", "_outstanding", "_random", "_round_robin", "_rules")

    def __init__(
        self,
        *,
        rules: WeightedRules,
        random: Callable[[], float],
        round_robin: RoundRobin,
        outstanding: OutstandingPolls,
        task_queues_max: int,
    ) -> None:
        self._rules = rules
        self._random = random
        self._round_robin = round_robin
        self._outstanding = outstanding
        self._loads: RecentlyUsed[TaskQueueId, ReportedLoads] = RecentlyUsed(task_queues_max)

    def pick(self, task_queue: TaskQueueId, partitions: int, now_s: float) -> tuple[int, PollCounts]:
        """Choose one of `partitions`; return it and the counts in which its poll is counted."""
        rules = self._rules
        loads = self._loads.get(task_queue)
        if loads is None:
            loads = ReportedLoads(partitions=partitions, half_life_s=rules.half_life_s, now_s=now_s)
            self._loads.put(task_queue, loads)
        elif loads.partitions != partitions:
            loads.resize(partitions)
        counts = self._outstanding.counts(task_queue, partitions)
        if not loads.exceeds(rules.tasks_threshold, now_s):
            partition = self._round_robin.pick(task_queue, partitions)
            loads.tried(partition)
        elif (untried := loads.take_untried()) is not None:
            # Otherwise the partitions that reported first would get all polls except those of the floor share.
            partition = untried
        else:
            # One random number serves twice: within its part, below or above the floor share, it is uniform as well.
            drawn, floor_share = self._random(), rules.floor_share
            if drawn >= floor_share:
                partition = loads.draw((drawn - floor_share) / (1.0 - floor_share))
            elif counts.fewest == 0:
                return counts.take(drawn / floor_share), counts
            else:
                partition = loads.draw(drawn / floor_share)
        counts.add(partition)
        return partition, counts

    def report(self, task_queue: TaskQueueId, partition: int, *, tasks: float, now_s: float) -> None:
        """Record a partition's report, if a poll of its task queue was balanced by weight recently."""
        loads = self._loads.get(task_queue)
        if loads is not None:
            loads.report(partition, tasks, now_s)

    def forget(self, task_queue: TaskQueueId) -> None:
        """Drop the reports of a task queue that has only the root now."""
        self._loads.forget(task_queue)
