"""A tree of branches as text, for terminals and logs."""

from collections.abc import Sequence

from fairlead.core.versions.ancestor import lowest_common_ancestor
from fairlead.core.versions.batches import EventRange, cut_batches
from fairlead.core.versions.branches import BranchTree
from fairlead.core.versions.history import FIRST_EVENT_ID, VersionHistory

# End of the line of the current branch.
CURRENT_MARK = "  <- current"


def draw_tree(tree: BranchTree) -> tuple[str, ...]:
    """Return the lines of a drawing: each fork is indented, older versions come first, the current branch is marked.

    The same branches give the same drawing, regardless of the order in which they are stored.
    """
    if not tree.branches:
        return ()
    return tuple(_draw(tree.branches, from_event_id=FIRST_EVENT_ID, current=tree.current))


def _draw(branches: Sequence[VersionHistory], *, from_event_id: int, current: VersionHistory) -> list[str]:
    """Draw branches that are equal up to `from_event_id` at least: the common part, then each continuation."""
    first, *others = branches
    if not others:
        mark = CURRENT_MARK if first == current else ""
        return [_segments(first, EventRange(from_event_id, first.last.event_id)) + mark]
    forked_after = min(lowest_common_ancestor(first, other).event_id for other in others)
    lines = [_segments(first, EventRange(from_event_id, forked_after))]
    ways: dict[int, list[VersionHistory]] = {}
    for branch in branches:
        ways.setdefault(branch.version_of(forked_after + 1), []).append(branch)
    for version in sorted(ways):
        is_last = version == max(ways)
        head, *rest = _draw(ways[version], from_event_id=forked_after + 1, current=current)
        lines.append(("└─ " if is_last else "├─ ") + head)
        lines.extend(("   " if is_last else "│  ") + line for line in rest)
    return lines


def _segments(history: VersionHistory, events: EventRange) -> str:
    return ", ".join(
        f"{batch.events.first}{f'-{batch.events.last}' if batch.events.size > 1 else ''} v{batch.version}"
        for batch in cut_batches(history, events)
    )
