"""Requests for a sticky task queue, which belongs to one worker."""

from fairlead.core.partitions import Partition
from fairlead.matching.handlers.add_task import add_task, offer_query_task
from fairlead.matching.handlers.poll_task import poll_task
from fairlead.matching.messages import (
    AddRequest,
    AddResponse,
    PollRequest,
    PollResponse,
    ShutdownRequest,
    ShutdownResponse,
    StickyWorkerGone,
)
from fairlead.matching.partition.manager import PartitionManager
from fairlead.matching.task_starter import NotStarted
from fairlead.settings.dynamic import matching


async def add_sticky_task(manager: PartitionManager, request: AddRequest) -> AddResponse:
    """Add a task for the worker, if the worker is there."""
    window_s = manager.dependencies.get(matching.STICKY_POLLER_UNAVAILABLE_WINDOW)
    if not manager.sticky_worker.is_there(within_s=window_s):
        raise sticky_worker_gone(manager.partition_id)
    if request.is_transient:
        return await offer_query_task(manager, request)
    answer = await add_task(manager, request)
    if not answer.is_started and manager.sticky_worker.has_left:
        # The worker left while the task was being stored: drop all tasks; the callers that added them get this error.
        _drop_tasks(manager)
        raise sticky_worker_gone(manager.partition_id)
    return answer


async def poll_sticky_task(manager: PartitionManager, request: PollRequest) -> PollResponse:
    """Wait for a task for the worker."""
    worker = manager.sticky_worker
    worker.begin_poll()
    is_answered = False
    try:
        answer = await poll_task(manager, request)
        is_answered = True
        return answer
    finally:
        worker.end_poll(is_answered=is_answered)


async def shut_down_worker(manager: PartitionManager, _request: ShutdownRequest) -> ShutdownResponse:
    """End the worker's polls, refuse new tasks for it, and return the tasks that wait."""
    manager.sticky_worker.leave()
    manager.queue.dispatcher.answer_polls()
    return ShutdownResponse(_drop_tasks(manager))


def sticky_worker_gone(partition: Partition) -> StickyWorkerGone:
    """Return the error for a task whose worker is not there."""
    return StickyWorkerGone(
        f"no worker has polled sticky task queue {partition.task_queue.name!r} recently: "
        "add the task to the normal task queue"
    )


def _drop_tasks(manager: PartitionManager) -> list[bytes]:
    """Drop the loaded tasks and return their payloads."""
    queue = manager.queue
    payloads = []
    while (matched := queue.dispatcher.take_held()) is not None:
        queue.finish(matched, NotStarted.GONE)
        payloads.append(matched.payload)
    return payloads
