"""Compares the copies of one run: merges their trees, and finds missing events and the clusters that can send them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from fairlead.core.versions import Item, VersionHistory
from fairlead.pipeline.kernels.reconcile.clocks import Seen
from fairlead.pipeline.kernels.reconcile.copies import Copy, lowest_of
from fairlead.pipeline.kernels.reconcile.merged_run import MergedRun, ends_of
from fairlead.pipeline.kernels.reconcile.records import (
    LACKS,
    OPEN_STATUSES,
    CopySummary,
    Finding,
    Judgement,
    Kind,
    PairCounts,
    Send,
    State,
)


@dataclass(frozen=True, slots=True)
class Lack:
    """An event that a cluster should have and lacks.

    `source` is a cluster that can send the event; None if no cluster has it, or if an earlier event of its branch is
    lost. `withheld` says why the event is not sent although a cluster has it.
    """

    event: Item
    kind: Kind
    state: State
    source: str | None
    branch: VersionHistory
    withheld: str | None = None


class Comparison(MergedRun):
    """Judges a run: finds missing and differing events, and what to send where."""

    def judge(self) -> Judgement:
        """Return the findings that need no other run."""
        judgement = self.judgement
        if self.tree.branches:
            judgement.status = self._status()
            judgement.branches = (
                self.tree.current,
                *sorted(
                    (branch for branch in self.tree.branches if branch != self.tree.current),
                    key=lambda branch: branch.items,
                ),
            )
            judgement.ancestor = self._ancestor()
            judgement.disagreeing = tuple(
                name
                for name in self.clusters
                if name not in self.copies or self.copies[name].current != self.tree.current
            )
        self._report_trees()
        lacks = {name: list(self._lacks(name)) for name in self.clusters}
        different = self._report_different()
        incomparable = self._report_incomparable()
        self._report_extra(lacks)
        # After all checks that accuse a cluster, because the plan sends no events that only an accused cluster has.
        lacks = {name: _without_blocked(self._withhold(lacks[name])) for name in self.clusters}
        for name in self.clusters:
            self._report_lacks(name, lacks[name])
        self._report_signals()
        ages = [self._ages_us(copy) for copy in self.copies.values()]
        judgement.opened_age_us, judgement.last_age_us = max(age[0] for age in ages), min(age[1] for age in ages)
        judgement.copies = [self._summarise(copy, lacks[name]) for name, copy in self.copies.items()]
        late = {name: {lack.event for lack in lacks[name] if lack.state is State.LATE} for name in self.clusters}
        judgement.pairs = [
            self._count_pair(left, right, late, different, incomparable)
            for left, right in combinations(self.clusters, 2)
        ]
        return judgement

    # Merged tree.

    # Missing events.

    def _lacks(self, name: str) -> Iterator[Lack]:
        copy = self.copies.get(name)
        if any(finding.kind is Kind.CONTRADICTION and finding.cluster == name for finding in self.findings):
            # This cluster would reject any event until an operator decides which of its branches is right.
            return
        borrowed_to = self._borrowed_to(copy)
        expired = self.judgement.status not in OPEN_STATUSES and all(
            self.rules.is_expired(Seen(other.cluster, other.last_us, 0)) for other in self.copies.values()
        )
        for event, branch in self.events.items():
            holders = self.holders[event]
            if name in holders or event.event_id <= borrowed_to:
                continue
            kind = Kind.MISSING_RUN if copy is None else _lack_kind(copy, event)
            if holders and not self.rules.is_due_in(name, (self.copies[holder].seen(event) for holder in holders)):
                state = State.LATE
            else:
                state = State.EXPIRED if expired else State.WRONG
            yield Lack(event, kind, state, self._source(event, holders), branch)

    def _source(self, event: Item, holders: Sequence[str]) -> str | None:
        if not holders:
            return None
        return self._reference(event.version, self._digests(event) or dict.fromkeys(holders, ""))

    def _report_lacks(self, name: str, lacks: Sequence[Lack]) -> None:
        """Add a finding and a repair step for each range of missing events; a missing run is one finding."""
        rows = list(_rows(lacks))
        withheld = next((row[0].withheld for row in rows if row[0].withheld), None)
        if rows and rows[0][0].kind is Kind.MISSING_RUN:
            worst = State.WRONG if any(row[0].state is State.WRONG for row in rows) else rows[0][0].state
            ends = min(row[0].event.event_id for row in rows), max(row[-1].event.event_id for row in rows)
            source = None if withheld else rows[0][0].source
            self.findings.append(Finding(Kind.MISSING_RUN, worst, name, source, None, *ends, withheld))
        for row in rows:
            lack, first, last = row[0], row[0].event, row[-1].event
            if lack.kind is not Kind.MISSING_RUN:
                nobody = "no cluster has these events or the events before them"
                detail = None if lack.source else lack.withheld or nobody
                self.findings.append(
                    Finding(
                        lack.kind, lack.state, name, lack.source, first.version, first.event_id, last.event_id, detail
                    )
                )
            if lack.state is State.WRONG and lack.source is not None:
                # Take the branch of the last event: the first events of the range may also be on the current branch,
                # from which this branch forked.
                branch = row[-1].branch.truncate(last.event_id)
                self.judgement.sends.append(
                    Send(name, lack.source, first.version, first.event_id, last.event_id, branch, lack.kind)
                )

    def _withhold(self, lacks: Sequence[Lack]) -> list[Lack]:
        """Clear the source of events that only one cluster has, if the run's findings accuse that cluster."""
        accused = [
            finding
            for finding in self.findings
            if finding.state is State.WRONG and finding.cluster and finding.kind not in LACKS
        ]
        return [self._judge_source(lack, accused) for lack in lacks]

    def _judge_source(self, lack: Lack, accused: Sequence[Finding]) -> Lack:
        if lack.source is None or self.holders[lack.event] != [lack.source]:
            return lack
        against = {one.kind.value for one in accused if one.cluster == lack.source and _is_about(one, lack.event)}
        if not against:
            return lack
        reason = f"only {lack.source} has these events, and it has findings itself: {', '.join(sorted(against))}"
        return replace(lack, source=None, withheld=reason)

    def _report_extra(self, lacks: Mapping[str, Sequence[Lack]]) -> None:
        """Report events at a branch's end that other clusters have, but not the only cluster that may write them."""
        for name in self.copies:
            own = [
                lack
                for lack in lacks[name]
                if lack.kind is Kind.MISSING_EVENTS
                and lack.state is State.WRONG
                and self.rules.owner(lack.event.version) == name
            ]
            for row in _rows(own):
                first, last = row[0].event, row[-1].event
                for holder in self.holders[first]:
                    self.findings.append(
                        Finding(
                            Kind.EXTRA_EVENTS,
                            State.WRONG,
                            holder,
                            name,
                            first.version,
                            first.event_id,
                            last.event_id,
                            f"only {name} writes at version {first.version}, but it lacks these events",
                        )
                    )

    # Differing events.

    def _report_different(self) -> dict[Item, dict[str, str]]:
        different = {}
        deviating: dict[tuple[str, str], list[Item]] = {}
        for event in self.events:
            digests = self._digests(event)
            if len(set(digests.values())) > 1:
                different[event] = digests
                reference = self._reference(event.version, digests)
                for name, digest in digests.items():
                    if digest != digests[reference]:
                        deviating.setdefault((name, reference), []).append(event)
        for (name, reference), events in deviating.items():
            for row in _in_a_row(events):
                self.findings.append(
                    Finding(
                        Kind.DIFFERENT_EVENTS, State.WRONG, name, reference,
                        row[0].version, row[0].event_id, row[-1].event_id,
                    )
                )  # fmt: skip
        alike = [event for event in self.events if event not in different]
        self._report_values(Kind.DIFFERENT_TYPES, alike, {name: copy.types for name, copy in self.copies.items()})
        self._report_values(Kind.DIFFERENT_SIGNALS, alike, {name: copy.signals for name, copy in self.copies.items()})
        return different

    def _report_values(
        self, kind: Kind, events: Sequence[Item], reported: Mapping[str, Mapping[Item, int] | Mapping[Item, str]]
    ) -> None:
        """Report values other than digests that differ between the clusters' copies of the same event."""
        for event in events:
            values: dict[str, object] = {
                name: reported[name][event] for name in self.holders[event] if event in reported[name]
            }
            if len(set(values.values())) > 1:
                reference = self._reference(event.version, values)
                for name, value in values.items():
                    if value != values[reference]:
                        detail = f"{value} here and {values[reference]} there"
                        self.findings.append(Finding(kind, State.WRONG, name, reference, *ends_of(event), detail))

    def _report_incomparable(self) -> set[Item]:
        """Report events that several clusters hold and that at least one of them journaled without digests."""
        blank: dict[str, list[Item]] = {}
        for event in self.events:
            holders = self.holders[event]
            if len(holders) > 1:
                for name in holders:
                    if not self.copies[name].held[event]:
                        blank.setdefault(name, []).append(event)
        for name, events in blank.items():
            for row in _in_a_row(events):
                self.findings.append(
                    Finding(
                        Kind.NOT_COMPARABLE, State.NOT_COMPARABLE, name, None,
                        row[0].version, row[0].event_id, row[-1].event_id, "journaled without digests",
                    )
                )  # fmt: skip
        return {event for events in blank.values() for event in events}

    def _report_trees(self) -> None:
        """Report copies that are in the trees of different base runs.

        The cluster that reset a run has it in the tree of its base; other clusters may have it in its own tree.
        """
        foreign = {name: copy.tree_id for name, copy in self.copies.items() if copy.borrowed_to is not None}
        if len(set(foreign.values())) > 1:
            current = self.tree.current.last if self.tree.branches else Item(1, 0)
            reference = self._reference(current.version, foreign)
            for name, tree_id in foreign.items():
                if tree_id != foreign[reference]:
                    detail = f"tree {tree_id} here and {foreign[reference]} there"
                    self.findings.append(
                        Finding(Kind.WRONG_TREE, State.WRONG, name, reference, *ends_of(current), detail)
                    )

    def _report_signals(self) -> None:
        """Collect signals that only losing branches have and that were not reapplied to the current branch.

        A reapplied signal keeps its id, and may have been lost and reapplied more than once.
        """
        if not self.tree.branches:
            return
        current = self.tree.current
        reported: dict[Item, dict[str, str]] = {}
        for name, copy in self.copies.items():
            for event, signal in copy.signals.items():
                reported.setdefault(event, {})[name] = signal
        # If the clusters have different ids, the reference cluster's id counts.
        signals = {event: values[self._reference(event.version, values)] for event, values in reported.items()}
        winning = [event for event in sorted(signals) if current.contains(event_id=event[0], version=event[1])]
        self.judgement.current_signals = tuple(signals[event] for event in winning)
        given = set(self.judgement.current_signals)
        for event in sorted(event for event in signals if event in self.events and signals[event] not in given):
            fork = lowest_of(self.events[event], current)
            ages_us = [self._age_us(event), *([] if fork is None else self._decided_age_us(fork))]
            if fork is None or min(ages_us) >= self.rules.grace_us:
                self.judgement.lost_signals.append((signals[event], event))

    # Counts.

    def _summarise(self, copy: Copy, lacks: Sequence[Lack]) -> CopySummary:
        current = copy.current
        is_overdue = bool(self.tree.branches) and any(
            lack.state is State.WRONG and lack.branch == self.tree.current for lack in lacks
        )
        return CopySummary(
            copy.cluster, copy.status in OPEN_STATUSES, is_overdue, copy.status, current.last if current else None,
            len(copy.held), copy.first_us, copy.last_us, copy.tree_id,
        )  # fmt: skip

    def _count_pair(
        self,
        left: str,
        right: str,
        late: Mapping[str, set[Item]],
        different: Mapping[Item, Mapping[str, str]],
        incomparable: set[Item],
    ) -> PairCounts:
        shared = only_left = only_right = differing = only_late = unknown = 0
        for event, holders in self.holders.items():
            here, there = left in holders, right in holders
            shared += here and there
            only_left += here and not there
            only_right += there and not here
            only_late += here != there and event in late[right if here else left]
            unknown += here and there and event in incomparable and not self._have_digests(event, left, right)
            digests = different.get(event, {})
            differing += left in digests and right in digests and digests[left] != digests[right]
        return PairCounts(left, right, shared, only_left, only_right, differing, only_late, unknown)


def _lack_kind(copy: Copy, event: Item) -> Kind:
    """Return the kind of a missing event: a gap if the cluster's own version histories contain the event."""
    return Kind.GAP if copy.claims(event) else Kind.MISSING_EVENTS


def _without_blocked(lacks: list[Lack]) -> list[Lack]:
    """Clear the source of events that follow lost events on their branch: the target cluster could not apply them."""
    lost = [lack.event for lack in lacks if lack.source is None]
    # The first lost event of each branch: all events after it are blocked. There are few branches.
    first = {
        branch: min((event for event in lost if branch.contains(event_id=event[0], version=event[1])), default=None)
        for branch in {lack.branch for lack in lacks}
    }
    return [
        replace(lack, source=None) if (event := first[lack.branch]) is not None and event < lack.event else lack
        for lack in lacks
    ]


def _is_about(finding: Finding, event: Item) -> bool:
    """Whether a finding accuses its cluster of this event, or of the whole copy."""
    if finding.kind in (Kind.CONTRADICTION, Kind.WRONG_TREE):
        return True
    first, last = finding.first_event_id, finding.last_event_id
    if first is None or last is None:
        return False
    # Another branch may have an event with the same id, at another version.
    return finding.version in (None, event.version) and first <= event.event_id <= last


def _in_a_row(events: Sequence[Item]) -> Iterator[list[Item]]:
    """Group events of one version with consecutive ids."""
    row: list[Item] = []
    for event in sorted(events, key=lambda event: (event.version, event.event_id)):
        if row and event != (row[-1].event_id + 1, row[-1].version):
            yield row
            row = []
        row.append(event)
    if row:
        yield row


def _rows(lacks: Sequence[Lack]) -> Iterator[list[Lack]]:
    """Group missing events with consecutive ids, by kind, state and source; yield the groups in the order of events."""
    kinds: dict[tuple[Kind, State, str | None], dict[Item, Lack]] = {}
    for lack in lacks:
        kinds.setdefault((lack.kind, lack.state, lack.source), {})[lack.event] = lack
    rows = [[group[event] for event in row] for group in kinds.values() for row in _in_a_row(list(group))]
    yield from sorted(rows, key=lambda row: row[0].event)
