"""The tree of a task list's partitions: to whom a partition forwards, up to the root.

Partition *p* forwards to `ceil(p / degree) - 1`. Numbers strictly decrease on the way up, so that every path ends at
the root, partition 0, and a forwarded request can't come back. Nothing is stored: the tree follows from `degree`, the
number of children a node, and from how many partitions there are.
"""

from fairlead.core.errors import FixRequest
from fairlead.core.partitions.names import PARTITIONS_MAX


class InvalidTree(FixRequest):
    """The tree that was asked about can't exist, or has no such partition."""


def parent(number: int, *, degree: int) -> int:
    """The partition to which `number` forwards; always a lower number. The root has none."""
    _check(number, degree=degree)
    if number == 0:
        raise InvalidTree("partition 0 is the root and has no parent: match there, or keep the task")
    # The same as ceil(number / degree) - 1, in whole numbers.
    return (number - 1) // degree


def children(number: int, *, degree: int, count: int) -> range:
    """The partitions that forward to `number`, among `count` of them: at most `degree`, next to each other."""
    _check(number, degree=degree)
    if not number < count <= PARTITIONS_MAX:
        raise InvalidTree(f"partition {number} is not among {count} partitions (at most {PARTITIONS_MAX})")
    return range(min(count, number * degree + 1), min(count, (number + 1) * degree + 1))


def path_to_root(number: int, *, degree: int) -> tuple[int, ...]:
    """The partitions that a request of `number` may visit, itself first, the root last."""
    _check(number, degree=degree)
    path = [number]
    while path[-1] != 0:
        path.append((path[-1] - 1) // degree)
    return tuple(path)


def _check(number: int, *, degree: int) -> None:
    if degree < 1:
        raise InvalidTree(f"{degree} children a node make no tree: give at least 1")
    if not 0 <= number < PARTITIONS_MAX:
        raise InvalidTree(f"partition number {number} is not between 0 and {PARTITIONS_MAX - 1}")
