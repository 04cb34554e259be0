"""Many deadlines with one timer: a poll that ends before its deadline, as most do, needs no timer of its own."""

import asyncio
import heapq
import math
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")

# Seconds by which a deadline may fire late, and never early: deadlines within this interval are grouped.
GRAIN_S = 0.005


class Deadlines(Generic[Item]):
    """Calls `over` with each item whose deadline has passed, unless it was removed. Adding and removing are O(1)."""

    def __init__(self, over: Callable[[Item], None]) -> None:
        self._over = over
        # Items by tick, in the order in which they were added; None for a tick whose items were all removed.
        self._items: dict[int, dict[Item, None] | None] = {}
        self._ticks: list[int] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_tick = 0

    def add(self, item: Item, at_s: float) -> int:
        """Call `over` with `item` at this time of the event loop; return the tick, which `remove` needs."""
        tick = math.ceil(at_s / GRAIN_S)
        items = self._items.get(tick)
        if items is not None:
            items[item] = None
            return tick
        is_known = tick in self._items
        self._items[tick] = {item: None}
        if not is_known:
            heapq.heappush(self._ticks, tick)
            if self._timer is None or tick < self._timer_tick:
                self._arm()
        return tick

    def remove(self, item: Item, tick: int) -> None:
        """Remove an item; does nothing if its deadline has passed."""
        items = self._items.get(tick)
        if items is not None:
            items.pop(item, None)
            if not items:
                # An empty dictionary keeps its buckets: with long deadlines and many calls, that would be megabytes.
                self._items[tick] = None

    def close(self) -> None:
        """Remove all items."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._items.clear()
        self._ticks.clear()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # Skip ticks whose items were all removed.
        while self._ticks and not self._items[self._ticks[0]] and len(self._ticks) > 1:
            del self._items[heapq.heappop(self._ticks)]
        if self._ticks:
            self._timer_tick = self._ticks[0]
            self._timer = asyncio.get_running_loop().call_at(self._timer_tick * GRAIN_S, self._fire)

    def _fire(self) -> None:
        self._timer = None
        now_s = asyncio.get_running_loop().time()
        while self._ticks and self._ticks[0] * GRAIN_S <= now_s + 1e-9:
            for item in self._items.pop(heapq.heappop(self._ticks)) or ():
                self._over(item)
        self._arm()
