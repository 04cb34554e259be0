"""Restores events that a run's state contains but the store has lost: the same events, at the same position.

Existing events are never changed: if the stored and the received contents differ, `StoredDiffers` is raised, and an
operator must decide. Events that are not in the state are applied by `apply_batch` instead.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from google.protobuf.message import DecodeError
from temporalio.api.history.v1 import History, HistoryEvent

from fairlead.api.errors import NotFound
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
from fairlead.history.messages.ndc import Outcome, ReplicatedBatch
from fairlead.history.messages.restore import DryRunOutcome, DryRunRequest, DryRunResponse, RestoreResponse
from fairlead.history.ndc.branches import PAGE_BYTES_MAX, StoredBranch, branches_of, tree_of
from fairlead.history.ndc.incoming_batch import Arriving, read_batch
from fairlead.history.shard.journal import event_digest
from fairlead.history.shard.stream_rows import StreamRow
from fairlead.history.state.run import RUNNING
from fairlead.storage.commit import BatchWrite, segments_of
from fairlead.storage.history import RunKey, StoredBatch

if TYPE_CHECKING:
    from fairlead.history.shard.context import OperationContext
    from fairlead.history.shard.run_cache import LoadedRun
    from fairlead.history.shard.shard import Shard

# Transaction id for events restored at the start of a branch: below all other ids, so that the events count as the
# oldest.
EARLIEST_TRANSACTION_ID = 1


class StoredDiffers(GiveUp):
    """The store has other contents for an event that is to be restored: nothing was changed."""


class NothingToRestore(RetryElsewhere):
    """The run's state does not contain the events: apply them instead of restoring them."""


class _Piece(NamedTuple):
    """Events that are written as one batch, and the branch that stores them."""

    branch_id: str
    events: list[HistoryEvent]

    @property
    def ends(self) -> EventRange:
        return EventRange(self.events[0].event_id, self.events[-1].event_id)


async def restore_batch(context: OperationContext, replicated: ReplicatedBatch) -> RestoreResponse:
    """Write the events of a batch that are in the run's state but not in the store, in one commit."""
    arriving = read_batch(replicated)
    key = RunKey(context.namespace.id, replicated.workflow_id, replicated.run_id)
    shard = context.shard
    with shard.handover_writes.applying(key.namespace_id):
        async with shard.lock(*key.workflow):
            run = await shard.load(*key)
            branch = _branch_with(run, arriving.batch)
            stored = [each async for each in _stored(shard, run.state.identity.tree_id, branch, arriving.batch.events)]
            pieces = list(_pieces(branch, arriving, _compared(arriving, stored)))
            if pieces:
                await _write(context, run, branch, pieces, source=replicated.source)
            return RestoreResponse(sum(len(piece.events) for piece in pieces))


async def dry_run(context: OperationContext, request: DryRunRequest) -> DryRunResponse:
    """Dry run of restoring or applying each range, in order; each range sees the effects of the earlier ranges."""
    shard = context.shard
    async with shard.lock(context.namespace.id, request.workflow_id):
        run = await _load(shard, RunKey(context.namespace.id, request.workflow_id, request.run_id))
        branches = [] if run is None else branches_of(run.state)
        tree = tree_of(branches)
        expected = []
        for each in request.ranges:
            batch = EventBatch(
                EventRange(each.first_event_id, each.last_event_id), each.version, VersionHistory.from_pairs(each.items)
            )
            decision = tree.plan(batch)
            if isinstance(decision, Gap):
                expected.append(DryRunOutcome(Outcome.GAP, 0, decision.missing.first, decision.missing.last + 1))
            elif isinstance(decision, Duplicate):
                expected.append(await _dry_run_restored(shard, run, branches, batch))
            else:
                expected.append(DryRunOutcome(_outcome(tree, decision), decision.events.size))
                tree = tree.apply(decision)
        return DryRunResponse(tuple(expected))


async def _dry_run_restored(
    shard: Shard, run: LoadedRun | None, branches: Sequence[StoredBranch], batch: EventBatch
) -> DryRunOutcome:
    branch = _holding(branches, batch)
    if run is None or branch is None:
        # An earlier range of this request contains these events.
        return DryRunOutcome(Outcome.DUPLICATE)
    here = 0
    first, last = batch.events
    async for stored in _stored(shard, run.state.identity.tree_id, branch, batch.events):
        here += min(last, stored.last_event_id) - max(first, stored.first_event_id) + 1
    missing = batch.events.size - here
    return DryRunOutcome(Outcome.RESTORED if missing else Outcome.DUPLICATE, missing)


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
    except NotFound:
        return None


def _branch_with(run: LoadedRun, batch: EventBatch) -> StoredBranch:
    branches = branches_of(run.state)
    # Raises an error if the version history contradicts any branch.
    decision = tree_of(branches).plan(batch)
    branch = _holding(branches, batch)
    if not isinstance(decision, Duplicate) or branch is None:
        first, last = batch.events
        raise NothingToRestore(
            f"run {run.key.run_id} has no branch with events {first} to {last} at version {batch.version}: apply "
            "them instead of restoring them"
        )
    return branch


def _holding(branches: Sequence[StoredBranch], batch: EventBatch) -> StoredBranch | None:
    last = batch.history.last
    return next((each for each in branches if each.history.contains(event_id=last[0], version=last[1])), None)


async def _stored(shard: Shard, tree_id: str, branch: StoredBranch, events: EventRange) -> AsyncIterator[StoredBatch]:
    """The stored batches of a range of a branch; some may be missing."""
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
    """The ids of the events that are stored; these events must equal the received ones."""
    arrived = {event.event_id: event for event in arriving.events}
    found: set[int] = set()
    for batch in stored:
        try:
            events = History.FromString(batch.payload).events
        except (DecodeError, UnicodeDecodeError) as wrong:
            raise StoredDiffers(
                f"the stored events {batch.first_event_id} to {batch.last_event_id} can't be decoded ({wrong}): they "
                "are not overwritten, an operator must examine them"
            ) from None
        for event in events:
            other = arrived.get(event.event_id)
            if other is None:
                continue
            if event.version != other.version or event_digest(event) != event_digest(other):
                raise StoredDiffers(
                    f"event {event.event_id} has other contents in the store than in the source cluster: it is not "
                    "overwritten, an operator must compare both"
                )
            found.add(event.event_id)
    return found


def _pieces(branch: StoredBranch, arriving: Arriving, here: set[int]) -> Iterator[_Piece]:
    """The missing events, as groups of consecutive events within one branch."""
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


async def _write(
    context: OperationContext, run: LoadedRun, branch: StoredBranch, pieces: Sequence[_Piece], *, source: str
) -> None:
    shard, state = context.shard, run.state
    tree_id = state.identity.tree_id
    namespace = context.services.namespaces.cached_id(context.namespace.id) or context.namespace
    transactions = [await _transaction_before(shard, tree_id, branch, piece.ends.first) for piece in pieces]
    # No other code may take ids between this call and the commit: the reserved range may end right after these ids.
    await shard.ids.ensure(2 * len(pieces) + 8)
    written = shard.writer.empty(namespace)
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
                time_us=context.services.clock_ns() // 1000,
                origin=source,
            )
            written.streamed.append((row, payload))
    # The state is unchanged, but writing it fails if the run was deleted in the meantime.
    written.add_run(run)
    await shard.writer.store(written)


async def _transaction_before(shard: Shard, tree_id: str, branch: StoredBranch, first_event_id: int) -> int:
    """The transaction id of the event that precedes the restored events.

    An export finds the events that a reset run shares with its base run by their transaction ids, which are lower than
    the reset's. So a restored batch must not get a higher id.
    """
    if first_event_id == 1:
        return EARLIEST_TRANSACTION_ID
    before = await shard.services.store.read_branch(
        tree_id, branch.branch_id, 1, first_event_id, limit_bytes=1, reverse=True
    )
    return before[0].transaction_id if before else EARLIEST_TRANSACTION_ID
