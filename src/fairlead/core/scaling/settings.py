"""The values that govern the adaptive scaler, with the defaults of its document."""

import math
from dataclasses import dataclass

from fairlead.core.errors import FixRequest
from fairlead.core.partitions import PARTITIONS_MAX


class InvalidScalerSettings(FixRequest):
    """A value of the scaler's settings makes no sense; the message begins with its name."""


@dataclass(frozen=True, slots=True)
class ScalerSettings:
    """When partitions are added and taken away, and between which counts."""

    enabled: bool = True
    upscale_rps: float = 200.0
    downscale_factor: float = 0.75
    upscale_sustained_s: float = 60.0
    downscale_sustained_s: float = 120.0
    interval_s: float = 15.0
    partitions_min: int = 1
    # The document has none. 100 partitions take 20,000 tasks a second at the default rate; a rate that was measured
    # wrongly, or set too low by mistake, can't make more of them than that.
    partitions_max: int = 100

    def __post_init__(self) -> None:
        """Refuse values with which the scaler would oscillate, never act, or act without bound; NaN is none of them."""
        _check(0 < self.upscale_rps < math.inf, "upscale_rps", self.upscale_rps, "a positive number")
        # At 1 both thresholds of neighbouring counts would touch, and the count would swing between them.
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
