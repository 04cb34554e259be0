"""A day of traffic on one task queue: the load curve, and partitions that adopt a configuration with delays."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from fairlead.core.partitions import INITIAL_CONFIG, DrainReport, PartitionConfig, accept
from fairlead.core.scaling import RateWindow

DAY_S = 24 * 3600
BUCKET_S = 5
WINDOW_BUCKETS = 3
NIGHT_SHARE = 0.06
SPIKE_AT_S = 12.5 * 3600
SPIKE_WIDTH_S = 12 * 60
SPIKE_SHARE = 0.35
# Share of the noise that is kept from one bucket to the next: half of it is gone after about a minute.
NOISE_KEPT = 0.94


def load_shape(time_s: float) -> float:
    """Return the load without noise, from 0 to about 1: quiet at night, busy by day, with a spike at lunch."""
    day = max(0.0, math.sin(math.pi * (time_s / DAY_S - 0.22) / 0.62)) ** 1.5 if 0.22 < time_s / DAY_S < 0.84 else 0.0
    spike = math.exp(-(((time_s - SPIKE_AT_S) / SPIKE_WIDTH_S) ** 2))
    return NIGHT_SHARE + (1 - NIGHT_SHARE - SPIKE_SHARE) * day + SPIKE_SHARE * spike


class Load:
    """Tasks per second over the day: the curve, with slowly varying noise of about `noise`."""

    def __init__(self, source: Random, *, peak_qps: float, noise: float) -> None:
        self._source = source
        self._scale = peak_qps / max(load_shape(float(time_s)) for time_s in range(0, DAY_S, 60))
        self._noise = noise
        self._wander = 0.0

    def qps(self, time_s: float) -> float:
        """Return the load of the bucket that begins now; call it once per bucket, in order."""
        self._wander = NOISE_KEPT * self._wander + math.sqrt(1 - NOISE_KEPT**2) * self._source.gauss(0.0, 1.0)
        return max(0.0, self._scale * load_shape(time_s) * (1 + self._noise * self._wander))


@dataclass(slots=True)
class SimulatedPartition:
    """One partition, as its owner knows it."""

    window: RateWindow
    config: PartitionConfig
    hears_at_s: float = 0.0
    empty_at_s: float = 0.0


class TaskQueueWorld:
    """The partitions of one task queue and its writers: they receive changes late, and take time to drain."""

    def __init__(self, source: Random, load: Load, *, skew: float, push_s: float, drain_s: float) -> None:
        self._source = source
        self._load = load
        self._skew = skew
        self._push_s = push_s
        self._drain_s = drain_s
        self._partitions: list[SimulatedPartition] = []
        self._root = INITIAL_CONFIG
        self._writers = INITIAL_CONFIG
        self.put(INITIAL_CONFIG, 0.0)

    def put(self, config: PartitionConfig, now_s: float) -> None:
        """Change the configuration at the root; the other partitions receive it one by one."""
        del self._partitions[config.read :]
        while len(self._partitions) < config.read:
            window = RateWindow(bucket_s=BUCKET_S, buckets=WINDOW_BUCKETS, started_s=now_s)
            # A newly loaded partition reads the root's row, so it starts with the current configuration.
            self._partitions.append(SimulatedPartition(window=window, config=config))
        for partition in self._partitions:
            partition.hears_at_s = now_s + self._push_s * self._source.uniform(0.5, 1.5)
        self._root = config

    def advance(self, now_s: float) -> None:
        """Add one bucket's tasks to the partitions that the writers know."""
        for partition in self._partitions:
            if now_s >= partition.hears_at_s:
                partition.config = accept(partition.config, self._root)
        if all(partition.config == self._root for partition in self._partitions):
            self._writers_follow(now_s)
        arriving = self._load.qps(now_s) * BUCKET_S
        weights = [self._skew] + [1.0] * (self._writers.write - 1)
        for weight, partition in zip(weights, self._partitions, strict=False):
            mean = arriving * weight / sum(weights)
            count = max(0, round(self._source.gauss(mean, math.sqrt(mean))))
            partition.window.add(count, now_s)

    def _writers_follow(self, now_s: float) -> None:
        if self._writers == self._root:
            return
        for partition in self._partitions[self._root.write : self._writers.write]:
            partition.empty_at_s = now_s + self._drain_s * self._source.uniform(0.5, 1.5)
        self._writers = self._root

    def rates(self, now_s: float) -> Mapping[int, float]:
        """Return the rate that each partition measured."""
        return {number: partition.window.rate(now_s) for number, partition in enumerate(self._partitions)}

    def reports(self, now_s: float) -> list[DrainReport]:
        """Return each partition's drain report; a partition that the writers still use has appends in flight."""
        return [
            DrainReport(
                partition=number,
                acknowledged_version=partition.config.version,
                appends_in_flight=int(number < self._writers.write),
                stored_tasks=int(now_s < partition.empty_at_s),
            )
            for number, partition in enumerate(self._partitions)
        ]
