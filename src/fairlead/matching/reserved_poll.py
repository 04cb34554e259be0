"""A waiting poll that the owner of a task reserves, so that the task is written and started in one commit."""

from collections.abc import Callable
from typing import Protocol

from fairlead.core.partitions import Partition
from fairlead.matching.messages import NewTask


class ReservedPoll(Protocol):
    """A poll that is to get a task: `give` or `release` must follow."""

    identity: str
    # The worker's description of itself, as in `PollRequest`.
    worker: bytes

    def give(self, response: bytes) -> None:
        """Answer the poll with a task that was started for it; nothing if its caller has gone."""
        ...

    def release(self) -> None:
        """Let the poll go on waiting: the task was not written."""
        ...


# Takes a poll that waits at this host for a task; None if the task must be added to the partition instead.
Reserve = Callable[[Partition, NewTask], ReservedPoll | None]
