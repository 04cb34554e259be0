# ruff: noqa: D102 - the contract documents each change
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fairlead.core.fairness import LEVEL_ZERO, Level
from fairlead.core.fairness.ids import BLOCK_SIZE
from fairlead.core.hashing import hash64
from fairlead.core.partitions import PartitionConfig
from fairlead.storage.sqlite import statements
from fairlead.storage.sqlite.many_rows import execute_rows
from fairlead.storage.tasks import (
    MEMBER_FORGOTTEN_AFTER_S,
    Lease,
    LeaseLost,
    Levels,
    LevelTaken,
    Member,
    QueueId,
    StoredTask,
)

# Maximum number of queues whose lease and levels are cached between transactions, a few hundred bytes each.
QUEUES_REMEMBERED_MAX = 20_000
# Range of the numbers that are derived from names: above the numbers in older files, which count from 1, and short
# enough to take little room in each row.
NUMBER_MIN, NUMBERS = 1 << 32, 1 << 46


@dataclass(slots=True)
class _Reached:
    ack_level: Level = LEVEL_ZERO
    max_level: Level = LEVEL_ZERO
    tasks: int = 0


@dataclass(slots=True)
class _Queue:
    number: int
    range_id: int
    config: PartitionConfig | None
    reached: dict[int, _Reached]


class Tables:
    """Changes of task queues in one transaction at a time. Each change is made completely, or rejected without effect.

    The writes of many callers share a transaction, so each row is written once: new tasks are gathered into few
    statements, and of each lease and level only the last state is saved. Leases and levels are cached; the caches are
    cleared if a transaction fails, and if an operator has changed the file with another program.
    """

    def __init__(self, writer: sqlite3.Connection) -> None:
        self._writer = writer
        self._queues: dict[QueueId, _Queue] = {}
        # Changes of this transaction that are not yet written.
        self._tasks: list[Any] = []
        self._changed_queues: dict[int, _Queue] = {}
        self._changed_levels: dict[tuple[int, int], _Reached] = {}
        self._data_version = 0

    def begin(self) -> None:
        """Begin the transaction of the next changes."""
        self._writer.execute(statements.BEGIN)
        (data_version,) = self._writer.execute(statements.DATA_VERSION).fetchone()
        if data_version != self._data_version:
            # An owner whose row was deleted must lose its lease: reads of a queue without a row find no tasks.
            self._queues.clear()
            self._data_version = data_version

    def flush(self) -> None:
        """Write all pending changes, so that only the commit is left."""
        self._insert_tasks()
        levels: list[Any] = []
        for row_key, reached in self._changed_levels.items():
            levels += (*row_key, *reached.ack_level, *reached.max_level, reached.tasks)
        execute_rows(self._writer, statements.save_levels, levels, statements.LEVEL_COLUMNS)
        self._changed_levels.clear()
        for queue in self._changed_queues.values():
            config = queue.config
            columns = (None, None, None) if config is None else (config.version, config.read, config.write)
            self._writer.execute(statements.SAVE_QUEUE, (queue.range_id, *columns, queue.number))
        self._changed_queues.clear()

    def commit(self) -> None:
        """Commit: when this returns, the changes survive a crash of the machine."""
        self._writer.execute(statements.COMMIT)
        while len(self._queues) > QUEUES_REMEMBERED_MAX:
            del self._queues[next(iter(self._queues))]

    def roll_back(self) -> None:
        """Roll back this transaction, and clear the caches."""
        self._queues.clear()
        self._tasks.clear()
        self._changed_levels.clear()
        self._changed_queues.clear()
        if self._writer.in_transaction:
            self._writer.execute(statements.ROLLBACK)

    def take_lease(self, queue: QueueId) -> Lease:
        stored = self._find(queue)
        if stored is None:
            stored = self._create(queue)
        stored.range_id += 1
        self._changed_queues[stored.number] = stored
        levels = {
            priority: Levels(reached.ack_level, reached.max_level) for priority, reached in stored.reached.items()
        }
        return Lease(stored.range_id, levels, stored.config)

    def renew_lease(self, queue: QueueId, range_id: int) -> int:
        stored = self._owned(queue, range_id)
        stored.range_id += 1
        self._changed_queues[stored.number] = stored
        return stored.range_id

    def append(self, queue: QueueId, range_id: int, priority: int, tasks: Sequence[StoredTask], levels: Levels) -> None:
        stored = self._owned(queue, range_id)
        number = stored.number
        rows = self._tasks
        for (pass_number, task_id), key, weight, payload, created_s in tasks:
            rows += (number, priority, pass_number, task_id, key, weight, payload, created_s)
        self._reach(stored, priority, levels).tasks += len(tasks)

    def delete_through(self, queue: QueueId, range_id: int, priority: int, through: Level, limit: int) -> int:
        stored = self._owned(queue, range_id)
        # The tasks to delete may still be unwritten in this transaction.
        self._insert_tasks()
        row_key = (stored.number, priority)
        last = self._writer.execute(statements.LAST_TO_DELETE, (*row_key, *through, limit - 1)).fetchone()
        deleted = self._writer.execute(statements.DELETE_TASKS, (*row_key, *(last or through))).rowcount
        self._reach(stored, priority, Levels(through, LEVEL_ZERO)).tasks -= deleted
        return deleted

    def save_levels(self, queue: QueueId, range_id: int, levels: dict[int, Levels]) -> None:
        stored = self._owned(queue, range_id)
        for priority, reached in levels.items():
            self._reach(stored, priority, reached)

    def save_config(self, queue: QueueId, range_id: int, config: PartitionConfig) -> None:
        stored = self._owned(queue, range_id)
        stored.config = config
        self._changed_queues[stored.number] = stored

    def save_rules(self, queue: QueueId, range_id: int, config: PartitionConfig, rules: bytes) -> None:
        self.save_config(queue, range_id, config)
        self._writer.execute(statements.SAVE_RULES, (rules, self._queues[queue].number))

    def heartbeat(self, member: Member, now_s: float) -> list[Member]:
        self._writer.execute(statements.SAVE_MEMBER, (member.host, member.expires_s))
        self._writer.execute(statements.FORGET_MEMBERS, (member.expires_s - MEMBER_FORGOTTEN_AFTER_S,))
        return [Member(*row) for row in self._writer.execute(statements.LIVE_MEMBERS, (now_s,))]

    def leave(self, host: str) -> None:
        self._writer.execute(statements.DELETE_MEMBER, (host,))

    def _find(self, queue: QueueId) -> _Queue | None:
        stored = self._queues.get(queue)
        if stored is not None:
            return stored
        row = self._writer.execute(statements.FIND_QUEUE, queue).fetchone()
        if row is None:
            return None
        number, range_id, *config = row
        reached = {
            priority: _Reached(Level(ack_pass, ack_id), Level(max_pass, max_id), tasks)
            for priority, ack_pass, ack_id, max_pass, max_id, tasks in self._writer.execute(
                statements.FIND_LEVELS, (number,)
            )
        }
        stored = self._queues[queue] = _Queue(number, range_id, config_of(config), reached)
        return stored

    def _create(self, queue: QueueId) -> _Queue:
        """Add the row of a queue. Its number is derived from the queue's name.

        So a queue whose row was lost finds its levels and tasks again. The ids of new tasks start above the old ids.
        """
        number = NUMBER_MIN + hash64(f"{queue.namespace_id}\0{queue.name}\0{int(queue.type)}") % NUMBERS
        self._writer.execute(statements.CREATE_QUEUE, (number, *queue))
        stored = self._find(queue)
        assert stored is not None  # noqa: S101 - it was just made, in the same transaction
        if stored.reached:
            (last_id,) = self._writer.execute(statements.LAST_TASK_ID, (stored.number,)).fetchone()
            last_id = max(last_id, *(reached.max_level.task_id for reached in stored.reached.values()))
            stored.range_id = -(-last_id // BLOCK_SIZE)
        return stored

    def _owned(self, queue: QueueId, range_id: int) -> _Queue:
        stored = self._find(queue)
        if stored is None or stored.range_id != range_id:
            raise lease_lost(queue, range_id, None if stored is None else stored.range_id)
        return stored

    def _reach(self, stored: _Queue, priority: int, levels: Levels) -> _Reached:
        reached = stored.reached.get(priority)
        if reached is None:
            reached = stored.reached[priority] = _Reached()
        reached.ack_level = max(reached.ack_level, levels.ack_level)
        reached.max_level = max(reached.max_level, levels.max_level)
        self._changed_levels[stored.number, priority] = reached
        return reached

    def _insert_tasks(self) -> None:
        try:
            execute_rows(self._writer, statements.insert_tasks, self._tasks, statements.TASK_COLUMNS)
        except sqlite3.IntegrityError as refused:
            if refused.sqlite_errorcode != sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY:
                raise
            first, count = Level(*self._tasks[2:4]), len(self._tasks) // statements.TASK_COLUMNS
            message = f"level {first}, or one of {count - 1} written with it, is stored already: nothing was changed"
            raise LevelTaken(message) from refused
        # Clear only after success: after a conflict, the flush at the end of the transaction must fail too.
        self._tasks.clear()


def config_of(columns: Sequence[int | None]) -> PartitionConfig | None:
    """The partition configuration in the three columns of a queue; None if it was never saved."""
    version, read, write = columns
    if version is None or read is None or write is None:
        return None
    return PartitionConfig(version, read, write)


def lease_lost(queue: QueueId, range_id: int, owner_range_id: int | None) -> LeaseLost:
    """The error for an owner that has lost the lease."""
    owner = "no range id has" if owner_range_id is None else f"range id {owner_range_id} has"
    return LeaseLost(f"{queue}: range id {range_id} can't write, {owner} the lease: nothing was changed")
