"""Bugs that can be planted into the real code, to show that the simulation finds such bugs."""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from fairlead.core.fairness import LEVEL_ZERO, Level
from fairlead.core.fairness.buffer import ReadBuffer
from fairlead.core.partitions import DrainReport
from fairlead.matching.messages import AddAnswer, AddRequest
from fairlead.matching.node import Node
from fairlead.matching.partition import Given, Partition
from fairlead.matching.pushes import Pushes
from fairlead.storage.contract import Levels, QueueId
from fairlead.storage.memory import MemoryStore, _raise_levels


@contextmanager
def _patched(owner: type[Any], name: str, replacement: Any) -> Iterator[None]:
    original = owner.__dict__[name]
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        setattr(owner, name, original)


def unfenced_delete() -> AbstractContextManager[None]:
    """A delete takes effect whoever has the lease."""

    async def delete_through(
        self: MemoryStore, queue: QueueId, range_id: int, priority: int, *, through: Level, limit: int
    ) -> int:
        def delete() -> int:
            _raise_levels(self._queues[queue], priority, Levels(through, LEVEL_ZERO))
            return self._tasks(queue, priority).delete_through(through, limit)

        return await self._change("delete_through", queue, delete)

    return _patched(MemoryStore, "delete_through", delete_through)


def unpinned_ack() -> AbstractContextManager[None]:
    """The ack level passes levels that are being written."""

    def advance(self: ReadBuffer[Any]) -> None:
        done = bisect_left(self._acked, self._loaded[0]) if self._loaded else len(self._acked)
        if done:
            self._ack_level = self._acked[done - 1]
            self._acks_passed += sum(self._acks_of.pop(level) for level in self._acked[:done])
            del self._acked[:done]

    return _patched(ReadBuffer, "_advance", advance)


def read_removed_with_append_in_flight() -> AbstractContextManager[None]:
    """A partition that is asked whether it is drained does not mind what is being appended to it."""

    async def drain_report(self: Node) -> DrainReport:
        await self.partition.backlog.delete_acked()
        stored = await self.partition.backlog.count()
        return DrainReport(self._number, self.config.version, 0, stored)

    return _patched(Node, "_drain_report", drain_report)


@contextmanager
def lost_push_no_repair() -> Iterator[None]:
    """A push of the configuration that fails is not made again."""

    def forget(*_: object) -> None:
        """Nothing is looked at again."""

    with _patched(Pushes, "look_again", forget), _patched(Pushes, "note", forget), _patched(Pushes, "_retry", forget):
        yield


def poll_cancel_drops_task() -> AbstractContextManager[None]:
    """A task of the backlog that was given to a poll which has gone is not given back."""

    def give_back(self: Partition, given: Given) -> None:
        if given.held is None:
            original(self, given)

    original: Callable[[Partition, Given], None] = Partition.give_back
    return _patched(Partition, "give_back", give_back)


def forwarded_task_stored() -> AbstractContextManager[None]:
    """A partition keeps what a child has only offered to it."""

    async def add_forwarded(self: Node, request: AddRequest) -> AddAnswer:
        answer = await original(self, request)
        if not answer.is_started:
            await self.partition.keep(request.task)
        return answer

    original = Node._add_forwarded
    return _patched(Node, "_add_forwarded", add_forwarded)


PLANTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "unfenced-delete": unfenced_delete,
    "unpinned-ack": unpinned_ack,
    "read-removed-with-append-in-flight": read_removed_with_append_in_flight,
    "forwarded-task-stored": forwarded_task_stored,
    "lost-push-no-repair": lost_push_no_repair,
    "poll-cancel-drops-task": poll_cancel_drops_task,
}
