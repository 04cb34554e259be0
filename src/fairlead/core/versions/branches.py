"""The branches of one run's history, and what a batch of events from another cluster does to them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from fairlead.core.errors import GiveUp, RetryElsewhere
from fairlead.core.versions.ancestor import lowest_common_ancestor, nearest_history
from fairlead.core.versions.batches import EventBatch, EventRange
from fairlead.core.versions.history import FIRST_EVENT_ID, Item, VersionHistory


class MalformedTree(GiveUp):
    """Stored branches contradict each other."""


class StaleDecision(RetryElsewhere):
    """A decision was made on another state of the tree than the one it was applied to."""


@dataclass(frozen=True, slots=True)
class Create:
    """The run is new here: write these events as its first branch."""

    events: EventRange
    branch: VersionHistory


@dataclass(frozen=True, slots=True)
class Append:
    """Write these events at the end of the branch `branch_index`, which is `branch` afterwards."""

    events: EventRange
    branch: VersionHistory
    branch_index: int
    switches_current: bool


@dataclass(frozen=True, slots=True)
class Fork:
    """Copy the branch `branch_index` up to the event `after` and write these events behind it: a new branch."""

    events: EventRange
    branch: VersionHistory
    branch_index: int
    after: Item
    switches_current: bool


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The branch `branch_index` has all of these events: nothing is to be done."""

    branch_index: int


@dataclass(frozen=True, slots=True)
class Gap:
    """Events before the batch are missing: get them from its sender, apply them, then try the batch again.

    `after` is the last event here on the batch's line, None where not even the first one is here; `before` is the
    batch's own first event. Both ends are excluded.
    """

    after: Item | None
    before: Item

    @property
    def missing(self) -> EventRange:
        """Exactly the events to ask for; they are those of the batch's own line."""
        return EventRange(self.after.event_id + 1 if self.after else FIRST_EVENT_ID, self.before.event_id - 1)


Decision = Create | Append | Fork | Duplicate | Gap


@dataclass(frozen=True, slots=True)
class BranchTree:
    """The branches of one run in one cluster; the current one, which the mutable state sums up, is the newest.

    No branch is the beginning of another, and no two end with the same version: the events of one version are one
    chain, which ends in one place. So the current branch, the one with the highest last version, is the same for
    everybody who has the same branches, in whatever order these came. There are at most as many branches as events,
    whose number the limit on a history's length bounds.
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
                f"branch {self.current_index} is said to be current, but the branches end with versions "
                f"{last_versions}: the current one must be that with the highest"
            )

    @classmethod
    def restore(cls, branches: Sequence[VersionHistory]) -> "BranchTree":
        """The tree of stored branches, each checked against each other, and with its current branch found."""
        for left, right in combinations(branches, 2):
            ancestor = lowest_common_ancestor(left, right)
            if ancestor in (left.last, right.last):
                raise MalformedTree(
                    f"of the branches {left.to_pairs()} and {right.to_pairs()} one is only the beginning of the other"
                )
        newest = max(range(len(branches)), key=lambda place: branches[place].last.version, default=0)
        return cls(tuple(branches), newest)

    @property
    def current(self) -> VersionHistory:
        """The branch with the highest last version."""
        if not self.branches:
            raise MalformedTree("a tree without branches has no current branch: create it with the run's first events")
        return self.branches[self.current_index]

    def plan(self, batch: EventBatch) -> Decision:
        """Decide what the batch does to the tree, which stays as it is; a contradicting batch is refused.

        Of a batch that is here in part, only the missing end is written. Events are never written over a gap.
        """
        first, last = batch.events
        before = Item(first, batch.version)
        if not self.branches:
            return Create(batch.events, batch.history) if first == FIRST_EVENT_ID else Gap(None, before)
        # Against every branch, not only the nearest: a line that contradicts any of them is refused.
        branch_index, ancestor = nearest_history(self.branches, batch.history)
        if ancestor.event_id == last:
            return Duplicate(branch_index)
        if first > ancestor.event_id + 1:
            return Gap(ancestor, before)
        missing = EventRange(ancestor.event_id + 1, last)
        # Strictly newer, so that the current branch never goes back; and growing by itself, it is no other branch.
        is_newest = batch.version > self.current.last.version
        if ancestor == self.branches[branch_index].last:
            switches = is_newest and branch_index != self.current_index
            return Append(missing, batch.history, branch_index, switches_current=switches)
        return Fork(missing, batch.history, branch_index, after=ancestor, switches_current=is_newest)

    def apply(self, decision: Create | Append | Fork) -> "BranchTree":
        """The tree once the events of `decision` are written. Where the current branch switches, rebuild the state."""
        same_batch = EventBatch(decision.events, decision.branch.last.version, decision.branch)
        if self.plan(same_batch) != decision:
            raise StaleDecision(
                f"{decision} was not decided on this tree of {len(self.branches)} branches: load the tree again, then "
                "plan again"
            )
        if isinstance(decision, Create):
            return BranchTree((decision.branch,))
        if isinstance(decision, Append):
            place = decision.branch_index
            branches = (*self.branches[:place], decision.branch, *self.branches[place + 1 :])
        else:
            place = len(self.branches)
            branches = (*self.branches, decision.branch)
        return BranchTree(branches, place if decision.switches_current else self.current_index)
