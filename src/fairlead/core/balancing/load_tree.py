"""A tree of the loads of many partitions, for fast random choices in proportion to load."""

from collections.abc import Sequence


class LoadTree:
    """Sum and maximum take constant time; a change or a random choice takes logarithmic time.

    A complete binary tree in two lists: node `i` has the children `2i` and `2i + 1`, and the leaves are the loads.
    Each sum is computed from its two parts and never adjusted by a difference, so rounding errors do not accumulate.
    """

    __slots__ = ("_largest", "_leaf_first", "_sums")

    def __init__(self, loads: Sequence[float]) -> None:
        leaves = 1
        while leaves < len(loads):
            leaves *= 2
        self._leaf_first = leaves
        self._sums = [0.0] * leaves + list(loads) + [0.0] * (leaves - len(loads))
        self._largest = list(self._sums)
        for left in range(2 * leaves - 2, 0, -2):
            self._sums[left // 2] = self._sums[left] + self._sums[left + 1]
            self._largest[left // 2] = max(self._largest[left], self._largest[left + 1])

    @property
    def total(self) -> float:
        """The sum of all loads."""
        return self._sums[1]

    @property
    def largest(self) -> float:
        """The largest of all loads."""
        return self._largest[1]

    def __getitem__(self, index: int) -> float:
        return self._sums[self._leaf_first + index]

    def __setitem__(self, index: int, load: float) -> None:
        sums, largest = self._sums, self._largest
        node = self._leaf_first + index
        sums[node] = largest[node] = load
        most = load
        while node > 1:
            sibling = node ^ 1
            node //= 2
            sums[node] = sums[2 * node] + sums[2 * node + 1]
            most = max(most, largest[sibling])
            largest[node] = most

    def draw(self, share: float) -> int:
        """Return the index at which the running sum of the loads first exceeds `share` (from 0 to 1) of the total.

        The index never has a load of 0, unless all loads are 0. If rounding leads past the last load, it is the last.
        """
        sums = self._sums
        target = share * sums[1]
        leaf_first = self._leaf_first
        node = 1
        while node < leaf_first:
            node *= 2
            left = sums[node]
            if target >= left and sums[node + 1] > 0.0:
                target -= left
                node += 1
        return node - leaf_first
