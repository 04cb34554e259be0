"""The task contract in memory, for tests and simulation: not durable, with fault injection."""
# ruff: noqa: D102 - the contract documents each method

from collections.abc import Sequence
from dataclasses import dataclass, field

from fairlead.core.fairness import LEVEL_ZERO, Level, StoredKey
from fairlead.core.partitions import PartitionConfig
from fairlead.core.partitions.names import RESERVED_PREFIX
from fairlead.storage.memory.faults import FaultsAt, FaultyStore
from fairlead.storage.memory.history import MemoryHistory
from fairlead.storage.memory.sorted_tasks import SortedTasks
from fairlead.storage.tasks import (
    MEMBER_FORGOTTEN_AFTER_S,
    Lease,
    LeaseLost,
    Levels,
    LevelTaken,
    Member,
    QueueId,
    StoredTask,
    partitions_of,
)


@dataclass(slots=True)
class _Queue:
    range_id: int = 0
    config: PartitionConfig | None = None
    rules: bytes | None = None
    levels: dict[int, Levels] = field(default_factory=dict)
    tasks: dict[int, SortedTasks] = field(default_factory=dict)


class MemoryStore(FaultyStore[QueueId | None]):
    """A `Store` without disk, clock or threads: without faults each call completes without waiting.

    `faults` apply to the task queues, not to `history`. The size is bounded only by memory.
    """

    def __init__(self, faults: FaultsAt[QueueId | None] | None = None) -> None:
        super().__init__(faults)
        self.history = MemoryHistory()
        self._queues: dict[QueueId, _Queue] = {}
        # The other partitions of each root, so that loading a root does not search all queues.
        self._partitions: dict[QueueId, list[QueueId]] = {}
        self._members: dict[str, Member] = {}

    async def take_lease(self, queue: QueueId) -> Lease:
        def take() -> Lease:
            if queue not in self._queues:
                self._create(queue)
            stored = self._queues[queue]
            stored.range_id += 1
            return Lease(stored.range_id, dict(stored.levels), stored.config)

        return await self._change("take_lease", queue, take)

    async def renew_lease(self, queue: QueueId, range_id: int) -> int:
        def renew() -> int:
            stored = self._owned(queue, range_id)
            stored.range_id += 1
            return stored.range_id

        return await self._change("renew_lease", queue, renew)

    async def append(
        self, queue: QueueId, range_id: int, priority: int, tasks: Sequence[StoredTask], levels: Levels
    ) -> None:
        def append() -> None:
            stored = self._owned(queue, range_id)
            present = stored.tasks.setdefault(priority, SortedTasks())
            new = {task.level for task in tasks}
            if len(new) < len(tasks) or any(level in present for level in new):
                raise LevelTaken(f"{queue}, priority {priority}: one of {len(tasks)} levels is stored already")
            for task in tasks:
                present.add(task)
            _raise_levels(stored, priority, levels)

        await self._change("append", queue, append)

    async def read(self, queue: QueueId, priority: int, *, after: Level, limit: int) -> list[StoredTask]:
        return await self._read("read", queue, lambda: self._tasks(queue, priority).first_after(after, limit))

    async def stored_keys(self, queue: QueueId, priority: int, *, after: Level) -> list[StoredKey]:
        def find() -> list[StoredKey]:
            keys: dict[str, StoredKey] = {}
            for level, key, weight, _, _ in self._tasks(queue, priority).after(after):
                first_pass = keys[key].first_pass if key in keys else level.pass_number
                keys[key] = StoredKey(key, first_pass, level.pass_number, weight)
            return list(keys.values())

        return await self._read("stored_keys", queue, find)

    async def delete_through(self, queue: QueueId, range_id: int, priority: int, *, through: Level, limit: int) -> int:
        def delete() -> int:
            stored = self._owned(queue, range_id)
            _raise_levels(stored, priority, Levels(through, LEVEL_ZERO))
            return self._tasks(queue, priority).delete_through(through, limit)

        return await self._change("delete_through", queue, delete)

    async def save_levels(self, queue: QueueId, range_id: int, levels: dict[int, Levels]) -> None:
        def save() -> None:
            stored = self._owned(queue, range_id)
            for priority, reached in levels.items():
                _raise_levels(stored, priority, reached)

        await self._change("save_levels", queue, save)

    async def save_config(self, queue: QueueId, range_id: int, config: PartitionConfig) -> None:
        def save() -> None:
            self._owned(queue, range_id).config = config

        await self._change("save_config", queue, save)

    async def load_config(self, queue: QueueId) -> PartitionConfig | None:
        def load() -> PartitionConfig | None:
            stored = self._queues.get(queue)
            return None if stored is None else stored.config

        return await self._read("load_config", queue, load)

    async def save_rules(self, queue: QueueId, range_id: int, config: PartitionConfig, rules: bytes) -> None:
        def save() -> None:
            stored = self._owned(queue, range_id)
            stored.config, stored.rules = config, rules

        await self._change("save_rules", queue, save)

    async def load_rules(self, queue: QueueId) -> bytes | None:
        def load() -> bytes | None:
            stored = self._queues.get(queue)
            return None if stored is None else stored.rules

        return await self._read("load_rules", queue, load)

    async def count(self, queue: QueueId, range_id: int) -> int:
        def count() -> int:
            return sum(len(tasks) for tasks in self._owned(queue, range_id).tasks.values())

        return await self._read("count", queue, count)

    async def list_partitions(self, root: QueueId) -> dict[int, bool]:
        def find() -> dict[int, bool]:
            found = (
                (queue.name, any(len(tasks) for tasks in self._queues[queue].tasks.values()))
                for queue in self._partitions.get(root, ())
            )
            return partitions_of(root, found)

        return await self._read("list_partitions", root, find)

    async def list_queues(self, namespace_id: str | None, *, after: QueueId | None, limit: int) -> list[QueueId]:
        def find() -> list[QueueId]:
            found = (
                queue
                for queue in self._queues
                if (namespace_id is None or queue.namespace_id == namespace_id) and (after is None or queue > after)
            )
            return sorted(found)[:limit]

        return await self._read("list_queues", None, find)

    async def heartbeat(self, member: Member, *, now_s: float = 0.0) -> list[Member]:
        def beat() -> list[Member]:
            self._members[member.host] = member
            forgotten_s = member.expires_s - MEMBER_FORGOTTEN_AFTER_S
            for other in [other for other in self._members.values() if other.expires_s <= forgotten_s]:
                del self._members[other.host]
            return self._alive(now_s)

        return await self._change("heartbeat", None, beat)

    async def leave(self, host: str) -> None:
        def leave() -> None:
            self._members.pop(host, None)

        await self._change("leave", None, leave)

    async def members(self, *, now_s: float) -> list[Member]:
        return await self._read("members", None, lambda: self._alive(now_s))

    async def close(self) -> None:
        await self.history.close()
        await super().close()

    def _alive(self, now_s: float) -> list[Member]:
        alive = [member for member in self._members.values() if member.expires_s > now_s]
        return sorted(alive, key=lambda member: member.host)

    def _create(self, queue: QueueId) -> None:
        self._queues[queue] = _Queue()
        if queue.name.startswith(RESERVED_PREFIX):
            name = queue.name.removeprefix(RESERVED_PREFIX).rpartition("/")[0]
            self._partitions.setdefault(queue._replace(name=name), []).append(queue)

    def _owned(self, queue: QueueId, range_id: int) -> _Queue:
        stored = self._queues.get(queue)
        if stored is None or stored.range_id != range_id:
            owner = "no range id has" if stored is None else f"range id {stored.range_id} has"
            raise LeaseLost(f"{queue}: range id {range_id} can't write, {owner} the lease: nothing was changed")
        return stored

    def _tasks(self, queue: QueueId, priority: int) -> SortedTasks:
        stored = self._queues.get(queue)
        return SortedTasks() if stored is None else stored.tasks.get(priority, SortedTasks())


def _raise_levels(stored: _Queue, priority: int, reached: Levels) -> None:
    ack_level, max_level = stored.levels.get(priority, Levels(LEVEL_ZERO, LEVEL_ZERO))
    stored.levels[priority] = Levels(max(ack_level, reached.ack_level), max(max_level, reached.max_level))
