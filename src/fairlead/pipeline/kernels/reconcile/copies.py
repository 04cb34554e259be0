"""One cluster's copy of a run, read from its journaled batches, and the faults visible in this copy alone."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fairlead.core.errors import GiveUp
from fairlead.core.versions import (
    FIRST_EVENT_ID,
    BranchTree,
    EventBatch,
    EventRange,
    Item,
    MalformedBatch,
    MalformedHistory,
    VersionHistory,
    lowest_common_ancestor,
)
from fairlead.pipeline.kernels.reconcile.clocks import Seen
from fairlead.pipeline.kernels.reconcile.records import (
    DIGEST_CHARS,
    EVENT_ID_MAX,
    SIGNALED_EVENT,
    TASK_FAILED_EVENT,
    TYPES_UNKNOWN,
    Batch,
    Finding,
    Kind,
    State,
)


@dataclass(slots=True)
class Copy:
    """One cluster's copy of a run.

    `branches` are its branches according to its version histories; a branch that is only the beginning of another
    branch is left out. `held` are the events of its batches. In a sound copy, both contain the same events.
    """

    cluster: str
    branches: tuple[VersionHistory, ...] = ()
    held: dict[Item, str] = field(default_factory=dict)
    seen_us: dict[Item, int] = field(default_factory=dict)
    arrived_us: dict[Item, int] = field(default_factory=dict)
    types: dict[Item, int] = field(default_factory=dict)
    tree_id: str = ""
    signals: dict[Item, str] = field(default_factory=dict)
    status: int = 0
    first_us: int = 0
    last_us: int = 0
    last_arrived_us: int = 0
    borrowed_to: int | None = None
    faults: list[Finding] = field(default_factory=list)

    @property
    def current(self) -> VersionHistory | None:
        """The current branch of this copy."""
        return BranchTree.restore(self.branches).current if self.branches else None

    def claims(self, event: Item) -> bool:
        """Whether a version history of this cluster contains the event."""
        return any(branch.contains(event_id=event.event_id, version=event.version) for branch in self.branches)

    def seen(self, event: Item) -> Seen:
        """When the cluster journaled an event that it holds."""
        return Seen(self.cluster, self.seen_us[event], self.arrived_us.get(event, 0))


def read_copy(cluster: str, run_id: str, batches: Iterable[Batch]) -> Copy:
    """Build the copy from these batches; their order and repetitions don't matter."""
    unique = {
        (
            *(batch.branch_id, batch.first, batch.task_id, batch.last, batch.version, batch.digests, batch.items),
            *(batch.tree_id, batch.signals, batch.event_types, batch.payload_fault),
        ): batch
        # If a batch was journaled twice, the last one in this order is kept: so sort the one that arrived first to the
        # end, and of those that arrived together the one with the earliest time.
        for batch in sorted(batches, key=lambda batch: (-batch.arrived_us, -batch.time_us))
    }
    ordered = sorted(unique.values(), key=lambda batch: (batch.first, batch.version, batch.task_id, batch.branch_id))
    copy = Copy(cluster)
    copy.first_us = min(batch.time_us for batch in ordered)
    copy.last_us = max(batch.time_us for batch in ordered)
    copy.last_arrived_us = max(batch.arrived_us for batch in ordered)
    _check_tree(copy, run_id, ordered)
    if all(batch.tree_id != run_id for batch in ordered):
        # A reset run begins with events of another run of its tree; they are judged with that run.
        copy.borrowed_to = ordered[0].first - 1
    histories = [(batch, _read(copy, batch)) for batch in ordered]
    sound = [(batch, history) for batch, history in histories if history is not None]
    branches, refused = merge_branches(reversed(_check_branches(copy, sound)))
    copy.branches = branches
    copy.faults.extend(
        fault(Kind.CONTRADICTION, cluster, history.last.version, EventRange(*[history.last.event_id] * 2), reason)
        for history, reason in refused
    )
    copy.status = _status(copy, ordered)
    return copy


def _check_tree(copy: Copy, run_id: str, ordered: Sequence[Batch]) -> None:
    """Report batches outside the copy's tree: a run is in one tree, its own or, after a reset, that of its base."""
    counts = Counter(batch.tree_id for batch in ordered)
    copy.tree_id = max(counts, key=lambda tree_id: (counts[tree_id], tree_id == run_id, tree_id))
    for batch in ordered:
        if batch.tree_id != copy.tree_id:
            reason = f"this batch is in tree {batch.tree_id}, but the run is in tree {copy.tree_id}"
            events = EventRange(batch.first, batch.last)
            copy.faults.append(fault(Kind.WRONG_TREE, copy.cluster, batch.version, events, reason))
    if counts.keys() == {copy.tree_id} != {run_id} and _was_never_reset(ordered):
        reason = f"the run is in tree {copy.tree_id}, but was not reset: it has all of its events itself"
        last = ordered[-1]
        copy.faults.append(fault(Kind.WRONG_TREE, copy.cluster, last.version, EventRange(last.last, last.last), reason))


def _was_never_reset(ordered: Sequence[Batch]) -> bool:
    """Whether a run has its own first event and no WorkflowTaskFailed event: every reset writes one."""
    return (
        ordered[0].first == FIRST_EVENT_ID
        and all(len(batch.event_types) == batch.types_count for batch in ordered)
        and not any(TASK_FAILED_EVENT in batch.event_types for batch in ordered)
    )


def merge_branches(
    histories: Iterable[VersionHistory],
) -> tuple[tuple[VersionHistory, ...], list[tuple[VersionHistory, str]]]:
    """Return the longest branches of these histories, and the histories that contradict earlier ones."""
    branches: list[VersionHistory] = []
    refused = []
    for history in dict.fromkeys(histories):
        try:
            ancestors = [lowest_common_ancestor(branch, history) for branch in branches]
        except GiveUp as contradiction:
            refused.append((history, str(contradiction)))
            continue
        if history.last in ancestors:
            continue
        branches = [branch for branch, ancestor in zip(branches, ancestors, strict=True) if ancestor != branch.last]
        branches.append(history)
    return tuple(branches), refused


def fault(kind: Kind, cluster: str, version: int, events: EventRange, detail: str) -> Finding:
    """Return a finding that is wrong regardless of the grace period."""
    return Finding(kind, State.WRONG, cluster, None, version, *events, detail)


def _read(copy: Copy, batch: Batch) -> VersionHistory | None:
    """Add the batch's events to the copy; return the branch that the batch ends, or None if the batch is unsound."""
    unsound, history = _history_of(copy.cluster, batch)
    if unsound is not None:
        copy.faults.append(unsound)
    if batch.payload_fault:
        events = EventRange(batch.first, batch.last)
        copy.faults.append(fault(Kind.WRONG_PAYLOAD, copy.cluster, batch.version, events, batch.payload_fault))
    _hold(copy, batch, history)
    return history if unsound is None else None


def _history_of(cluster: str, batch: Batch) -> tuple[Finding | None, VersionHistory | None]:
    """Return the fault of a batch, if any, and the branch that it ends, if that can be determined."""

    def unsound(kind: Kind, reason: object) -> Finding:
        return fault(kind, cluster, batch.version, EventRange(batch.first, batch.last), str(reason))

    if not batch.items or batch.last > EVENT_ID_MAX:
        reason = f"the batch has {len(batch.items)} version history items, and ends at event {batch.last}"
        return unsound(Kind.MALFORMED_BATCH, reason), None
    try:
        history = VersionHistory.from_pairs(batch.items)
    except MalformedHistory as broken:
        # Version histories are built by appends, so an invalid item order means an invalid append.
        return unsound(Kind.BROKEN_APPEND, broken), None
    try:
        sound = EventBatch(EventRange(batch.first, batch.last), batch.version, history)
    except MalformedBatch as broken:
        covers = 1 <= batch.first <= batch.last <= history.last.event_id
        is_mixed = covers and history.version_of(batch.first) != history.version_of(batch.last)
        return unsound(Kind.MIXED_VERSIONS if is_mixed else Kind.MALFORMED_BATCH, broken), history if covers else None
    wrong = _wrong_contents(batch)
    return (None, sound.history) if wrong is None else (unsound(Kind.MALFORMED_BATCH, wrong), history)


def _wrong_contents(batch: Batch) -> str | None:
    """Return how the digests, types and signals contradict the number of events; None if they don't."""
    if batch.types_count == TYPES_UNKNOWN:
        return None
    count = batch.last - batch.first + 1
    if (len(batch.digests), batch.types_count) != (count * DIGEST_CHARS, count):
        return f"{count} events have {len(batch.digests) // DIGEST_CHARS} digests and {batch.types_count} types"
    signals = batch.event_types.count(SIGNALED_EVENT)
    if len(batch.signals) != signals:
        return f"{signals} signals have {len(batch.signals)} ids"
    return None


def _hold(copy: Copy, batch: Batch, history: VersionHistory | None) -> None:
    """Add the batch's events to the copy, even those of an unsound batch: they are wrong, but must not count as
    missing.

    An event without a digest gets an empty one, which is not compared with other clusters.
    """
    signals = iter(batch.signals)
    changed: list[int] = []
    count = batch.last - batch.first + 1
    is_trusted = history is not None and batch.types_count == TYPES_UNKNOWN
    described = max(batch.types_count, len(batch.digests) // DIGEST_CHARS)
    for place in range(count if is_trusted else min(count, described)):
        event_id = batch.first + place
        version = batch.version if history is None else history.version_of(event_id)
        event = Item(event_id, version)
        digest = batch.digests[place * DIGEST_CHARS : (place + 1) * DIGEST_CHARS]
        before = copy.held.setdefault(event, digest)
        if digest:
            # The later write wins: batches come in the order of their task ids.
            copy.held[event] = digest
            changed += [event_id] if before not in ("", digest) else []
        copy.seen_us[event] = min(batch.time_us, copy.seen_us.get(event, batch.time_us))
        copy.arrived_us[event] = min(batch.arrived_us, copy.arrived_us.get(event, batch.arrived_us))
        if place < len(batch.event_types):
            copy.types[event] = batch.event_types[place]
        if batch.signals and place < len(batch.event_types) and batch.event_types[place] == SIGNALED_EVENT:
            copy.signals[event] = next(signals, "")
    if changed:
        reason = "the same events were written twice, with different contents"
        events = EventRange(changed[0], changed[-1])
        copy.faults.append(fault(Kind.BROKEN_APPEND, copy.cluster, batch.version, events, reason))


def _check_branches(copy: Copy, sound: Sequence[tuple[Batch, VersionHistory]]) -> list[VersionHistory]:
    """Return the histories of the batches that continue their branch, possibly after a gap; report the others.

    If events were sent again, a batch may occur twice, or its events may occur again as parts of other batches.
    """
    tips: dict[str, VersionHistory] = {}
    kept = []
    for batch, history in sound:
        tip = tips.get(batch.branch_id)
        if tip is not None and lowest_of(tip, history) not in (tip.last, history.last):
            reason = f"{history.to_pairs()} does not continue {tip.to_pairs()}, the earlier history of the branch"
            copy.faults.append(
                fault(Kind.BROKEN_APPEND, copy.cluster, batch.version, EventRange(batch.first, batch.last), reason)
            )
            continue
        kept.append(history)
        if tip is None or history.last > tip.last:
            tips[batch.branch_id] = history
    return kept


def lowest_of(left: VersionHistory, right: VersionHistory) -> Item | None:
    """Return the lowest common ancestor; None if the two histories contradict each other."""
    try:
        return lowest_common_ancestor(left, right)
    except GiveUp:
        return None


def _status(copy: Copy, ordered: Sequence[Batch]) -> int:
    """Return the run's status after the last event of its current branch; without a branch, after the last batch."""
    current = copy.current
    ends = [
        batch
        for batch in ordered
        if current is None or (batch.last, batch.version) == (current.last.event_id, current.last.version)
    ]
    return max(ends or ordered, key=lambda batch: (batch.last, batch.task_id)).status
