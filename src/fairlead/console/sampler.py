"""Records the time series of a process from numbers that are in memory."""

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from fairlead.console.series import FINE_S, SeriesName, TimeSeries
from fairlead.telemetry import Metrics, get_log
from fairlead.telemetry.gauges import HistoryGauges, PartitionGauges, ScalerGauges

# A sample takes at most this share of a core: after an expensive one, the next waits longer than `FINE_S`.
CORE_SHARE_MAX: Final = 0.005

# Last parts of the names of a task queue's series, which begin with the namespace id, name and type.
BACKLOG: Final = "backlog"
POLLS: Final = "polls"
ADDS: Final = "adds"
DISPATCHES: Final = "dispatches"
AGE: Final = "age"
# Values of a task queue's scaler, at the host of its root.
LOAD: Final = "load"
UPPER: Final = "upper"
LOWER: Final = "lower"
WRITE: Final = "write"
# Values of the process.
STARTS: Final = ("starts",)
CPU: Final = ("cpu",)
MEMORY: Final = ("memory",)
RUNS: Final = ("runs",)
ALL_ADDS: Final = ("adds",)
ALL_DISPATCHES: Final = ("dispatches",)
ALL_BACKLOG: Final = ("backlog",)
ALL_POLLS: Final = ("polls",)

_START_METHODS: Final = ("StartWorkflowExecution", "SignalWithStartWorkflowExecution")
_STATM: Final = Path("/proc/self/statm")

_log = get_log("console")


class Sampler:
    """Takes one sample every ten seconds."""

    def __init__(
        self,
        metrics: Metrics,
        series: TimeSeries,
        *,
        clock: Callable[[], float] = time.time,
        cpu_s: Callable[[], float] = time.process_time,
    ) -> None:
        self._metrics = metrics
        self._series = series
        self._clock = clock
        self._cpu_s = cpu_s
        self._starts = [metrics.calls("frontend", name) for name in _START_METHODS]
        # Time, starts and CPU seconds at the last sample.
        self._before: tuple[float, int, float] | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to take samples."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Take no more samples."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def sample(self) -> None:
        """Record every series once."""
        now_s = self._clock()
        self._record_process(now_s)
        queues: dict[tuple[str, str, str], list[float]] = {}
        for gauges in self._metrics.gauges():
            if isinstance(gauges, PartitionGauges):
                if not gauges.is_sticky:
                    _add(queues, gauges)
                if gauges.scaler is not None:
                    self._record_scaler(gauges, gauges.scaler, now_s)
            elif isinstance(gauges, HistoryGauges):
                self._record(RUNS, gauges.runs, now_s)
        totals = [0.0] * 4
        for queue, values in queues.items():
            for name, value in zip((BACKLOG, POLLS, ADDS, DISPATCHES, AGE), values, strict=True):
                self._series.record(("queue", *queue, name), value, now_s)
            totals = [before + value for before, value in zip(totals, values[:4], strict=True)]
        for series, value in zip((ALL_BACKLOG, ALL_POLLS, ALL_ADDS, ALL_DISPATCHES), totals, strict=True):
            self._record(series, value, now_s)

    def _record_scaler(self, gauges: PartitionGauges, scaler: ScalerGauges, now_s: float) -> None:
        name = ("scaler", gauges.namespace, gauges.task_queue, gauges.task_type.name.lower())
        self._series.record((*name, LOAD), scaler.qps, now_s)
        self._series.record((*name, UPPER), scaler.upscale_threshold_qps, now_s)
        self._series.record((*name, LOWER), scaler.downscale_threshold_qps, now_s)
        self._series.record((*name, WRITE), scaler.target, now_s)

    def _record(self, name: SeriesName, value: float, now_s: float) -> None:
        """Record a value of the process."""
        self._series.record(name, value, now_s, begins_at_zero=True)

    def _record_process(self, now_s: float) -> None:
        starts = sum(calls.read().requests for calls in self._starts)
        cpu_s = self._cpu_s()
        if self._before is not None and now_s > self._before[0]:
            past_s = now_s - self._before[0]
            self._record(STARTS, max(0, starts - self._before[1]) / past_s, now_s)
            self._record(CPU, max(0.0, cpu_s - self._before[2]) / past_s, now_s)
        self._before = (now_s, starts, cpu_s)
        with suppress(OSError, ValueError, IndexError):
            resident = int(_STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
            self._record(MEMORY, resident, now_s)

    async def _run(self) -> None:
        while True:
            began_s = time.perf_counter()
            try:
                self.sample()
            except Exception as failure:  # noqa: BLE001 - curves are an extra: the server continues without a point
                _log.error("sample for the console failed", exc_info=failure)
            cost_s = time.perf_counter() - began_s
            await asyncio.sleep(max(FINE_S, cost_s / CORE_SHARE_MAX))


def _add(queues: dict[tuple[str, str, str], list[float]], gauges: PartitionGauges) -> None:
    values = queues.setdefault((gauges.namespace, gauges.task_queue, gauges.task_type.name.lower()), [0.0] * 5)
    values[0] += gauges.approximate_backlog_count or 0
    values[1] += gauges.pending_polls or 0
    values[2] += gauges.task_add_rate or 0
    values[3] += gauges.task_dispatch_rate or 0
    values[4] = max(values[4], gauges.approximate_backlog_age_seconds or 0)
