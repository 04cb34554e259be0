from array import array
from collections.abc import Iterator

from fairlead.core.hashing import hash64

DEPTH = 4
WIDTH_BITS = 18
NEVER = -1
_WIDTH = 1 << WIDTH_BITS
_MASK = _WIDTH - 1


class PassSketch:
    """Remembers about the last pass of any number of keys in 8 MiB, never less than it was.

    A count-min sketch that keeps the highest pass instead of a count. Keys that share their cells with heavier ones
    in all four rows are taken for as heavy as the lightest of those; with few heavy keys that is rare. Nothing needs
    to be cleared: a cell that has fallen behind the ack level no longer matters to anybody.
    """

    __slots__ = ("_cells",)

    def __init__(self) -> None:
        self._cells = array("q", [NEVER]) * (DEPTH * _WIDTH)

    def last_pass(self, key: str) -> int:
        """At least the last pass given to `key`; `NEVER` if there was surely none."""
        return min(self._cells[cell] for cell in _cells_of(key))

    def remember(self, key: str, last_pass: int) -> None:
        """Note that `key` has been given `last_pass`."""
        for cell in _cells_of(key):
            self._cells[cell] = max(self._cells[cell], last_pass)


def _cells_of(key: str) -> Iterator[int]:
    place = hash64(key)
    # Odd, so that a key's places in the rows differ by different steps than those of a key it meets in one row.
    step = (place >> 32) | 1
    for row in range(DEPTH):
        yield row * _WIDTH + (place & _MASK)
        place += step
