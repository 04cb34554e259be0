"""Draws the tree of a task queue's partitions as inline SVG."""

from collections.abc import Sequence

from markupsafe import Markup
from msgspec import Struct

from fairlead.console.text import number

# Size of a partition's box, and the gaps between boxes, in pixels.
BOX = (86, 38)
GAP = (10, 36)
# Boxes in a row; further boxes of the same depth continue in the next row.
ROW_MAX = 12


class Node(Struct, frozen=True, kw_only=True):
    """A partition as a box of the tree; `parent` is None for the root."""

    number: int
    parent: int | None
    backlog: int = 0
    polls: int = 0
    is_written: bool = True
    problem: str = ""
    # Tasks and polls that the partition offers to its parent, a second.
    tasks_up_per_s: float = 0.0
    polls_up_per_s: float = 0.0


def partition_tree(nodes: Sequence[Node]) -> Markup:
    """The tree from the root down. Tasks and polls are forwarded along the lines, upwards; figures say how many."""
    places = _places(nodes)
    width = max((x + BOX[0] for x, _ in places.values()), default=BOX[0])
    height = max((y + BOX[1] for _, y in places.values()), default=BOX[1])
    lines = Markup("").join(
        _line(places[node.number], places[node.parent]) + _forwarded(node, *places[node.number])
        for node in nodes
        if node.parent in places
    )
    boxes = Markup("").join(_box(node, *places[node.number]) for node in nodes)
    waiting = sum(node.backlog for node in nodes)
    return Markup(
        '<svg class="tree" viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="img">'
        "<title>{count} partitions, {waiting} waiting tasks</title>{lines}{boxes}</svg>"
    ).format(w=width, h=height, count=len(nodes), waiting=waiting, lines=lines, boxes=boxes)


def _places(nodes: Sequence[Node]) -> dict[int, tuple[int, int]]:
    depths: dict[int, int] = {}
    rows: dict[int, list[int]] = {}
    for node in sorted(nodes, key=lambda node: node.number):
        depth = 0 if node.parent is None else depths.get(node.parent, 0) + 1
        depths[node.number] = depth
        rows.setdefault(depth, []).append(node.number)
    places: dict[int, tuple[int, int]] = {}
    y = 0
    for depth in sorted(rows):
        for first in range(0, len(rows[depth]), ROW_MAX):
            for column, one in enumerate(rows[depth][first : first + ROW_MAX]):
                places[one] = (column * (BOX[0] + GAP[0]), y)
            y += BOX[1] + GAP[1]
    return places


def _line(child: tuple[int, int], parent: tuple[int, int]) -> Markup:
    return Markup('<path d="M{} {}V{}H{}V{}"/>').format(
        child[0] + BOX[0] // 2, child[1], child[1] - GAP[1] // 2, parent[0] + BOX[0] // 2, parent[1] + BOX[1]
    )


def _forwarded(node: Node, x: int, y: int) -> Markup:
    if not node.tasks_up_per_s and not node.polls_up_per_s:
        return Markup("")
    return Markup(
        '<text class="edge" x="{x}" y="{y}"><title>Partition {number} forwards {tasks} tasks and {polls} polls a second'
        "</title>{tasks} · {polls}</text>"
    ).format(
        x=x + BOX[0] // 2 + 4, y=y - 5, number=node.number,
        tasks=number(node.tasks_up_per_s), polls=number(node.polls_up_per_s),
    )  # fmt: skip


def _box(node: Node, x: int, y: int) -> Markup:
    kind = "bad" if node.problem else "" if node.is_written else "drained"
    state = node.problem or ("takes new tasks" if node.is_written else "being drained")
    return Markup(
        '<g class="{kind}"><title>Partition {number}: {state}; {backlog} tasks, {polls} polls</title>'
        '<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="4"/>'
        '<text x="{tx}" y="{t1}">{number}</text>'
        '<text class="small" x="{tx}" y="{t2}">{backlog} · {polls} polls</text></g>'
    ).format(
        kind=kind, number=node.number, state=state, backlog=number(node.backlog), polls=number(node.polls),
        x=x, y=y, w=BOX[0], h=BOX[1], tx=x + BOX[0] // 2, t1=y + 16, t2=y + 31,
    )  # fmt: skip
