"""`fairlead simulate balancing`: poller utilisation under the four load balancers, with even and skewed backlog."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING

import click

from fairlead.core.balancing import Strategy
from fairlead.core.fairness.measures import jain_index
from fairlead.report import Report, Table
from fairlead.simulations.command import simulation
from fairlead.simulations.pollers import SAMPLES, Outcome, PollerModel, Workload, make_workload

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Maximum number of tasks; the eight runs then take about ten seconds.
TASKS_MAX = 200_000

Outcomes = Mapping[tuple[str, Strategy], Outcome]


@simulation("balancing")
@click.option("--partitions", type=click.IntRange(2, 200), default=8, show_default=True, help="Partitions.")
@click.option("--pollers", type=click.IntRange(1, 1000), default=16, show_default=True, help="Pollers, in all.")
@click.option(
    "--clients",
    type=click.IntRange(1, 100),
    default=1,
    show_default=True,
    help="Load balancers that share the pollers; each knows only its own polls and their responses.",
)
@click.option(
    "--backlog", type=click.IntRange(1, TASKS_MAX), default=4000, show_default=True, help="Tasks at the start."
)
@click.option(
    "--arrivals",
    "arrival_per_s",
    type=click.FloatRange(0.0, 10_000.0),
    default=80.0,
    show_default=True,
    help="Tasks that arrive per second, in all.",
)
@click.option(
    "--service",
    "service_s",
    type=click.FloatRange(0.001, 60.0),
    default=0.1,
    show_default=True,
    help="Mean seconds of work per task.",
)
@click.option(
    "--hot-share",
    type=click.FloatRange(0.0, 1.0),
    default=0.8,
    show_default=True,
    help="Share of all tasks that the hot partition gets in the skewed workload.",
)
@click.option(
    "--duration",
    "duration_s",
    type=click.FloatRange(1.0, 3600.0),
    default=120.0,
    show_default=True,
    help="Simulated seconds.",
)
def balancing(
    *,
    seed: int,
    partitions: int,
    pollers: int,
    clients: int,
    backlog: int,
    arrival_per_s: float,
    service_s: float,
    hot_share: float,
    duration_s: float,
) -> Report:
    """Let pollers work off a backlog, with each load balancer choosing where they wait.

    The partitions of one task queue have a backlog, and more tasks arrive at random. A poller selects a partition by
    the load balancer, waits there for a task (at most 60 seconds, then it selects again), works on it, and repeats.
    Each response reports the partition's backlog. To show the effect of the balancers alone, partitions do not forward
    polls or tasks to each other: a poller at the wrong partition waits. In the server, forwarding reduces this effect.

    Every balancer gets the same tasks, in two workloads: even, and skewed, in which one partition gets a large share of
    both the backlog and the arrivals.

    Utilisation is the share of the pollers' time spent at work while the starting backlog lasted. Under even load, all
    balancers should be close to each other; under skew, those that consider backlogs or waiting polls should be far
    ahead of the others. The Jain index is 1 if every partition dispatched the same share of its tasks. Tasks that were
    never started count as waiting until the end.

    Try --hot-share 1 --arrivals 20 for the most extreme skew: weighted keeps one poll waiting at each empty partition,
    so that a new task there is not missed, and sends all others to the backlog. With --arrivals 0 weighted stops at 100
    tasks, its threshold: at or below it, weighted selects round-robin, and without forwarding, polls at empty
    partitions get no task. Try --clients 4 to see that counting polls helps only while one client counts them all.
    """
    if clients > pollers:
        raise click.UsageError(f"--clients {clients} needs as many --pollers, not {pollers}")
    _check_load(
        partitions=partitions,
        backlog=backlog,
        arrival_per_s=arrival_per_s,
        hot_share=hot_share,
        duration_s=duration_s,
    )
    workloads = [
        make_workload(
            name,
            Random(f"{seed} {name}"),  # noqa: S311 - must be repeatable, not secret
            weights=weights,
            backlog=backlog,
            arrival_per_s=arrival_per_s,
            duration_s=duration_s,
        )
        for name, weights in _weights(partitions, hot_share).items()
    ]
    outcomes = {
        (workload.name, strategy): PollerModel(
            workload,
            strategy,
            Random(f"{seed} {workload.name} {strategy}"),  # noqa: S311 - must be repeatable, not secret
            pollers=pollers,
            clients=clients,
            service_s=service_s,
            duration_s=duration_s,
        ).run()
        for workload in workloads
        for strategy in Strategy
    }
    return Report(
        subject="balancing",
        summary=_summary(outcomes),
        parameters={
            "partitions": partitions,
            "pollers": pollers,
            "clients": clients,
            "backlog": backlog,
            "arrivals_per_s": arrival_per_s,
            "service_s": service_s,
            "hot_share": hot_share,
            "duration_s": duration_s,
            "seed": seed,
        },
        tables=[*(_outcomes_table(workload.name, outcomes) for workload in workloads), _workloads_table(workloads)],
        draw=lambda figure: _draw(figure, outcomes, duration_s),
    )


def _check_load(*, partitions: int, backlog: int, arrival_per_s: float, hot_share: float, duration_s: float) -> None:
    if hot_share <= 1.0 / partitions:
        raise click.UsageError(
            f"--hot-share {hot_share} is no skew: of --partitions {partitions}, an even share is {1.0 / partitions:.3g}"
        )
    tasks = backlog + arrival_per_s * duration_s
    if tasks > TASKS_MAX:
        raise click.UsageError(
            f"{tasks:,.0f} tasks, in --backlog and by --arrivals over --duration, are more than {TASKS_MAX:,}"
        )


def _weights(partitions: int, hot_share: float) -> dict[str, list[float]]:
    # The hot partition is the last one: if it were the root, a balancer with a bias to the root would look good.
    return {
        "even": [1.0] * partitions,
        "skewed": [(1.0 - hot_share) / (partitions - 1)] * (partitions - 1) + [hot_share],
    }


def _summary(outcomes: Outcomes) -> str:
    busy = ", ".join(f"{strategy} {outcomes['skewed', strategy].utilisation:.0%}" for strategy in Strategy)
    return f"pollers at work while a skewed backlog lasts: {busy}"


def _outcomes_table(workload: str, outcomes: Outcomes) -> Table:
    rows = []
    for strategy in Strategy:
        outcome = outcomes[workload, strategy]
        rows.append(
            (
                str(strategy),
                round(outcome.utilisation, 4),
                None if outcome.drained_s is None else round(outcome.drained_s, 3),
                round(_percentile(outcome.waits_s, 0.5), 3),
                round(_percentile(outcome.waits_s, 0.99), 3),
                round(jain_index(outcome.started_shares), 4),
                outcome.polls_empty,
                outcome.backlog_samples[-1],
            )
        )
    return Table(
        name=workload,
        title=f"Load balancers under {workload} load",
        columns=(
            "balancer",
            "utilisation",
            "drained_s",
            "wait_p50_s",
            "wait_p99_s",
            "jain",
            "idle_polls",
            "left",
        ),
        rows=rows,
        note="Drained: when the last task of the starting backlog was started; - if never. Idle polls got no task.",
    )


def _workloads_table(workloads: Sequence[Workload]) -> Table:
    return Table(
        name="workloads",
        title="Workloads",
        columns=("workload", "tasks", "largest_backlog", "smallest_backlog", "largest_arrivals_per_s"),
        rows=[
            (
                workload.name,
                sum(workload.backlogs) + len(workload.arrivals),
                max(workload.backlogs),
                min(workload.backlogs),
                round(max(workload.arrivals_per_s), 3),
            )
            for workload in workloads
        ],
        note="Largest and smallest values of a single partition.",
    )


def _percentile(ascending: Sequence[float], share: float) -> float:
    """Interpolate linearly between the two closest ranks, as in the tables of the pipeline."""
    position = (len(ascending) - 1) * share
    below = int(position)
    above = min(below + 1, len(ascending) - 1)
    return ascending[below] + (position - below) * (ascending[above] - ascending[below])


def _draw(figure: "Figure", outcomes: Outcomes, duration_s: float) -> None:
    bars, lines = figure.subplots(1, 2)
    _draw_utilisation(bars, outcomes)
    _draw_backlog(lines, outcomes, duration_s)


def _draw_utilisation(axes: "Axes", outcomes: Outcomes) -> None:
    width = 0.38
    for offset, (workload, colour) in enumerate((("even", "tab:gray"), ("skewed", "tab:blue"))):
        shown = axes.bar(
            [place + (offset - 0.5) * width for place in range(len(Strategy))],
            [100 * outcomes[workload, strategy].utilisation for strategy in Strategy],
            width,
            color=colour,
            label=f"{workload} tasks",
        )
        axes.bar_label(shown, fmt="%.0f", padding=2, fontsize=9)
    axes.set_xticks(range(len(Strategy)), [_short(strategy) for strategy in Strategy])
    axes.set_ylim(0, 118)
    axes.set_yticks(range(0, 101, 20))
    axes.set_ylabel("time at work (% of pollers' time)")
    axes.set_title("Utilisation while the starting backlog lasts")
    axes.legend(loc="upper center", ncols=2, frameon=False)


def _draw_backlog(axes: "Axes", outcomes: Outcomes, duration_s: float) -> None:
    times_s = [sample * duration_s / SAMPLES for sample in range(SAMPLES + 1)]
    for strategy in Strategy:
        axes.plot(times_s, outcomes["skewed", strategy].backlog_samples, label=str(strategy))
    axes.set_xlabel("time (s)")
    axes.set_ylabel("waiting tasks")
    axes.set_ylim(bottom=0)
    axes.set_xlim(0, duration_s)
    axes.set_title("Backlog over time, skewed tasks")
    axes.grid(visible=True, alpha=0.3)
    axes.legend(frameon=False)


def _short(strategy: Strategy) -> str:
    return str(strategy).replace("-", "\n", 1) if strategy is Strategy.FEWEST_OUTSTANDING_POLLS else str(strategy)
