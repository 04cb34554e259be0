"""`fairlead simulate scale`: the work that membership, ring, pushes and scaler make in a large cluster.

The classes are those of the server: each host has its `Membership`, `MemberRing` and `Nudges`, each task queue its
`RootCoordinator` with scaler and pushes. The store is in memory, hosts call each other in one process, and time is
virtual. The results are counts of calls and rows, not times; a model converts them into CPU time (docs/scale.md).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from fairlead.report import Report, Table
from fairlead.simulations.command import simulation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fairlead.simulations.scale_world import Act, World

PARTITIONS_MAX = 1_000_000
# Steps of the event loop for each host and partition: an upper limit, so that a run ends.
STEPS_EACH_MAX = 5_000
# Seconds of virtual time: until the started cluster has settled, of the quiet cluster, and after each change.
SETTLE_S, QUIET_S, CHANGE_S = 12, 30, 12


@dataclass(frozen=True, slots=True)
class Change:
    """The cost of one change of the cluster: the hosts' additional work until all of them have the same ring."""

    name: str
    # Seconds until the last host had the new ring.
    agreed_s: float
    rings: int
    nudges: int
    # Member rows that refreshes read, apart from those that heartbeats read.
    member_rows: int
    partitions_moved: int
    # Lookups of owners by hosts that check what they still own.
    checks: int


@dataclass(frozen=True, slots=True)
class Findings:
    """Counts of calls and rows: per second of a quiet cluster, while task queues grow, and for each change."""

    quiet: dict[str, float]
    saves: int
    pushes: int
    changes: Sequence[Change]


@simulation("scale")
@click.option("--hosts", type=click.IntRange(2, 2_000), default=1_000, show_default=True, help="Hosts in the ring.")
@click.option(
    "--partitions",
    type=click.IntRange(1, PARTITIONS_MAX),
    default=100_000,
    show_default=True,
    help="Loaded partitions of all task queues together.",
)
@click.option(
    "--partitions-per-queue",
    type=click.IntRange(1, 1_000),
    default=16,
    show_default=True,
    help="Partitions of each task queue.",
)
@click.option(
    "--growing",
    type=click.IntRange(0, 1_000),
    default=10,
    show_default=True,
    help="Task queues whose load calls for twice as many partitions.",
)
def scale(*, seed: int, hosts: int, partitions: int, partitions_per_queue: int, growing: int) -> Report:
    """Run the membership, ring, push and scaler code of many hosts on virtual time, and count its work.

    First the cluster is quiet; then a few task queues grow, one host leaves, one crashes, and one joins. 'Member rows'
    are what the hosts read of the table of members: each heartbeat returns all of them. A change of the ring costs each
    host one new ring, and one lookup for each partition that it has loaded.
    """
    queues = max(1, partitions // partitions_per_queue)
    findings = find(seed=seed, hosts=hosts, queues=queues, per_queue=partitions_per_queue, growing=min(growing, queues))
    return Report(
        subject="scale",
        summary=_summary(findings, hosts, queues * partitions_per_queue),
        parameters={
            "hosts": hosts,
            "partitions": partitions,
            "partitions_per_queue": partitions_per_queue,
            "growing": growing,
            "seed": seed,
        },
        tables=[_quiet_table(findings, hosts), _growth_table(findings, growing), _changes_table(findings, hosts)],
        draw=lambda figure: _draw(figure, findings),
    )


def find(*, seed: int, hosts: int, queues: int, per_queue: int, growing: int) -> Findings:
    """Run the cluster, and count."""
    # Imported late: it loads matching, which no other simulation needs.
    from fairlead.simulations.scale_world import World  # noqa: PLC0415
    from fairlead.simulations.virtual_loop import run  # noqa: PLC0415

    async def main() -> Findings:
        world = World(seed=seed, hosts=hosts, queues=queues, per_queue=per_queue, growing=growing)
        await world.start()
        await world.sleep(SETTLE_S)
        world.counts.clear()
        await world.sleep(QUIET_S)
        quiet = {name: count / QUIET_S for name, count in sorted(world.counts.items())}
        world.counts.clear()
        world.is_growing = True
        await world.sleep(QUIET_S)
        saves = world.counts["saves"]
        pushes = world.counts["pushes_of_changes"]
        changes = [
            await _change(world, "one host leaves", world.leave),
            await _change(world, "one host crashes", world.crash),
            await _change(world, "one host joins", world.join),
        ]
        await world.close()
        return Findings(quiet, saves, pushes, changes)

    steps_max = STEPS_EACH_MAX * (hosts + queues * per_queue)
    found, _ = run(main(), steps_max=steps_max)
    return found


async def _change(world: "World", name: str, act: "Act") -> Change:
    world.settle_counts()
    before = world.owners()
    agreed_s = await world.until_agreed(act)
    counts: Counter[str] = Counter(world.counts)
    await world.sleep(CHANGE_S)
    after = world.owners()
    moved = sum(owner != after[partition] for partition, owner in before.items())
    return Change(name, agreed_s, counts["rings"], counts["nudges"], counts["refreshed_rows"], moved, counts["checks"])


def _summary(findings: Findings, hosts: int, partitions: int) -> str:
    quiet = findings.quiet
    worst = max(findings.changes, key=lambda change: change.agreed_s)
    return (
        f"{hosts:,} hosts with {partitions:,} partitions: {quiet['heartbeats']:,.0f} heartbeats per second read "
        f"{quiet['member_rows']:,.0f} member rows; {quiet.get('pushes', 0.0) + quiet.get('reports', 0.0):,.0f} calls a "
        f"second for pushes and reports; a change of the ring takes up to {worst.agreed_s:.1f} s"
    )


_QUIET = {
    "heartbeats": "heartbeats, each a commit",
    "member_rows": "member rows read",
    "pushes": "pushes of configurations",
    "reports": "reports of partitions to their scaler",
}


def _quiet_table(findings: Findings, hosts: int) -> Table:
    rows = [
        (title, round(findings.quiet.get(name, 0.0), 1), round(findings.quiet.get(name, 0.0) / hosts, 3))
        for name, title in _QUIET.items()
    ]
    return Table("quiet", "A quiet cluster, per second", ("work", "all hosts", "each host"), rows)


def _growth_table(findings: Findings, growing: int) -> Table:
    rows = [
        ("configurations saved, each a commit", findings.saves),
        ("pushes of the new configurations", findings.pushes),
    ]
    return Table("growth", f"Growth of {growing} task queues, in {QUIET_S} s", ("work", "all hosts"), rows)


def _changes_table(findings: Findings, hosts: int) -> Table:
    rows = [
        (
            change.name,
            round(change.agreed_s, 2),
            change.nudges,
            change.member_rows,
            round(change.rings / hosts, 2),
            change.partitions_moved,
            change.checks,
        )
        for change in findings.changes
    ]
    columns = ("change", "agreed_s", "nudges", "member_rows", "rings_a_host", "partitions_moved", "checks")
    headings = (
        "change",
        "until all agree, s",
        "nudges",
        "member rows read",
        "rings per host",
        "partitions moved",
        "partitions checked",
    )
    return Table("changes", "Changes of the ring, all hosts together", columns, rows, headings=headings)


def _draw(figure: "Figure", findings: Findings) -> None:
    axes = figure.subplots()
    names = [name for name in _QUIET if findings.quiet.get(name)]
    axes.barh([_QUIET[name] for name in names], [findings.quiet[name] for name in names], color="tab:blue")
    axes.set_xscale("log")
    axes.set_xlabel("per second, all hosts together")
    axes.grid(visible=True, axis="x", alpha=0.3)
