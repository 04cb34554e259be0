"""Fair turns in memory: the order in which waiting items of several keys are served."""

from heapq import heappop, heappush
from typing import Generic, TypeVar

from fairlead.core.fairness.passes import PassCounter
from fairlead.core.fairness.weights import STRIDE_OF_WEIGHT_ONE

T = TypeVar("T")


class FairTurns(Generic[T]):
    """Serves waiting items in the order in which a fair backlog dispatches tasks: by pass, then in order of arrival.

    A key with many waiting items delays another key's item by at most one item of each other key. Keys have weight 1.
    """

    def __init__(self) -> None:
        self._passes = PassCounter()
        self._waiting: list[tuple[int, int, T]] = []
        self._served_pass = 0
        self._added = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, key: str, item: T) -> None:
        """Add an item that waits for its turn."""
        chosen = self._passes.next_pass(key, stride=STRIDE_OF_WEIGHT_ONE, base=self._served_pass)
        # The number keeps the order of arrival, and no two items are ever compared.
        self._added += 1
        heappush(self._waiting, (chosen, self._added, item))

    def next(self) -> T:
        """Remove and return the item whose turn it is; there must be one."""
        served_pass, _, item = heappop(self._waiting)
        self._served_pass = served_pass
        return item
