"""Green, amber and red: the thresholds above which a person should look."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from fairlead.core.errors import FixRequest


class Level(IntEnum):
    """How urgent something is; `PLAIN` is a fact that nothing was compared with."""

    PLAIN = 0
    GREEN = 1
    AMBER = 2
    RED = 3


class WrongThreshold(FixRequest):
    """`--threshold` names no check, or has values that are not numbers in order."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """The values from which on a check is amber and red."""

    amber: float
    red: float

    def level(self, value: float) -> Level:
        """Return the level of a value."""
        return Level.RED if value >= self.red else Level.AMBER if value >= self.amber else Level.GREEN


# Seconds, or shares between 0 and 1; for `wrong`, a number of runs; for `quarantine`, a number of segments.
THRESHOLDS: Mapping[str, Threshold] = {
    "waits": Threshold(5.0, 60.0),
    "failures": Threshold(0.01, 0.1),
    "starvation": Threshold(0.01, 0.1),
    "backlog": Threshold(60.0, 600.0),
    "journal": Threshold(7_200.0, 86_400.0),
    "replication": Threshold(0.01, 0.1),
    "wrong": Threshold(1.0, 1.0),
    "quarantine": Threshold(1.0, 1.0),
}


def thresholds_of(given: Iterable[str]) -> dict[str, Threshold]:
    """Return all thresholds: the given ones, like `waits=5,60`, and the defaults of the others."""
    found = dict(THRESHOLDS)
    for text in given:
        name, _, values = text.partition("=")
        try:
            amber, red = map(float, values.split(","))
        except ValueError:
            amber = red = math.nan
        if name not in THRESHOLDS or not 0 < amber <= red < math.inf:
            raise WrongThreshold(
                f"--threshold {text}: give a check and two numbers, amber and red, like waits=5,60; the checks are "
                f"{', '.join(THRESHOLDS)}"
            )
        found[name] = Threshold(amber, red)
    return found
