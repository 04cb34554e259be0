"""Activity progress of other clusters: replaces the local progress if it is newer."""

from fairlead.api.errors import NotFound
from fairlead.core.versions import VersionHistory, nearest_history
from fairlead.history.messages.ndc import ApplyResponse, Outcome, ReplicatedProgress
from fairlead.history.ndc.branches import branches_of
from fairlead.history.ndc.task_refresh import refresh
from fairlead.history.shard.commit import Step
from fairlead.history.shard.context import OperationContext
from fairlead.history.shard.run_cache import LoadedRun
from fairlead.history.state import RunState, decode, encode
from fairlead.history.state.pending import ActivityProgress
from fairlead.storage.history import RunKey


async def apply_progress(context: OperationContext, replicated: ReplicatedProgress) -> ApplyResponse:
    """Apply newer progress.

    A missing activity is a gap; progress of an activity that has ended is ignored.
    """
    shard = context.shard
    key = RunKey(context.namespace.id, replicated.workflow_id, replicated.run_id)
    versions = VersionHistory.from_pairs(replicated.items)
    async with shard.lock(*key.workflow):
        try:
            run = await shard.load(*key)
        except NotFound:
            return ApplyResponse(Outcome.GAP, 1, versions.last.event_id + 1)
        nearest = nearest_history([branch.history for branch in branches_of(run.state)], versions)
        if nearest.ancestor != versions.last:
            return ApplyResponse(Outcome.GAP, nearest.ancestor.event_id + 1, versions.last.event_id + 1)
        newer = _newer(run.state, replicated)
        if not newer:
            return ApplyResponse(Outcome.DUPLICATE)
        await _write(context, run, newer)
        return ApplyResponse(Outcome.APPLIED)


def _newer(state: RunState, replicated: ReplicatedProgress) -> dict[int, ActivityProgress]:
    """The progress that is newer than the local progress, for activities that are pending on the same branch."""
    found = {}
    for event_id, version, progress in replicated.activities:
        activity = state.open_activity(event_id) if state.is_open else None
        if activity is None or activity.version != version:
            continue
        known = state.live.activities.get(event_id)
        if known is not None:
            if (known.changed_version, known.changes) >= (progress.changed_version, progress.changes):
                continue
            # Keep the higher stamp, so that tasks which were invalidated here stay invalid.
            progress.stamp = max(progress.stamp, known.stamp)
        found[event_id] = progress
    return found


async def _write(context: OperationContext, run: LoadedRun, newer: dict[int, ActivityProgress]) -> None:
    shard = context.shard
    namespace = context.services.namespaces.cached_id(run.key.namespace_id) or context.namespace
    state = decode(encode(run.state))
    state.live.activities.update(newer)
    transaction = shard.transaction(namespace, state)
    written = shard.writer.empty(namespace)
    # If the events are newer than the namespace known here, the namespace has failed over to another cluster.
    written.is_active = written.is_active and state.last_version <= namespace.failover_version
    if written.is_active and not state.is_zombie:
        refresh(transaction)
    waiting = len(transaction.events) + transaction.buffered_count
    await shard.ids.ensure(2 * waiting + len(transaction.tasks) + 8)
    written.add_step(Step(run, transaction), first_id=shard.ids.take(waiting + 1))
    await shard.writer.store(written)
