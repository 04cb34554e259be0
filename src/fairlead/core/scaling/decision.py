"""The record of one tick of the scaler: the load, the decision and the reason."""

from dataclasses import dataclass
from enum import StrEnum

from fairlead.core.partitions import PartitionConfig


class Action(StrEnum):
    """The effect of a tick on the partition configuration."""

    HOLD = "hold"
    UPSCALE = "upscale"  # more write partitions, and at least as many read partitions
    DOWNSCALE = "downscale"  # fewer write partitions; read stays until the leaving partitions are drained
    DRAIN = "drain"  # fewer read partitions, after the last of them were drained
    DISABLED = "disabled"


@dataclass(frozen=True, slots=True)
class Decision:
    """One tick of the scaler. If `after` differs from `before`, the caller puts `after` into force."""

    at_s: float
    action: Action
    qps: float
    partitions_unknown: tuple[int, ...]
    upscale_threshold_qps: float
    downscale_threshold_qps: float
    above_since_s: float | None
    below_since_s: float | None
    before: PartitionConfig
    after: PartitionConfig
    reason: str
