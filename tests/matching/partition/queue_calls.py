"""Add to and poll a single physical queue, without other partitions."""

import asyncio

from fairlead.matching.messages import NewTask
from fairlead.matching.partition.matched_task import MatchedTask, is_done
from fairlead.matching.partition.queue import PhysicalQueue
from fairlead.matching.partition.task_validation import check_task
from fairlead.matching.partition.waiting_poll import WaitingPoll


async def add(queue: PhysicalQueue, task: NewTask) -> bool:
    """True if a poll has started the task, False if the task is stored."""
    check_task(task)
    if is_done(await queue.dispatcher.offer(task)):
        return True
    await queue.backlog.writer.append(task)
    return False


async def poll(queue: PhysicalQueue, identity: str, *, timeout_s: float) -> bytes | None:
    """The task that was started for the poll; None if the poll timed out."""
    queue.pollers.note(identity)
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    while True:
        matched = await queue.dispatcher.wait(WaitingPoll(identity), deadline_s)
        if not isinstance(matched, MatchedTask):
            return None
        response = await queue.start(matched, identity, b"")
        if response is not None:
            return response
