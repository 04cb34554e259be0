"""The task executors of a shard's queues: one function for each type of task, found in one table.

A task may run late and more than once: each executor first checks the run, and does nothing if the task is done or no
longer needed.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from fairlead.api.entity_namespaces import base_namespace_id
from fairlead.api.errors import Gone, NotFound
from fairlead.core.errors import RetryLater
from fairlead.history.entities import entity
from fairlead.history.shard.context import OperationContext
from fairlead.history.shard.handover_writes import BeingHandedOver
from fairlead.history.shard.shard import Shard
from fairlead.history.state import tasks
from fairlead.history.task_executors import (
    child_workflows,
    close,
    external_workflows,
    matching_tasks,
    nexus,
    reapply,
    timers,
)

TaskExecutor = Callable[[OperationContext, tasks.QueueRow, Any], Awaitable[None]]

TIMEOUT_S = 10.0

TASK_EXECUTORS: dict[type[tasks.Task], TaskExecutor] = {
    tasks.PushWorkflowTask: matching_tasks.push_workflow,
    tasks.PushActivityTask: matching_tasks.push_activity,
    tasks.StartChild: child_workflows.start_child,
    tasks.SignalExternal: external_workflows.send_signal,
    tasks.CancelExternal: external_workflows.send_cancel,
    tasks.CloseRun: close.close_run,
    tasks.UserTimer: timers.user_timer,
    tasks.WorkflowTaskRetry: matching_tasks.push_workflow,
    tasks.WorkflowTaskTimeout: timers.workflow_task_timeout,
    tasks.ActivityTimeout: timers.activity_timeout,
    tasks.ActivityRetry: timers.activity_retry,
    tasks.RunTimeout: timers.run_timeout,
    tasks.ExecutionTimeout: timers.execution_timeout,
    tasks.WorkflowBackoff: timers.workflow_backoff,
    tasks.DeleteAfterRetention: timers.delete_after_retention,
    tasks.FastForwardEnd: timers.fast_forward_end,
    tasks.CallNexus: nexus.call,
    tasks.NexusCallTimeout: nexus.call_timeout,
    tasks.NexusRetry: nexus.retry,
    tasks.NexusTimeout: nexus.operation_timeout,
    tasks.DeliverCallback: nexus.deliver_callback,
    tasks.DeliverUpdateCallback: nexus.deliver_update_callback,
    tasks.Reapply: reapply.reapply,
    tasks.EntityTask: entity.run_task,
    tasks.EntityTimer: entity.run_task,
}


class ActiveElsewhere(RetryLater):
    """The namespace is active in another cluster, which must run the task. This cluster retries the task later."""


def _is_kept(row: tasks.QueueRow) -> bool:
    """Whether a task runs although its namespace is passive here; a failover adds the other tasks of runs again.

    Tasks of entities wait (`ActiveElsewhere`), because a failover does not add them again.
    """
    if isinstance(row.task, tasks.EntityTask | tasks.EntityTimer):
        raise ActiveElsewhere(f"namespace {base_namespace_id(row.namespace_id)} is active in another cluster")
    return isinstance(row.task, tasks.DeleteAfterRetention)


async def run_row(shard: Shard, row: tasks.QueueRow) -> None:
    """Run the task of a queue row; do nothing if its run or entity no longer exists."""
    services = shard.services
    namespace_id = base_namespace_id(row.namespace_id)
    try:
        namespace = services.namespaces.cached_id(namespace_id) or await services.namespaces.find_id(namespace_id)
        if namespace.failover_version and not services.clusters.is_active(namespace) and not _is_kept(row):
            return
        context = OperationContext(shard, namespace, services, TIMEOUT_S)
        execute = TASK_EXECUTORS[type(row.task)]
        try:
            await execute(context, row, row.task)
        except BeingHandedOver:
            await shard.handover_writes.do_after_handover(namespace, lambda: execute(context, row, row.task))
    except (NotFound, Gone):
        return
