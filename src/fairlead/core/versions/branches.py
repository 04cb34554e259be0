"""The branches of one run's history, and how a batch of events from another cluster changes them."""

from collections.abc import Sequence
from itertools import combinations

from msgspec import Struct

from fairlead.core.errors import GiveUp, RetryElsewhere
from fairlead.core.versions.ancestor import lowest_common_ancestor, nearest_history
from fairlead.core.versions.batches import EventBatch, EventRange
from fairlead.core.versions.history import FIRST_EVENT_ID, Item, VersionHistory


class MalformedTree(GiveUp):
    """Stored branches contradict each other."""


class StaleDecision(RetryElsewhere):
    """A decision was applied to a tree that has changed since the decision."""


class Create(Struct, frozen=True):
    """The run is new here: write these events as its first branch."""

    events: EventRange
    branch: VersionHistory


class Append(Struct, frozen=True):
    """Write these events at the end of the branch `branch_index`, which is `branch` afterwards."""

    events: EventRange
    branch: VersionHistory
    branch_index: int
    switches_current: bool


class Fork(Struct, frozen=True):
    """Make a new branch: copy the branch `branch_index` up to the event `after`, and write these events after it."""

    events: EventRange
    branch: VersionHistory
    branch_index: int
    after: Item
    switches_current: bool


class Duplicate(Struct, frozen=True):
    """The branch `branch_index` has all of these events already."""

    branch_index: int


class Gap(Struct, frozen=True):
    """Events before the batch are missing: get them from its sender, apply them, then apply the batch.

    `after` is the last event of the batch's branch that is here, or None if no event is here; `before` is the batch's
    first event. Both ends are excluded.
    """

    after: Item | None
    before: Item

    @property
    def missing(self) -> EventRange:
        """The events to request, all on the batch's branch."""
        return EventRange(self.after.event_id + 1 if self.after else FIRST_EVENT_ID, self.before.event_id - 1)


Decision = Create | Append | Fork | Duplicate | Gap


class BranchTree(Struct, frozen=True):
    """The branches of one run in one cluster. The newest is the current branch, from which the mutable state is built.

    No branch is the beginning of another, and no two end with the same version: the events of one version are one
    chain, which ends in one place. So the current branch, the one with the highest last version, is the same in all
    clusters that have the same branches, regardless of the order in which they arrived. The number of branches is at
    most the number of events, which the limit on a history's length bounds.
    """

    branches: tuple[VersionHistory, ...] = ()
    current_index: int = 0

    def __post_init__(self) -> None:
        last_versions = [branch.last.version for branch in self.branches]
        if len(set(last_versions)) < len(last_versions):
            raise MalformedTree(
                f"branches end with versions {last_versions}: two with the same version can't both be right"
            )
        newest = last_versions.index(max(last_versions)) if last_versions else 0
        if self.current_index != newest:
            raise MalformedTree(
                f"branch {self.current_index} is marked as current, but the branches end with versions "
                f"{last_versions}: the current branch must have the highest"
            )

    @classmethod
    def restore(cls, branches: Sequence[VersionHistory]) -> "BranchTree":
        """Build the tree of stored branches: check all pairs, and find the current branch."""
        for left, right in combinations(branches, 2):
            ancestor = lowest_common_ancestor(left, right)
            if ancestor in (left.last, right.last):
                raise MalformedTree(
                    f"one of the branches {left.to_pairs()} and {right.to_pairs()} is only the beginning of the other"
                )
        newest = max(range(len(branches)), key=lambda position: branches[position].last.version, default=0)
        return cls(tuple(branches), newest)

    @property
    def current(self) -> VersionHistory:
        """The branch with the highest last version."""
        if not self.branches:
            raise MalformedTree("a tree without branches has no current branch: create it with the run's first events")
        return self.branches[self.current_index]

    def plan(self, batch: EventBatch) -> Decision:
        """Decide how the batch changes the tree, without changing it; raise an error if the batch contradicts the tree.

        If the start of the batch is here already, only the rest is written. Events are never written after a gap.
        """
        first, last = batch.events
        before = Item(first, batch.version)
        if not self.branches:
            return Create(batch.events, batch.history) if first == FIRST_EVENT_ID else Gap(None, before)
        # Checks every branch, not only the nearest: a history that contradicts any of them raises an error.
        branch_index, ancestor = nearest_history(self.branches, batch.history)
        if ancestor.event_id == last:
            return Duplicate(branch_index)
        if first > ancestor.event_id + 1:
            return Gap(ancestor, before)
        missing = EventRange(ancestor.event_id + 1, last)
        # Only a higher version switches the current branch, so that it never goes back; its own growth is not a switch.
        is_newest = batch.version > self.current.last.version
        if ancestor == self.branches[branch_index].last:
            switches = is_newest and branch_index != self.current_index
            return Append(missing, batch.history, branch_index, switches_current=switches)
        return Fork(missing, batch.history, branch_index, after=ancestor, switches_current=is_newest)

    def apply(self, decision: Create | Append | Fork) -> "BranchTree":
        """Return the tree with the events of `decision`. If the current branch switches, rebuild the mutable state."""
        same_batch = EventBatch(decision.events, decision.branch.last.version, decision.branch)
        if self.plan(same_batch) != decision:
            raise StaleDecision(
                f"{decision} was not decided on this tree of {len(self.branches)} branches: load the tree again, then "
                "plan again"
            )
        if isinstance(decision, Create):
            return BranchTree((decision.branch,))
        if isinstance(decision, Append):
            position = decision.branch_index
            branches = (*self.branches[:position], decision.branch, *self.branches[position + 1 :])
        else:
            position = len(self.branches)
            branches = (*self.branches, decision.branch)
        return BranchTree(branches, position if decision.switches_current else self.current_index)
