"""A waiting poll that the owner of a task reserves, so that the task is written and started in one commit."""

from collections.abc import Callable
from typing import Protocol

from fairlead.core.partitions import Partition, TaskQueueId
from fairlead.matching.messages import NewTask


class ReservedPoll(Protocol):
    """A poll that is reserved for a task: call `give` or `release`."""

    identity: str
    # The worker's description of itself, as in `PollRequest`.
    worker: bytes

    def give(self, response: bytes) -> None:
        """Answer the poll with a task that was started for it; do nothing if the poll's caller is gone."""
        ...

    def release(self) -> None:
        """Let the poll wait again: the task was not written."""
        ...


# Reserves a poll that waits at this host for a task; None if the task must be added to the partition instead.
Reserve = Callable[[Partition, NewTask], ReservedPoll | None]
# Reserves a poll of a sticky task queue; None if no such poll waits at this host.
ReserveSticky = Callable[[TaskQueueId], ReservedPoll | None]
