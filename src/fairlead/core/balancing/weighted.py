"""Selection in proportion to the tasks that partitions hold, as they last reported them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp2, isfinite

from fairlead.core.balancing.load_tree import LoadTree
from fairlead.core.balancing.outstanding_polls import OutstandingPolls, PollCounts
from fairlead.core.balancing.recently_used import RecentlyUsed
from fairlead.core.balancing.round_robin import RoundRobin
from fairlead.core.errors import FixRequest
from fairlead.core.partitions import TaskList

# More tasks than any store holds, and far enough from the largest float for all arithmetic here.
TASKS_MAX = 1e18
# Loads are stored multiplied by up to two to this power, see `ReportedLoads`.
_HALF_LIVES_MAX = 256.0


class InvalidReport(FixRequest):
    """A partition's report holds a number that can't be: negative, infinite, not a number, or absurdly large."""


class InvalidRules(FixRequest):
    """The rules of weighted selection contradict themselves."""


@dataclass(frozen=True, slots=True)
class WeightedRules:
    """When selection is by weight, and what every partition keeps then.

    `tasks_threshold`: some partition must hold more tasks than this, else the selection is in turn.
    `floor_share`: the share of selections that goes to partitions at which no poll of this client waits, while there
    are any. Each of N partitions has such a poll or keeps a probability of at least `floor_share / N`, however large
    the others' backlogs are, so none starves and each goes on reporting.
    `half_life_s`: a report counts half after this time, a quarter after twice as long. Not less than a long poll
    lasts: a full partition must not be forgotten while polls wait at empty ones.
    """

    tasks_threshold: float = 100.0
    floor_share: float = 0.1
    half_life_s: float = 60.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.tasks_threshold <= TASKS_MAX:
            raise InvalidRules(f"threshold of {self.tasks_threshold} tasks: choose one from 0 to {TASKS_MAX:g}")
        if not 0.0 < self.floor_share <= 1.0:
            raise InvalidRules(
                f"floor share {self.floor_share}: choose more than 0, so that none starves, and at most 1"
            )
        if not (self.half_life_s > 0.0 and isfinite(self.half_life_s)):
            raise InvalidRules(f"half-life of {self.half_life_s} s: choose a finite time above 0")


def expected_tasks(*, backlog: float, arrival_per_s: float, wait_s: float) -> float:
    """How many tasks a partition holds: those in its backlog, and by Little's law those that pass through it."""
    tasks = backlog + arrival_per_s * wait_s
    # Negative numbers, infinities and NaN (of which every comparison is false) all fail one of these.
    if not (backlog >= 0.0 and arrival_per_s >= 0.0 and wait_s >= 0.0 and tasks <= TASKS_MAX):
        raise InvalidReport(
            f"report of backlog {backlog}, {arrival_per_s} arrivals/s and a wait of {wait_s} s: "
            f"send finite numbers from 0, together at most {TASKS_MAX:g} tasks"
        )
    return tasks


def probabilities(tasks: Sequence[float]) -> tuple[float, ...]:
    """The probability of each partition: its share of all tasks, and all alike where there is none."""
    total = sum(tasks)
    return tuple(share / total for share in tasks) if total > 0.0 else (1.0 / len(tasks),) * len(tasks)


class ReportedLoads:
    """What the partitions of one task list last reported, aged without being touched.

    Ageing multiplies every load by the same factor in the same time. So instead of shrinking old loads, new ones are
    stored larger: by two to the power of the half-lives since a landmark. Shares need no more; only where a load is
    compared with a number of tasks, that number is enlarged likewise.

    A partition that has not reported counts as empty, and is to be tried once for that. Time that was set back stands
    still until it has caught up: were it followed, loads that were stored large would count for more than was ever
    reported.
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
        """Follow a change of the number of partitions: new ones count as empty, removed ones are forgotten."""
        kept = min(partitions, self.partitions)
        added = partitions - kept
        self._tree = LoadTree([self._tree[partition] for partition in range(kept)] + [0.0] * added)
        self._untried = dict.fromkeys([*(one for one in self._untried if one < kept), *range(kept, partitions)])
        self.partitions = partitions

    def take_untried(self) -> int | None:
        """A partition that was neither heard of nor tried yet, so that what it holds is soon known."""
        return self._untried.popitem()[0] if self._untried else None

    def tried(self, partition: int) -> None:
        """A poll goes there."""
        self._untried.pop(partition, None)

    def report(self, partition: int, tasks: float, now_s: float) -> None:
        """Take over what `partition` holds now; a partition that the task list does not have is ignored."""
        if not 0 <= partition < self.partitions:
            return
        self.tried(partition)
        half_lives = self._half_lives(now_s)
        if half_lives > _HALF_LIVES_MAX:
            self._move_landmark()
            half_lives = 0.0
        self._tree[partition] = tasks * exp2(half_lives)

    def exceeds(self, tasks: float, now_s: float) -> bool:
        """Whether some partition, aged until now, holds more than this number of tasks."""
        half_lives = self._half_lives(now_s)
        # Past the power that loads are stored with, and of the largest load, whatever is left is less than one task.
        if half_lives > 2.0 * _HALF_LIVES_MAX:
            return False
        return self._tree.largest > tasks * exp2(half_lives)

    def aged(self, now_s: float) -> tuple[float, ...]:
        """What each partition is taken to hold now."""
        factor = exp2(-self._half_lives(now_s))
        return tuple(self._tree[partition] * factor for partition in range(self.partitions))

    def draw(self, share: float) -> int:
        """A partition in proportion to its load, where `share` is drawn evenly from 0 to 1."""
        return self._tree.draw(share)

    def _half_lives(self, now_s: float) -> float:
        """How far loads are enlarged now, or at the latest time seen if that was later."""
        self._latest_s = max(self._latest_s, now_s)
        return (self._latest_s - self._landmark_s) / self._half_life_s

    def _move_landmark(self) -> None:
        """Store all loads relative to the latest time. It costs a step for every partition, once in 256 half-lives."""
        self._tree = LoadTree(self.aged(self._latest_s))
        self._landmark_s = self._latest_s


class Weighted:
    """Selects partitions for polls by what they hold, and in turn while no partition holds much.

    At every pick by load, each of N partitions has a poll of this client waiting there, or a probability of at least
    the floor's share / N. So a partition that was empty, silent or unreachable is found when that changes. The floor
    spends no more than one poll on each: a second one would only wait beside the first.
    """

    __slots__ = ("_loads", "_outstanding", "_random", "_round_robin", "_rules")

    def __init__(
        self,
        *,
        rules: WeightedRules,
        random: Callable[[], float],
        round_robin: RoundRobin,
        outstanding: OutstandingPolls,
        task_lists_max: int,
    ) -> None:
        self._rules = rules
        self._random = random
        self._round_robin = round_robin
        self._outstanding = outstanding
        self._loads: RecentlyUsed[TaskList, ReportedLoads] = RecentlyUsed(task_lists_max)

    def pick(self, task_list: TaskList, partitions: int, now_s: float) -> tuple[int, PollCounts]:
        """One of `partitions`, and the counts to give it back to."""
        rules = self._rules
        loads = self._loads.get(task_list)
        if loads is None:
            loads = ReportedLoads(partitions=partitions, half_life_s=rules.half_life_s, now_s=now_s)
            self._loads.put(task_list, loads)
        elif loads.partitions != partitions:
            loads.resize(partitions)
        counts = self._outstanding.counts(task_list, partitions)
        if not loads.exceeds(rules.tasks_threshold, now_s):
            partition = self._round_robin.pick(task_list, partitions)
            loads.tried(partition)
        elif (untried := loads.take_untried()) is not None:
            # Else those that were heard of first would have all polls while the others wait for the floor.
            partition = untried
        else:
            # One draw decides twice: what is left of it on either side of the floor is itself drawn evenly.
            drawn, floor_share = self._random(), rules.floor_share
            if drawn >= floor_share:
                partition = loads.draw((drawn - floor_share) / (1.0 - floor_share))
            elif counts.fewest == 0:
                return counts.take(drawn / floor_share), counts
            else:
                partition = loads.draw(drawn / floor_share)
        counts.add(partition)
        return partition, counts

    def report(self, task_list: TaskList, partition: int, *, tasks: float, now_s: float) -> None:
        """Take over a partition's report, if a poll for its task list was balanced by weight lately."""
        loads = self._loads.get(task_list)
        if loads is not None:
            loads.report(partition, tasks, now_s)

    def forget(self, task_list: TaskList) -> None:
        """Drop the reports of a task list that has no partitions but the root any more."""
        self._loads.forget(task_list)
