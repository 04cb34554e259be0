"""Checks of new tasks and of polls."""

from fairlead.core.errors import FixRequest
from fairlead.core.fairness import check_key, check_weight
from fairlead.matching.messages import NewTask

PRIORITY_MIN, PRIORITY_MAX, PRIORITY_DEFAULT = 1, 5, 3


class InvalidTask(FixRequest):
    """A field of a new task is invalid; the message begins with the field's name."""


class InvalidPoll(FixRequest):
    """A field of a poll is invalid."""


def check_task(task: NewTask) -> None:
    """Raise an error if a field of `task` is invalid."""
    if not PRIORITY_MIN <= task.priority <= PRIORITY_MAX:
        raise InvalidTask(f"priority is {task.priority}: give {PRIORITY_MIN} (first) to {PRIORITY_MAX} (last)")
    check_key(task.fairness_key)
    check_weight(task.weight)
