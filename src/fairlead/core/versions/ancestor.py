"""The lowest common ancestor: the last event that two branches of one run share.

A version belongs to one cluster, and that cluster writes at it only at the end of its current branch, never on two
branches: once a branch with a higher version wins, the mutation rule rejects its writes. So the events of one version
are one unbroken chain. Two histories that have a version in common must therefore agree on all events before it, and
two that diverge can't share a version afterwards. Both rules are checked here: no execution writes histories that break
them, and guessing an ancestor would put events on the wrong branch.
"""

from collections.abc import Sequence
from typing import NamedTuple

from fairlead.core.errors import GiveUp
from fairlead.core.versions.history import Item, VersionHistory


class NoCommonAncestor(GiveUp):
    """Two histories differ from the first event on: they are not of the same run."""


class ContradictingHistories(GiveUp):
    """Two histories diverge and yet share a later version: at least one of them is wrong."""


class NearestHistory(NamedTuple):
    """The history that shares the most events with a given one: its index in the list, and the last shared event."""

    history_index: int
    ancestor: Item


def lowest_common_ancestor(left: VersionHistory, right: VersionHistory) -> Item:
    """Return the last event that both histories contain; the order of the arguments does not matter."""
    lefts, rights = left.items, right.items
    parting = _parting(lefts, rights)
    if parting == min(len(lefts), len(rights)):
        # One history is the beginning of the other.
        return lefts[parting - 1]
    at_left, at_right = lefts[parting], rights[parting]
    if at_left.version == at_right.version:
        # Both histories have events of this version, and one of them leaves that version earlier.
        ancestor = min(at_left, at_right)
        tails = lefts[parting + 1 :], rights[parting + 1 :]
    elif parting > 0:
        ancestor = lefts[parting - 1]
        tails = lefts[parting:], rights[parting:]
    else:
        raise NoCommonAncestor(
            f"one history begins with version {at_left.version}, the other with version {at_right.version}: they are "
            "not of the same run"
        )
    shared = _shared_versions(*tails)
    if shared:
        raise ContradictingHistories(
            f"histories {left.to_pairs()} and {right.to_pairs()} diverge after event {ancestor.event_id} (version "
            f"{ancestor.version}), yet both have events of version {min(shared)} after that; the events of one "
            "version are one chain, so one of the two is wrong"
        )
    return ancestor


def nearest_history(histories: Sequence[VersionHistory], other: VersionHistory) -> NearestHistory:
    """Return the one of `histories` that shares the most events with `other`; checks each of them against it.

    `histories` must not be empty. If several share equally many events, the result is the one with the fewest items,
    then the first in the list. In a `BranchTree`, where no branch is the beginning of another, at most one branch ends
    at the shared event.
    """
    ancestors = [lowest_common_ancestor(history, other) for history in histories]
    nearest = min(
        range(len(histories)),
        key=lambda position: (-ancestors[position].event_id, len(histories[position].items), position),
    )
    return NearestHistory(nearest, ancestors[nearest])


def _parting(lefts: tuple[Item, ...], rights: tuple[Item, ...]) -> int:
    """Return the number of equal leading items, by binary search: each probe compares two slices in one step."""
    known, bound = 0, min(len(lefts), len(rights))
    # Histories of one run mostly differ only in their last item or not at all, so the first probe leaves out the last.
    probe = max(bound - 1, 1)
    while known < bound:
        if lefts[known:probe] == rights[known:probe]:
            known = probe
        else:
            bound = probe - 1
        probe = (known + bound + 1) // 2
    return known


def _shared_versions(lefts: tuple[Item, ...], rights: tuple[Item, ...]) -> set[int]:
    if not lefts or not rights or lefts[-1].version < rights[0].version or rights[-1].version < lefts[0].version:
        return set()
    return {item.version for item in lefts} & {item.version for item in rights}
