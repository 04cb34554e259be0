"""Reserves a waiting poll, so that the owner of a task can write and start it in one commit."""

import asyncio

from fairlead.core.partitions import Partition
from fairlead.matching.engine import Engine
from fairlead.matching.handlers.add_task import note_added
from fairlead.matching.messages import NewTask
from fairlead.matching.partition.manager import PartitionManager
from fairlead.matching.partition.waiting_poll import WaitingPoll
from fairlead.matching.task_starter import NotStarted


class _Reserved:
    """A `ReservedPoll` of one partition. The task is counted as added when the poll gets it."""

    __slots__ = ("_manager", "_starting", "_task", "identity", "worker")

    def __init__(
        self,
        manager: PartitionManager,
        task: NewTask,
        poll: WaitingPoll,
        starting: "asyncio.Future[bytes | NotStarted]",
    ) -> None:
        self._manager = manager
        self._task = task
        self._starting = starting
        self.identity = poll.identity
        self.worker = poll.worker

    def give(self, response: bytes) -> None:
        """Answer the poll with a task that was started for it; do nothing if the poll's caller is gone."""
        if not self._starting.done():
            note_added(self._manager, self._task, self._manager.clock())
            self._starting.set_result(response)

    def release(self) -> None:
        """Let the poll wait again: the task was not written."""
        if not self._starting.done():
            self._starting.set_result(NotStarted.REFUSED)


def reserve_poll(engine: Engine, partition: Partition, task: NewTask) -> _Reserved | None:
    """Reserve a poll of a partition of this host, as adding the task would; None if adding would store the task."""
    manager = engine.ready(partition)
    if manager is None or manager.number >= manager.configs.config.write or manager.dependencies.is_closing:
        return None
    reserved = manager.queue.dispatcher.reserve(task)
    return None if reserved is None else _Reserved(manager, task, *reserved)
