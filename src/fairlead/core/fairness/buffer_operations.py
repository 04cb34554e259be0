"""Reads and writes of a read buffer, their results, and the errors for invalid ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from fairlead.core.errors import GiveUp
from fairlead.core.fairness.level import Level

Task = TypeVar("Task")


class LevelNotAbove(GiveUp):
    """A level to write is at or below the ack level, where no reader reads again."""


class NotUnderWay(GiveUp):
    """The reported read or write is not in progress: it was reported twice, or two owners share one backlog."""


class InvalidPage(GiveUp):
    """A store returned a wrong page: rows out of order, below the requested level, or too many."""


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """A read to carry out: the first `limit` stored tasks above `after`, in order; fewer if the backlog ends."""

    after: Level
    limit: int


@dataclass(frozen=True, slots=True, eq=False)
class Write:
    """A write in progress. The ack level stays below its levels until its outcome is reported.

    `charged` holds the fairness key and the stride of each level.
    """

    levels: Sequence[Level]
    charged: Sequence[tuple[str, int]] = ()

    @property
    def lowest(self) -> Level:
        """The lowest of its levels."""
        return min(self.levels)


@dataclass(frozen=True, slots=True)
class Merge(Generic[Task]):
    """The result of a read or a write: tasks in `loaded` may now be dispatched, tasks in `evicted` no longer.

    An evicted task may already be on its way to a worker. Its delivery continues, and its ack is remembered.
    """

    loaded: Sequence[tuple[Level, Task]]
    evicted: Sequence[Level]


def merged(loaded: dict[Level, Task], evicted: Sequence[Level]) -> Merge[Task]:
    """Make the result of one step.

    Leaves out levels that were both loaded and evicted in this step: the caller never saw them.
    """
    passing = {level for level in evicted if level in loaded}
    if passing:
        evicted = [level for level in evicted if level not in passing]
        loaded = {level: task for level, task in loaded.items() if level not in passing}
    return Merge(tuple(loaded.items()), tuple(evicted))
