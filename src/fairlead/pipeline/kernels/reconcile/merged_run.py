"""The copies of one run, merged: their tree, its events, and the clusters that have them."""

from collections import Counter
from collections.abc import Mapping, Sequence

from fairlead.core.versions import LOCAL_VERSION, BranchTree, EventRange, Item, VersionHistory, cut_batches
from fairlead.pipeline.kernels.reconcile.clocks import Seen
from fairlead.pipeline.kernels.reconcile.copies import Copy, fault, lowest_of, merge_branches
from fairlead.pipeline.kernels.reconcile.records import (
    Finding,
    Judgement,
    Kind,
    Rules,
    State,
)


class MergedRun:
    """The copies of one run side by side; `expected` are the clusters that should have the run."""

    def __init__(self, copies: Sequence[Copy], expected: Sequence[str], rules: Rules) -> None:
        self.rules = rules
        self.copies = {copy.cluster: copy for copy in sorted(copies, key=lambda copy: copy.cluster)}
        self.judgement = Judgement(
            first_us=min(copy.first_us for copy in copies), last_us=max(copy.last_us for copy in copies)
        )
        self.findings = self.judgement.findings
        for copy in self.copies.values():
            self.findings.extend(copy.faults)
        self.tree = self._merge_trees()
        self.events = self._events()
        self.holders = {
            event: [name for name, copy in self.copies.items() if event in copy.held] for event in self.events
        }
        is_local = not self.tree.branches or self.tree.current.last.version == LOCAL_VERSION
        # Events that were written while the namespace was local to one cluster are not sent to other clusters.
        self.clusters = sorted(self.copies if is_local else {*self.copies, *expected})

    def _merge_trees(self) -> BranchTree:
        """Merge the branches of all copies; of two contradictory branches, keep the one that more clusters have."""
        branches = {branch: None for copy in self.copies.values() for branch in copy.branches}

        def support(branch: VersionHistory) -> int:
            return sum(
                any(lowest_of(branch, own) == branch.last for own in copy.branches) for copy in self.copies.values()
            )

        ordered = sorted(branches, key=lambda branch: (-support(branch), -branch.last.event_id, branch.items))
        merged, refused = merge_branches(ordered)
        for branch, reason in refused:
            for name, copy in self.copies.items():
                if branch in copy.branches:
                    last = branch.last
                    self.findings.append(
                        fault(Kind.CONTRADICTION, name, last.version, EventRange(last.event_id, last.event_id), reason)
                    )
        return BranchTree.restore(merged)

    def _events(self) -> dict[Item, VersionHistory]:
        """Return every event of the tree with its branch: the current branch, if the event is on it."""
        borrowed = [copy.borrowed_to for copy in self.copies.values()]
        # Events that every copy has inherited from another run are judged with that run.
        begin = 1 + min((to or 0 for to in borrowed), default=0)
        events: dict[Item, VersionHistory] = {}
        for branch in sorted(self.tree.branches, key=lambda branch: -branch.last.version):
            for batch in (
                cut_batches(branch, EventRange(begin, branch.last.event_id)) if begin <= branch.last.event_id else ()
            ):
                for event_id in range(batch.events.first, batch.events.last + 1):
                    events.setdefault(Item(event_id, batch.version), branch)
        return events

    def _ancestor(self) -> Item | None:
        """The last event on which the current branches of all clusters agree."""
        currents = [current for copy in self.copies.values() if (current := copy.current) is not None]
        shared = currents[0]
        for current in currents[1:]:
            ancestor = lowest_of(shared, current)
            if ancestor is None:
                return None
            shared = shared.truncate(ancestor.event_id)
        return shared.last

    def _reference(self, version: int, values: Mapping[str, object]) -> str:
        """Return the cluster whose value is right: the cluster that wrote the version, or else any cluster of the
        majority.
        """
        owner = self.rules.owner(version)
        if owner is not None and owner in values:
            return owner
        counts = Counter(values.values())
        return max(values, key=lambda name: (counts[values[name]], -self.clusters.index(name)))

    def _status(self) -> int:
        current = self.tree.current
        statuses = {name: copy.status for name, copy in self.copies.items() if copy.current == current}
        if not statuses:
            return next(iter(self.copies.values())).status
        reference = self._reference(current.last.version, statuses)
        for name, status in statuses.items():
            if status != statuses[reference]:
                reason = f"the same events, but status {status} here and {statuses[reference]} there"
                self.findings.append(
                    Finding(Kind.STATUS_DIFFERS, State.WRONG, name, reference, *ends_of(current.last), reason)
                )
        return statuses[reference]

    def _borrowed_to(self, copy: Copy | None) -> int:
        """Return the last event id that the copies inherit; if they differ, the lowest one."""
        if copy is None or copy.borrowed_to is None:
            return 0
        return min(other.borrowed_to for other in self.copies.values() if other.borrowed_to is not None)

    def _digests(self, event: Item) -> dict[str, str]:
        digests = {name: self.copies[name].held[event] for name in self.holders[event]}
        return {name: digest for name, digest in digests.items() if digest}

    def _age_us(self, event: Item) -> int:
        """Time since the event was first journaled in any cluster; 0 if no cluster has it."""
        return max((self.rules.age_us(self.copies[name].seen(event)) for name in self.holders[event]), default=0)

    def _decided_age_us(self, fork: Item) -> list[int]:
        """Age of the first event of the current branch after the fork: the time for which the other branches have been
        losing.
        """
        event_id = fork.event_id + 1
        if event_id > self.tree.current.last.event_id:
            return []
        event = Item(event_id, self.tree.current.version_of(event_id))
        return [self._age_us(event)] if self.holders.get(event) else []

    def _ages_us(self, copy: Copy) -> tuple[int, int]:
        """The ages of the first and of the last batch of a copy."""
        arrived_us = min((at_us for at_us in copy.arrived_us.values() if at_us), default=0)
        first = Seen(copy.cluster, copy.first_us, arrived_us)
        return self.rules.age_us(first), self.rules.age_us(Seen(copy.cluster, copy.last_us, copy.last_arrived_us))

    def _have_digests(self, event: Item, *names: str) -> bool:
        return all(self.copies[name].held[event] for name in names)


def ends_of(last: Item) -> tuple[int, int, int]:
    """The version of an event, and its id as the first and the last of a range."""
    return last.version, last.event_id, last.event_id
