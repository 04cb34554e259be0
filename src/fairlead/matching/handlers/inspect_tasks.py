"""Lists the waiting tasks of a loaded partition, and removes the tasks of clients."""

import asyncio
import heapq
from collections.abc import Callable
from operator import attrgetter

from fairlead.matching.messages.inspection import PeekRequest, PeekResponse, PurgeRequest, PurgeResponse, WaitingTask
from fairlead.matching.partition.manager import PartitionManager
from fairlead.matching.partition.matched_task import MatchedTask
from fairlead.matching.partition.matcher import HeldTask
from fairlead.matching.task_starter import NotStarted

# Returns whether the history service owns the task with this payload.
IsOwned = Callable[[bytes], bool]

# Seconds that one purge request takes at most; the client repeats a purge that is not done.
PURGE_S_MAX = 5.0
# Number of tasks that are removed before other requests are handled.
REMOVED_AT_ONCE = 200
# Seconds between two checks of a backlog that is still being loaded.
LOADING_S = 0.02


async def peek_tasks(manager: PartitionManager, request: PeekRequest) -> PeekResponse:
    """Return the first loaded tasks, in dispatch order."""
    held = list(manager.queue.dispatcher.matcher.held())
    first = heapq.nsmallest(request.limit, held, key=attrgetter("position"))
    return PeekResponse([_waiting(task) for task in first], len(held), manager.reports.current().tasks)


async def purge_tasks(manager: PartitionManager, _request: PurgeRequest, is_owned: IsOwned) -> PurgeResponse:
    """Remove all tasks of clients that wait in the partition.

    Tasks of the history service stay: a workflow would wait for ever for a removed one. A task that is being forwarded
    stays as well, since it is not waiting here.
    """
    queue = manager.queue
    matcher = queue.dispatcher.matcher
    now_s = asyncio.get_running_loop().time
    until_s = now_s() + PURGE_S_MAX
    removed = 0
    while not queue.dispatcher.is_closing and now_s() < until_s:
        held = list(matcher.held())
        of_clients = [task for task in held if not is_owned(task.payload)]
        for task in of_clients[:REMOVED_AT_ONCE]:
            if matcher.remove(task.position):
                queue.finish(_as_matched(task), NotStarted.GONE)
                removed += 1
        if not of_clients and queue.backlog.priorities.is_loaded:
            return PurgeResponse(removed, len(held), is_done=True)
        if not of_clients and len(held) >= manager.reports.current().tasks:
            return PurgeResponse(removed, len(held), is_done=True)
        # Let the reader load stored tasks in the place of the removed ones.
        await asyncio.sleep(0 if of_clients else LOADING_S)
    return PurgeResponse(removed, sum(is_owned(task.payload) for task in matcher.held()), is_done=False)


def _waiting(task: HeldTask[bytes]) -> WaitingTask:
    priority, (pass_number, number) = task.position
    return WaitingTask(priority, pass_number, number, task.fairness_key, task.weight, task.created_s, task.payload)


def _as_matched(task: HeldTask[bytes]) -> MatchedTask:
    return MatchedTask(
        *(task.payload, task.position.priority, task.fairness_key, task.weight, task.created_s, task), is_charged=False
    )
