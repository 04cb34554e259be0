"""The adaptive scaler: decides how many partitions a task queue needs for its load.

It runs only at the root, once an interval. With N write partitions and R tasks a second for each, the load Q must stay
above N·R, or below (N-1)·R·factor, on every tick of the sustained duration; then the count changes in one step to
ceil(Q/R). The load lies between the thresholds of that count, so a constant load changes the count at most once. While
the load is between the thresholds the count stays, even if another count would do as well: that is the hysteresis.
On the way down Q is the highest load of the duration. With the last value of a noisy load the scaler would often remove
a partition at one tick and add it again soon after.

Q is the sum of the loads that the partitions measured. An estimate from the root alone, times N, is wrong when the load
is skewed, and after every change: the root's average still reflects the old count.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from fairlead.core.errors import FixRequest
from fairlead.core.partitions import PARTITIONS_MAX, DrainReport, PartitionConfig, change, lowest_read
from fairlead.core.scaling.decision import Action, Decision
from fairlead.core.scaling.settings import ScalerSettings

# Relative difference up to which a load counts as equal to a threshold: sums of rates have rounding errors.
NOISE = 1e-9
# Number of intervals that count between two ticks. If the clock was set forward or the root was suspended, two ticks
# must not count as a sustained duration.
INTERVALS_BETWEEN_TICKS_MAX = 2


class InvalidTime(FixRequest):
    """A tick's time is not a finite number."""


@dataclass(frozen=True, slots=True)
class ScalerState:
    """The scaler's state between two ticks.

    A new root may start without it; a change can then take one duration longer.
    """

    ticked_s: float | None = None
    # the thresholds that `above_since_s` and `below_since_s` refer to
    thresholds_qps: tuple[float, float] | None = None
    above_since_s: float | None = None
    below_since_s: float | None = None
    below_peak_qps: float = 0.0  # the highest load since `below_since_s`


@dataclass(frozen=True, slots=True)
class _Load:
    """The reported load at one moment, compared with the thresholds of one configuration."""

    at_s: float
    qps: float
    unknown: tuple[int, ...]
    upscale_threshold_qps: float
    downscale_threshold_qps: float
    is_above: bool
    is_below: bool


class AdaptiveScaler:
    """Decides at every tick whether the partition configuration changes; `state` is its only state."""

    __slots__ = ("state",)

    def __init__(self, state: ScalerState | None = None) -> None:
        self.state = state or ScalerState()

    def tick(
        self,
        now_s: float,
        config: PartitionConfig,
        rates: Mapping[int, float],
        reports: Collection[DrainReport],
        settings: ScalerSettings,
    ) -> Decision:
        """Decide; the caller puts `after` into force, and passes the configuration in force at the next tick.

        `rates` maps each read partition to the tasks a second that it received. If a partition is absent, or its rate
        is not a number, it did not report: the sum of the other rates is then a lower bound of the load, which can
        prove that the load is above the upper threshold, but not that it is below the lower threshold.
        """
        if not math.isfinite(now_s):
            raise InvalidTime(f"the scaler was called at time {now_s}: pass a finite number of seconds")
        load = _measure(now_s, config, rates, settings)
        self.state = _follow(self.state, load, settings)
        action, after, reason = _decide(self.state, config, load, reports, settings)
        return Decision(
            at_s=now_s,
            action=action,
            qps=load.qps,
            partitions_unknown=load.unknown,
            upscale_threshold_qps=load.upscale_threshold_qps,
            downscale_threshold_qps=load.downscale_threshold_qps,
            above_since_s=self.state.above_since_s,
            below_since_s=self.state.below_since_s,
            before=config,
            after=after,
            reason=reason,
        )


def partitions_needed(qps: float, *, upscale_rps: float) -> int:
    """Return the lowest number of write partitions that can take `qps`: ceil(qps / upscale_rps)."""
    # Bounded before it is rounded, since a tiny rate makes the quotient infinite.
    return math.ceil(min(qps / upscale_rps * (1 - NOISE), PARTITIONS_MAX + 1))


def _measure(now_s: float, config: PartitionConfig, rates: Mapping[int, float], settings: ScalerSettings) -> _Load:
    known = {number: rate for number, rate in rates.items() if 0 <= rate < math.inf}
    # Read-only partitions must report as well: they may accept tasks until they know that they are read-only.
    unknown = tuple(number for number in range(config.read) if number not in known)
    qps = sum(known.values())
    downscale_threshold_qps = (config.write - 1) * settings.upscale_rps * settings.downscale_factor
    return _Load(
        at_s=now_s,
        qps=qps,
        unknown=unknown,
        upscale_threshold_qps=config.write * settings.upscale_rps,
        downscale_threshold_qps=downscale_threshold_qps,
        is_above=partitions_needed(qps, upscale_rps=settings.upscale_rps) > config.write,
        is_below=not unknown and qps < downscale_threshold_qps * (1 - NOISE),
    )


def _follow(state: ScalerState, load: _Load, settings: ScalerSettings) -> ScalerState:
    """Continue, start or stop the two clocks: each runs while the load is above (below) its threshold at every tick."""
    if not settings.enabled:
        return ScalerState()
    thresholds_qps = (load.upscale_threshold_qps, load.downscale_threshold_qps)
    if state.thresholds_qps != thresholds_qps:
        # The count or a setting changed. A change that was decided but could not be stored does not reset the clocks:
        # the next tick decides it again.
        state = ScalerState(ticked_s=state.ticked_s)
    uncounted_s = 0.0
    if state.ticked_s is not None:
        gap_s = load.at_s - state.ticked_s
        uncounted_s = gap_s - min(max(gap_s, 0.0), INTERVALS_BETWEEN_TICKS_MAX * settings.interval_s)
    return ScalerState(
        ticked_s=load.at_s,
        thresholds_qps=thresholds_qps,
        above_since_s=_since(state.above_since_s, load.at_s, uncounted_s=uncounted_s) if load.is_above else None,
        below_since_s=_since(state.below_since_s, load.at_s, uncounted_s=uncounted_s) if load.is_below else None,
        below_peak_qps=max(state.below_peak_qps, load.qps) if load.is_below else 0.0,
    )


def _since(since_s: float | None, now_s: float, *, uncounted_s: float) -> float:
    """Return when the load crossed the threshold, moved forward by the time that does not count."""
    return now_s if since_s is None else since_s + uncounted_s


def _decide(
    state: ScalerState,
    config: PartitionConfig,
    load: _Load,
    reports: Collection[DrainReport],
    settings: ScalerSettings,
) -> tuple[Action, PartitionConfig, str]:
    if not settings.enabled:
        return Action.DISABLED, config, f"The scaler is disabled: write stays at {config.write}."
    write, reason = _write_wanted(state, config, load, settings)
    if load.unknown:
        reason += f" ({len(load.unknown)} of {config.read} read partitions did not report: the load is at least this.)"
    if write != config.write:
        # Read and write are raised together; read is lowered later, when the partitions that left write are drained.
        after = change(config, read=max(config.read, write), write=write, maximum=settings.partitions_max)
        return Action.UPSCALE if write > config.write else Action.DOWNSCALE, after, reason
    read = lowest_read(config, reports)
    if read < config.read:
        after = change(config, read=read, write=write, maximum=settings.partitions_max, reports=reports)
        reason = f"Drained: {_partitions(read, config.read)}; {config.read - read} of {config.read} read partitions go."
        return Action.DRAIN, after, reason
    if read > write:
        reason += f" Still draining: {_partitions(write, read)}."
    return Action.HOLD, config, reason


def _write_wanted(
    state: ScalerState, config: PartitionConfig, load: _Load, settings: ScalerSettings
) -> tuple[int, str]:
    """Return the wanted number of write partitions and the reason.

    A change of the bounds takes effect at once, a change of the load only after the sustained duration.
    """
    write, up_qps, down_qps, qps = config.write, load.upscale_threshold_qps, load.downscale_threshold_qps, load.qps
    since_s, due_s = load.at_s, math.inf
    if state.above_since_s is not None:
        since_s, due_s = state.above_since_s, settings.upscale_sustained_s
        seen = f"{qps:,.1f} QPS are above {up_qps:,.1f}"
    elif state.below_since_s is not None:
        since_s, due_s, qps = state.below_since_s, settings.downscale_sustained_s, state.below_peak_qps
        seen = f"{load.qps:,.1f} QPS (at most {qps:,.1f}) are below {down_qps:,.1f}"
    elif load.unknown:
        seen = f"{qps:,.1f} QPS are not above {up_qps:,.1f}"
    else:
        seen = f"{qps:,.1f} QPS are between {down_qps:,.1f} and {up_qps:,.1f}"
    sustained_s = load.at_s - since_s
    is_due = sustained_s >= due_s
    needed = partitions_needed(qps, upscale_rps=settings.upscale_rps)
    bounded, wanted = _clamp(write, settings), _clamp(needed, settings)
    target = wanted if is_due else bounded

    if target != write and target == bounded:
        bound = "below the minimum" if write < bounded else "above the maximum"
        return target, f"Write is at {write}, {bound} of {bounded}, which applies at once."
    if target != write:
        bound = "maximum" if wanted < needed else "minimum"
        limit = f", but the {bound} is {wanted}" if wanted != needed else ""
        each = f"partitions needed at {settings.upscale_rps:g} QPS each: {needed}"
        return target, f"{seen} for {round(sustained_s, 1):g} s; {each}{limit}."
    if is_due:
        bound = "maximum" if load.is_above else "minimum"
        return target, f"{seen} for {round(sustained_s, 1):g} s, but write is at its {bound} of {write}."
    if due_s < math.inf:
        return target, f"{seen} for {round(sustained_s, 1):g} s of the {due_s:g} s that a change takes."
    return target, f"{seen}: write stays at {write}."


def _clamp(partitions: int, settings: ScalerSettings) -> int:
    return max(settings.partitions_min, min(settings.partitions_max, partitions))


def _partitions(first: int, end: int) -> str:
    return f"partition {first}" if end - first == 1 else f"partitions {first} to {end - 1}"
