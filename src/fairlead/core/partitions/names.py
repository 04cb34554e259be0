"""Task lists, their partitions, and the partitions' names, both ways."""

from enum import IntEnum
from typing import NamedTuple

from fairlead.core.errors import FixRequest

RESERVED_PREFIX = "/_sys/"
# Stands for every sticky task list in what is told of them: each worker has one of its own, under a name that never
# comes again.
STICKY = "__sticky__"
NAME_CHARACTERS_MAX = 1000
# No task list has more partitions than this, whatever is configured: it bounds every tree, map and name of partitions.
PARTITIONS_MAX = 10_000
# A partition's own name is longer than its task list's: this is what stores and routing keys must have room for.
PARTITION_NAME_CHARACTERS_MAX = len(RESERVED_PREFIX) + NAME_CHARACTERS_MAX + len(f"/{PARTITIONS_MAX - 1}")


class InvalidName(FixRequest):
    """A name of a task list or of a partition is empty, too long, can't be stored, or is kept for something else."""


class TaskType(IntEnum):
    """What the tasks of a task list are; the numbers are those of Temporal's `TaskQueueType`."""

    # Hashed with every request, as a part of what partitions are looked up by: the enum's own is ten times slower.
    __hash__ = int.__hash__

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
        raise InvalidName("task list name is empty: give it at least one character")
    if len(name) > NAME_CHARACTERS_MAX:
        raise InvalidName(
            f"task list name has {len(name)} characters, more than {NAME_CHARACTERS_MAX}: choose a shorter one"
        )
    if name.startswith(RESERVED_PREFIX):
        raise InvalidName(
            f"task list name {name!r} begins with {RESERVED_PREFIX!r}, which is kept for partitions: choose another"
        )
    # PostgreSQL stores no NUL in a text, and half of a surrogate pair has no UTF-8 form to store, hash or send.
    if "\0" in name or not _has_utf8_form(name):
        raise InvalidName(f"task list name {name!r} can't be stored: remove NUL characters and unpaired surrogates")
    return name


def partition_name(task_list_name: str, number: int) -> str:
    """Name a partition: the root by the task list's own name, number *p* by `/_sys/<name>/<p>`."""
    check_user_name(task_list_name)
    if not 0 <= number < PARTITIONS_MAX:
        raise InvalidName(f"partition number {number} is not between 0 and {PARTITIONS_MAX - 1}")
    return task_list_name if number == 0 else f"{RESERVED_PREFIX}{task_list_name}/{number}"


def parse_partition_name(name: str) -> tuple[str, int]:
    """Read a name that `partition_name` wrote; every partition has exactly one name, all else is refused."""
    if not name.startswith(RESERVED_PREFIX):
        return check_user_name(name), 0
    # First of all: a long string of digits would cost time to read, and past 4,300 raise an error of Python's own.
    if len(name) > PARTITION_NAME_CHARACTERS_MAX:
        raise InvalidName(f"partition name has {len(name)} characters, more than {PARTITION_NAME_CHARACTERS_MAX}")
    # The number follows the last slash: the task list's own name may have slashes in it.
    task_list_name, _, digits = name.removeprefix(RESERVED_PREFIX).rpartition("/")
    # Only the one spelling of a positive number: "/_sys/x/0" would be a second name of the root, "03" one of 3.
    is_canonical = digits.isascii() and digits.isdecimal() and not digits.startswith("0")
    if not is_canonical or int(digits) >= PARTITIONS_MAX:
        expected = f"{RESERVED_PREFIX}<task list>/<number from 1 to {PARTITIONS_MAX - 1}>"
        raise InvalidName(f"{name!r} names no partition: expected {expected}")
    return check_user_name(task_list_name), int(digits)


def _has_utf8_form(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
