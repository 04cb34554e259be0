"""`fairlead simulate routing`: placement and movement of partitions under basic and spread routing."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import click

from fairlead.core.partitions import Partition, TaskQueueId, TaskType
from fairlead.core.routing import BATCH_SIZE_MAX, GradualChange, HashRing, Router
from fairlead.report import Report, Table
from fairlead.simulations.command import simulation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PARTITIONS_ALL_MAX = 20_000
BATCH_SIZES = (0, 4, 8, 16)
# Number of hosts that leave, one at a time, and of hosts that join. The results are averaged, since hosts have very
# different shares of the ring.
MEMBERSHIP_CHANGES = 4
WINDOW_S = 3600.0
_WINDOW_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)

Placement = Mapping[Partition, str]


@dataclass(frozen=True, slots=True)
class Finding:
    """Results for one batch size: the placement of partitions, and the share of them that each change moves."""

    batch_size: int
    host_loads: Sequence[int]
    # The most partitions of one task queue on one host: for the worst task queue, and on average.
    together_max: int
    together_mean: float
    hosts_per_task_queue: float
    # None for basic routing, which has no batches.
    hosts_per_batch: float | None
    moved_by_leave: float
    moved_by_join: float
    moved_from_basic: float

    @property
    def load_max_over_mean(self) -> float:
        """Load of the fullest host divided by the mean."""
        return max(self.host_loads) * len(self.host_loads) / sum(self.host_loads)


@simulation("routing")
@click.option("--hosts", type=click.IntRange(2, 500), default=20, show_default=True, help="Hosts in the ring.")
@click.option(
    "--task-queues", type=click.IntRange(1, 10_000), default=150, show_default=True, help="Number of task queues."
)
@click.option(
    "--partitions", type=click.IntRange(1, 1000), default=16, show_default=True, help="Partitions of each task queue."
)
@click.option(
    "--change-to",
    type=click.IntRange(1, BATCH_SIZE_MAX),
    default=8,
    show_default=True,
    help="Batch size after the gradual change from basic routing.",
)
def routing(*, seed: int, hosts: int, task_queues: int, partitions: int, change_to: int) -> Report:
    """Place the partitions of many task queues on hosts, by basic routing and by spread routing.

    Basic routing (batch size 0) places every partition by its own key, so that several partitions of one task queue may
    be on one host: a hot spot if that task queue is busy. Spread routing gives the partitions of a batch different
    hosts, while there are enough. Its price is movement: if a host leaves or joins, partitions also move between the
    remaining hosts. The larger the batch, the more partitions move.

    'most together' measures the hot spots (1 means no hot spot), and the shares moved are their price. The last table
    shows a gradual change of the batch size: each partition moves at its own time within an hour, so that only a few
    move at once.
    """
    if task_queues * partitions > PARTITIONS_ALL_MAX:
        raise click.UsageError(
            f"--task-queues {task_queues} with --partitions {partitions} are {task_queues * partitions:,} partitions, "
            f"more than {PARTITIONS_ALL_MAX:,}"
        )
    random = Random(seed)  # noqa: S311 - must be repeatable, not secret
    ring = HashRing(f"{_address(random)}:7235" for _ in range(hosts))
    lists = [
        TaskQueueId(f"{random.getrandbits(64):016x}", f"queue-{number}", TaskType.ACTIVITY)
        for number in range(task_queues)
    ]
    everything = [Partition(task_queue, number) for task_queue in lists for number in range(partitions)]
    leaving = random.sample(ring.hosts, min(MEMBERSHIP_CHANGES, hosts - 1))
    joining = [f"{_address(random)}:7235" for _ in range(MEMBERSHIP_CHANGES)]
    findings = [_find(ring, size, everything, leaving=leaving, joining=joining) for size in BATCH_SIZES]
    timetable = _timetable(ring, change_to, everything)
    return Report(
        subject="routing",
        summary=_summary(findings),
        parameters={
            "hosts": hosts,
            "task_queues": task_queues,
            "partitions": partitions,
            "change_to": change_to,
            "seed": seed,
        },
        tables=[_placement_table(findings), _movement_table(findings), _timetable_table(timetable, change_to)],
        draw=lambda figure: _draw(figure, findings),
    )


def _address(random: Random) -> str:
    return f"10.{random.randrange(256)}.{random.randrange(256)}.{random.randrange(256)}"


def _place(
    ring: HashRing, batch_size: int | GradualChange[int], partitions: list[Partition], now_s: float
) -> Placement:
    router = Router(ring, batch_size)
    return {partition: router.route(partition, now_s) for partition in partitions}


def _share_moved(before: Placement, after: Placement) -> float:
    return sum(after[partition] != host for partition, host in before.items()) / len(before)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _find(
    ring: HashRing, batch_size: int, partitions: list[Partition], *, leaving: Sequence[str], joining: Sequence[str]
) -> Finding:
    now = _place(ring, batch_size, partitions, 0.0)
    loads = Counter(now.values())
    together: dict[TaskQueueId, Counter[str]] = {}
    for partition, host in now.items():
        together.setdefault(partition.task_queue, Counter())[host] += 1
    most = [max(counts.values()) for counts in together.values()]
    after_leaves = [_place(ring.without_host(host), batch_size, partitions, 0.0) for host in leaving]
    after_joins = [_place(ring.with_host(host), batch_size, partitions, 0.0) for host in joining]
    return Finding(
        batch_size=batch_size,
        host_loads=sorted((loads[host] for host in ring.hosts), reverse=True),
        together_max=max(most),
        together_mean=_mean(most),
        hosts_per_task_queue=_mean([len(counts) for counts in together.values()]),
        hosts_per_batch=_hosts_per_batch(now, batch_size) if batch_size else None,
        moved_by_leave=_mean([_share_moved(now, after) for after in after_leaves]),
        moved_by_join=_mean([_share_moved(now, after) for after in after_joins]),
        moved_from_basic=_share_moved(_place(ring, 0, partitions, 0.0), now),
    )


def _hosts_per_batch(placement: Placement, batch_size: int) -> float:
    hosts: dict[tuple[TaskQueueId, int], set[str]] = {}
    for (task_queue, number), host in placement.items():
        hosts.setdefault((task_queue, number // batch_size), set()).add(host)
    return _mean([len(distinct) for distinct in hosts.values()])


def _timetable(ring: HashRing, change_to: int, partitions: list[Partition]) -> list[tuple[float, float]]:
    """Return the share of the moving partitions that have moved, at some points of the window."""
    change = GradualChange(0, change_to, start_s=0.0, end_s=WINDOW_S)
    # Place the partitions before the start: at the start itself, some have already moved.
    before = _place(ring, change, partitions, -1.0)
    total = _share_moved(before, _place(ring, change, partitions, WINDOW_S))
    return [
        (share, _share_moved(before, _place(ring, change, partitions, share * WINDOW_S)) / total if total else 0.0)
        for share in _WINDOW_SHARES
    ]


def _summary(findings: Sequence[Finding]) -> str:
    basic, *_, widest = findings
    return (
        f"the most partitions of one task queue on one host are {basic.together_max} by basic routing and "
        f"{widest.together_max} in batches of {widest.batch_size}; a host that leaves moves "
        f"{basic.moved_by_leave:.1%} and {widest.moved_by_leave:.1%} of all partitions"
    )


def _name(finding: Finding) -> str:
    return f"spread, {finding.batch_size}" if finding.batch_size else "basic"


def _placement_table(findings: Sequence[Finding]) -> Table:
    return Table(
        name="placement",
        title="Where partitions are",
        columns=(
            "routing",
            "batch_size",
            "fullest_over_mean",
            "most_together",
            "most_together_mean",
            "hosts_per_task_queue",
            "hosts_per_batch",
        ),
        rows=[
            (
                _name(finding),
                finding.batch_size,
                round(finding.load_max_over_mean, 4),
                finding.together_max,
                round(finding.together_mean, 4),
                round(finding.hosts_per_task_queue, 4),
                None if finding.hosts_per_batch is None else round(finding.hosts_per_batch, 4),
            )
            for finding in findings
        ],
        note="Most together: the most partitions of one task queue on one host; for the worst task queue, and "
        "on average.",
    )


def _movement_table(findings: Sequence[Finding]) -> Table:
    return Table(
        name="movement",
        title="Share of all partitions that moves",
        columns=("routing", "batch_size", "when_a_host_leaves", "when_a_host_joins", "when_changed_from_basic"),
        rows=[
            (
                _name(finding),
                finding.batch_size,
                round(finding.moved_by_leave, 4),
                round(finding.moved_by_join, 4),
                round(finding.moved_from_basic, 4),
            )
            for finding in findings
        ],
        note=f"Averages over up to {MEMBERSHIP_CHANGES} hosts that leave or join, one at a time.",
    )


def _timetable_table(timetable: Sequence[tuple[float, float]], change_to: int) -> Table:
    return Table(
        name="gradual_change",
        title=f"Gradual change from basic to {change_to}",
        columns=("window_passed", "moved_of_those_that_move"),
        rows=[(window, round(moved, 4)) for window, moved in timetable],
    )


def _draw(figure: "Figure", findings: Sequence[Finding]) -> None:
    loads, together, moved = figure.subplots(1, 3, width_ratios=(1.5, 1, 1.3))
    _draw_loads(loads, findings[0], findings[-1])
    names = [_name(finding).replace(" ", "\n") for finding in findings]
    shown = together.bar(
        names, [finding.together_max for finding in findings], color="tab:red", label="worst task queue"
    )
    together.bar_label(shown, padding=6)
    together.plot(names, [finding.together_mean for finding in findings], "ko", label="average")
    together.set_ylabel("partitions")
    together.set_ylim(0, 1.25 * findings[0].together_max)
    together.set_title("Most partitions of one\ntask queue on one host")
    together.legend(frameon=False, loc="upper right")
    _draw_movement(moved, findings, names)


def _draw_loads(axes: "Axes", basic: Finding, spread: Finding) -> None:
    hosts = range(len(basic.host_loads))
    for offset, (finding, colour) in enumerate(((basic, "tab:gray"), (spread, "tab:blue"))):
        axes.bar(
            [host + (offset - 0.5) * 0.42 for host in hosts],
            finding.host_loads,
            0.42,
            color=colour,
            label=_name(finding),
        )
    axes.axhline(_mean(basic.host_loads), color="black", linewidth=0.8, linestyle="--", label="mean")
    axes.set_xlabel("hosts, the fullest first")
    axes.set_ylabel("partitions")
    axes.set_xticks([])
    axes.set_title("Partitions on each host")
    axes.legend(frameon=False)


def _draw_movement(axes: "Axes", findings: Sequence[Finding], names: Sequence[str]) -> None:
    series = (
        ("a host leaves", "tab:orange", [finding.moved_by_leave for finding in findings]),
        ("a host joins", "tab:green", [finding.moved_by_join for finding in findings]),
    )
    for offset, (label, colour, shares) in enumerate(series):
        shown = axes.bar(
            [place + (offset - 0.5) * 0.4 for place in range(len(names))],
            [100 * share for share in shares],
            0.4,
            color=colour,
            label=label,
        )
        axes.bar_label(shown, fmt="%.0f", padding=2, fontsize=8)
    axes.set_xticks(range(len(names)), names)
    axes.set_ylabel("moved (% of all partitions)")
    axes.set_title("Partitions that move")
    axes.legend(frameon=False, loc="upper left")
