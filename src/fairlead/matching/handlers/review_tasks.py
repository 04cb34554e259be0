"""Reviews the loaded tasks of a partition: the starter decides for each task whether it still belongs there."""

import asyncio

from fairlead.core.errors import FairleadError
from fairlead.matching.messages import ReviewRequest, ReviewResponse
from fairlead.matching.partition.manager import PartitionManager
from fairlead.matching.partition.matched_task import MatchedTask
from fairlead.matching.partition.matcher import HeldTask, Position
from fairlead.matching.partition.queue import PhysicalQueue
from fairlead.matching.task_starter import NotStarted

# Seconds that one review request takes at most; the client repeats a review that is not done.
REVIEW_S_MAX = 5.0
# Number of tasks that are reviewed at the same time.
REVIEWED_AT_ONCE = 20
# Number of consecutive pauses that a review makes while the backlog is still being loaded, and the seconds of each
# pause.
REVIEW_PAUSES_MAX = 20
REVIEW_PAUSE_S = 0.05


async def review_tasks(manager: PartitionManager, request: ReviewRequest) -> ReviewResponse:
    """Review all tasks that wait in the partition."""
    until_s = asyncio.get_running_loop().time() + REVIEW_S_MAX
    is_done = await review_queue(manager.queue, request.worker, until_s)
    return ReviewResponse(is_done, manager.configs.config.read)


async def review_queue(queue: PhysicalQueue, worker: bytes, until_s: float) -> bool:
    """Review all loaded tasks; False if the time was too short.

    The tasks that are loaded in the place of obsolete ones are reviewed as well.
    """
    seen: set[Position] = set()
    pauses = REVIEW_PAUSES_MAX
    now_s = asyncio.get_running_loop().time
    matcher = queue.dispatcher.matcher
    while not queue.dispatcher.is_closing:
        tasks = [task for task in matcher.held() if task.position not in seen][:REVIEWED_AT_ONCE]
        if not tasks:
            pauses -= 1
            if queue.backlog.priorities.is_loaded or not pauses:
                return True
            await asyncio.sleep(REVIEW_PAUSE_S)
            continue
        if now_s() >= until_s:
            return False
        for task in tasks:
            seen.add(task.position)
            matcher.remove(task.position)
        await asyncio.gather(*(_review(queue, task, worker) for task in tasks))
        pauses = REVIEW_PAUSES_MAX
    return False


async def _review(queue: PhysicalQueue, task: HeldTask[bytes], worker: bytes) -> None:
    matched = MatchedTask(
        *(task.payload, task.position.priority, task.fairness_key, task.weight, task.created_s, task), is_charged=False
    )
    try:
        response = await queue.starter(task.payload, "", worker)
    except BaseException as failure:
        queue.dispatcher.give_back(matched)
        if not isinstance(failure, FairleadError):
            raise
        return
    if response is NotStarted.GONE:
        queue.finish(matched, response)
    else:
        queue.dispatcher.give_back(matched)
