"""`fairlead simulate scaling`: a day of traffic, and the partition counts that the adaptive scaler chooses."""

import math
from collections.abc import Sequence
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import click

from fairlead.core.partitions import INITIAL_CONFIG
from fairlead.core.scaling import Action, AdaptiveScaler, Decision, ScalerSettings, partitions_needed
from fairlead.report import Cell, Report, Table
from fairlead.simulations.command import simulation
from fairlead.simulations.traffic import BUCKET_S, DAY_S, Load, TaskQueueWorld

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PUSH_S = 2.0


class Tick(NamedTuple):
    """One decision, and the load that would be estimated from the root alone."""

    decision: Decision
    root_estimate_qps: float


@simulation("scaling")
@click.option("--peak-qps", type=click.FloatRange(1, 100_000), default=3_000.0, show_default=True,
              help="Tasks per second at the day's peak.")  # fmt: skip
@click.option("--upscale-rps", type=click.FloatRange(0.1, 100_000), default=200.0, show_default=True,
              help="Target load of a partition, in tasks per second.")  # fmt: skip
@click.option("--downscale-factor", type=click.FloatRange(0, 1, min_open=True, max_open=True), default=0.75,
              show_default=True, help="Lower threshold, as a share of the upper one of N - 1 partitions.")  # fmt: skip
@click.option("--upscale-sustained-s", type=click.FloatRange(0, 3_600), default=60.0, show_default=True,
              help="Seconds above the threshold before partitions are added.")  # fmt: skip
@click.option("--downscale-sustained-s", type=click.FloatRange(0, 3_600), default=120.0, show_default=True,
              help="Seconds below the threshold before partitions are removed.")  # fmt: skip
@click.option("--skew", type=click.FloatRange(1, 100), default=1.0, show_default=True,
              help="Load of the root, as a multiple of any other partition's load.")  # fmt: skip
@click.option("--drain-s", type=click.FloatRange(0, 7_200), default=600.0, show_default=True,
              help="Approximate seconds that a partition takes to drain.")  # fmt: skip
@click.option("--noise", type=click.FloatRange(0, 0.5), default=0.03, show_default=True,
              help="Variation of the load around its daily curve, as a share of the load.")  # fmt: skip
def scaling(
    *,
    seed: int,
    peak_qps: float,
    upscale_rps: float,
    downscale_factor: float,
    upscale_sustained_s: float,
    downscale_sustained_s: float,
    skew: float,
    drain_s: float,
    noise: float,
) -> Report:
    """Show how the adaptive scaler follows a day of traffic.

    A day with a quiet night, a busy daytime and a spike at lunch passes in ticks of 15 seconds. At each tick, the
    scaler sums the rates that the partitions measured. Above the upper threshold for the sustained time, it raises read
    and write partitions together; below the lower one, it lowers write first, and read when the partitions are drained.

    In the upper picture, the load should stay between its two thresholds, except while a change takes place. In the
    lower picture, write rises to the ideal count and never above it. When the load falls, write follows the highest
    load of the sustained time, and read follows write later. A load that varies around a threshold may bring a
    partition back soon after.

    The last lines of the summary show the benefit. They compare the partition-hours with those of a fixed number of
    partitions, and the number of partitions with an estimate from the root alone. Try --skew 4.
    """
    parameters: dict[str, Cell] = {
        "seed": seed,
        "peak_qps": peak_qps,
        "upscale_rps": upscale_rps,
        "downscale_factor": downscale_factor,
        "upscale_sustained_s": upscale_sustained_s,
        "downscale_sustained_s": downscale_sustained_s,
        "skew": skew,
        "drain_s": drain_s,
        "noise": noise,
    }
    settings = ScalerSettings(
        upscale_rps=upscale_rps,
        downscale_factor=downscale_factor,
        upscale_sustained_s=upscale_sustained_s,
        downscale_sustained_s=downscale_sustained_s,
    )
    if partitions_needed(peak_qps, upscale_rps=upscale_rps) > settings.partitions_max:
        raise click.UsageError(
            f"--peak-qps {peak_qps:g} at --upscale-rps {upscale_rps:g} needs more than the maximum of "
            f"{settings.partitions_max} partitions: lower --peak-qps or raise --upscale-rps"
        )
    source = Random(seed)  # noqa: S311 - must be repeatable, not secret
    load = Load(source, peak_qps=peak_qps, noise=noise)
    ticks = run_day(TaskQueueWorld(source, load, skew=skew, push_s=PUSH_S, drain_s=drain_s), settings)
    decisions = [tick.decision for tick in ticks]
    return Report(
        subject="scaling",
        summary=headline(ticks, settings),
        parameters=parameters,
        tables=[summary_table(ticks, settings), decisions_table(decisions)],
        draw=lambda figure: draw(figure, decisions, settings),
    )


def run_day(world: TaskQueueWorld, settings: ScalerSettings) -> list[Tick]:
    """Simulate the day: tasks arrive in every bucket, and the scaler decides once per interval."""
    scaler, config, ticks = AdaptiveScaler(), INITIAL_CONFIG, []
    tick_at_s = settings.interval_s
    for now_s in range(0, DAY_S, BUCKET_S):
        if now_s >= tick_at_s:
            tick_at_s += settings.interval_s
            rates = world.rates(now_s)
            decision = scaler.tick(float(now_s), config, rates, world.reports(now_s), settings)
            ticks.append(Tick(decision, root_estimate_qps=rates[0] * config.write))
            if decision.after != config:
                config = decision.after
                world.put(config, now_s)
        world.advance(now_s)
    return ticks


def ideal_of(decision: Decision, settings: ScalerSettings) -> int:
    """Return the minimum number of partitions for the load that this tick measured."""
    return max(1, partitions_needed(decision.qps, upscale_rps=settings.upscale_rps))


def headline(ticks: Sequence[Tick], settings: ScalerSettings) -> str:
    """Return the day in one sentence."""
    decisions = [tick.decision for tick in ticks]
    writes = [decision.after.write for decision in decisions]
    ideal = max(ideal_of(decision, settings) for decision in decisions)
    changes = sum(decision.after != decision.before for decision in decisions)
    return (
        f"a day's load is followed with {min(writes)} to {max(writes)} write partitions and {changes} changes; "
        f"the highest load needs {ideal}"
    )


def summary_table(ticks: Sequence[Tick], settings: ScalerSettings) -> Table:
    """Return the day in numbers."""
    decisions = [tick.decision for tick in ticks]
    count = {action: sum(decision.action is action for decision in decisions) for action in Action}
    between = sum(decision.above_since_s is decision.below_since_s is None for decision in decisions)
    highest = max(decision.after.write for decision in decisions)
    ideal = max(ideal_of(decision, settings) for decision in decisions)
    from_root = max(tick.root_estimate_qps for tick in ticks)
    hours = sum(decision.after.read for decision in decisions) * settings.interval_s / 3600
    hours_fixed = ideal * len(decisions) * settings.interval_s / 3600
    rows: list[tuple[str, Cell]] = [
        ("changes: upscale", count[Action.UPSCALE]),
        ("changes: downscale", count[Action.DOWNSCALE]),
        ("changes: drain", count[Action.DRAIN]),
        ("shortest time from a downscale to an upscale, s", shortest_turn_s(decisions)),
        ("share of time between the thresholds, %", round(100 * between / len(decisions), 2)),
        ("most write partitions", highest),
        ("ideal for the highest QPS measured", ideal),
        ("overshoot", max(0, highest - ideal)),
        ("partition-hours", round(hours, 1)),
        ("partition-hours with the peak count all day", round(hours_fixed, 1)),
        ("saved, %", round(100 * (1 - hours / hours_fixed), 1)),
        ("highest count by an estimate from the root alone", partitions_needed(
            from_root, upscale_rps=settings.upscale_rps)),
    ]  # fmt: skip
    return Table(name="summary", title="The day in numbers", columns=["measure", "value"], rows=rows)


def shortest_turn_s(decisions: Sequence[Decision]) -> float | None:
    """Return the shortest time from a downscale to the next upscale: short if the scaler oscillates."""
    moves = [decision for decision in decisions if decision.action in {Action.UPSCALE, Action.DOWNSCALE}]
    turns = [
        later.at_s - earlier.at_s
        for earlier, later in pairwise(moves)
        if earlier.action is Action.DOWNSCALE and later.action is Action.UPSCALE
    ]
    return min(turns, default=None)


def decisions_table(decisions: Sequence[Decision]) -> Table:
    """Return every change of the day, with its reason."""
    rows = [
        (
            clock(decision.at_s),
            decision.action.value,
            f"{decision.before.read} -> {decision.after.read}",
            f"{decision.before.write} -> {decision.after.write}",
            decision.reason,
        )
        for decision in decisions
        if decision.before != decision.after
    ]
    return Table(
        name="decisions",
        title="Changes, and why",
        columns=["time", "action", "read", "write", "reason"],
        rows=rows,
        note="Every other tick was a hold, recorded in the same way.",
    )


def clock(time_s: float) -> str:
    """Format a time of day as hours, minutes and seconds."""
    minutes, seconds = divmod(round(time_s), 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{seconds:02}"


def draw(figure: "Figure", decisions: Sequence[Decision], settings: ScalerSettings) -> None:
    """Draw the load between its thresholds, and the partitions below."""
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    hours = [decision.at_s / 3600 for decision in decisions]
    draw_load(above, hours, decisions)
    draw_partitions(below, hours, decisions, settings)


def draw_load(axes: "Axes", hours: Sequence[float], decisions: Sequence[Decision]) -> None:
    """Draw the load and both thresholds, with the band between them shaded."""
    upper = [decision.upscale_threshold_qps for decision in decisions]
    lower = [decision.downscale_threshold_qps for decision in decisions]
    axes.fill_between(hours, lower, upper, step="post", color="tab:green", alpha=0.10, linewidth=0)
    axes.plot(hours, upper, drawstyle="steps-post", color="tab:red", linewidth=1.2, label="upscale above")
    axes.plot(hours, lower, drawstyle="steps-post", color="tab:orange", linewidth=1.2, label="downscale below")
    load = [decision.qps for decision in decisions]
    axes.plot(hours, load, color="black", linewidth=0.8, label="tasks added (measured)")
    axes.set_title("The load, and the thresholds between which it should stay")
    axes.set_ylabel("tasks per second")
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper left")
    axes.grid(visible=True, alpha=0.3)


def draw_partitions(
    axes: "Axes", hours: Sequence[float], decisions: Sequence[Decision], settings: ScalerSettings
) -> None:
    """Draw read and write partitions over the day, and the minimum for the load at each time."""
    ideal = [ideal_of(decision, settings) for decision in decisions]
    write = [decision.after.write for decision in decisions]
    read = [decision.after.read for decision in decisions]
    axes.fill_between(hours, write, read, step="post", color="tab:blue", alpha=0.25, linewidth=0, label="draining")
    axes.plot(hours, ideal, drawstyle="steps-post", color="tab:gray", linewidth=0.7, label="ideal for the moment")
    axes.plot(hours, read, drawstyle="steps-post", color="tab:cyan", linewidth=1.2, label="read")
    axes.plot(hours, write, drawstyle="steps-post", color="tab:blue", linewidth=1.6, label="write")
    axes.set_title("Write follows the load; read follows write down when the partitions are drained")
    axes.set_ylabel("partitions")
    axes.set_xlabel("time of day (hours)")
    axes.set_ylim(bottom=0, top=math.ceil(1.1 * max(read)) + 1)
    axes.set_xlim(0, DAY_S / 3600)
    axes.set_xticks(range(0, 25, 2))
    axes.legend(loc="upper left")
    axes.grid(visible=True, alpha=0.3)
