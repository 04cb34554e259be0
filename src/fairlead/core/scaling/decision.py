"""The record of one tick of the scaler: what it saw, what it decided and why."""

from dataclasses import dataclass
from enum import StrEnum

from fairlead.core.partitions import PartitionConfig


class Action(StrEnum):
    """What a tick did to the partition configuration."""

    HOLD = "hold"
    UPSCALE = "upscale"  # more write partitions, and read with them
    DOWNSCALE = "downscale"  # fewer write partitions; read stays until they are drained
    DRAIN = "drain"  # fewer read partitions: the last of them are drained
    DISABLED = "disabled"


@dataclass(frozen=True, slots=True)
class Decision:
    """One tick, whole: enough to explain it later, and to put `after` into force if it differs from `before`."""

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
