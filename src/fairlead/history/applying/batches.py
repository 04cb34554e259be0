"""A batch of another cluster's events becomes part of its run here: in one commit, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import History

from fairlead.core.errors import GiveUp, RetryLater
from fairlead.core.versions import Append, Create, Decision, Duplicate, Fork, Gap, lowest_common_ancestor
from fairlead.history.applying.arriving import Arriving, read_batch
from fairlead.history.applying.branches import (
    StoredBranch,
    branches_of,
    make_current,
    read_line,
    side_branch,
    tree_of,
)
from fairlead.history.applying.flushing import flush
from fairlead.history.applying.following import follow, replay, settle
from fairlead.history.applying.messages import ApplyAnswer, Outcome, ReplicatedBatch
from fairlead.history.applying.placing import Place
from fairlead.history.applying.refreshing import refresh
from fairlead.history.events import Batch
from fairlead.history.events.kinds import CLOSING
from fairlead.history.namespaces import Namespace
from fairlead.history.refusals import Refused
from fairlead.history.runs import LoadedRun
from fairlead.history.scope import Scope
from fairlead.history.shard import Shard
from fairlead.history.state import RunState, decode, encode
from fairlead.history.state.run import SideBranch
from fairlead.history.state.tasks import AnyTask, DeleteAfterRetention, Reapply
from fairlead.history.stream_rows import StreamRow
from fairlead.history.writing import Step, Written
from fairlead.rpc import Code
from fairlead.storage.history_contract import BatchWrite, BranchWrite, RunKey

# Before a batch is applied, what waits in its run and in the current one is written: each is looked at once more then.
LOOKS_MAX = 4
# Events that change what lists show of a run.
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
    """The stored events of a branch don't have the version history that the branch is known by."""


class RunKeepsChanging(RetryLater):
    """A run was changed as often as a batch was to be applied to it."""


class _Put(NamedTuple):
    """Where the events of a batch go: a branch, and what has to be written that it is there."""

    branch: StoredBranch
    writes: tuple[BranchWrite, ...] = ()
    # The beginning of a batch within which the branch was forked.
    copied: Batch | None = None


async def apply_batch(scope: Scope, replicated: ReplicatedBatch) -> ApplyAnswer:
    """Apply a batch, whatever has come before it. Nothing is changed where the answer is a gap or an error."""
    arriving = read_batch(replicated)
    key = RunKey(scope.namespace.id, replicated.workflow_id, replicated.run_id)
    with scope.shard.shared.applying(key.namespace_id):
        namespace = await _namespace(scope, arriving)
        scope.shard.shared.check_stays(namespace)
        async with scope.shard.lock(*key[:2]):
            return await _Application(scope.shard, namespace, key, replicated, arriving).run()


async def _namespace(scope: Scope, arriving: Arriving) -> Namespace:
    """The namespace, as new as the events are if that can be known here; `UnownedVersion` if they can be of nobody."""
    known = scope.services.namespaces.cached_id(scope.namespace.id) or scope.namespace
    version = arriving.batch.version
    if version > known.failover_version:
        known = await scope.services.namespaces.read_id(known.id)
    if version > known.failover_version:
        # Versions from before may be of clusters that were removed, and of a time when it was not shared.
        scope.services.clusters.versions.owner(version)
    return known


class _Application:
    """One batch on its way into its run. Whoever makes one has the lock of the workflow id."""

    def __init__(
        self, shard: Shard, namespace: Namespace, key: RunKey, replicated: ReplicatedBatch, arriving: Arriving
    ) -> None:
        self._shard = shard
        self._namespace = namespace
        self._key = key
        self._replicated = replicated
        self._arriving = arriving

    async def run(self) -> ApplyAnswer:
        for _ in range(LOOKS_MAX):
            run = await self._load()
            branches = [] if run is None else branches_of(run.state)
            decision = tree_of(branches).plan(self._arriving.batch)
            if isinstance(decision, Gap):
                missing = decision.missing
                return ApplyAnswer(Outcome.GAP, missing.first, missing.last + 1)
            if isinstance(decision, Duplicate):
                return ApplyAnswer(Outcome.DUPLICATE)
            if run is not None and run.state.live.buffered and _changes_state(decision):
                await flush(self._shard, self._namespace, run)
                continue
            answer = await self._carry_out(run, branches, decision)
            if answer is not None:
                return answer
        raise RunKeepsChanging(f"run {self._key.run_id} was changed {LOOKS_MAX} times: apply the batch again")

    async def _load(self) -> LoadedRun | None:
        try:
            return await self._shard.load(*self._key)
        except Refused as refused:
            if refused.code != Code.NOT_FOUND:
                raise
            return None

    async def _carry_out(
        self, run: LoadedRun | None, branches: list[StoredBranch], decision: Create | Append | Fork
    ) -> ApplyAnswer | None:
        if run is None or isinstance(decision, Create):
            return await self._advance(None, self._created(), Outcome.CREATED)
        put = await self._put(run, branches, decision)
        if decision.switches_current:
            return await self._advance(run, await self._rebuilt(run, branches, decision, put), Outcome.REBUILT, put)
        if isinstance(decision, Append) and decision.branch_index == 0:
            return await self._advance(run, self._appended(run, decision), Outcome.APPLIED, put)
        return await self._backfill(run, decision, put)

    # Where the events go

    async def _put(self, run: LoadedRun, branches: list[StoredBranch], decision: Append | Fork) -> _Put:
        base = branches[decision.branch_index]
        if isinstance(decision, Append):
            return _Put(base._replace(history=decision.branch))
        tree_id, after = run.state.identity.tree_id, decision.after.event_id
        holder = [batch async for batch in read_line(self._shard, tree_id, base, after, after + 1)][-1]
        shared_to, copied = after + 1, None
        if holder.last_event_id != after:
            # Only the end of a batch can be forked at.
            shared_to = holder.first_event_id
            events = [event for event in History.FromString(holder.payload).events if event.event_id <= after]
            copied = Batch(shared_to, after, History(events=events).SerializeToString())
        ancestors = base.ancestors_before(shared_to) if shared_to > 1 else ()
        branch = StoredBranch(self._shard.services.new_id(), decision.branch, ancestors)
        writes = (BranchWrite(tree_id, branch.branch_id, ancestors),) if ancestors else ()
        return _Put(branch, writes, copied)

    # The state afterwards

    def _created(self) -> tuple[LoadedRun, list[Batch]]:
        run = self._shard.new_run(*self._key)
        state = run.state
        state.live.start_request_id = self._replicated.start_request_id
        follow(state, self._arriving.events, len(self._replicated.events))
        return run, self._arriving.parts

    def _appended(self, run: LoadedRun, decision: Append) -> tuple[LoadedRun, list[Batch]]:
        # On a copy: events that can't follow change nothing.
        changed = LoadedRun(run.key, decode(encode(run.state)), run.db_version)
        changed.batches, changed.bytes = [*run.batches], run.bytes
        # Of a batch that is here in part, the end.
        events, parts = self._arriving.from_event(decision.events.first)
        follow(changed.state, events, _size(parts))
        _check_line(changed.state, decision)
        return changed, parts

    async def _rebuilt(
        self, run: LoadedRun, branches: list[StoredBranch], decision: Append | Fork, put: _Put
    ) -> tuple[LoadedRun, list[Batch]]:
        """The whole state anew, from the stored events of the line and those that have come."""
        identity = run.state.identity
        state = RunState(identity)
        size_bytes = 0
        base = branches[decision.branch_index]
        async for stored in read_line(self._shard, identity.tree_id, base, 1, decision.events.first):
            size_bytes += len(stored.payload)
            before = [one for one in History.FromString(stored.payload).events if one.event_id < decision.events.first]
            replay(state, before)
        events, parts = self._arriving.from_event(decision.events.first)
        follow(state, events, size_bytes + _size(parts))
        _check_line(state, decision)
        _carry_over(run.state, state)
        make_current(state, put.branch)
        state.live.branches = [
            # What was taken over by the line that was current is not on this one, perhaps.
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
    ) -> ApplyAnswer | None:
        """Write a run whose current branch has become longer, or another one; None if it has to be looked at again."""
        run, parts = advanced
        shard = self._shard
        present = await shard.current(*self._key[:2])
        is_current = present is not None and present.run_id == self._key.run_id
        other = await shard.load(*present[:3]) if present is not None and not is_current else None
        place = Place(run, before, other)
        place.decide(shard, is_current=is_current, rebuilt=outcome is Outcome.REBUILT)
        if place.to_flush is not None:
            await flush(shard, self._namespace, place.to_flush)
            return None
        await shard.ensure_ids(_ids_wanted(run.state, parts) + place.ids)
        written = self._written(run.state)
        now_ns = shard.services.clock_ns()
        if put is not None and put.copied is not None:
            self._copy(written, run.state, put.copied)
        source = self._replicated.source
        for part in parts:
            written.add_batch(run, part, transaction_id=shard.take_ids(1), now_ns=now_ns, origin=source)
            run.keep(part)
        place.add_to(written, shard)
        self._add_tasks(written, run, is_shown=before is None or self._is_shown(before, run))
        await shard.store(
            written,
            current=place.current_write(present),
            branches=() if put is None else put.writes,
        )
        return ApplyAnswer(outcome)

    def _add_tasks(self, written: Written, run: LoadedRun, *, is_shown: bool) -> None:
        """The state, and what is to be done; where the namespace is not active only what does not depend on that."""
        state = run.state
        if is_shown:
            written.show(state)
        if written.is_active:
            transaction = self._shard.transaction(written.namespace, state)
            refresh(transaction)
            # A task that it schedules is an event of this cluster's own.
            waiting = len(transaction.events) + transaction.buffered_count
            written.add_step(Step(run, transaction), first_id=self._shard.take_ids(waiting + 1))
            return
        tasks: Sequence[AnyTask] = ()
        if not state.is_open:
            retained_ns = written.namespace.retention_ns
            tasks = (DeleteAfterRetention(state.last_version, state.closed_ns + retained_ns),)
        written.add_run(run, tasks=tasks)

    async def _backfill(self, run: LoadedRun, decision: Append | Fork, put: _Put) -> ApplyAnswer:
        """Write events on a branch that is not the current one: the state stays as it is."""
        shard, state = self._shard, run.state
        _, parts = self._arriving.from_event(decision.events.first)
        await shard.ensure_ids(_ids_wanted(state, parts))
        written = self._written(state)
        if put.copied is not None:
            self._copy(written, state, put.copied, branch_id=put.branch.branch_id)
        for part in parts:
            self._add_side_batch(written, run, put.branch, part)
        sides = state.live.branches
        if isinstance(decision, Append):
            place = decision.branch_index - 1
            settled = sides[place].settled_event_id
            state.live.branches = _replaced(sides, place, side_branch(put.branch, settled_event_id=settled))
        else:
            state.live.branches = [*sides, side_branch(put.branch)]
        written.add_run(run, tasks=[Reapply(state.last_version)])
        await shard.store(written, branches=put.writes)
        return ApplyAnswer(Outcome.BACKFILLED if isinstance(decision, Append) else Outcome.FORKED)

    def _written(self, state: RunState) -> Written:
        written = self._shard.written(self._namespace)
        # Of a namespace that has moved on to another cluster, as the events show, this one has not heard yet.
        written.is_active = written.is_active and state.last_version <= self._namespace.failover_version
        return written

    def _copy(self, written: Written, state: RunState, batch: Batch, *, branch_id: str = "") -> None:
        identity = state.identity
        written.batches.append(
            BatchWrite(
                identity.tree_id,
                branch_id or identity.branch_id,
                *batch[:2],
                History.FromString(batch.payload).events[0].version,
                self._shard.take_ids(1),
                batch.payload,
            )
        )

    def _add_side_batch(self, written: Written, run: LoadedRun, branch: StoredBranch, batch: Batch) -> None:
        state, version = run.state, branch.history.last.version
        place = (state.identity.tree_id, branch.branch_id, *batch[:2], version)
        written.batches.append(BatchWrite(*place, self._shard.take_ids(1), batch.payload))
        if written.is_streamed:
            row = StreamRow(
                *(*run.key, *place),
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
        kinds = {event.event_type for event in self._arriving.events}
        return is_other or is_moved or has_new_build or not SHOWN.isdisjoint(kinds)


def _builds(state: RunState) -> tuple[object, ...]:
    """What lists show of the workers of a run, whose first task is the first that says anything of them."""
    return state.reset_points, state.versioning, state.completed_task_event_id > 0


def _changes_state(decision: Decision) -> bool:
    if isinstance(decision, Append):
        return decision.switches_current or decision.branch_index == 0
    return isinstance(decision, Fork) and decision.switches_current


def _check_line(state: RunState, decision: Append | Fork) -> None:
    if state.versions != decision.branch:
        have = () if state.versions is None else state.versions.to_pairs()
        raise RebuiltDiffers(
            f"run {state.identity.run_id}: its events come to the version history {have}, but its branch is "
            f"{decision.branch.to_pairs()}: its stored events have to be looked at"
        )


def _carry_over(before: RunState, rebuilt: RunState) -> None:
    """What does not follow from the events, and is not of the branch that has lost."""
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
    """How many ids a commit takes at most: for its rows, and for the tasks of all that is pending."""
    tables = (state.activities, state.timers, state.children, state.nexus_operations)
    externals = len(state.external_signals) + len(state.external_cancels)
    pending = sum(len(table) for table in tables) + externals + len(state.started.completion_callbacks)
    return 64 + 5 * pending + 2 * len(parts)


def _size(parts: Sequence[Batch]) -> int:
    return sum(len(part.payload) for part in parts)


def _replaced(branches: Sequence[SideBranch], place: int, branch: SideBranch) -> list[SideBranch]:
    return [*branches[:place], branch, *branches[place + 1 :]]
