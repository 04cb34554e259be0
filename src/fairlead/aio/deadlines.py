"""Many deadlines with one timer: a poll that ends before its deadline, as most do, needs no timer of its own."""

import asyncio
import heapq
import math
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

Item = TypeVar("Item")

# Seconds by which a deadline may fire late, and never early: deadlines within this interval are grouped.
GRAIN_S = 0.005
# Number of parts of an interval: periodic work begins at the start of a part (see `shared_moment`).
_MOMENTS = 16


class Wakeable(Protocol):
    """An object with work at a certain time."""

    def wake(self) -> None:
        """Do the work: its time has come."""
        ...


class _Several(dict[Item, None]):
    """Items with the same tick, in the order in which they were added."""

    __slots__ = ()


class Deadlines(Generic[Item]):
    """Calls `over` with each item whose deadline has passed, unless it was removed. Adding and removing are O(1)."""

    __slots__ = ("_items", "_over", "_ticks", "_timer", "_timer_tick")

    def __init__(self, over: Callable[[Item], None]) -> None:
        self._over = over
        # Tick -> its only item, several items, or None if all were removed. Most ticks have one item.
        self._items: dict[int, Item | _Several[Item] | None] = {}
        self._ticks: list[int] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_tick = 0

    def add(self, item: Item, at_s: float) -> int:
        """Call `over` with `item` at `at_s` of the event loop's clock; return the tick, which `remove` needs."""
        tick = math.ceil(at_s / GRAIN_S)
        items = self._items.get(tick)
        if items is None:
            is_known = tick in self._items
            self._items[tick] = item
            if not is_known:
                heapq.heappush(self._ticks, tick)
                if self._timer is None or tick < self._timer_tick:
                    self._arm()
        elif isinstance(items, _Several):
            items[item] = None
        elif items != item:
            self._items[tick] = _Several(((items, None), (item, None)))
        return tick

    def remove(self, item: Item, tick: int) -> None:
        """Remove an item; does nothing if its deadline has passed."""
        items = self._items.get(tick)
        if isinstance(items, _Several):
            items.pop(item, None)
            if not items:
                # An empty dictionary keeps its memory: with long deadlines and many calls, that would be megabytes.
                self._items[tick] = None
        elif items == item:
            self._items[tick] = None

    @property
    def number(self) -> int:
        """Number of items. Takes time in proportion to the number of ticks."""
        return sum(len(items) if isinstance(items, _Several) else items is not None for items in self._items.values())

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
        while self._ticks and self._items[self._ticks[0]] is None and len(self._ticks) > 1:
            del self._items[heapq.heappop(self._ticks)]
        if self._ticks:
            self._timer_tick = self._ticks[0]
            self._timer = asyncio.get_running_loop().call_at(self._timer_tick * GRAIN_S, self._fire)

    def _fire(self) -> None:
        self._timer = None
        now_s = asyncio.get_running_loop().time()
        while self._ticks and self._ticks[0] * GRAIN_S <= now_s + 1e-9:
            items = self._items.pop(heapq.heappop(self._ticks))
            if isinstance(items, _Several):
                for item in items:
                    self._over(item)
            elif items is not None:
                self._over(items)
        self._arm()


def new_wakes() -> Deadlines[Wakeable]:
    """Times at which objects are woken, with one timer for all of them."""
    return Deadlines(_wake)


def shared_moment(after_s: float) -> float:
    """Time of the event loop at which periodic work is due: after `after_s`, plus at most a sixteenth of it.

    Rounds the time, so that thousands of objects with the same interval share a few ticks.
    """
    grain_s = max(GRAIN_S, after_s / _MOMENTS)
    return math.ceil((asyncio.get_running_loop().time() + after_s) / grain_s) * grain_s


def _wake(item: Wakeable) -> None:
    try:
        item.wake()
    except Exception as error:  # noqa: BLE001 - a fault of one object must not stop the timer of the others
        asyncio.get_running_loop().call_exception_handler({"message": "a timer failed", "exception": error})
