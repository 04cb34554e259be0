"""The settings of the adaptive scaler, with Cadence's defaults (SC-13)."""

import math
from dataclasses import dataclass

from fairlead.core.errors import FixRequest
from fairlead.core.partitions import PARTITIONS_MAX


class InvalidScalerSettings(FixRequest):
    """A setting of the scaler is invalid; the message begins with its name."""


@dataclass(frozen=True, slots=True)
class ScalerSettings:
    """Settings of the scaler: the thresholds, the durations, and the bounds of the count."""

    enabled: bool = True
    upscale_rps: float = 200.0
    downscale_factor: float = 0.75
    upscale_sustained_s: float = 60.0
    downscale_sustained_s: float = 120.0
    interval_s: float = 15.0
    partitions_min: int = 1
    # Number of partitions (FL-32); Cadence has no maximum. 100 partitions take 20,000 tasks a second at the default
    # rate. The bound limits the damage of a rate that is measured wrongly, or set too low by mistake.
    partitions_max: int = 100

    def __post_init__(self) -> None:
        """Reject NaN, and values with which the scaler would oscillate, never act, or act without bound."""
        _check(0 < self.upscale_rps < math.inf, "upscale_rps", self.upscale_rps, "a positive number")
        # With 1 the thresholds of neighbouring counts would be equal, and the count would oscillate between them.
        _check(
            0 < self.downscale_factor < 1, "downscale_factor", self.downscale_factor, "between 0 and 1, both excluded"
        )
        for name in ("upscale_sustained_s", "downscale_sustained_s"):
            _check(0 <= getattr(self, name) < math.inf, name, getattr(self, name), "0 or more")
        _check(0 < self.interval_s < math.inf, "interval_s", self.interval_s, "a positive number")
        _check(
            1 <= self.partitions_min <= PARTITIONS_MAX,
            "partitions_min",
            self.partitions_min,
            f"from 1 to {PARTITIONS_MAX}",
        )
        _check(
            self.partitions_min <= self.partitions_max <= PARTITIONS_MAX,
            "partitions_max",
            self.partitions_max,
            f"from partitions_min, which is {self.partitions_min}, to {PARTITIONS_MAX}",
        )


def _check(is_right: bool, name: str, value: float, expected: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not is_right:
        raise InvalidScalerSettings(f"{name} is {value}: it must be {expected}")
