"""Events that wait for the end of a workflow task, in a cluster where that end will not come.

They were acknowledged. They are written at a version that is this cluster's own, so that they reach all others; where
the line on which they stand has lost by then, they are taken over by the one that has won.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from temporalio.api.enums.v1 import WorkflowTaskFailedCause
from temporalio.api.history.v1 import HistoryEvent

from fairlead.core.errors import GiveUp
from fairlead.history.applying.refreshing import refresh
from fairlead.history.events import fail_workflow_task
from fairlead.history.state import decode, encode
from fairlead.history.writing import Step

if TYPE_CHECKING:
    from fairlead.history.clusters import Clusters
    from fairlead.history.namespaces import Namespace
    from fairlead.history.runs import LoadedRun
    from fairlead.history.shard import Shard
    from fairlead.history.state import RunState

_CAUSE = WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_FAILOVER_CLOSE_COMMAND
# So many attempts are behind a run whose task was taken away, at least: the next cluster schedules another one.
_ATTEMPT_MIN = 2


class BufferNotOurs(GiveUp):
    """Events wait in this cluster that it may not write: they are of a version of another one."""


def own_version(state: RunState) -> int:
    """The version at which what waits can be written: that of the last event, or that at which it came."""
    return max([state.last_version, *(HistoryEvent.FromString(event).version for event in state.live.buffered)])


def _last_here(namespace: Namespace, clusters: Clusters) -> int:
    """The last version up to the namespace's that is this cluster's own; 0 if there is none."""
    versions = clusters.versions
    since = (namespace.failover_version - versions.initial_versions[clusters.here]) % versions.increment
    return max(0, namespace.failover_version - since)


async def flush(shard: Shard, namespace: Namespace, run: LoadedRun) -> None:
    """Take the workflow task away from its worker, and write what waited for it. To be called with the lock."""
    clusters = shard.services.clusters
    # What came before the namespace was shared came here, and is written as what this cluster wrote last.
    version = own_version(run.state) or _last_here(namespace, clusters)
    if not clusters.versions.is_owned_by(version, clusters.here):
        raise BufferNotOurs(
            f"run {run.key.run_id}: {len(run.state.live.buffered)} events wait to be written at version {version}, "
            f"which is not one of cluster {clusters.here!r}: look where they came from"
        )
    # On a copy: if this comes to nothing, the run is as it was.
    transaction = shard.transaction(namespace, decode(encode(run.state)))
    transaction.version = version
    if transaction.state.has_started_task:
        fail_workflow_task(transaction, _CAUSE)
    transaction.flush()
    live = transaction.state.live
    live.unwritten_task = None
    live.task_attempt = max(live.task_attempt, _ATTEMPT_MIN)
    if clusters.is_active(namespace) and version <= namespace.failover_version:
        # It goes on here: the task that was taken away is followed by another one.
        transaction.version = namespace.failover_version
        refresh(transaction)
    await shard.write_unchecked(namespace, [Step(run, transaction)])
