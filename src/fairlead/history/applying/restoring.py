"""Events that a run's state has summed up and that its store has lost are written again: exactly those, at their place.

Nothing that is there is touched: events that are stored with other contents than those that have come are refused, and
a person must look. Events of which the state knows nothing are no matter of this module but of `apply_batch`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from google.protobuf.message import DecodeError
from temporalio.api.history.v1 import History, HistoryEvent

from fairlead.core.errors import GiveUp, RetryElsewhere
from fairlead.core.versions import (
    Append,
    BranchTree,
    Create,
    Duplicate,
    EventBatch,
    EventRange,
    Fork,
    Gap,
    VersionHistory,
)
from fairlead.history.applying.arriving import Arriving, read_batch
from fairlead.history.applying.branches import PAGE_BYTES_MAX, StoredBranch, branches_of, tree_of
from fairlead.history.applying.messages import Outcome, ReplicatedBatch
from fairlead.history.journaling import event_digest
from fairlead.history.refusals import Refused
from fairlead.history.state.run import RUNNING
from fairlead.history.stream_rows import StreamRow
from fairlead.rpc import Code
from fairlead.storage.history_contract import BatchWrite, RunKey, StoredBatch, segments_of

if TYPE_CHECKING:
    from fairlead.history.runs import LoadedRun
    from fairlead.history.scope import Scope
    from fairlead.history.shard import Shard

# Below any that a shard gives: what is restored at the beginning of a branch is not later than what follows it.
EARLIEST_TRANSACTION_ID = 1


class StoredDiffers(GiveUp):
    """The store has other events where some are to be restored: nothing was changed."""


class NothingToRestore(RetryElsewhere):
    """The run's state does not have the events that are to be restored: they have to be applied."""


class RestoreAnswer(msgspec.Struct, array_like=True, frozen=True):
    """How many events were missing in the store and are there now."""

    restored: int


class LineRange(msgspec.Struct, array_like=True, frozen=True):
    """Events of one version in a row; `items` is the line that they stand on."""

    first_event_id: int
    last_event_id: int
    version: int
    items: tuple[tuple[int, int], ...]


class ForeseeRequest(msgspec.Struct, array_like=True, frozen=True):
    """Ask what would become of events of a run if they came in this order; nothing is changed."""

    workflow_id: str
    run_id: str
    ranges: tuple[LineRange, ...]


class Foreseen(msgspec.Struct, array_like=True, frozen=True):
    """What would become of a range, and how many events would be written; of a gap, what is missing before it."""

    outcome: str
    events: int = 0
    missing_from: int = 0
    missing_to: int = 0


class ForeseeAnswer(msgspec.Struct, array_like=True, frozen=True):
    """One for each range."""

    foreseen: tuple[Foreseen, ...]


encode = msgspec.msgpack.Encoder().encode
decode_restored = msgspec.msgpack.Decoder(RestoreAnswer).decode
decode_foreseen = msgspec.msgpack.Decoder(ForeseeAnswer).decode


class _Piece(NamedTuple):
    """Events that are to be written as one batch of the branch that holds them."""

    branch_id: str
    events: list[HistoryEvent]

    @property
    def ends(self) -> EventRange:
        return EventRange(self.events[0].event_id, self.events[-1].event_id)


async def restore_batch(scope: Scope, replicated: ReplicatedBatch) -> RestoreAnswer:
    """Write the events of a batch that the store does not have although the run's state says so: in one commit."""
    arriving = read_batch(replicated)
    key = RunKey(scope.namespace.id, replicated.workflow_id, replicated.run_id)
    shard = scope.shard
    with shard.shared.applying(key.namespace_id):
        async with shard.lock(*key[:2]):
            run = await shard.load(*key)
            branch = _branch_with(run, arriving.batch)
            stored = [each async for each in _stored(shard, run.state.identity.tree_id, branch, arriving.batch.events)]
            pieces = list(_pieces(branch, arriving, _compared(arriving, stored)))
            if pieces:
                await _write(scope, run, branch, pieces, source=replicated.source)
            return RestoreAnswer(sum(len(piece.events) for piece in pieces))


async def foresee(scope: Scope, request: ForeseeRequest) -> ForeseeAnswer:
    """What restoring and applying would do, range by range, each after those before it."""
    shard = scope.shard
    async with shard.lock(scope.namespace.id, request.workflow_id):
        run = await _load(shard, RunKey(scope.namespace.id, request.workflow_id, request.run_id))
        branches = [] if run is None else branches_of(run.state)
        tree = tree_of(branches)
        foreseen = []
        for each in request.ranges:
            batch = EventBatch(
                EventRange(each.first_event_id, each.last_event_id), each.version, VersionHistory.from_pairs(each.items)
            )
            decision = tree.plan(batch)
            if isinstance(decision, Gap):
                foreseen.append(Foreseen(Outcome.GAP, 0, decision.missing.first, decision.missing.last + 1))
            elif isinstance(decision, Duplicate):
                foreseen.append(await _foresee_restored(shard, run, branches, batch))
            else:
                foreseen.append(Foreseen(_outcome(tree, decision), decision.events.size))
                tree = tree.apply(decision)
        return ForeseeAnswer(tuple(foreseen))


async def _foresee_restored(
    shard: Shard, run: LoadedRun | None, branches: Sequence[StoredBranch], batch: EventBatch
) -> Foreseen:
    branch = _holding(branches, batch)
    if run is None or branch is None:
        # Of what an earlier range of the same request would bring.
        return Foreseen(Outcome.DUPLICATE)
    here = 0
    first, last = batch.events
    async for stored in _stored(shard, run.state.identity.tree_id, branch, batch.events):
        here += min(last, stored.last_event_id) - max(first, stored.first_event_id) + 1
    missing = batch.events.size - here
    return Foreseen(Outcome.RESTORED if missing else Outcome.DUPLICATE, missing)


def _outcome(tree: BranchTree, decision: Create | Append | Fork) -> Outcome:
    if isinstance(decision, Create):
        return Outcome.CREATED
    if isinstance(decision, Append):
        is_current = decision.branch_index == tree.current_index
        switched = Outcome.REBUILT if decision.switches_current else Outcome.BACKFILLED
        return Outcome.APPLIED if is_current else switched
    return Outcome.REBUILT if decision.switches_current else Outcome.FORKED


async def _load(shard: Shard, key: RunKey) -> LoadedRun | None:
    try:
        return await shard.load(*key)
    except Refused as refused:
        if refused.code != Code.NOT_FOUND:
            raise
        return None


def _branch_with(run: LoadedRun, batch: EventBatch) -> StoredBranch:
    branches = branches_of(run.state)
    # Refuses a line that contradicts any branch.
    decision = tree_of(branches).plan(batch)
    branch = _holding(branches, batch)
    if not isinstance(decision, Duplicate) or branch is None:
        first, last = batch.events
        raise NothingToRestore(
            f"run {run.key.run_id} has no branch with events {first} to {last} at version {batch.version}: they have "
            "to be applied, not restored"
        )
    return branch


def _holding(branches: Sequence[StoredBranch], batch: EventBatch) -> StoredBranch | None:
    last = batch.history.last
    return next((each for each in branches if each.history.contains(event_id=last[0], version=last[1])), None)


async def _stored(shard: Shard, tree_id: str, branch: StoredBranch, events: EventRange) -> AsyncIterator[StoredBatch]:
    """What the store has of a range of a branch, with whatever holes."""
    from_event_id, end = events.first, events.last + 1
    while from_event_id < end:
        page = await shard.services.store.read_branch(
            tree_id, branch.branch_id, from_event_id, end, limit_bytes=PAGE_BYTES_MAX
        )
        if not page:
            return
        for batch in page:
            yield batch
        from_event_id = page[-1].last_event_id + 1


def _compared(arriving: Arriving, stored: Sequence[StoredBatch]) -> set[int]:
    """The ids of the events that are stored; they must be those that have come."""
    arrived = {event.event_id: event for event in arriving.events}
    found: set[int] = set()
    for batch in stored:
        try:
            events = History.FromString(batch.payload).events
        except (DecodeError, UnicodeDecodeError) as wrong:
            raise StoredDiffers(
                f"what is stored of events {batch.first_event_id} to {batch.last_event_id} can't be read ({wrong}): it "
                "is not overwritten, somebody has to look at it"
            ) from None
        for event in events:
            other = arrived.get(event.event_id)
            if other is None:
                continue
            if event.version != other.version or event_digest(event) != event_digest(other):
                raise StoredDiffers(
                    f"event {event.event_id} is stored with other contents than the cluster sends that is to repair "
                    "it: it is not overwritten, somebody has to look at both"
                )
            found.add(event.event_id)
    return found


def _pieces(branch: StoredBranch, arriving: Arriving, here: set[int]) -> Iterator[_Piece]:
    """What is not here, in rows of events that one branch holds."""
    first, last = arriving.batch.events
    segments = segments_of(branch.branch_id, branch.ancestors, from_event_id=first, to_event_id=last + 1, reverse=False)
    for segment in segments:
        piece = _Piece(segment.branch_id, [])
        for event in arriving.events:
            is_wanted = segment.from_event_id <= event.event_id < segment.to_event_id and event.event_id not in here
            if is_wanted:
                piece.events.append(event)
            elif piece.events:
                yield piece
                piece = _Piece(segment.branch_id, [])
        if piece.events:
            yield piece


async def _write(scope: Scope, run: LoadedRun, branch: StoredBranch, pieces: Sequence[_Piece], *, source: str) -> None:
    shard, state = scope.shard, run.state
    tree_id = state.identity.tree_id
    namespace = scope.services.namespaces.cached_id(scope.namespace.id) or scope.namespace
    transactions = [await _transaction_before(shard, tree_id, branch, piece.ends.first) for piece in pieces]
    # Nobody else takes ids between this and the commit: the range may end right after those that it sees to.
    await shard.ensure_ids(2 * len(pieces) + 8)
    written = shard.written(namespace)
    for piece, transaction_id in zip(pieces, transactions, strict=True):
        first, last = piece.ends
        version = piece.events[0].version
        payload = History(events=piece.events).SerializeToString()
        written.batches.append(BatchWrite(tree_id, piece.branch_id, first, last, version, transaction_id, payload))
        if written.is_streamed:
            is_end = state.versions is not None and state.versions.last == (last, version)
            row = StreamRow(
                *(*run.key, tree_id, piece.branch_id, first, last, version),
                items=branch.history.truncate(last).to_pairs(),
                status=state.status if is_end else RUNNING,
                new_run_id=state.new_run_id if is_end else "",
                time_us=scope.services.clock_ns() // 1000,
                origin=source,
            )
            written.streamed.append((row, payload))
    # The state stays as it is; that it is written makes sure that nobody has deleted the run meanwhile.
    written.add_run(run)
    await shard.store(written)


async def _transaction_before(shard: Shard, tree_id: str, branch: StoredBranch, first_event_id: int) -> int:
    """The transaction of the events before these.

    What a reset run shares with its base is told by its transaction being older than the reset: a restored batch must
    not look younger than it is.
    """
    if first_event_id == 1:
        return EARLIEST_TRANSACTION_ID
    before = await shard.services.store.read_branch(
        tree_id, branch.branch_id, 1, first_event_id, limit_bytes=1, reverse=True
    )
    return before[0].transaction_id if before else EARLIEST_TRANSACTION_ID
