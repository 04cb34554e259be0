"""One cluster's copy of a run, read from its journaled batches, and what is wrong with it by itself."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fairlead.core.errors import GiveUp
from fairlead.core.versions import (
    BranchTree,
    EventBatch,
    EventRange,
    Item,
    MalformedBatch,
    MalformedHistory,
    VersionHistory,
    lowest_common_ancestor,
)
from fairlead.pipeline.kernels.reconcile.records import (
    DIGEST_CHARS,
    EVENT_ID_MAX,
    SIGNALED_EVENT,
    TYPES_UNKNOWN,
    Batch,
    Finding,
    Kind,
    State,
)


@dataclass(slots=True)
class Copy:
    """What one cluster holds of a run.

    `lines` are its branches as its version histories tell them, without those that are the beginning of another;
    `held` are the events that batches are there for. Where all is well, the two are the same events.
    """

    cluster: str
    lines: tuple[VersionHistory, ...] = ()
    held: dict[Item, str] = field(default_factory=dict)
    seen_us: dict[Item, int] = field(default_factory=dict)
    signals: dict[Item, str] = field(default_factory=dict)
    status: int = 0
    first_us: int = 0
    last_us: int = 0
    borrowed_to: int | None = None
    faults: list[Finding] = field(default_factory=list)

    @property
    def current(self) -> VersionHistory | None:
        """The branch that the run's state here sums up."""
        return BranchTree.restore(self.lines).current if self.lines else None

    def claims(self, event: Item) -> bool:
        """Whether a version history of this cluster passes through the event."""
        return any(line.contains(event_id=event.event_id, version=event.version) for line in self.lines)


def read_copy(cluster: str, run_id: str, batches: Iterable[Batch]) -> Copy:
    """The copy that these batches make, whatever the order and however often each was journaled."""
    unique = {
        (batch.branch_id, batch.first, batch.task_id, batch.last, batch.version, batch.digests, batch.items): batch
        for batch in batches
    }
    ordered = sorted(unique.values(), key=lambda batch: (batch.first, batch.version, batch.task_id, batch.branch_id))
    copy = Copy(cluster)
    copy.first_us = min(batch.time_us for batch in ordered)
    copy.last_us = max(batch.time_us for batch in ordered)
    if all(batch.tree_id != run_id for batch in ordered):
        # A reset run begins with the events of another run of its tree; they are judged there.
        copy.borrowed_to = ordered[0].first - 1
    histories = [(batch, _read(copy, batch)) for batch in ordered]
    sound = [(batch, history) for batch, history in histories if history is not None]
    lines, refused = merge_lines(reversed(_check_branches(copy, sound)))
    copy.lines = lines
    copy.faults.extend(
        fault(Kind.CONTRADICTION, cluster, history.last.version, EventRange(*[history.last.event_id] * 2), reason)
        for history, reason in refused
    )
    copy.status = _status(copy, ordered)
    return copy


def merge_lines(
    histories: Iterable[VersionHistory],
) -> tuple[tuple[VersionHistory, ...], list[tuple[VersionHistory, str]]]:
    """The longest lines among these histories, and those that contradict the ones before them, with the reason."""
    lines: list[VersionHistory] = []
    refused = []
    for history in dict.fromkeys(histories):
        try:
            ancestors = [lowest_common_ancestor(line, history) for line in lines]
        except GiveUp as contradiction:
            refused.append((history, str(contradiction)))
            continue
        if history.last in ancestors:
            continue
        lines = [line for line, ancestor in zip(lines, ancestors, strict=True) if ancestor != line.last]
        lines.append(history)
    return tuple(lines), refused


def fault(kind: Kind, cluster: str, version: int, events: EventRange, detail: str) -> Finding:
    """What no grace excuses."""
    return Finding(kind, State.WRONG, cluster, None, version, *events, detail)


def _read(copy: Copy, batch: Batch) -> VersionHistory | None:
    """Take the batch's events in; answers with the line that it ends, or None if the batch is unsound."""
    unsound, history = _history_of(copy.cluster, batch)
    if unsound is not None:
        copy.faults.append(unsound)
    _hold(copy, batch, history)
    return history if unsound is None else None


def _history_of(cluster: str, batch: Batch) -> tuple[Finding | None, VersionHistory | None]:
    """The line that a batch ends, and what is wrong with the batch; of an unsound one, the line if it can be told."""

    def unsound(kind: Kind, reason: object) -> Finding:
        return fault(kind, cluster, batch.version, EventRange(batch.first, batch.last), str(reason))

    if not batch.items or batch.last > EVENT_ID_MAX:
        reason = f"it came with {len(batch.items)} items of a version history, and ends at event {batch.last}"
        return unsound(Kind.MALFORMED_BATCH, reason), None
    try:
        history = VersionHistory.from_pairs(batch.items)
    except MalformedHistory as broken:
        # What may follow what in a version history is what may be appended to it.
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
    """How the descriptions of the events do not fit their number, if so."""
    if batch.types_count == TYPES_UNKNOWN:
        return None
    count = batch.last - batch.first + 1
    if (len(batch.digests), batch.types_count) != (count * DIGEST_CHARS, count):
        return f"{count} events came with {len(batch.digests) // DIGEST_CHARS} digests and {batch.types_count} types"
    signals = batch.event_types.count(SIGNALED_EVENT)
    if batch.signals and len(batch.signals) != signals:
        return f"{signals} signals came with {len(batch.signals)} ids"
    return None


def _hold(copy: Copy, batch: Batch, history: VersionHistory | None) -> None:
    """An unsound batch is there, too: its events are not missing, whatever else is wrong with them.

    An event whose digest is not there has an empty one, which says nothing about what others have.
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
        if (copy.held.setdefault(event, digest) or digest) != digest:
            # The later write: batches come here in the order of their task ids.
            copy.held[event] = digest
            changed.append(event_id)
        copy.seen_us[event] = min(batch.time_us, copy.seen_us.get(event, batch.time_us))
        if batch.signals and place < len(batch.event_types) and batch.event_types[place] == SIGNALED_EVENT:
            copy.signals[event] = next(signals, "")
    if changed:
        reason = "the same events were written twice, with different contents"
        events = EventRange(changed[0], changed[-1])
        copy.faults.append(fault(Kind.BROKEN_APPEND, copy.cluster, batch.version, events, reason))


def _check_branches(copy: Copy, sound: Sequence[tuple[Batch, VersionHistory]]) -> list[VersionHistory]:
    """The histories of the batches that go on from those before them on the same branch, if over a gap.

    Whole batches may come twice, or again as parts of others, where events were sent again.
    """
    tips: dict[str, VersionHistory] = {}
    kept = []
    for batch, history in sound:
        tip = tips.get(batch.branch_id)
        if tip is not None and lowest_of(tip, history) not in (tip.last, history.last):
            reason = f"{history.to_pairs()} does not go on from {tip.to_pairs()}, which the branch had before"
            copy.faults.append(
                fault(Kind.BROKEN_APPEND, copy.cluster, batch.version, EventRange(batch.first, batch.last), reason)
            )
            continue
        kept.append(history)
        if tip is None or history.last > tip.last:
            tips[batch.branch_id] = history
    return kept


def lowest_of(left: VersionHistory, right: VersionHistory) -> Item | None:
    """The lowest common ancestor; None where the two contradict each other."""
    try:
        return lowest_common_ancestor(left, right)
    except GiveUp:
        return None


def _status(copy: Copy, ordered: Sequence[Batch]) -> int:
    """The run's status after the last events of its current branch; of a copy without one, after the latest batch."""
    current = copy.current
    ends = [
        batch
        for batch in ordered
        if current is None or (batch.last, batch.version) == (current.last.event_id, current.last.version)
    ]
    return max(ends or ordered, key=lambda batch: (batch.last, batch.task_id)).status
