"""The tree of a task queue's partitions: each partition forwards to its parent, up to the root.

Partition *p* forwards to `ceil(p / degree) - 1`. Numbers strictly decrease on the way up, so that every path ends at
the root, partition 0, and a forwarded request can't come back. The tree is not stored: it follows from the number of
partitions and from `degree`, the number of children of each partition.
"""

from fairlead.core.errors import FixRequest
from fairlead.core.partitions.names import PARTITIONS_MAX


class InvalidTree(FixRequest):
    """The degree of the tree or the partition number is invalid."""


def parent(number: int, *, degree: int) -> int:
    """Return the partition to which `number` forwards, always a lower number. The root has none."""
    _check(number, degree=degree)
    if number == 0:
        raise InvalidTree("partition 0 is the root and has no parent: match or store the task there")
    # Equals ceil(number / degree) - 1, in integers.
    return (number - 1) // degree


def children(number: int, *, degree: int, count: int) -> range:
    """Return the partitions below `count` that forward to `number`: at most `degree` consecutive numbers."""
    _check(number, degree=degree)
    if not number < count <= PARTITIONS_MAX:
        raise InvalidTree(f"partition {number} is not among {count} partitions (at most {PARTITIONS_MAX})")
    return range(min(count, number * degree + 1), min(count, (number + 1) * degree + 1))


def path_to_root(number: int, *, degree: int) -> tuple[int, ...]:
    """Return the partitions that a request to `number` may visit, `number` first, the root last."""
    _check(number, degree=degree)
    path = [number]
    while path[-1] != 0:
        path.append((path[-1] - 1) // degree)
    return tuple(path)


def _check(number: int, *, degree: int) -> None:
    if degree < 1:
        raise InvalidTree(f"degree is {degree}: give each partition at least 1 child")
    if not 0 <= number < PARTITIONS_MAX:
        raise InvalidTree(f"partition number {number} is not between 0 and {PARTITIONS_MAX - 1}")
