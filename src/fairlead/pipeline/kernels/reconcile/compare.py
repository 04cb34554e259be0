"""The copies of one run in all clusters, compared: one tree, who lacks what, and who can send it."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from fairlead.core.versions import LOCAL_VERSION, BranchTree, EventRange, Item, VersionHistory, cut_batches
from fairlead.pipeline.kernels.reconcile.copies import Copy, fault, lowest_of, merge_lines
from fairlead.pipeline.kernels.reconcile.records import (
    OPEN_STATUSES,
    CopySummary,
    Finding,
    Judgement,
    Kind,
    PairCounts,
    Rules,
    Send,
    State,
)


@dataclass(frozen=True, slots=True)
class Lack:
    """An event that a cluster should have and has not; without a `source`, nobody has it, or one before it."""

    event: Item
    kind: Kind
    state: State
    source: str | None
    line: VersionHistory


class Comparison:
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
        # What was written while its namespace was in one cluster alone is not sent to others.
        self.clusters = sorted(self.copies if is_local else {*self.copies, *expected})

    def judge(self) -> Judgement:
        """Everything that can be said of the run without looking at others."""
        judgement = self.judgement
        if self.tree.branches:
            judgement.status = self._status()
            judgement.branches = (
                self.tree.current,
                *sorted(
                    (line for line in self.tree.branches if line != self.tree.current), key=lambda line: line.items
                ),
            )
            judgement.ancestor = self._ancestor()
            judgement.disagreeing = tuple(
                name
                for name in self.clusters
                if name not in self.copies or self.copies[name].current != self.tree.current
            )
        lacks = {name: _without_blocked(list(self._lacks(name))) for name in self.clusters}
        for name in self.clusters:
            self._report_lacks(name, lacks[name])
        different = self._report_different()
        self._report_extra(lacks)
        self._report_signals()
        judgement.copies = [self._summarise(copy, lacks[name]) for name, copy in self.copies.items()]
        late = {name: {lack.event for lack in lacks[name] if lack.state is State.LATE} for name in self.clusters}
        judgement.pairs = [
            self._count_pair(left, right, late, different) for left, right in combinations(self.clusters, 2)
        ]
        return judgement

    # One tree of all.

    def _merge_trees(self) -> BranchTree:
        """The tree of all lines; where two contradict each other, the one that more clusters have is believed."""
        lines = {line: None for copy in self.copies.values() for line in copy.lines}

        def support(line: VersionHistory) -> int:
            return sum(any(lowest_of(line, own) == line.last for own in copy.lines) for copy in self.copies.values())

        ordered = sorted(lines, key=lambda line: (-support(line), -line.last.event_id, line.items))
        merged, refused = merge_lines(ordered)
        for line, reason in refused:
            for name, copy in self.copies.items():
                if line in copy.lines:
                    last = line.last
                    self.findings.append(
                        fault(Kind.CONTRADICTION, name, last.version, EventRange(last.event_id, last.event_id), reason)
                    )
        return BranchTree.restore(merged)

    def _events(self) -> dict[Item, VersionHistory]:
        """Every event of the tree, with the line that it stands on: the current one, if it is there."""
        borrowed = [copy.borrowed_to for copy in self.copies.values()]
        # A beginning that every copy has from another run is judged there.
        begin = 1 + min((to or 0 for to in borrowed), default=0)
        events: dict[Item, VersionHistory] = {}
        for line in sorted(self.tree.branches, key=lambda line: -line.last.version):
            for batch in (
                cut_batches(line, EventRange(begin, line.last.event_id)) if begin <= line.last.event_id else ()
            ):
                for event_id in range(batch.events.first, batch.events.last + 1):
                    events.setdefault(Item(event_id, batch.version), line)
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
        """The cluster whose value holds: the one that wrote at the version, else one of the most, by name."""
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
                    Finding(Kind.STATUS_DIFFERS, State.WRONG, name, reference, *_ends(current.last), reason)
                )
        return statuses[reference]

    # What is not there.

    def _lacks(self, name: str) -> Iterator[Lack]:
        copy = self.copies.get(name)
        if any(finding.kind is Kind.CONTRADICTION and finding.cluster == name for finding in self.findings):
            # It would refuse whatever it is sent: first a person must say which of its lines is right.
            return
        borrowed_to = self._borrowed_to(copy)
        expired = self.judgement.status not in OPEN_STATUSES and self.rules.is_expired(self.judgement.last_us)
        for event, line in self.events.items():
            holders = self.holders[event]
            if name in holders or event.event_id <= borrowed_to:
                continue
            kind = Kind.MISSING_RUN if copy is None else _lack_kind(copy, event)
            if holders and self.rules.is_late(self._seen_us(event)):
                state = State.LATE
            else:
                state = State.EXPIRED if expired else State.WRONG
            yield Lack(event, kind, state, self._source(event, holders), line)

    def _borrowed_to(self, copy: Copy | None) -> int:
        """How far the copy's events are another run's: no further than for any other cluster that shares them."""
        if copy is None or copy.borrowed_to is None:
            return 0
        return min(other.borrowed_to for other in self.copies.values() if other.borrowed_to is not None)

    def _source(self, event: Item, holders: Sequence[str]) -> str | None:
        if not holders:
            return None
        return self._reference(event.version, self._digests(event) or dict.fromkeys(holders, ""))

    def _digests(self, event: Item) -> dict[str, str]:
        digests = {name: self.copies[name].held[event] for name in self.holders[event]}
        return {name: digest for name, digest in digests.items() if digest}

    def _report_lacks(self, name: str, lacks: Sequence[Lack]) -> None:
        """One finding and one step of the repair for each row of events; a whole run is one finding."""
        rows = list(_rows(lacks))
        if rows and rows[0][0].kind is Kind.MISSING_RUN:
            worst = State.WRONG if any(row[0].state is State.WRONG for row in rows) else rows[0][0].state
            ends = min(row[0].event.event_id for row in rows), max(row[-1].event.event_id for row in rows)
            self.findings.append(Finding(Kind.MISSING_RUN, worst, name, rows[0][0].source, None, *ends))
        for row in rows:
            lack, first, last = row[0], row[0].event, row[-1].event
            if lack.kind is not Kind.MISSING_RUN:
                detail = None if lack.source else "no cluster has these events, or those before them"
                self.findings.append(
                    Finding(
                        lack.kind, lack.state, name, lack.source, first.version, first.event_id, last.event_id, detail
                    )
                )
            if lack.state is State.WRONG and lack.source is not None:
                # The line of the last: the first ones may stand on the current one, which left this one early.
                line = row[-1].line.truncate(last.event_id)
                self.judgement.sends.append(
                    Send(name, lack.source, first.version, first.event_id, last.event_id, line, lack.kind)
                )

    def _report_extra(self, lacks: Mapping[str, Sequence[Lack]]) -> None:
        """Events that others have and the cluster that alone may write them has not, at the end of its own line."""
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
                            f"only {name} writes at version {first.version}, and it does not have these events",
                        )
                    )

    # What is there, but not the same.

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
        return different

    def _report_signals(self) -> None:
        """Signals that only losing branches have, and that were not given to the winning one again.

        What was given again is known by the same id, and may have been lost and given again more than once.
        """
        if not self.tree.branches:
            return
        current = self.tree.current
        signals = {event: signal for copy in self.copies.values() for event, signal in copy.signals.items()}
        winning = [event for event in sorted(signals) if current.contains(event_id=event[0], version=event[1])]
        self.judgement.current_signals = tuple(signals[event] for event in winning)
        given = set(self.judgement.current_signals)
        for event in sorted(event for event in signals if event in self.events and signals[event] not in given):
            fork = lowest_of(self.events[event], current)
            if fork is None or not self.rules.is_late(max(self._seen_us(event), self._decided_us(fork))):
                self.judgement.lost_signals.append((signals[event], event))

    def _seen_us(self, event: Item) -> int:
        return min((self.copies[name].seen_us[event] for name in self.holders[event]), default=0)

    def _decided_us(self, fork: Item) -> int:
        """When the current branch left the others behind: only then could it be known what they lose."""
        event_id = fork.event_id + 1
        if event_id > self.tree.current.last.event_id:
            return 0
        return self._seen_us(Item(event_id, self.tree.current.version_of(event_id)))

    # What is counted.

    def _summarise(self, copy: Copy, lacks: Sequence[Lack]) -> CopySummary:
        current = copy.current
        is_overdue = bool(self.tree.branches) and any(
            lack.state is State.WRONG and lack.line == self.tree.current for lack in lacks
        )
        return CopySummary(
            copy.cluster, copy.status in OPEN_STATUSES, is_overdue, copy.status, current.last if current else None,
            len(copy.held), copy.first_us, copy.last_us,
        )  # fmt: skip

    def _count_pair(
        self, left: str, right: str, late: Mapping[str, set[Item]], different: Mapping[Item, Mapping[str, str]]
    ) -> PairCounts:
        shared = only_left = only_right = differing = only_late = 0
        for event, holders in self.holders.items():
            here, there = left in holders, right in holders
            shared += here and there
            only_left += here and not there
            only_right += there and not here
            only_late += here != there and event in late[right if here else left]
            digests = different.get(event, {})
            differing += left in digests and right in digests and digests[left] != digests[right]
        return PairCounts(left, right, shared, only_left, only_right, differing, only_late)


def _lack_kind(copy: Copy, event: Item) -> Kind:
    """A gap is in what the cluster itself says that it has."""
    return Kind.GAP if copy.claims(event) else Kind.MISSING_EVENTS


def _without_blocked(lacks: list[Lack]) -> list[Lack]:
    """The same, but nothing is sent that stands behind events that nobody has: it could not be taken in."""
    lost = [lack.event for lack in lacks if lack.source is None]
    # The first that is lost on each line, of which there are few: all behind it are blocked.
    first = {
        line: min((event for event in lost if line.contains(event_id=event[0], version=event[1])), default=None)
        for line in {lack.line for lack in lacks}
    }
    return [
        replace(lack, source=None) if (event := first[lack.line]) is not None and event < lack.event else lack
        for lack in lacks
    ]


def _ends(last: Item) -> tuple[int, int, int]:
    return last.version, last.event_id, last.event_id


def _in_a_row(events: Sequence[Item]) -> Iterator[list[Item]]:
    """Events of one version whose ids follow each other, together."""
    row: list[Item] = []
    for event in sorted(events, key=lambda event: (event.version, event.event_id)):
        if row and event != (row[-1].event_id + 1, row[-1].version):
            yield row
            row = []
        row.append(event)
    if row:
        yield row


def _rows(lacks: Sequence[Lack]) -> Iterator[list[Lack]]:
    """The same of what is lacking, for one reason and from one source each; beginnings come before what follows."""
    kinds: dict[tuple[Kind, State, str | None], dict[Item, Lack]] = {}
    for lack in lacks:
        kinds.setdefault((lack.kind, lack.state, lack.source), {})[lack.event] = lack
    rows = [[group[event] for event in row] for group in kinds.values() for row in _in_a_row(list(group))]
    yield from sorted(rows, key=lambda row: row[0].event)
