"""Task lists, their partitions, and the partitions' names, both ways."""

from enum import IntEnum
from typing import NamedTuple

from fairlead.core.errors import FixRequest

RESERVED_PREFIX = "/_sys/"
NAME_CHARACTERS_MAX = 1000


class InvalidName(FixRequest):
    """A task list's name is empty, too long, or of the form that is kept for partitions."""


class TaskType(IntEnum):
    """What the tasks of a task list are; the numbers are those of Temporal's `TaskQueueType`."""

    WORKFLOW = 1
    ACTIVITY = 2
    NEXUS = 3


class TaskList(NamedTuple):
    """A task list as its users know it: one name and one type in one namespace."""

    namespace_id: str
    name: str
    type: TaskType


class Partition(NamedTuple):
    """One partition of a task list; number 0 is the root."""

    task_list: TaskList
    number: int

    @property
    def name(self) -> str:
        """The partition's own name, under which it is stored and routed."""
        return partition_name(self.task_list.name, self.number)


def check_user_name(name: str) -> str:
    """Return `name` if a user may give it to a task list; raise `InvalidName` if not."""
    if not name:
        raise InvalidName("task list name is empty")
    if len(name) > NAME_CHARACTERS_MAX:
        raise InvalidName(f"task list name has {len(name)} characters, more than {NAME_CHARACTERS_MAX}")
    if name.startswith(RESERVED_PREFIX):
        raise InvalidName(f"task list name {name!r} begins with {RESERVED_PREFIX!r}, which is kept for partitions")
    return name


def partition_name(task_list_name: str, number: int) -> str:
    """Name a partition: the root by the task list's own name, number *p* by `/_sys/<name>/<p>`."""
    check_user_name(task_list_name)
    if number < 0:
        raise InvalidName(f"partition number {number} is negative")
    return task_list_name if number == 0 else f"{RESERVED_PREFIX}{task_list_name}/{number}"


def parse_partition_name(name: str) -> tuple[str, int]:
    """Read a name that `partition_name` wrote; every partition has exactly one name, all else is refused."""
    if not name.startswith(RESERVED_PREFIX):
        return check_user_name(name), 0
    task_list_name, _, digits = name.removeprefix(RESERVED_PREFIX).rpartition("/")
    # Only the one spelling of a positive number: "/_sys/x/0" would be a second name of the root, "03" one of 3.
    if not (digits.isascii() and digits.isdecimal()) or digits.startswith("0"):
        raise InvalidName(f"{name!r} names no partition: expected {RESERVED_PREFIX}<task list>/<number from 1>")
    return check_user_name(task_list_name), int(digits)
