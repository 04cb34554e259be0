"""Starts a workflow task in the step that schedules it, if a poll is waiting at this host, or came with the call."""

from functools import partial
from typing import TYPE_CHECKING

from fairlead.api.namespaces import Namespace
from fairlead.api.worker_deployments import version_of
from fairlead.history.events import Transaction
from fairlead.history.handlers.workflow_tasks import start_for_worker, task_answer
from fairlead.history.shard.context import OperationContext
from fairlead.history.shard.direct_start import DirectStart
from fairlead.history.shard.matching_tasks import direct_place
from fairlead.history.shard.offered_poll import reserve_offered
from fairlead.history.shard.run_cache import LoadedRun
from fairlead.history.state import TaskKind
from fairlead.history.state.run import PAUSED
from fairlead.history.state.tasks import AnyTask, PushWorkflowTask, TaskTimeout, WorkflowTaskTimeout

if TYPE_CHECKING:
    from fairlead.history.shard.shard import Shard

# Maximum seconds for reading the events of the response.
RESPONSE_S_MAX = 10.0


def start_directly(
    shard: "Shard", namespace: Namespace, run: LoadedRun, transaction: Transaction
) -> DirectStart | None:
    """See `DirectStarter`."""
    services, state = shard.services, transaction.state
    if not any(type(task) is PushWorkflowTask for task in transaction.tasks):
        return None
    task = state.workflow_task
    if (
        task is None
        or task.kind is not TaskKind.NORMAL
        or task.attempt > 1
        or task.is_started
        or not state.is_open
        or state.status == PAUSED
        or transaction.new_run is not None
        # A clock that skips time must see each task in flight.
        or services.on_work is not None
        or (namespace.failover_version and not services.clusters.is_active(namespace))
    ):
        return None
    position = direct_place(services, state, task)
    if position is None:
        return None
    task_queue, kind, new, _ = position
    poll = reserve_offered(task_queue, kind) or services.matching.reserve(task_queue, new, kind=kind)
    if poll is None:
        return None
    if version_of(poll.worker) != position[3]:
        poll.release()
        return None
    scheduled_event_id, is_sticky = task.scheduled_event_id, task.sticky
    try:
        # The worker also gets the events that came after the task was scheduled.
        transaction.flush()
        started = start_for_worker(
            services,
            transaction,
            scheduled_event_id,
            identity=poll.identity,
            worker=poll.worker,
            unwritten_bytes=transaction.unwritten_bytes,
        )
    except BaseException:
        poll.release()
        raise
    # The task is not pushed, and no longer waits for a worker: drop its tasks.
    transaction.tasks = [each for each in transaction.tasks if not _waits_for_worker(each)]
    context = OperationContext(shard, namespace, services, RESPONSE_S_MAX)
    from_event_id = state.completed_task_started_event_id + 1 if is_sticky else 1
    return DirectStart(poll, partial(task_answer, context, run, started, from_event_id=from_event_id))


def _waits_for_worker(task: AnyTask) -> bool:
    if isinstance(task, WorkflowTaskTimeout):
        return task.kind is TaskTimeout.SCHEDULE_TO_START
    return isinstance(task, PushWorkflowTask)
