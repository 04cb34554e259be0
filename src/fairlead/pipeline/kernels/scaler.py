"""The adaptive scaler over recorded traffic: many task queues under many settings at once, in numpy.

Every tick decides like `core.scaling`: the same thresholds in the same order of operations, so that the same
floating-point numbers are compared. A test compares the two tick by tick. Beyond the decisions, the model assumes:

- The rate is that of the server's `RateWindow`: whole buckets, two per tracker interval.
- A partition dispatches at most `partition_rps` tasks per second, and all write partitions share one backlog.
- A partition removed from the write partitions is drained at the first tick without a backlog.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fairlead.core.errors import FixRequest
from fairlead.core.partitions import PARTITIONS_MAX
from fairlead.core.scaling import ScalerSettings
from fairlead.core.scaling.scaler import NOISE
from fairlead.settings import EVERYWHERE, DynamicSettings, Plain, Setting, scaler_settings
from fairlead.settings.dynamic import matching

Counts: TypeAlias = NDArray[np.int64]
Values: TypeAlias = NDArray[np.float64]

# Buckets per rate: the server counts arrivals in halves of the tracker's interval, and sums the last two.
BUCKETS_TO_RATE = 2
# Buckets before a tick that the rate of the next tick may include.
LEAD = BUCKETS_TO_RATE - 1
CANDIDATES_MAX = 10_000
# Maximum number of cells (task queues times settings) replayed at once, so that the arrays of one tick fit in the CPU
# cache.
CELLS_MAX = 4_096
# Maximum number of values that a worker holds for the task queues being replayed: 256 MB.
NUMBERS_MAX = 32_000_000


class InvalidGrid(FixRequest):
    """The grid of scaler settings is empty, too large, or has a value that the scaler or the replay can't use."""


class Candidate(NamedTuple):
    """One combination of scaler settings, as an operator would set them."""

    upscale_rps: float
    upscale_sustained_s: float
    downscale_sustained_s: float
    downscale_factor: float
    interval_s: float

    def overrides(self) -> dict[str, Plain]:
        """Return the values under their names in a settings file."""
        return {
            setting.key: setting.kind.plain(float(value)) for setting, value in zip(_SETTINGS_OF, self, strict=True)
        }


_SETTINGS_OF = (
    matching.PARTITION_UPSCALE_RPS,
    matching.PARTITION_UPSCALE_SUSTAINED_DURATION,
    matching.PARTITION_DOWNSCALE_SUSTAINED_DURATION,
    matching.PARTITION_DOWNSCALE_FACTOR,
    matching.ADAPTIVE_SCALER_UPDATE_INTERVAL,
)

_KEPT: tuple[Setting[Any], ...] = (
    matching.QPS_TRACKER_INTERVAL,
    matching.MAXIMUM_WRITE_PARTITIONS,
    matching.MINIMUM_WRITE_PARTITIONS,
)


def grid(base: DynamicSettings, choices: Mapping[str, Sequence[float]]) -> list[Candidate]:
    """Return the settings to try: the current ones, then all combinations; a field without choices keeps its value."""
    unknown = sorted(set(choices) - set(Candidate._fields))
    if unknown:
        raise InvalidGrid(
            f"unknown settings in the grid: {', '.join(unknown)}; choose from {', '.join(Candidate._fields)}"
        )
    present = Candidate(*(base.get(setting) for setting in _SETTINGS_OF))
    axes = [choices.get(name) or [value] for name, value in zip(Candidate._fields, present, strict=True)]
    size = int(np.prod([len(axis) for axis in axes], dtype=np.float64))
    if size > CANDIDATES_MAX:
        raise InvalidGrid(f"the grid has {size:,} settings, more than {CANDIDATES_MAX:,}: give fewer choices")
    everything = (Candidate(*(float(value) for value in values)) for values in product(*axes))
    return list(dict.fromkeys([present, *everything]))


def effective(base: DynamicSettings, candidate: Candidate) -> ScalerSettings:
    """Return the scaler settings of a server with this candidate in force; a value out of bounds raises an error."""
    kept = {setting.key: setting.kind.plain(base.get(setting)) for setting in _KEPT}
    overrides = kept | candidate.overrides() | {matching.ENABLE_ADAPTIVE_SCALER.key: True}
    return scaler_settings(DynamicSettings(overrides=overrides), EVERYWHERE)


@dataclass(frozen=True, slots=True)
class Replay:
    """Results of a replay by task queue (rows) and setting (columns); in traces, ticks are the first dimension."""

    ups: Counts
    downs: Counts
    drains: Counts
    above_s: Values  # seconds with a load above the threshold in force
    partitions_max: Counts
    partition_s: Values  # read partitions times seconds: the cost in memory
    overshoot_s: Values  # write partitions beyond those needed, times seconds
    overshoot_max: Counts
    backlog_max: Values
    backlog_mean: Values
    wait_s_max: Values
    wait_s_mean: Values  # mean over tasks
    late: Values  # number of tasks whose predicted wait exceeds the bound
    tasks: Counts  # [task queues]
    qps: Values | None = None  # [ticks, task queues]
    write: Counts | None = None
    read: Counts | None = None
    backlog: Values | None = None
    # State after the buckets up to `checkpoint`: [task queues, settings, numbers of `_STATE`].
    state: Values | None = None


@dataclass(frozen=True, slots=True)
class Model:
    """Assumptions about the server: how it counts arrivals, and the capacity of a partition."""

    bucket_s: float
    partition_rps: float
    wait_s_max: float
    initial: int | None = None  # partitions at the start; None: as many as the first load needs


def replay(
    counts: Counts,
    settings: Sequence[ScalerSettings],
    model: Model,
    *,
    is_traced: bool = False,
    begin: int = 0,
    state: Values | None = None,
    checkpoint: int | None = None,
) -> Replay:
    """Run the scaler over arrivals [task queues, buckets] under settings that all have the same interval.

    With `state`, the replay continues at the bucket `begin`, which must be a tick of this interval; `counts` then
    starts `LEAD` buckets before it. The result has the state after `checkpoint` buckets, if that is a tick, too.
    """
    interval_s = settings[0].interval_s
    every = buckets_per_tick(interval_s, model.bucket_s)
    if any(one.interval_s != interval_s for one in settings):
        raise InvalidGrid("settings with several intervals are replayed at once: group them by interval")
    lead = 0 if state is None else LEAD
    run = _Run(counts[:, lead:], settings, model, rates(counts, every, model.bucket_s, lead=lead))
    if state is not None:
        run.restore(state, buckets=begin)
    reached = state if checkpoint == begin else None
    traces = []
    ticks = run.counts.shape[1] // every
    first_tick = begin // every
    for tick in range(ticks):
        run.serve(range(tick * every, (tick + 1) * every))
        run.tick((first_tick + tick + 1) * interval_s, run.rates[:, tick, None])
        if is_traced:
            traces.append((run.write.copy(), run.read.copy(), run.backlog.copy()))
        if (first_tick + tick + 1) * every == checkpoint:
            reached = run.state((tick + 1) * every)
    run.serve(range(ticks * every, run.counts.shape[1]))
    return run.result(traces, reached)


def buckets_per_tick(interval_s: float, bucket_s: float) -> int:
    """Return the number of buckets between two ticks; it must be whole, since a rate is measured over whole buckets."""
    every = round(interval_s / bucket_s)
    if every < 1 or abs(every * bucket_s - interval_s) > 1e-9 * interval_s:
        raise InvalidGrid(f"an interval of {interval_s:g} s is not a multiple of the bucket of {bucket_s:g} s")
    return every


def rates(counts: Counts, every: int, bucket_s: float, *, lead: int = 0) -> Values:
    """Return the tasks per second that the server measures at each tick: [task queues, ticks].

    The first tick is `every` buckets after the first `lead` ones.
    """
    ends = np.arange(lead + every, counts.shape[1] + 1, every)
    looked_at = np.minimum(ends, BUCKETS_TO_RATE)
    tasks = np.zeros((len(counts), len(ends)), np.int64)
    for back in range(1, BUCKETS_TO_RATE + 1):
        is_there = ends >= back
        tasks[:, is_there] += counts[:, ends[is_there] - back]
    found: Values = tasks / (looked_at * bucket_s)
    return found


def blocks(task_lists: int, settings: int, *, numbers_each: int) -> Iterator[slice]:
    """Yield slices of the task queues that are small enough to be replayed at once."""
    size = max(1, min(CELLS_MAX // max(1, settings), NUMBERS_MAX // max(1, numbers_each)))
    for first in range(0, task_lists, size):
        yield slice(first, min(task_lists, first + size))


# The arrays of a run that a state consists of, in its order; the number of tasks follows them.
_STATE = (
    "write", "read", "above_since_s", "below_since_s", "below_peak_qps", "backlog", "ups", "downs", "drains", "above",
    "partitions_max", "overshoot_max", "partition_s", "overshoot_s", "backlog_max", "backlog_sum", "wait_s_max",
    "wait_sum", "late",
)  # fmt: skip
STATE_NUMBERS = len(_STATE) + 1


class _Run:
    """The state of all task queues under all settings, with running totals."""

    def __init__(self, counts: Counts, settings: Sequence[ScalerSettings], model: Model, measured: Values) -> None:
        def row(name: str) -> Values:
            return np.array([[float(getattr(one, name)) for one in settings]])

        self.counts = counts
        self.rates = measured
        self.model = model
        self.interval_s = settings[0].interval_s
        self.rps, self.factor = row("upscale_rps"), row("downscale_factor")
        self.up_s, self.down_s = row("upscale_sustained_s"), row("downscale_sustained_s")
        self.lowest, self.highest = (row(name).astype(np.int64) for name in ("partitions_min", "partitions_max"))
        shape = (len(counts), len(settings))
        if model.initial is None:
            first = measured[:, :1] if measured.shape[1] else np.zeros((len(counts), 1))
            self.write = np.broadcast_to(self._clamp(self._needed(first)), shape).copy()
        else:
            self.write = np.full(shape, model.initial, np.int64)
        self.read = self.write.copy()
        # NaN: the clock is stopped.
        self.above_since_s, self.below_since_s = np.full(shape, np.nan), np.full(shape, np.nan)
        self.below_peak_qps = np.zeros(shape)
        self.backlog = np.zeros(shape)
        self.ups, self.downs, self.drains, self.above = (np.zeros(shape, np.int64) for _ in range(4))
        self.partitions_max, self.overshoot_max = self.read.copy(), np.zeros(shape, np.int64)
        self.partition_s, self.overshoot_s = np.zeros(shape), np.zeros(shape)
        self.backlog_max, self.backlog_sum, self.wait_s_max, self.wait_sum = (np.zeros(shape) for _ in range(4))
        self.late = np.zeros(shape)
        # Tasks and buckets before the first bucket of `counts`.
        self.tasks_before, self.buckets_before = np.zeros((len(counts), 1), np.int64), 0

    def state(self, buckets: int) -> Values:
        """Return the state after these buckets: [task queues, settings, numbers of `_STATE`]."""
        tasks = self.tasks_before + self.counts[:, :buckets].sum(axis=1, keepdims=True)
        arrays = [np.asarray(getattr(self, name), np.float64) for name in _STATE]
        return np.stack([*arrays, np.broadcast_to(tasks, self.write.shape).astype(np.float64)], axis=2)

    def restore(self, state: Values, *, buckets: int) -> None:
        """Continue from a state after `buckets` buckets."""
        for place, name in enumerate(_STATE):
            # A double holds the whole numbers of a state exactly: they are below 2^53.
            setattr(self, name, state[:, :, place].astype(getattr(self, name).dtype))
        self.tasks_before, self.buckets_before = state[:, :1, -1].astype(np.int64), buckets

    def serve(self, buckets: range) -> None:
        """Add and dispatch tasks for these buckets, with the current partitions."""
        capacity_rps = self.write * self.model.partition_rps
        capacity = capacity_rps * self.model.bucket_s
        backlog, late_above = self.backlog, self.model.wait_s_max * capacity_rps
        for bucket in buckets:
            arrived = self.counts[:, bucket, None]
            backlog = np.maximum(backlog + arrived - capacity, 0.0)
            self.backlog_sum += backlog
            np.maximum(self.backlog_max, backlog, out=self.backlog_max)
            wait_s = backlog / capacity_rps
            np.maximum(self.wait_s_max, wait_s, out=self.wait_s_max)
            self.wait_sum += wait_s * arrived
            self.late += (backlog > late_above) * arrived
        self.backlog = backlog
        self.partition_s += self.read * (len(buckets) * self.model.bucket_s)

    def tick(self, now_s: float, qps: Values) -> None:
        """Decide like `AdaptiveScaler.tick` with reports from every partition."""
        write = self.write
        needed = self._needed(qps)
        is_above = needed > write
        is_below = qps < (write - 1) * self.rps * self.factor * (1 - NOISE)
        self.above += is_above
        overshoot = np.maximum(write - self._clamp(needed), 0)
        self.overshoot_s += overshoot * self.interval_s
        np.maximum(self.overshoot_max, overshoot, out=self.overshoot_max)
        self.above_since_s = np.where(is_above, _begun(self.above_since_s, now_s), np.nan)
        self.below_since_s = np.where(is_below, _begun(self.below_since_s, now_s), np.nan)
        self.below_peak_qps = np.where(is_below, np.maximum(self.below_peak_qps, qps), 0.0)
        # A load is never both above and below; a stopped clock (NaN) compares as false.
        is_due = (now_s - self.above_since_s >= self.up_s) | (now_s - self.below_since_s >= self.down_s)
        load_qps = np.where(is_below, self.below_peak_qps, qps)
        target = self._clamp(np.where(is_due, self._needed(load_qps), write))
        self._put_in_force(target)

    def _put_in_force(self, target: Counts) -> None:
        is_up, is_down = target > self.write, target < self.write
        is_changed = is_up | is_down
        is_drained = ~is_changed & (self.read > self.write) & (self.backlog <= 0.0)
        self.ups += is_up
        self.downs += is_down
        self.drains += is_drained
        self.write = target
        self.read = np.where(is_drained, target, np.maximum(self.read, target))
        np.maximum(self.partitions_max, self.read, out=self.partitions_max)
        # The thresholds have changed: restart both clocks.
        self.above_since_s[is_changed] = np.nan
        self.below_since_s[is_changed] = np.nan
        self.below_peak_qps[is_changed] = 0.0

    def tasks(self) -> Counts:
        """Return the number of tasks of each task queue: [task queues, 1]."""
        found: Counts = self.tasks_before + self.counts.sum(axis=1, keepdims=True)
        return found

    def result(self, traces: Sequence[tuple[Counts, Counts, Values]], state: Values | None) -> Replay:
        """Return the totals, converted to means where the result has means."""
        tasks = np.maximum(self.tasks(), 1)
        write, read, backlog = (np.stack(one) for one in zip(*traces, strict=True)) if traces else (None, None, None)
        return Replay(
            ups=self.ups,
            downs=self.downs,
            drains=self.drains,
            above_s=self.above.astype(np.float64) * self.interval_s,
            partitions_max=self.partitions_max,
            partition_s=self.partition_s,
            overshoot_s=self.overshoot_s,
            overshoot_max=self.overshoot_max,
            backlog_max=self.backlog_max,
            backlog_mean=self.backlog_sum / max(1, self.buckets_before + self.counts.shape[1]),
            wait_s_max=self.wait_s_max,
            wait_s_mean=self.wait_sum / tasks,
            late=self.late,
            qps=self.rates.T if traces else None,
            write=write,
            read=read,
            backlog=backlog,
            tasks=self.tasks()[:, 0],
            state=state,
        )

    def _needed(self, qps: Values) -> Counts:
        wanted = np.minimum(qps / self.rps * (1 - NOISE), PARTITIONS_MAX + 1)
        return np.ceil(wanted).astype(np.int64)

    def _clamp(self, partitions: Counts) -> Counts:
        return np.maximum(self.lowest, np.minimum(self.highest, partitions))


def _begun(since_s: Values, now_s: float) -> Values:
    return np.where(np.isnan(since_s), now_s, since_s)
