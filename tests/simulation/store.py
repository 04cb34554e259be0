"""The one store that all hosts share: it goes wrong as a seed decides, and tells the checks what takes effect in it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol, TypeVar, cast

from fairlead.core.fairness import LEVEL_ZERO, Level
from fairlead.core.partitions import PartitionConfig
from fairlead.storage.contract import Levels, OutcomeUnknown, QueueId, StoredTask, StoreUnavailable, TaskStore
from fairlead.storage.memory import MemoryStore
from tests.simulation.network import running_loop
from tests.simulation.transcript import Transcript
from tests.simulation.virtual_loop import NOBODY

Answer = TypeVar("Answer")

DELAY_S_MIN, DELAY_S_MAX = 0.0005, 0.004
# How long it takes to notice that the store can't be reached.
UNREACHABLE_S = 0.05
_READS = frozenset({"read", "stored_keys", "load_config", "count", "list_queues", "members"})


@dataclass(frozen=True, slots=True)
class StoreWeather:
    """What becomes of the store's operations: each share is of all, from 0 (never) to 1 (always)."""

    slow: float = 0.0
    # Of appends, before they take effect: as when others hold a lock on the table.
    append_slow: float = 0.0
    slow_s_max: float = 3.0
    unavailable: float = 0.0
    # Of writes; one in three each never takes effect, has taken effect, or does so later.
    unknown: float = 0.0


CALM = StoreWeather()


class SeededFaults:
    """Decides for each operation how long it takes and what goes wrong with it."""

    def __init__(self, random: Random, transcript: Transcript) -> None:
        self._random = random
        self._transcript = transcript
        self.weather = CALM
        # What each operation that is under way still has to suffer after it took effect, by the task that runs it.
        self._answers_lost: dict[object, None] = {}

    async def before(self, operation: str, queue: QueueId | None) -> Callable[[], Awaitable[None]] | None:
        """See `fairlead.storage.memory.Faults`."""
        await self._wait(max(self.weather.slow, self.weather.append_slow if operation == "append" else 0.0))
        if self._happens(self.weather.unavailable):
            self._note(operation, queue, "is unavailable")
            raise StoreUnavailable(f"{operation}: simulated")
        if operation in _READS or not self._happens(self.weather.unknown):
            return None
        kind = self._random.randrange(3)
        if kind == 0:
            self._note(operation, queue, "has no effect, and its answer is lost")
            raise OutcomeUnknown(f"{operation}: simulated, without effect")
        if kind == 1:
            self._note(operation, queue, "has effect later, and its answer is lost")
            return self._wait_long
        self._answers_lost[asyncio.current_task()] = None
        return None

    async def after(self, operation: str, queue: QueueId | None) -> None:
        """See `fairlead.storage.memory.Faults`."""
        is_lost = asyncio.current_task() in self._answers_lost
        self._answers_lost.pop(asyncio.current_task(), None)
        if is_lost:
            self._note(operation, queue, "has effect, and its answer is lost")
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
    """Is told what takes effect, in the order in which it does."""

    def appended(self, queue: QueueId, priority: int, tasks: Sequence[StoredTask], before: Levels | None) -> None:
        """Tasks are stored; `before` is what was saved of this priority until then."""
        ...

    def deleted(self, queue: QueueId, tasks: Sequence[StoredTask], *, range_id: int, owner: int) -> None:
        """Tasks are gone, by a delete with `range_id` while the lease had the range id `owner`."""
        ...

    def configured(self, queue: QueueId, before: PartitionConfig | None, after: PartitionConfig) -> None:
        """The root's configuration is another."""
        ...


class OwnerWatch(Protocol):
    """Is told what owners ask for, in the order in which they do."""

    def leased(self, queue: QueueId, range_id: int, *, renewed: int | None) -> None:
        """A host has the lease, as a new owner or in place of the range id that it has `renewed`."""
        ...

    def told(self, queue: QueueId, range_id: int, levels: dict[int, Levels]) -> None:
        """An owner is about to save how far it has come."""
        ...


class WatchedStore(MemoryStore):
    """A memory store whose changes are seen in the moment in which they take effect."""

    def __init__(self, faults: SeededFaults, watch: StoreWatch) -> None:
        super().__init__(faults)
        self._watch = watch
        self._watched: Callable[[Callable[[], Any]], Any] | None = None

    def stored(self, queue: QueueId) -> list[StoredTask]:
        """All tasks of a queue, whoever owns it."""
        if queue not in self._queues:
            return []
        return [task for _, tasks in sorted(self._queues[queue].tasks.items()) for task in tasks.after(LEVEL_ZERO)]

    def config(self, queue: QueueId) -> PartitionConfig | None:
        """The configuration that is stored, whoever owns the queue."""
        return self._queues[queue].config if queue in self._queues else None

    @property
    def queues(self) -> list[QueueId]:
        """All queues that were ever taken."""
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
            change()
            self._watch.configured(queue, before, config)

        self._watched = watched
        await super().save_config(queue, range_id, config)

    async def _change(self, operation: str, queue: QueueId | None, change: Callable[[], Answer]) -> Answer:
        # Set by the method that has called this one, with nothing in between.
        watched, self._watched = self._watched, None
        if watched is None:
            return await super()._change(operation, queue, change)
        return cast("Answer", await super()._change(operation, queue, lambda: watched(change)))


class HostStore:
    """The store as one process reaches it. What has been asked for is carried out though the process be killed."""

    def __init__(self, store: WatchedStore, watch: OwnerWatch) -> None:
        self._store = store
        self._watch = watch
        self._is_over = False
        self.is_cut_off = False

    def as_store(self) -> TaskStore:
        """All methods of the contract are there, by `__getattr__`."""
        return cast("TaskStore", self)

    def stop(self) -> None:
        """The run is over: everything fails at once."""
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
                self._watch.told(queue, range_id, {priority: levels})
            elif operation == "save_levels":
                self._watch.told(*arguments)
            answer = await apart(method(*arguments, **options), f"store.{operation}")
            if operation == "take_lease":
                self._watch.leased(arguments[0], answer.range_id, renewed=None)
            elif operation == "renew_lease":
                self._watch.leased(arguments[0], answer, renewed=arguments[1])
            return answer

        return ask


async def apart(work: Any, name: str) -> Any:
    """Wait for what goes on outside of this process: it comes to its end whatever becomes of who waits."""
    loop = running_loop()
    answer: asyncio.Future[Any] = loop.create_future()

    def tell(done: asyncio.Task[Any]) -> None:
        error = None if done.cancelled() else done.exception()
        if answer.done():
            return
        if done.cancelled():
            answer.cancel()
        elif error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(done.result())

    loop.spawn(NOBODY, work, name).add_done_callback(tell, context=NOBODY.context())
    return await answer
