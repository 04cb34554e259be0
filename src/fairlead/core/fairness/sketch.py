from array import array

from fairlead.core.hashing import hash64

DEPTH = 4
WIDTH_BITS = 16
NEVER = -1
_WIDTH = 1 << WIDTH_BITS
_MASK = _WIDTH - 1

# The places of a key, one in each row.
Cells = tuple[int, int, int, int]


class PassSketch:
    """Remembers about the last pass of any number of keys in 2 MiB, never less than it was.

    A count-min sketch that keeps the highest pass instead of a count. Keys that share their cells with heavier ones
    in all four rows are taken for as heavy as the lightest of those; with few heavy keys that is rare. Nothing needs
    to be cleared: a cell that has fallen behind the base no longer matters to anybody.
    """

    __slots__ = ("_cells",)

    def __init__(self) -> None:
        self._cells = array("q", [NEVER]) * (DEPTH * _WIDTH)

    def last_pass(self, places: Cells) -> int:
        """At least the last pass given to the key of these places; `NEVER` if there was surely none."""
        cells = self._cells
        one, two, three, four = places
        return min(cells[one], cells[two], cells[three], cells[four])

    def remember(self, places: Cells, last_pass: int) -> None:
        """Note that the key of these places has been given `last_pass`."""
        cells = self._cells
        for place in places:
            if cells[place] < last_pass:  # noqa: PLR1730 - half of the time of a call to max
                cells[place] = last_pass


def places_of(key: str) -> Cells:
    """Where a key is remembered: two keys that meet in one row rarely meet in another."""
    place = hash64(key)
    # Odd, so that each row is stepped through differently by keys that meet in the first.
    step = (place >> 32) | 1
    return (
        place & _MASK,
        _WIDTH + (place + step & _MASK),
        2 * _WIDTH + (place + 2 * step & _MASK),
        3 * _WIDTH + (place + 3 * step & _MASK),
    )
