"""How far activities have come in another cluster: taken over where it is further than what is known here."""

from fairlead.core.versions import VersionHistory, nearest_history
from fairlead.history.applying.branches import branches_of
from fairlead.history.applying.messages import ApplyAnswer, Outcome, ReplicatedProgress
from fairlead.history.applying.refreshing import refresh
from fairlead.history.refusals import Refused
from fairlead.history.runs import LoadedRun
from fairlead.history.scope import Scope
from fairlead.history.state import RunState, decode, encode
from fairlead.history.state.pending import ActivityProgress
from fairlead.history.writing import Step
from fairlead.rpc import Code
from fairlead.storage.history_contract import RunKey


async def apply_progress(scope: Scope, replicated: ReplicatedProgress) -> ApplyAnswer:
    """Take over what is newer. An activity that is not here yet is a gap; one that has ended is nobody's concern."""
    shard = scope.shard
    key = RunKey(scope.namespace.id, replicated.workflow_id, replicated.run_id)
    line = VersionHistory.from_pairs(replicated.items)
    async with shard.lock(*key[:2]):
        try:
            run = await shard.load(*key)
        except Refused as refused:
            if refused.code != Code.NOT_FOUND:
                raise
            return ApplyAnswer(Outcome.GAP, 1, line.last.event_id + 1)
        nearest = nearest_history([branch.history for branch in branches_of(run.state)], line)
        if nearest.ancestor != line.last:
            return ApplyAnswer(Outcome.GAP, nearest.ancestor.event_id + 1, line.last.event_id + 1)
        newer = _newer(run.state, replicated)
        if not newer:
            return ApplyAnswer(Outcome.DUPLICATE)
        await _write(scope, run, newer)
        return ApplyAnswer(Outcome.APPLIED)


def _newer(state: RunState, replicated: ReplicatedProgress) -> dict[int, ActivityProgress]:
    """Of activities that are pending here, on the same line, the progress that is newer than the one known here."""
    found = {}
    for event_id, version, progress in replicated.activities:
        activity = state.open_activity(event_id) if state.is_open else None
        if activity is None or activity.version != version:
            continue
        known = state.live.activities.get(event_id)
        if known is not None:
            if (known.changed_version, known.changes) >= (progress.changed_version, progress.changes):
                continue
            # What was made void here stays so.
            progress.stamp = max(progress.stamp, known.stamp)
        found[event_id] = progress
    return found


async def _write(scope: Scope, run: LoadedRun, newer: dict[int, ActivityProgress]) -> None:
    shard = scope.shard
    namespace = scope.services.namespaces.cached_id(run.key.namespace_id) or scope.namespace
    state = decode(encode(run.state))
    state.live.activities.update(newer)
    transaction = shard.transaction(namespace, state)
    written = shard.written(namespace)
    # Of a namespace that has moved on to another cluster, as the events show, this one has not heard yet.
    written.is_active = written.is_active and state.last_version <= namespace.failover_version
    if written.is_active and not state.is_zombie:
        refresh(transaction)
    waiting = len(transaction.events) + transaction.buffered_count
    await shard.ensure_ids(2 * waiting + len(transaction.tasks) + 8)
    written.add_step(Step(run, transaction), first_id=shard.take_ids(waiting + 1))
    await shard.store(written)
