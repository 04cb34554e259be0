"""The times at which synthetic tasks are dispatched: in the order of a fair queue, or of arrival."""

from heapq import heappop, heappush
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Times: TypeAlias = NDArray[np.float64]
Numbers: TypeAlias = NDArray[np.int64]


# Seconds of a wait that still count as no wait: sums of times are not exact.
_AT_ONCE_S = 1e-9


def departures(arrivals_s: Times, keys: Numbers, weights: Times | None, *, rate: float) -> Times:
    """Return when each task of a partition is dispatched, at most `rate` per second: in order, or fairly by weight."""
    service = np.arange(len(arrivals_s)) / rate
    slots_s = service + np.maximum.accumulate(arrivals_s - service)
    # The sums may be rounded to just before the arrival.
    slots_s = np.maximum(slots_s, arrivals_s)
    if weights is None or not len(arrivals_s):
        return slots_s
    fairly_s = slots_s.copy()
    # Each busy period is independent: later arrivals don't delay its tasks.
    begins = np.flatnonzero(slots_s - arrivals_s < _AT_ONCE_S)
    ends = np.append(begins[1:], len(arrivals_s))
    for first, last in zip(begins.tolist(), ends.tolist(), strict=True):
        if last - first > 1:
            turns = _turns(arrivals_s[first:last].tolist(), slots_s[first:last].tolist(), keys[first:last], weights)
            fairly_s[first:last][turns] = slots_s[first:last]
    return fairly_s


def _turns(arrivals_s: list[float], slots_s: list[float], keys: Numbers, weights: Times) -> list[int]:
    """Return the task of a busy period that gets each slot: the waiting task with the lowest pass.

    Consecutive passes of a key differ by its stride, which is shorter for a higher weight. No pass is below the current
    one: an idle key saves nothing up, and a key that had all slots while others were idle is not charged for it.
    """
    strides = (1.0 / weights).tolist()
    next_pass: dict[int, float] = {}
    waiting: list[tuple[float, int]] = []
    turns: list[int] = []
    served, come = 0.0, 0
    whose = keys.tolist()
    for slot_s in slots_s:
        while come < len(arrivals_s) and arrivals_s[come] <= slot_s:
            key = whose[come]
            begins = max(served, next_pass.get(key, 0.0))
            next_pass[key] = begins + strides[key]
            heappush(waiting, (begins, come))
            come += 1
        served, task = heappop(waiting)
        turns.append(task)
    return turns
