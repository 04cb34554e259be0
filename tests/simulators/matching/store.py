"""The store that all hosts share: injects faults by seed, and reports its effects to the checks."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol, TypeVar, cast

from fairlead.core.fairness import LEVEL_ZERO, Level
from fairlead.core.partitions import PartitionConfig
from fairlead.simulations.virtual_loop import NOBODY
from fairlead.storage.memory.tasks import MemoryStore
from fairlead.storage.tasks import Levels, OutcomeUnknown, QueueId, StoredTask, StoreUnavailable, TaskStore
from tests.simulators.matching.network import running_loop
from tests.simulators.matching.transcript import Transcript

Response = TypeVar("Response")

DELAY_S_MIN, DELAY_S_MAX = 0.0005, 0.004
# Seconds until a host notices that it can't reach the store.
UNREACHABLE_S = 0.05
_READS = frozenset(
    {"read", "stored_keys", "load_config", "load_rules", "count", "list_partitions", "list_queues", "members"}
)


@dataclass(frozen=True, slots=True)
class StoreWeather:
    """The share of store operations with each fault, from 0 (never) to 1 (always)."""

    slow: float = 0.0
    # Share of appends that are delayed before they take effect, as if they waited for a lock.
    append_slow: float = 0.0
    slow_s_max: float = 3.0
    unavailable: float = 0.0
    # Share of writes with an unknown outcome: a third of them fail, a third take effect at once, a third later.
    unknown: float = 0.0


CALM = StoreWeather()


class SeededFaults:
    """Decides how long each operation takes, and how it fails."""

    def __init__(self, random: Random, transcript: Transcript) -> None:
        self._random = random
        self._transcript = transcript
        self.weather = CALM
        # Running operations, by asyncio task, whose response is lost after they take effect.
        self._answers_lost: dict[object, None] = {}

    async def before(self, operation: str, queue: QueueId | None) -> Callable[[], Awaitable[None]] | None:
        """See `fairlead.storage.memory.tasks.Faults`."""
        await self._wait(max(self.weather.slow, self.weather.append_slow if operation == "append" else 0.0))
        if self._happens(self.weather.unavailable):
            self._note(operation, queue, "is unavailable")
            raise StoreUnavailable(f"{operation}: simulated")
        if operation in _READS or not self._happens(self.weather.unknown):
            return None
        kind = self._random.randrange(3)
        if kind == 0:
            self._note(operation, queue, "has no effect, and its response is lost")
            raise OutcomeUnknown(f"{operation}: simulated, without effect")
        if kind == 1:
            self._note(operation, queue, "has effect later, and its response is lost")
            return self._wait_long
        self._answers_lost[asyncio.current_task()] = None
        return None

    async def after(self, operation: str, queue: QueueId | None) -> None:
        """See `fairlead.storage.memory.tasks.Faults`."""
        is_lost = asyncio.current_task() in self._answers_lost
        self._answers_lost.pop(asyncio.current_task(), None)
        if is_lost:
            self._note(operation, queue, "has effect, and its response is lost")
            raise OutcomeUnknown(f"{operation}: simulated, with effect")
        await self._wait(self.weather.slow)

    async def _wait(self, slow: float) -> None:
        delay_s = self._random.uniform(DELAY_S_MIN, DELAY_S_MAX)
        if self._happens(slow):
            delay_s += self._random.uniform(0.0, self.weather.slow_s_max)
        await asyncio.sleep(delay_s)

    async def _wait_long(self) -> None:
        await asyncio.sleep(self._random.uniform(0.0, 2 * self.weather.slow_s_max))

    def _happens(self, share: float) -> bool:
        return share > 0.0 and self._random.random() < share

    def _note(self, operation: str, queue: QueueId | None, what: str) -> None:
        self._transcript.note("store", f"{operation} of {'members' if queue is None else queue.name} {what}")


class StoreWatch(Protocol):
    """Is called for each effect in the store, in order."""

    def appended(self, queue: QueueId, priority: int, tasks: Sequence[StoredTask], before: Levels | None) -> None:
        """Tasks are stored; `before` has the levels of this priority that were saved until then."""
        ...

    def deleted(self, queue: QueueId, tasks: Sequence[StoredTask], *, range_id: int, owner: int) -> None:
        """Tasks are deleted with `range_id`, while the lease has range id `owner`."""
        ...

    def configured(self, queue: QueueId, before: PartitionConfig | None, after: PartitionConfig) -> None:
        """The root's configuration has changed."""
        ...


class OwnerWatch(Protocol):
    """Is called for each request of queue owners, in order."""

    def leased(self, queue: QueueId, range_id: int, *, renewed: int | None) -> None:
        """A host has the lease, as a new owner or as the owner that renews range id `renewed`."""
        ...

    def levels_reported(self, queue: QueueId, range_id: int, levels: dict[int, Levels]) -> None:
        """An owner is about to save its levels."""
        ...


class WatchedStore(MemoryStore):
    """A memory store that reports each change at the moment it takes effect."""

    def __init__(self, faults: SeededFaults, watch: StoreWatch) -> None:
        super().__init__(faults)
        self._watch = watch
        self._watched: Callable[[Callable[[], Any]], Any] | None = None
        # Older configurations and rules, which `lose_config` can restore.
        self._older: list[tuple[PartitionConfig | None, bytes | None]] = []

    def stored(self, queue: QueueId) -> list[StoredTask]:
        """All tasks of a queue, without a check of its lease."""
        if queue not in self._queues:
            return []
        return [task for _, tasks in sorted(self._queues[queue].tasks.items()) for task in tasks.after(LEVEL_ZERO)]

    def config(self, queue: QueueId) -> PartitionConfig | None:
        """The stored configuration of a queue, without a check of its lease."""
        return self._queues[queue].config if queue in self._queues else None

    def lose_config(self, queue: QueueId, random: Random) -> PartitionConfig | None:
        """Lose the configuration and the rules of a queue, or restore older ones; its tasks stay."""
        if queue not in self._queues:
            return None
        stored = self._queues[queue]
        stored.config, stored.rules = random.choice([(None, None), *self._older])
        return stored.config

    @property
    def queues(self) -> list[QueueId]:
        """All queues that were ever leased."""
        return list(self._queues)

    async def append(
        self, queue: QueueId, range_id: int, priority: int, tasks: Sequence[StoredTask], levels: Levels
    ) -> None:
        """See the contract."""

        def watched(change: Callable[[], Any]) -> Any:
            before = self._queues[queue].levels.get(priority) if queue in self._queues else None
            change()
            self._watch.appended(queue, priority, tasks, before)

        self._watched = watched
        await super().append(queue, range_id, priority, tasks, levels)

    async def delete_through(self, queue: QueueId, range_id: int, priority: int, *, through: Level, limit: int) -> int:
        """See the contract."""

        def watched(change: Callable[[], Any]) -> Any:
            tasks = self._tasks(queue, priority).first_after(LEVEL_ZERO, limit)
            owner = self._queues[queue].range_id
            gone = change()
            self._watch.deleted(queue, tasks[:gone], range_id=range_id, owner=owner)
            return gone

        self._watched = watched
        return await super().delete_through(queue, range_id, priority, through=through, limit=limit)

    async def save_config(self, queue: QueueId, range_id: int, config: PartitionConfig) -> None:
        """See the contract."""

        def watched(change: Callable[[], Any]) -> Any:
            before = self.config(queue)
            self._older.append((before, self._queues[queue].rules))
            change()
            self._watch.configured(queue, before, config)

        self._watched = watched
        await super().save_config(queue, range_id, config)

    async def save_rules(self, queue: QueueId, range_id: int, config: PartitionConfig, rules: bytes) -> None:
        """See the contract."""

        def watched(change: Callable[[], Any]) -> Any:
            before = self.config(queue)
            self._older.append((before, self._queues[queue].rules))
            change()
            self._watch.configured(queue, before, config)

        self._watched = watched
        await super().save_rules(queue, range_id, config, rules)

    async def _change(self, operation: str, queue: QueueId | None, change: Callable[[], Response]) -> Response:
        # The calling method has set this with no await in between.
        watched, self._watched = self._watched, None
        if watched is None:
            return await super()._change(operation, queue, change)
        return cast("Response", await super()._change(operation, queue, lambda: watched(change)))


class HostStore:
    """The store as one process sees it. A request that was sent is executed even if the process is killed."""

    def __init__(self, store: WatchedStore, watch: OwnerWatch) -> None:
        self._store = store
        self._watch = watch
        self._is_over = False
        self.is_cut_off = False

    def as_store(self) -> TaskStore:
        """This object as a `TaskStore`: `__getattr__` supplies all methods of the contract."""
        return cast("TaskStore", self)

    def stop(self) -> None:
        """End the run: all further calls fail at once."""
        self._is_over = True

    def __getattr__(self, operation: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(self._store, operation)

        async def ask(*arguments: Any, **options: Any) -> Any:
            if self._is_over:
                raise StoreUnavailable("the simulation is over")
            if self.is_cut_off:
                await asyncio.sleep(UNREACHABLE_S)
                raise StoreUnavailable(f"{operation}: this host is cut off")
            if operation == "append":
                queue, range_id, priority, _, levels = arguments
                self._watch.levels_reported(queue, range_id, {priority: levels})
            elif operation == "save_levels":
                self._watch.levels_reported(*arguments)
            answer = await apart(method(*arguments, **options), f"store.{operation}")
            if operation == "take_lease":
                self._watch.leased(arguments[0], answer.range_id, renewed=None)
            elif operation == "renew_lease":
                self._watch.leased(arguments[0], answer, renewed=arguments[1])
            return answer

        return ask


async def apart(work: Any, name: str) -> Any:
    """Await work outside of this process: it is completed even if the waiting process is killed."""
    loop = running_loop()
    answer: asyncio.Future[Any] = loop.create_future()

    def notify(done: asyncio.Task[Any]) -> None:
        error = None if done.cancelled() else done.exception()
        if answer.done():
            return
        if done.cancelled():
            answer.cancel()
        elif error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(done.result())

    loop.spawn(NOBODY, work, name).add_done_callback(notify, context=NOBODY.context())
    return await answer
