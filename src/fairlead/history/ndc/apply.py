"""Applies a batch of another cluster's events to its run, in one commit or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import History

from fairlead.api.errors import NotFound
from fairlead.api.namespaces import Namespace
from fairlead.core.errors import GiveUp, RetryLater
from fairlead.core.versions import Append, Create, Decision, Duplicate, Fork, Gap, lowest_common_ancestor
from fairlead.history.events import Batch
from fairlead.history.events.kinds import CLOSING
from fairlead.history.messages.ndc import ApplyResponse, Outcome, ReplicatedBatch, encode_answer
from fairlead.history.ndc.branches import (
    StoredBranch,
    branches_of,
    make_current,
    read_branch,
    side_branch,
    tree_of,
)
from fairlead.history.ndc.buffered_events import flush
from fairlead.history.ndc.current_run import CurrentRunResolution
from fairlead.history.ndc.incoming_batch import Arriving, read_batch
from fairlead.history.ndc.passive_state import follow, replay, settle
from fairlead.history.ndc.sources import shared_namespace
from fairlead.history.ndc.task_refresh import refresh
from fairlead.history.shard.commit import Step, Written
from fairlead.history.shard.context import OperationContext
from fairlead.history.shard.run_cache import LoadedRun
from fairlead.history.shard.shard import Shard
from fairlead.history.shard.stream_rows import StreamRow
from fairlead.history.state import RunState, decode, encode
from fairlead.history.state.run import SideBranch
from fairlead.history.state.tasks import AnyTask, DeleteAfterRetention, Reapply
from fairlead.storage.commit import BatchWrite, BranchWrite
from fairlead.storage.history import RunKey

# Number of attempts to apply a batch. Buffered events of its run and of the current run must be flushed first, which
# takes an attempt each.
ATTEMPTS_MAX = 4
# Types of events that change a run's visibility row.
SHOWN = CLOSING | {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_OPTIONS_UPDATED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_PAUSED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UNPAUSED,
    EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES,
    EventType.EVENT_TYPE_WORKFLOW_PROPERTIES_MODIFIED,
    EventType.EVENT_TYPE_WORKFLOW_PROPERTIES_MODIFIED_EXTERNALLY,
}


class RebuiltDiffers(GiveUp):
    """The stored events of a branch don't match the branch's version history."""


class RunKeepsChanging(RetryLater):
    """A run changed during every attempt to apply a batch."""


class _Put(NamedTuple):
    """The branch to which a batch is written, and the rows that create the branch."""

    branch: StoredBranch
    writes: tuple[BranchWrite, ...] = ()
    # The first events of a batch, copied because the branch forks within the batch.
    copied: Batch | None = None


async def apply_batch(context: OperationContext, replicated: ReplicatedBatch) -> bytes:
    """Apply a batch, even if earlier batches have not arrived; return the encoded `ApplyResponse`.

    A gap or an error changes nothing.
    """
    arriving = read_batch(replicated)
    key = RunKey(context.namespace.id, replicated.workflow_id, replicated.run_id)
    with context.shard.handover_writes.applying(key.namespace_id):
        namespace = await _namespace(context, replicated, arriving)
        context.shard.handover_writes.check_stays(namespace)
        async with context.shard.lock(*key.workflow):
            return encode_answer(await _Application(context.shard, namespace, key, replicated, arriving).run())


async def _namespace(context: OperationContext, replicated: ReplicatedBatch, arriving: Arriving) -> Namespace:
    """The namespace, read again if the events are newer; `UnownedVersion` if the version belongs to no cluster."""
    known = await shared_namespace(context, replicated)
    version = arriving.batch.version
    if version > known.failover_version:
        known = await context.services.namespaces.read_id(known.id)
    if version > known.failover_version:
        # Check only newer versions: older versions may belong to removed clusters, or to the time before the namespace
        # was global.
        context.services.clusters.versions.owner(version)
    return known


class _Application:
    """Applies one batch to its run. The caller must hold the lock of the workflow id."""

    def __init__(
        self, shard: Shard, namespace: Namespace, key: RunKey, replicated: ReplicatedBatch, arriving: Arriving
    ) -> None:
        self._shard = shard
        self._namespace = namespace
        self._key = key
        self._replicated = replicated
        self._arriving = arriving

    async def run(self) -> ApplyResponse:
        for _ in range(ATTEMPTS_MAX):
            run = await self._load()
            branches = [] if run is None else branches_of(run.state)
            decision = tree_of(branches).plan(self._arriving.batch)
            if isinstance(decision, Gap):
                missing = decision.missing
                return ApplyResponse(Outcome.GAP, missing.first, missing.last + 1)
            if isinstance(decision, Duplicate):
                return ApplyResponse(Outcome.DUPLICATE)
            if run is not None and run.state.live.buffered and _changes_state(decision):
                await flush(self._shard, self._namespace, run)
                continue
            answer = await self._carry_out(run, branches, decision)
            if answer is not None:
                return answer
        raise RunKeepsChanging(
            f"run {self._key.run_id} changed during {ATTEMPTS_MAX} attempts to apply a batch: apply the batch again"
        )

    async def _load(self) -> LoadedRun | None:
        try:
            return await self._shard.load(*self._key)
        except NotFound:
            return None

    async def _carry_out(
        self, run: LoadedRun | None, branches: list[StoredBranch], decision: Create | Append | Fork
    ) -> ApplyResponse | None:
        if run is None or isinstance(decision, Create):
            return await self._advance(None, self._created(), Outcome.CREATED)
        put = await self._put(run, branches, decision)
        if decision.switches_current:
            return await self._advance(run, await self._rebuilt(run, branches, decision, put), Outcome.REBUILT, put)
        if isinstance(decision, Append) and decision.branch_index == 0:
            return await self._advance(run, self._appended(run, decision), Outcome.APPLIED, put)
        return await self._backfill(run, decision, put)

    # The branch to write to

    async def _put(self, run: LoadedRun, branches: list[StoredBranch], decision: Append | Fork) -> _Put:
        base = branches[decision.branch_index]
        if isinstance(decision, Append):
            return _Put(base._replace(history=decision.branch))
        tree_id, after = run.state.identity.tree_id, decision.after.event_id
        holder = [batch async for batch in read_branch(self._shard, tree_id, base, after, after + 1)][-1]
        shared_to, copied = after + 1, None
        if holder.last_event_id != after:
            # Branches can fork only at the end of a batch: copy the first events of this batch.
            shared_to = holder.first_event_id
            events = [event for event in History.FromString(holder.payload).events if event.event_id <= after]
            copied = Batch(shared_to, after, History(events=events).SerializeToString())
        ancestors = base.ancestors_before(shared_to) if shared_to > 1 else ()
        branch = StoredBranch(self._shard.services.new_id(), decision.branch, ancestors)
        writes = (BranchWrite(tree_id, branch.branch_id, ancestors),) if ancestors else ()
        return _Put(branch, writes, copied)

    # The new state

    def _created(self) -> tuple[LoadedRun, list[Batch]]:
        run = self._shard.new_run(*self._key)
        state = run.state
        state.live.start_request_id = self._replicated.start_request_id
        follow(state, self._arriving.events, len(self._replicated.events))
        return run, self._arriving.parts

    def _appended(self, run: LoadedRun, decision: Append) -> tuple[LoadedRun, list[Batch]]:
        # Work on a copy: if an event can't be applied, nothing changes.
        changed = LoadedRun(run.key, decode(encode(run.state)), run.db_version)
        changed.batches, changed.bytes = [*run.batches], run.bytes
        # If the start of the batch is here already, apply only the missing events.
        events, parts = self._arriving.from_event(decision.events.first)
        follow(changed.state, events, _size(parts))
        _check_branch(changed.state, decision)
        return changed, parts

    async def _rebuilt(
        self, run: LoadedRun, branches: list[StoredBranch], decision: Append | Fork, put: _Put
    ) -> tuple[LoadedRun, list[Batch]]:
        """The state, rebuilt from the stored events of the branch and the events of the batch."""
        identity = run.state.identity
        state = RunState(identity)
        size_bytes = 0
        base = branches[decision.branch_index]
        async for stored in read_branch(self._shard, identity.tree_id, base, 1, decision.events.first):
            size_bytes += len(stored.payload)
            before = [one for one in History.FromString(stored.payload).events if one.event_id < decision.events.first]
            replay(state, before)
        events, parts = self._arriving.from_event(decision.events.first)
        follow(state, events, size_bytes + _size(parts))
        _check_branch(state, decision)
        _carry_over(run.state, state)
        make_current(state, put.branch)
        state.live.branches = [
            # Without the settled event id: events that were reapplied to the old current branch may be missing on the
            # new current branch.
            side_branch(branch)
            for branch in branches
            if branch.branch_id != put.branch.branch_id
        ]
        return LoadedRun(run.key, state, run.db_version), parts

    # The commits

    async def _advance(
        self,
        before: LoadedRun | None,
        advanced: tuple[LoadedRun, list[Batch]],
        outcome: Outcome,
        put: _Put | None = None,
    ) -> ApplyResponse | None:
        """Write a run whose current branch has grown or changed; None if the run must be loaded again first."""
        run, parts = advanced
        shard = self._shard
        present = await shard.current_runs.find(*self._key.workflow)
        is_current = present is not None and present.run_id == self._key.run_id
        other = await shard.load(*RunKey.of(present)) if present is not None and not is_current else None
        position = CurrentRunResolution(run, before, other)
        position.decide(shard, is_current=is_current, rebuilt=outcome is Outcome.REBUILT)
        if position.to_flush is not None:
            await flush(shard, self._namespace, position.to_flush)
            return None
        await shard.ids.ensure(_ids_wanted(run.state, parts) + position.ids)
        written = self._written(run.state)
        now_ns = shard.services.clock_ns()
        if put is not None and put.copied is not None:
            self._copy(written, run.state, put.copied)
        source = self._replicated.source
        for part in parts:
            written.add_batch(run, part, transaction_id=shard.ids.take(1), now_ns=now_ns, origin=source)
            run.keep(part)
        position.add_to(written, shard)
        self._add_tasks(written, run, is_shown=before is None or self._is_shown(before, run))
        await shard.writer.store(
            written,
            current=position.current_write(present),
            branches=() if put is None else put.writes,
        )
        return ApplyResponse(outcome)

    def _add_tasks(self, written: Written, run: LoadedRun, *, is_shown: bool) -> None:
        """Add the state and its tasks; in a passive cluster only the retention task."""
        state = run.state
        if is_shown:
            written.show(state)
        if written.is_active:
            transaction = self._shard.transaction(written.namespace, state)
            refresh(transaction)
            # A workflow task that `refresh` schedules is a new event of this cluster, and needs an id.
            waiting = len(transaction.events) + transaction.buffered_count
            written.add_step(Step(run, transaction), first_id=self._shard.ids.take(waiting + 1))
            return
        tasks: Sequence[AnyTask] = ()
        if not state.is_open:
            retained_ns = written.namespace.retention_ns
            tasks = (DeleteAfterRetention(state.last_version, state.closed_ns + retained_ns),)
        written.add_run(run, tasks=tasks)

    async def _backfill(self, run: LoadedRun, decision: Append | Fork, put: _Put) -> ApplyResponse:
        """Write events to a branch that is not current; the state stays unchanged."""
        shard, state = self._shard, run.state
        _, parts = self._arriving.from_event(decision.events.first)
        await shard.ids.ensure(_ids_wanted(state, parts))
        written = self._written(state)
        if put.copied is not None:
            self._copy(written, state, put.copied, branch_id=put.branch.branch_id)
        for part in parts:
            self._add_side_batch(written, run, put.branch, part)
        sides = state.live.branches
        if isinstance(decision, Append):
            position = decision.branch_index - 1
            settled = sides[position].settled_event_id
            state.live.branches = _replaced(sides, position, side_branch(put.branch, settled_event_id=settled))
        else:
            state.live.branches = [*sides, side_branch(put.branch)]
        written.add_run(run, tasks=[Reapply(state.last_version)])
        await shard.writer.store(written, branches=put.writes)
        return ApplyResponse(Outcome.BACKFILLED if isinstance(decision, Append) else Outcome.FORKED)

    def _written(self, state: RunState) -> Written:
        written = self._shard.writer.empty(self._namespace)
        # If the events are newer than the namespace known here, the namespace has failed over to another cluster.
        written.is_active = written.is_active and state.last_version <= self._namespace.failover_version
        return written

    def _copy(self, written: Written, state: RunState, batch: Batch, *, branch_id: str = "") -> None:
        identity = state.identity
        written.batches.append(
            BatchWrite(
                identity.tree_id,
                branch_id or identity.branch_id,
                batch.first_event_id,
                batch.last_event_id,
                History.FromString(batch.payload).events[0].version,
                self._shard.ids.take(1),
                batch.payload,
            )
        )

    def _add_side_batch(self, written: Written, run: LoadedRun, branch: StoredBranch, batch: Batch) -> None:
        state, version = run.state, branch.history.last.version
        position = (state.identity.tree_id, branch.branch_id, batch.first_event_id, batch.last_event_id, version)
        written.batches.append(BatchWrite(*position, self._shard.ids.take(1), batch.payload))
        if written.is_streamed:
            row = StreamRow(
                *(*run.key, *position),
                items=branch.history.truncate(batch.last_event_id).to_pairs(),
                status=state.status,
                new_run_id=state.new_run_id,
                time_us=self._shard.services.clock_ns() // 1000,
                origin=self._replicated.source,
            )
            written.streamed.append((row, batch.payload))

    def _is_shown(self, before: LoadedRun, run: LoadedRun) -> bool:
        is_other = before.state.identity.branch_id != run.state.identity.branch_id
        is_moved = before.state.is_zombie != run.state.is_zombie
        has_new_build = _builds(before.state) != _builds(run.state)
        is_mended = before.state.live.reported_problems != run.state.live.reported_problems
        kinds = {event.event_type for event in self._arriving.events}
        return is_other or is_moved or has_new_build or is_mended or not SHOWN.isdisjoint(kinds)


def _builds(state: RunState) -> tuple[object, ...]:
    """The parts of the visibility row that depend on the run's workers; the first workflow task sets them."""
    return state.reset_points, state.versioning, state.completed_task_event_id > 0


def _changes_state(decision: Decision) -> bool:
    if isinstance(decision, Append):
        return decision.switches_current or decision.branch_index == 0
    return isinstance(decision, Fork) and decision.switches_current


def _check_branch(state: RunState, decision: Append | Fork) -> None:
    if state.versions != decision.branch:
        have = () if state.versions is None else state.versions.to_pairs()
        raise RebuiltDiffers(
            f"run {state.identity.run_id}: its stored events have the version history {have}, but its branch has "
            f"{decision.branch.to_pairs()}: an operator must examine the stored events"
        )


def _carry_over(before: RunState, rebuilt: RunState) -> None:
    """Copy the values that neither follow from events nor belong to the old current branch."""
    old, live = before.live, rebuilt.live
    if before.versions is None or rebuilt.versions is None:
        return
    live.start_request_id = old.start_request_id
    live.transitions = old.transitions
    live.watchers = old.watchers
    live.reset_run_id = old.reset_run_id
    live.routing_revision = old.routing_revision
    live.rebuilds = old.rebuilds + 1
    parting = lowest_common_ancestor(before.versions, rebuilt.versions)
    shared = {
        event_id: msgspec.structs.replace(progress)
        for event_id, progress in old.activities.items()
        if event_id <= parting.event_id
    }
    settle(rebuilt, carried=shared, stamp_min=live.rebuilds)


def _ids_wanted(state: RunState, parts: Sequence[Batch]) -> int:
    """Upper bound of the number of ids that a commit takes: for its rows, and for the tasks of all pending work."""
    tables = (state.activities, state.timers, state.children, state.nexus_operations)
    externals = len(state.external_signals) + len(state.external_cancels)
    pending = sum(len(table) for table in tables) + externals + len(state.started.completion_callbacks)
    return 64 + 5 * pending + 2 * len(parts)


def _size(parts: Sequence[Batch]) -> int:
    return sum(len(part.payload) for part in parts)


def _replaced(branches: Sequence[SideBranch], position: int, branch: SideBranch) -> list[SideBranch]:
    return [*branches[:position], branch, *branches[position + 1 :]]
