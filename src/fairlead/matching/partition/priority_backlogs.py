"""The fair backlogs of one partition, one for each priority; the writer, the reader and the deleter share them."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from fairlead.core.fairness import LEVEL_ZERO, FairBacklog, Merge, StoredKey, WeightOverrides
from fairlead.core.fairness.weights import STRIDE_OF_WEIGHT_ONE
from fairlead.matching.messages import PriorityInfo
from fairlead.matching.partition.backlog_limits import BacklogLimits
from fairlead.matching.partition.matcher import HeldTask, Position
from fairlead.storage.tasks import Levels, StoredTask

# Number of fairness keys that are restored before other work of the event loop runs: some milliseconds.
_KEYS_A_TURN_MAX = 2_000


class WaitingKey(NamedTuple):
    """A fairness key with tasks in the backlog. `tasks` is an estimate.

    `lead` is the number of rounds between the tasks that are dispatched now and the key's last task.
    """

    tasks: int
    lead: float
    weight: float


class LoadedTasks(Protocol):
    """The loaded tasks of a backlog, which wait for polls."""

    def load(self, tasks: Sequence[HeldTask[bytes]]) -> None:
        """Take loaded tasks."""
        ...

    def evict(self, positions: Sequence[Position]) -> None:
        """Forget tasks that must leave memory."""
        ...

    def parked(self) -> int:
        """Number of loaded tasks that a rate limit holds."""
        ...


class BacklogWorkers(Protocol):
    """The reader and the deleter of a backlog."""

    def wake_reader(self) -> None:
        """Start a read if one is due: there may be tasks to read."""
        ...

    def wake_deleter(self) -> None:
        """Start the deletes that are due: an ack level may have risen."""
        ...


class PriorityBacklogs:
    """Holds the backlog of each priority. Decisions are made in `core.fairness`."""

    __slots__ = (
        "_limits",
        "_loaded",
        "_overrides",
        "_workers",
        "acks_waiting",
        "by_priority",
        "tasks_counted",
    )

    def __init__(
        self,
        *,
        overrides: WeightOverrides,
        limits: BacklogLimits,
        loaded: LoadedTasks,
        workers: BacklogWorkers,
    ) -> None:
        self._overrides = overrides
        self._limits = limits
        self._loaded = loaded
        self._workers = workers
        self.by_priority: dict[int, FairBacklog[StoredTask]] = {}
        # Number of acks since the last delete; the deleter resets it.
        self.acks_waiting = 0
        # Number of tasks in the store that have not been started; an estimate until all of them have been read.
        self.tasks_counted = 0

    @property
    def tasks(self) -> int:
        """Number of stored tasks that have not been started: exact once all of them have been read."""
        if not self.by_priority:
            self.tasks_counted = 0
        elif self.is_loaded:
            self.tasks_counted = sum(len(backlog.loaded) for backlog in self.by_priority.values())
        return max(0, self.tasks_counted)

    def infos(self) -> list[PriorityInfo]:
        """Return the levels of each priority."""
        return [
            PriorityInfo(priority, backlog.ack_level, backlog.read_level, backlog.max_level)
            for priority, backlog in sorted(self.by_priority.items())
        ]

    @property
    def is_loaded(self) -> bool:
        """Whether all stored tasks are in memory."""
        return all(backlog.is_at_end for backlog in self.by_priority.values())

    def tasks_by_priority(self) -> dict[int, int]:
        """Return the number of tasks of each priority.

        Tasks that are not read yet are divided evenly among the priorities.
        """
        tasks = {priority: len(backlog.loaded) for priority, backlog in self.by_priority.items()}
        partly = [priority for priority, backlog in self.by_priority.items() if not backlog.is_at_end]
        unread = max(0, self.tasks - sum(tasks.values()))
        for number, priority in enumerate(partly):
            tasks[priority] += unread // len(partly) + (number < unread % len(partly))
        return tasks

    def override_weights(self, overrides: WeightOverrides) -> None:
        """Use other weight overrides from the next write on."""
        self._overrides = overrides
        for backlog in self.by_priority.values():
            backlog.override_weights(overrides)

    def waiting_keys(self) -> dict[str, WaitingKey]:
        """Return the individually counted fairness keys that may have waiting tasks."""
        waiting: dict[str, WaitingKey] = {}
        for backlog in self.by_priority.values():
            for key, passes, stride in backlog.waiting():
                known = waiting.get(key)
                tasks = passes // stride + 1 + (known.tasks if known else 0)
                lead = max(passes / STRIDE_OF_WEIGHT_ONE, known.lead if known else 0.0)
                waiting[key] = WaitingKey(tasks, lead, STRIDE_OF_WEIGHT_ONE / stride)
        return waiting

    def ack(self, position: Position) -> None:
        """Record that a task was started and may be deleted."""
        backlog = self.by_priority[position.priority]
        backlog.ack(position.level)
        self.tasks_counted -= 1
        self.acks_waiting += 1
        # The first ack starts the deleter, which then waits for more acks or for its interval.
        if self.acks_waiting == 1 or self.acks_waiting >= self._limits.delete_at_tasks:
            self._workers.wake_deleter()
        if not backlog.is_at_end:
            self._workers.wake_reader()

    async def restore(self, priority: int, levels: Levels, stored: Sequence[StoredKey]) -> None:
        """Add a priority with its stored levels and fairness keys.

        A million keys take seconds, so the event loop runs other work in between.
        """
        first_pass = min([key.first_pass for key in stored], default=levels.ack_level.pass_number)
        backlog = self._new(levels, first_pass)
        for start in range(0, len(stored), _KEYS_A_TURN_MAX):
            backlog.restore(stored[start : start + _KEYS_A_TURN_MAX])
            await asyncio.sleep(0)
        # The overrides may have changed meanwhile.
        backlog.override_weights(self._overrides)
        self._add(priority, backlog)

    def of(self, priority: int) -> FairBacklog[StoredTask]:
        """Return the backlog of a priority; an empty one is created if there is none."""
        if priority not in self.by_priority:
            self._add(priority, self._new(Levels(LEVEL_ZERO, LEVEL_ZERO), LEVEL_ZERO.pass_number))
        return self.by_priority[priority]

    def _new(self, levels: Levels, first_pass: int) -> FairBacklog[StoredTask]:
        return FairBacklog(
            ack_level=levels.ack_level,
            max_level=levels.max_level,
            stored=(),
            overrides=self._overrides,
            limits=self._limits.buffer,
            keys_max=self._limits.keys_counted_max,
            first_pass=first_pass,
        )

    def _add(self, priority: int, backlog: FairBacklog[StoredTask]) -> None:
        self.by_priority[priority] = backlog
        self._workers.wake_reader()
        self._workers.wake_deleter()

    def deliver(self, priority: int, merge: Merge[StoredTask]) -> None:
        """Hand loaded tasks to the matcher and take evicted ones back from it."""
        if merge.evicted:
            self._loaded.evict([Position(priority, level) for level in merge.evicted])
        if merge.loaded:
            self._loaded.load([
                HeldTask(Position(priority, level), task.fairness_key, task.weight, task.payload, task.created_s)
                for level, task in merge.loaded
            ])  # fmt: skip
        if not self.by_priority[priority].is_at_end:
            self._workers.wake_reader()
