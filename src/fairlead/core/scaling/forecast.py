"""Forecasts the next change of the scaler if the load stays as it is."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from fairlead.core.partitions import PartitionConfig
from fairlead.core.scaling.decision import Decision
from fairlead.core.scaling.scaler import AdaptiveScaler, ScalerState
from fairlead.core.scaling.settings import ScalerSettings


@dataclass(frozen=True, slots=True)
class Forecast:
    """The next change of the counts, at `at_s`; `change` is None if a constant load changes nothing."""

    at_s: float
    change: Decision | None


def forecast(
    now_s: float,
    state: ScalerState,
    config: PartitionConfig,
    rates: Mapping[int, float],
    settings: ScalerSettings,
) -> Forecast:
    """Return the next change under a constant load. `state` is that of the last tick, or a new one.

    Partitions that are being drained count as not drained.
    """
    scaler = AdaptiveScaler(state)
    next_s = now_s if state.ticked_s is None else max(now_s, state.ticked_s + settings.interval_s)
    decision = scaler.tick(next_s, config, rates, (), settings)
    if decision.after == decision.before:
        due_s = min(
            math.inf if decision.above_since_s is None else decision.above_since_s + settings.upscale_sustained_s,
            math.inf if decision.below_since_s is None else decision.below_since_s + settings.downscale_sustained_s,
        )
        if due_s == math.inf:
            return Forecast(now_s, None)
        # Every tick until then finds the same load: only the one at which the change is due matters.
        ticks = max(1, math.ceil((due_s - next_s) / settings.interval_s))
        next_s += ticks * settings.interval_s
        scaler.state = replace(scaler.state, ticked_s=next_s - settings.interval_s)
        decision = scaler.tick(next_s, config, rates, (), settings)
    return Forecast(next_s, decision if decision.after != decision.before else None)
