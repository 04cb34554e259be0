"""Many deadlines with one timer: a poll that is answered in time, as nearly all are, costs no timer of its own."""

import asyncio
import heapq
import math
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")

# Deadlines within so much of each other are kept together; none fires before its time, and none later by more.
GRAIN_S = 0.005


class Deadlines(Generic[Item]):
    """Calls `over` with each item whose time is over, unless it was taken out before. Both are O(1)."""

    def __init__(self, over: Callable[[Item], None]) -> None:
        self._over = over
        # By tick, in the order in which they were added.
        self._items: dict[int, dict[Item, None]] = {}
        self._ticks: list[int] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_tick = 0

    def add(self, item: Item, at_s: float) -> int:
        """Have `over` called for `item` at this time of the event loop; returns what `remove` wants to know."""
        tick = math.ceil(at_s / GRAIN_S)
        items = self._items.get(tick)
        if items is None:
            self._items[tick] = {item: None}
            heapq.heappush(self._ticks, tick)
            if self._timer is None or tick < self._timer_tick:
                self._arm()
        else:
            items[item] = None
        return tick

    def remove(self, item: Item, tick: int) -> None:
        """Take an item out; nothing happens to one whose time is over."""
        items = self._items.get(tick)
        if items is not None:
            items.pop(item, None)

    def close(self) -> None:
        """Forget all of them."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._items.clear()
        self._ticks.clear()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # Ticks that have become empty are not worth waking up for.
        while self._ticks and not self._items[self._ticks[0]] and len(self._ticks) > 1:
            del self._items[heapq.heappop(self._ticks)]
        if self._ticks:
            self._timer_tick = self._ticks[0]
            self._timer = asyncio.get_running_loop().call_at(self._timer_tick * GRAIN_S, self._fire)

    def _fire(self) -> None:
        self._timer = None
        now_s = asyncio.get_running_loop().time()
        while self._ticks and self._ticks[0] * GRAIN_S <= now_s + 1e-9:
            for item in self._items.pop(heapq.heappop(self._ticks)):
                self._over(item)
        self._arm()
