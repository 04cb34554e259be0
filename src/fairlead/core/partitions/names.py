"""Task queues, their partitions, and the encoding of partition names."""

from enum import IntEnum
from typing import NamedTuple

from fairlead.core.errors import FixRequest

RESERVED_PREFIX = "/_sys/"
# Name for all sticky task queues in metrics and the journal: each worker has its own, and its name is never reused.
STICKY = "__sticky__"
NAME_CHARACTERS_MAX = 1000
# Number of partitions of a task queue, for every configuration: bounds the trees, maps and names of partitions.
PARTITIONS_MAX = 10_000
# Characters of a partition's name, which is longer than its task queue's; stores and routing keys need room for it.
PARTITION_NAME_CHARACTERS_MAX = len(RESERVED_PREFIX) + NAME_CHARACTERS_MAX + len(f"/{PARTITIONS_MAX - 1}")


class InvalidName(FixRequest):
    """The name of a task queue or a partition is empty, too long, reserved, or can't be stored."""


class TaskType(IntEnum):
    """The type of a task queue's tasks; its numbers equal Temporal's `TaskQueueType`."""

    # Each request hashes the task type as part of its partition's key, and the hash of an enum is ten times slower.
    __hash__ = int.__hash__

    WORKFLOW = 1
    ACTIVITY = 2
    NEXUS = 3


class TaskQueueId(NamedTuple):
    """A task queue: a name and a type in a namespace."""

    namespace_id: str
    name: str
    type: TaskType


class Partition(NamedTuple):
    """One partition of a task queue; number 0 is the root."""

    task_queue: TaskQueueId
    number: int

    @property
    def name(self) -> str:
        """The partition's name, under which it is stored and routed."""
        return partition_name(self.task_queue.name, self.number)


def check_user_name(name: str) -> str:
    """Return `name` if a user may give it to a task queue; raise `InvalidName` if not."""
    if not name:
        raise InvalidName("task queue name is empty: give it at least one character")
    if len(name) > NAME_CHARACTERS_MAX:
        raise InvalidName(
            f"task queue name has {len(name)} characters, more than {NAME_CHARACTERS_MAX}: choose a shorter one"
        )
    if name.startswith(RESERVED_PREFIX):
        raise InvalidName(
            f"task queue name {name!r} begins with {RESERVED_PREFIX!r}, which is kept for partitions: choose another"
        )
    # PostgreSQL stores no NUL in a text, and half of a surrogate pair has no UTF-8 form to store, hash or send.
    if "\0" in name or not _has_utf8_form(name):
        raise InvalidName(f"task queue name {name!r} can't be stored: remove NUL characters and unpaired surrogates")
    return name


def partition_name(task_queue_name: str, number: int) -> str:
    """Name a partition: the root by the task queue's own name, number *p* by `/_sys/<name>/<p>`."""
    check_user_name(task_queue_name)
    if not 0 <= number < PARTITIONS_MAX:
        raise InvalidName(f"partition number {number} is not between 0 and {PARTITIONS_MAX - 1}")
    return task_queue_name if number == 0 else f"{RESERVED_PREFIX}{task_queue_name}/{number}"


def parse_partition_name(name: str) -> tuple[str, int]:
    """Parse a name that `partition_name` wrote. Each partition has exactly one name; all others raise `InvalidName`."""
    if not name.startswith(RESERVED_PREFIX):
        return check_user_name(name), 0
    # Check the length first: parsing a long string of digits is slow, and above 4,300 digits Python raises an error.
    if len(name) > PARTITION_NAME_CHARACTERS_MAX:
        raise InvalidName(f"partition name has {len(name)} characters, more than {PARTITION_NAME_CHARACTERS_MAX}")
    # The number follows the last slash: the task queue's name may contain slashes.
    task_queue_name, _, digits = name.removeprefix(RESERVED_PREFIX).rpartition("/")
    # Accept one spelling of a number: "/_sys/x/0" would be a second name of the root, and "/_sys/x/03" of partition 3.
    is_canonical = digits.isascii() and digits.isdecimal() and not digits.startswith("0")
    if not is_canonical or int(digits) >= PARTITIONS_MAX:
        expected = f"{RESERVED_PREFIX}<task queue>/<number from 1 to {PARTITIONS_MAX - 1}>"
        raise InvalidName(f"{name!r} names no partition: expected {expected}")
    return check_user_name(task_queue_name), int(digits)


def _has_utf8_form(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
