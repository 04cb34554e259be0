from array import array

from fairlead.core.hashing import hash64

DEPTH = 4
WIDTH_BITS = 16
NEVER = -1
_WIDTH = 1 << WIDTH_BITS
_MASK = _WIDTH - 1

# The cells of a key, one in each row.
Cells = tuple[int, int, int, int]


class PassSketch:
    """Estimates the last pass of any number of keys in 2 MiB; the estimate is never too low.

    A count-min sketch that keeps the highest pass instead of a count. If a key shares its cells in all four rows with
    keys of higher passes, its estimate is the lowest of these passes. That is rare while the sketch holds few keys. No
    cell needs to be cleared: a cell below the base has no effect.
    """

    __slots__ = ("_cells",)

    def __init__(self) -> None:
        self._cells = array("q", [NEVER]) * (DEPTH * _WIDTH)

    def last_pass(self, positions: Cells) -> int:
        """Return an upper bound of the last pass of the key with these cells; `NEVER` if the key surely has none."""
        cells = self._cells
        one, two, three, four = positions
        return min(cells[one], cells[two], cells[three], cells[four])

    def remember(self, positions: Cells, last_pass: int) -> None:
        """Record `last_pass` for the key with these cells."""
        cells = self._cells
        for position in positions:
            if cells[position] < last_pass:  # noqa: PLR1730 - half of the time of a call to max
                cells[position] = last_pass


def cells_of(key: str) -> Cells:
    """Return the cells of a key: two keys that share a cell in one row rarely share one in another."""
    position = hash64(key)
    # The step is odd, so that keys which share a cell in the first row differ in the others.
    step = (position >> 32) | 1
    return (
        position & _MASK,
        _WIDTH + (position + step & _MASK),
        2 * _WIDTH + (position + 2 * step & _MASK),
        3 * _WIDTH + (position + 3 * step & _MASK),
    )
