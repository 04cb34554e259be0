"""The tables of the job `backtest`: the server's own scaler and rate window, one task queue at a time."""

from collections.abc import Mapping, Sequence
from typing import Any

from fairlead.core.partitions import DrainReport, PartitionConfig
from fairlead.core.scaling import AdaptiveScaler, RateWindow, ScalerSettings, partitions_needed
from fairlead.pipeline.kernels.scaler import Candidate, Model

Row = dict[str, Any]
DAY_S = 86_400.0


class Live:
    """The scaler of one task queue, with the job's model of dispatch; `counts` has the arrivals of each bucket."""

    def __init__(self, counts: Sequence[int], settings: ScalerSettings, model: Model) -> None:
        self.tasks, self.buckets, self.interval_s = sum(counts), len(counts), settings.interval_s
        window = RateWindow(bucket_s=model.bucket_s, buckets=2, started_s=0.0)
        scaler = AdaptiveScaler()
        every = round(settings.interval_s / model.bucket_s)
        first = (
            sum(counts[max(0, every - 2) : every]) / (min(2, every) * model.bucket_s) if len(counts) >= every else 0.0
        )
        start = model.initial or self._within(settings, first)
        config = PartitionConfig(0, start, start)
        # Write and read partitions, load and backlog after each tick.
        self.ticks: list[tuple[int, int, float, float]] = []
        self.backlogs: list[float] = []
        self.waits_s: list[float] = []
        self.read_s, self.late, self.wait_sum, self.above_s = 0.0, 0, 0.0, 0.0
        self.ups = self.downs = self.drains = 0
        self.partitions_max, self.overshoots = start, [0]
        backlog = 0.0
        for number, arrived in enumerate(counts):
            window.add(arrived, number * model.bucket_s)
            rps = config.write * model.partition_rps
            backlog = max(0.0, backlog + arrived - rps * model.bucket_s)
            self.backlogs.append(backlog)
            self.waits_s.append(backlog / rps)
            self.late += arrived if backlog > model.wait_s_max * rps else 0
            self.wait_sum += arrived * backlog / rps
            self.read_s += config.read * model.bucket_s
            now_s = (number + 1) * model.bucket_s
            if (number + 1) % every == 0:
                rates = dict.fromkeys(range(config.read), 0.0) | {0: window.rate(now_s)}
                stored = 0 if backlog == 0 else 1
                reports = [DrainReport(p, config.version, 0, stored) for p in range(config.write, config.read)]
                decision = scaler.tick(now_s, config, rates, reports, settings)
                is_above = decision.qps > decision.upscale_threshold_qps * (1 + 1e-9)
                self.above_s += settings.interval_s if is_above else 0.0
                self.overshoots.append(max(0, config.write - self._within(settings, decision.qps)))
                self._count(config, decision.after)
                config = decision.after
                self.ticks.append((config.write, config.read, decision.qps, backlog))
        self.changes = config.version

    @staticmethod
    def _within(settings: ScalerSettings, qps: float) -> int:
        needed = partitions_needed(qps, upscale_rps=settings.upscale_rps)
        return max(settings.partitions_min, min(settings.partitions_max, needed))

    def _count(self, before: PartitionConfig, after: PartitionConfig) -> None:
        self.ups += after.write > before.write
        self.downs += after.write < before.write
        self.drains += after.write == before.write and after.read < before.read
        self.partitions_max = max(self.partitions_max, after.read)

    def outcome(self) -> Row:
        """The columns of a row of `backtest` that follow from the replay."""
        return {
            "tasks": self.tasks,
            "changes": self.changes,
            "ups": self.ups,
            "downs": self.downs,
            "drains": self.drains,
            "above_s": self.above_s,
            "partitions_max": self.partitions_max,
            "partition_hours": self.read_s / 3600,
            "overshoot_hours": sum(self.overshoots) * self.interval_s / 3600,
            "overshoot_max": max(self.overshoots),
            "backlog_max": max(self.backlogs),
            "backlog_mean": sum(self.backlogs) / self.buckets,
            "wait_s_max": max(self.waits_s),
            "wait_s_mean": self.wait_sum / max(1, self.tasks),
            "late": float(self.late),
        }


def queue_rows(
    lives: Mapping[tuple[str, int], Live],
    candidates: Sequence[Candidate],
    limits: tuple[float, float],
    *,
    span_s: float,
) -> list[Row]:
    """The rows of `backtest` by task queue and setting; `limits` has the late share and the changes per day."""
    rows = [
        {"task_list": name, "setting": number, **candidates[number]._asdict(), **live.outcome()}
        | {"changes_per_day": live.changes * DAY_S / span_s}
        for (name, number), live in lives.items()
    ]
    return [row for name in {row["task_list"] for row in rows} for row in _judged(rows, limits, task_list=name)]


def cluster_rows(rows: Sequence[Row], limits: tuple[float, float]) -> list[Row]:
    """The rows of `backtest_settings` of a cluster, from those of its task queues."""
    found = []
    for number in sorted({row["setting"] for row in rows}):
        its = [row for row in rows if row["setting"] == number]
        sums = ("tasks", "changes", "ups", "downs", "drains", "late", "above_s", "partition_hours", "overshoot_hours",
                "backlog_mean")  # fmt: skip
        peaks = ("partitions_max", "overshoot_max", "backlog_max", "wait_s_max", "changes_per_day")
        found.append(
            {name: its[0][name] for name in ("setting", *Candidate._fields)}
            | {name: sum(row[name] for row in its) for name in sums}
            | {name: max(row[name] for row in its) for name in peaks}
            | {
                "task_lists": len(its),
                "wait_s_mean": sum(row["wait_s_mean"] * row["tasks"] for row in its)
                / max(1, sum(row["tasks"] for row in its)),
            }
        )
    return _judged(found, limits)


def _judged(rows: Sequence[Row], limits: tuple[float, float], **where: str) -> list[Row]:
    its = [row for row in rows if all(row[name] == value for name, value in where.items())]
    for row in its:
        row["late_share"] = row["late"] / max(1, row["tasks"])
        row["is_within"] = row["late_share"] <= limits[0] and row["changes_per_day"] <= limits[1]

    def order(row: Row) -> tuple[float, ...]:
        outside = () if row["is_within"] else (row["late_share"], row["changes_per_day"])
        rest = (round(row["partition_hours"], 6), row["changes"], round(row["above_s"], 6), row["setting"])
        return (not row["is_within"], *outside, *rest)

    best = min(its, key=order)
    for row in its:
        row["is_recommended"] = row is best
    return its
