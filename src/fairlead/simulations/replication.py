"""`fairlead simulate replication`: branches of a workflow in several data centers, before and after a cut heals."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import click

from fairlead.core.versions import (
    BranchTree,
    ClusterVersions,
    EventRange,
    VersionHistory,
    cut_batches,
    draw_tree,
    nearest_history,
)
from fairlead.report import Cell, Report, Table
from fairlead.simulations.command import simulation
from fairlead.simulations.data_centers import INCREMENT, NAMES, OUTCOMES, Network, Snapshot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Colour = tuple[float, float, float, float]

EVENTS_MAX = 2000
# Maximum number of failovers: each adds a version, and the colours of the versions must be distinguishable.
FAILOVERS_MAX = 18
_LANE_HEIGHT = 0.62
_LANE_LABELS_MAX = 8


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one run of the simulation."""

    versions: ClusterVersions
    before: Snapshot
    after: Snapshot
    outcomes: Mapping[str, Counter[str]]


@simulation("replication")
@click.option(
    "--clusters", type=click.IntRange(2, len(NAMES)), default=3, show_default=True, help="Number of data centers."
)
@click.option(
    "--events", type=click.IntRange(1, EVENTS_MAX), default=80, show_default=True, help="Events written, in all."
)
@click.option(
    "--failovers", type=click.IntRange(0, FAILOVERS_MAX), default=5, show_default=True, help="Failovers meanwhile."
)
def replication(*, seed: int, clusters: int, events: int, failovers: int) -> Report:
    """Let data centers write to one workflow on both sides of a network cut, then see them converge.

    Each failover cuts the active data center off and makes another one active. The old data center does not know this
    and continues to write, so the history forks. Messages arrive late, out of order, twice and overlapping; events
    missing before a batch are fetched from its sender. In the end, the last cut heals and all messages are delivered.

    Compare the first table with the second: before the cut heals, the data centers have different branches, and more
    than one considers its own to be current; afterwards all have the same branches, and in each the branch with the
    highest last version is current. In the picture, a row is a data center, a bar is a range of events of one version
    (the legend names its data center), and a bar below another bar is a losing branch.
    """
    if failovers >= events:
        raise click.UsageError(f"--failovers {failovers} needs more than {failovers} --events, not {events}")
    random = Random(seed)  # noqa: S311 - must be repeatable, not secret
    result = run(random, clusters=clusters, events=events, failovers=failovers)
    return Report(
        subject="replication",
        summary=_summary(result),
        parameters={"clusters": clusters, "events": events, "failovers": failovers, "seed": seed},
        tables=_tables(result),
        draw=lambda figure: _draw(figure, result),
    )


def run(random: Random, *, clusters: int, events: int, failovers: int) -> Result:
    """Write all events with the failovers spread among them, then heal the cut and deliver the remaining messages."""
    network = Network(random, clusters=clusters)
    changes = _changes(random, events=events, failovers=failovers)
    while network.event_count < events:
        while changes and changes[0][0] <= network.event_count:
            _, is_failover = changes.pop(0)
            if is_failover:
                network.fail_over()
            else:
                network.heal()
        network.step(events_left=events - network.event_count)
    before = network.snapshot()
    network.heal()
    while network.is_busy:
        network.step(events_left=0)
    outcomes = {name: center.outcomes for name, center in network.centers.items()}
    return Result(network.versions, before, network.snapshot(), outcomes)


def _changes(random: Random, *, events: int, failovers: int) -> list[tuple[float, bool]]:
    """Return after how many events a failover happens (True) or a cut heals (False); the last cut stays to the end."""
    spacing = events / (failovers + 1)
    changes = []
    for number in range(1, failovers + 1):
        changes.append(((number + random.uniform(-0.3, 0.1)) * spacing, True))
        if number < failovers:
            changes.append(((number + random.uniform(0.3, 0.6)) * spacing, False))
    return changes


def _summary(result: Result) -> str:
    forks = sum(outcomes["forked"] for outcomes in result.outcomes.values())
    switches = sum(outcomes["switched"] for outcomes in result.outcomes.values())
    ending = "all data centers agree" if result.after.is_agreed else "the data centers do NOT agree"
    return f"{forks} forks and {switches} switches of the current branch later, {ending}"


def _tables(result: Result) -> list[Table]:
    any_tree = next(iter(result.after.trees.values()))
    return [
        _branch_table("before", "Branches before the last cut heals", result.before),
        _branch_table("after", "Branches after everything is delivered", result.after),
        Table(
            "deliveries",
            "Deliveries by outcome",
            ("data_center", *OUTCOMES),
            [(name, *(counts[outcome] for outcome in OUTCOMES)) for name, counts in result.outcomes.items()],
            note="Switched: the state is rebuilt. Trimmed: only the missing end is written. Gap: events are fetched.",
        ),
        Table(
            "agreement",
            "Do all data centers agree?",
            ("moment", "different_trees", "branches", "events", "all_agree"),
            [_agreement("before", result.before), _agreement("after", result.after)],
        ),
        Table("tree", "The tree in the end", ("tree",), [(line,) for line in draw_tree(any_tree)]),
    ]


def _branch_table(name: str, title: str, snapshot: Snapshot) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for center, tree in snapshot.trees.items():
        for branch in _newest_first(tree):
            items = " ".join(f"({event_id},{version})" for event_id, version in branch.items)
            rows.append((center, branch.last.event_id, items, branch == tree.current))
    return Table(name, title, ("data_center", "events", "version_history", "current"), rows)


def _agreement(moment: str, snapshot: Snapshot) -> tuple[Cell, ...]:
    trees = {frozenset(tree.branches) for tree in snapshot.trees.values()}
    events = set().union(*snapshot.contents.values())
    return (moment, len(trees), len(frozenset().union(*trees)), len(events), snapshot.is_agreed)


def _newest_first(tree: BranchTree) -> list[VersionHistory]:
    """Return the branches in an order that does not depend on the order of their arrival."""
    return sorted(tree.branches, key=lambda branch: branch.last.version, reverse=True)


def _draw(figure: "Figure", result: Result) -> None:
    moments = (("before the last cut heals", result.before), ("after everything is delivered", result.after))
    axes = figure.subplots(len(result.after.trees), 2, sharex=True, sharey=True, squeeze=False)
    colours = _colours(result)
    for column, (moment, snapshot) in enumerate(moments):
        for row, (name, tree) in enumerate(snapshot.trees.items()):
            _draw_tree(axes[row][column], _newest_first(tree), colours)
            if column == 0:
                axes[row][column].set_ylabel(f"data center {name}\nbranch", fontsize=9)
        axes[0][column].set_title(moment, fontsize=10)
        axes[-1][column].set_xlabel("event id")
    _finish(figure, axes[0][0], result, colours)


def _draw_tree(axes: "Axes", branches: Sequence[VersionHistory], colours: Mapping[int, Colour]) -> None:
    """Draw the newest branch in the top lane, and each other branch below, from its fork on."""
    for lane, branch in enumerate(branches):
        first = 1
        if lane > 0:
            event_id, version = nearest_history(branches[:lane], branch).ancestor
            first = event_id + 1
            # Several lanes may contain the event before the fork; draw the fork from the topmost one.
            parents = (place for place in range(lane) if branches[place].contains(event_id=event_id, version=version))
            axes.plot([first - 0.5] * 2, [next(parents), lane], color="0.35", linewidth=1, zorder=1)
        for batch in cut_batches(branch, EventRange(first, branch.last.event_id)):
            axes.broken_barh(
                [(batch.events.first - 0.5, batch.events.size)],
                (lane - _LANE_HEIGHT / 2, _LANE_HEIGHT),
                facecolors=colours[batch.version],
                edgecolors="black" if lane == 0 else "white",
                linewidth=1.4 if lane == 0 else 0.6,
                zorder=2,
            )


def _colours(result: Result) -> dict[int, Colour]:
    """Return a colour for each version, in the order of the versions; the palette has enough colours."""
    from matplotlib import colormaps  # noqa: PLC0415 - matplotlib is an optional extra

    versions = sorted({item.version for contents in result.after.contents.values() for item in contents})
    palette = colormaps["tab10" if len(versions) <= 10 else "tab20"]
    return {version: palette(place) for place, version in enumerate(versions)}


def _finish(figure: "Figure", axes: "Axes", result: Result, colours: Mapping[int, Colour]) -> None:
    from matplotlib.patches import Patch  # noqa: PLC0415 - matplotlib is an optional extra

    lanes = max(len(tree.branches) for tree in result.after.trees.values())
    axes.set_ylim(lanes - 0.4, -0.6)
    labels = ["current", *(f"lost {lane}" for lane in range(1, lanes))]
    step = 1 + lanes // _LANE_LABELS_MAX
    axes.set_yticks(range(0, lanes, step), labels[::step])
    for each in figure.axes:
        each.tick_params(labelsize=8)
    marks = [
        Patch(facecolor=colour, label=f"v{version} ({result.versions.owner(version)})")
        for version, colour in colours.items()
    ]
    marks.append(Patch(facecolor="white", edgecolor="black", label="current branch"))
    figure.legend(handles=marks, loc="outside lower center", ncols=min(len(marks), 10), fontsize=8, frameon=False)
    initials = ", ".join(f"{name} {initial}" for name, initial in result.versions.initial_versions.items())
    figure.suptitle(f"One workflow in several data centers (initial versions {initials}; increment {INCREMENT})")
