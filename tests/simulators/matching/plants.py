"""Bugs that can be planted into the real code, to prove that the simulation finds them."""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import Any

from fairlead.core.fairness import LEVEL_ZERO, Level
from fairlead.core.fairness.buffer import ReadBuffer
from fairlead.core.partitions import DrainReport, PartitionConfig, PartitionCounts
from fairlead.matching.handlers import add_task
from fairlead.matching.messages import AddRequest, AddResponse
from fairlead.matching.partition.describer import Describer
from fairlead.matching.partition.dispatcher import Dispatcher
from fairlead.matching.partition.manager import PartitionManager
from fairlead.matching.partition.matched_task import MatchedTask
from fairlead.matching.root import coordinator
from fairlead.matching.root.config_push import Pushes
from fairlead.matching.root.coordinator import RootCoordinator
from fairlead.storage.memory.tasks import MemoryStore, _raise_levels
from fairlead.storage.tasks import Levels, QueueId


@contextmanager
def _patched(owner: type[Any] | ModuleType, name: str, replacement: Any) -> Iterator[None]:
    original = owner.__dict__[name]
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        setattr(owner, name, original)


def unfenced_delete() -> AbstractContextManager[None]:
    """A delete takes effect even if its sender has lost the lease."""

    async def delete_through(
        self: MemoryStore, queue: QueueId, range_id: int, priority: int, *, through: Level, limit: int
    ) -> int:
        def delete() -> int:
            _raise_levels(self._queues[queue], priority, Levels(through, LEVEL_ZERO))
            return self._tasks(queue, priority).delete_through(through, limit)

        return await self._change("delete_through", queue, delete)

    return _patched(MemoryStore, "delete_through", delete_through)


def unpinned_ack() -> AbstractContextManager[None]:
    """The ack level passes levels that are still being written."""

    def advance(self: ReadBuffer[Any]) -> None:
        done = bisect_left(self._acked, self._loaded[0]) if self._loaded else len(self._acked)
        if done:
            self._ack_level = self._acked[done - 1]
            self._acks_passed += sum(self._acks_of.pop(level) for level in self._acked[:done])
            del self._acked[:done]

    return _patched(ReadBuffer, "_advance", advance)


def read_removed_with_append_in_flight() -> AbstractContextManager[None]:
    """A partition reports itself drained while appends to it are still in flight."""

    async def drain_report(self: Describer) -> DrainReport:
        await self._queue.backlog.deleter.delete_acked()
        stored = await self._queue.backlog.count()
        return DrainReport(self._dependencies.number, self._configs.config.version, 0, stored)

    return _patched(Describer, "_drain_report", drain_report)


@contextmanager
def lost_push_no_repair() -> Iterator[None]:
    """A failed push of the configuration is not retried."""

    def forget(*_: object) -> None:
        """Schedule no retry."""

    with _patched(Pushes, "remind", forget), _patched(Pushes, "note", forget), _patched(Pushes, "_retry", forget):
        yield


def poll_cancel_drops_task() -> AbstractContextManager[None]:
    """A backlog task that was matched with a cancelled poll is not returned to the backlog."""

    def give_back(self: Dispatcher, matched: MatchedTask) -> None:
        if matched.held is None:
            original(self, matched)

    original: Callable[[Dispatcher, MatchedTask], None] = Dispatcher.give_back
    return _patched(Dispatcher, "give_back", give_back)


def forwarded_task_stored() -> AbstractContextManager[None]:
    """A parent partition stores a task that a child only forwarded for a sync match."""

    async def add_forwarded(manager: PartitionManager, request: AddRequest) -> AddResponse:
        answer = await original(manager, request)
        if not answer.is_started:
            await manager.queue.backlog.writer.append(request.task)
        return answer

    original = add_task._add_forwarded
    return _patched(add_task, "_add_forwarded", add_forwarded)


def source_switch_without_drain() -> AbstractContextManager[None]:
    """The root applies the counts of a new source at once, without draining partitions first."""

    def approach(
        current: PartitionConfig, target: PartitionCounts, reports: Collection[DrainReport] = ()
    ) -> PartitionConfig:
        if target == current.counts:
            return current
        return PartitionConfig(current.version + 1, target.read, target.write)

    return _patched(coordinator, "approach", approach)


def outside_partitions_forgotten() -> AbstractContextManager[None]:
    """The root does not drain partitions outside the counts, so after a crash they are never loaded again."""

    async def approach(self: RootCoordinator) -> None:
        self._outside.clear()
        await original(self)

    original = RootCoordinator._approach
    return _patched(RootCoordinator, "_approach", approach)


PLANTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "unfenced-delete": unfenced_delete,
    "unpinned-ack": unpinned_ack,
    "read-removed-with-append-in-flight": read_removed_with_append_in_flight,
    "forwarded-task-stored": forwarded_task_stored,
    "lost-push-no-repair": lost_push_no_repair,
    "poll-cancel-drops-task": poll_cancel_drops_task,
    "source-switch-without-drain": source_switch_without_drain,
    "outside-partitions-forgotten": outside_partitions_forgotten,
}
