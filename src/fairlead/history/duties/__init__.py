"""What the queues of a shard do: one function for each type of task, found in one table.

Each may be done more than once, and late: it looks at the run first, and does nothing that was done or is not wanted
any more.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from fairlead.core.errors import RetryLater
from fairlead.history import entities
from fairlead.history.duties import children, closing, externals, nexus, pushes, reapplying, timers
from fairlead.history.refusals import Refused
from fairlead.history.scope import Scope
from fairlead.history.shard import Shard
from fairlead.history.state import tasks
from fairlead.history.state.errors import NotPending, RunClosed
from fairlead.rpc import Code

Duty = Callable[[Scope, tasks.QueueRow, Any], Awaitable[None]]

TIMEOUT_S = 10.0

DUTIES: dict[type[tasks.Task], Duty] = {
    tasks.PushWorkflowTask: pushes.push_workflow,
    tasks.PushActivityTask: pushes.push_activity,
    tasks.StartChild: children.start_child,
    tasks.SignalExternal: externals.send_signal,
    tasks.CancelExternal: externals.send_cancel,
    tasks.CloseRun: closing.close_run,
    tasks.UserTimer: timers.user_timer,
    tasks.WorkflowTaskTimeout: timers.workflow_task_timeout,
    tasks.ActivityTimeout: timers.activity_timeout,
    tasks.ActivityRetry: timers.activity_retry,
    tasks.RunTimeout: timers.run_timeout,
    tasks.ExecutionTimeout: timers.execution_timeout,
    tasks.WorkflowBackoff: timers.workflow_backoff,
    tasks.DeleteAfterRetention: timers.delete_after_retention,
    tasks.CallNexus: nexus.call,
    tasks.NexusCallTimeout: nexus.call_timeout,
    tasks.NexusRetry: nexus.retry,
    tasks.NexusTimeout: nexus.operation_timeout,
    tasks.DeliverCallback: nexus.deliver_callback,
    tasks.Reapply: reapplying.reapply,
    tasks.EntityTask: entities.run_task,
    tasks.EntityTimer: entities.run_task,
}


class ActiveElsewhere(RetryLater):
    """What is to be done is for the cluster in which the namespace is active: it is looked at again."""


def _is_kept(row: tasks.QueueRow) -> bool:
    """Whether a task is carried out where its namespace is not active; runs get theirs when it becomes so.

    What an entity wants done has to wait: nobody would make its task again.
    """
    if isinstance(row.task, tasks.EntityTask | tasks.EntityTimer):
        raise ActiveElsewhere(f"namespace {row.namespace_id.partition('#')[0]} is active in another cluster")
    return isinstance(row.task, tasks.DeleteAfterRetention)


async def run_row(shard: Shard, row: tasks.QueueRow) -> None:
    """Do what a row says. What it was about may be gone by now: then there is nothing to do."""
    services = shard.services
    namespace_id = row.namespace_id.partition("#")[0]
    try:
        namespace = services.namespaces.cached_id(namespace_id) or await services.namespaces.find_id(namespace_id)
        if namespace.failover_version and not services.clusters.is_active(namespace) and not _is_kept(row):
            return
        scope = Scope(shard, namespace, services, TIMEOUT_S)
        await shard.shared.do(namespace, lambda: DUTIES[type(row.task)](scope, row, row.task))
    except (RunClosed, NotPending):
        return
    except Refused as refused:
        if refused.code != Code.NOT_FOUND:
            raise
