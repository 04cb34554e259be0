"""Flushes events that wait for the end of a workflow task, in a cluster in which the task will not be completed.

The events were acknowledged. They are written at a version that this cluster owns, so that they are replicated. If
their branch is no longer current then, they are reapplied to the current branch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from temporalio.api.enums.v1 import WorkflowTaskFailedCause
from temporalio.api.history.v1 import HistoryEvent

from fairlead.core.errors import GiveUp
from fairlead.history.events import fail_workflow_task
from fairlead.history.ndc.task_refresh import refresh
from fairlead.history.shard.commit import Step
from fairlead.history.state import decode, encode

if TYPE_CHECKING:
    from fairlead.api.clusters import Clusters
    from fairlead.api.namespaces import Namespace
    from fairlead.history.shard.run_cache import LoadedRun
    from fairlead.history.shard.shard import Shard
    from fairlead.history.state import RunState

_CAUSE = WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_FAILOVER_CLOSE_COMMAND
# Minimum attempt number of a run whose workflow task was failed here; above 1, so that the next active cluster
# schedules a task.
_ATTEMPT_MIN = 2


class BufferNotOurs(GiveUp):
    """The version of buffered events belongs to another cluster, so this cluster must not write them."""


def own_version(state: RunState) -> int:
    """The version at which buffered events can be written: the highest version of them and of the last event."""
    return max([state.last_version, *(HistoryEvent.FromString(event).version for event in state.live.buffered)])


def _last_here(namespace: Namespace, clusters: Clusters) -> int:
    """The highest version that this cluster owns, up to the namespace's failover version; 0 if there is none."""
    versions = clusters.versions
    since = (namespace.failover_version - versions.initial_versions[clusters.here]) % versions.increment
    return max(0, namespace.failover_version - since)


async def flush(shard: Shard, namespace: Namespace, run: LoadedRun) -> None:
    """Fail the pending workflow task, and write the events buffered for it. The caller must hold the lock."""
    clusters = shard.services.clusters
    # Events from before the namespace was global have version 0: write them at the last version that this cluster
    # owned.
    version = own_version(run.state) or _last_here(namespace, clusters)
    if not clusters.versions.is_owned_by(version, clusters.here):
        raise BufferNotOurs(
            f"run {run.key.run_id}: {len(run.state.live.buffered)} buffered events have version {version}, which "
            f"cluster {clusters.here!r} does not own: find the cluster that wrote them"
        )
    # Work on a copy: if the write fails, the run is unchanged.
    transaction = shard.transaction(namespace, decode(encode(run.state)))
    transaction.version = version
    if transaction.state.has_started_task:
        fail_workflow_task(transaction, _CAUSE)
    transaction.flush()
    live = transaction.state.live
    live.unwritten_task = None
    live.task_attempt = max(live.task_attempt, _ATTEMPT_MIN)
    if clusters.is_active(namespace) and version <= namespace.failover_version:
        # The namespace is active here: schedule another workflow task.
        transaction.version = namespace.failover_version
        refresh(transaction)
    await shard.writer.write_unchecked(namespace, [Step(run, transaction)])
