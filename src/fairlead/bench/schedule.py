"""Times at which the tasks of a load are due: computed before the first task is sent, independent of the server."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Phase(NamedTuple):
    """A rate of tasks for `duration_s`; None: until all tasks were sent."""

    rate_per_s: float
    duration_s: float | None = None


def due_times(phases: Sequence[Phase]) -> Iterator[float]:
    """Yield when each task is due, in seconds since the start: evenly within a phase, one phase after the other."""
    begins_s = 0.0
    for rate_per_s, duration_s in phases:
        number = 0
        while rate_per_s > 0 and (duration_s is None or number / rate_per_s < duration_s):
            yield begins_s + number / rate_per_s
            number += 1
        begins_s += duration_s or 0.0


def peak_rate_per_s(phases: Sequence[Phase]) -> float:
    """Return the highest rate of all phases."""
    return max((phase.rate_per_s for phase in phases), default=0.0)
