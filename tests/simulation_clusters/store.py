"""The store of one simulated cluster: it goes wrong as a seed decides, and tells what takes effect in it."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol, cast

from fairlead.storage.contract import OutcomeUnknown, StoreUnavailable
from fairlead.storage.history_contract import Commit, HistoryStore, RunKey
from fairlead.storage.history_memory import MemoryHistory, _Shard
from tests.simulation.store import apart
from tests.simulation.transcript import Transcript

DELAY_S_MIN, DELAY_S_MAX = 0.0005, 0.004
# One in so many reads takes time; all writes do, so that there is something between any two steps.
READS_SLOWED = 0.2
WRITES = frozenset(
    {
        "take_shard",
        "renew_shard",
        "commit",
        "complete_tasks",
        "delete_run",
        "create_namespace",
        "update_namespace",
        "rename_namespace",
        "delete_namespace",
        "write_metadata",
        "delete_metadata",
    }
)


@dataclass(frozen=True, slots=True)
class StoreWeather:
    """What becomes of the store's operations: each share is of all, from 0 (never) to 1 (always)."""

    slow: float = 0.0
    slow_s_max: float = 0.5
    unavailable: float = 0.0
    # Of writes; one in three each never takes effect, has taken effect, or does so later.
    unknown: float = 0.0


CALM = StoreWeather()


class CommitWatch(Protocol):
    """Is told what takes effect, in the order in which it does."""

    def committed(self, cluster: str, commit: Commit, *, store: MemoryHistory) -> None:
        """A commit is in the store of `cluster`."""
        ...

    def deleted(self, cluster: str, key: RunKey) -> None:
        """A run is gone."""
        ...


class SeededFaults:
    """Decides for each operation how long it takes and what goes wrong with it."""

    def __init__(self, cluster: str, random: Random, transcript: Transcript) -> None:
        self._cluster = cluster
        self._random = random
        self._transcript = transcript
        self.weather = CALM
        # What each operation that is under way still has to suffer after it took effect, by the task that runs it.
        self._answers_lost: dict[object, None] = {}
        # After so many writes the cluster dies: right before the last of them has effect, or right after.
        self._writes_left: int | None = None
        self._dies_at = ""
        self._dies_after = False
        self._on_death: Callable[[], None] = lambda: None

    def die_in(self, writes: int, on_death: Callable[[], None], *, operation: str, is_after: bool) -> None:
        """Have `on_death` called at a write to come; where `operation` is given, only those of that name count."""
        self._writes_left, self._on_death = writes, on_death
        self._dies_at, self._dies_after = operation, is_after

    def live(self) -> None:
        """A new life begins: what was to end the last one is forgotten."""
        self._writes_left = None

    async def before(self, operation: str, place: int | None) -> Callable[[], Awaitable[None]] | None:
        """See `fairlead.storage.faulty.FaultsAt`."""
        is_write = operation in WRITES
        if is_write or self._happens(READS_SLOWED):
            await self._wait(self.weather.slow)
        if self._happens(self.weather.unavailable):
            self._note(operation, place, "is unavailable")
            raise StoreUnavailable(f"{operation}: simulated")
        if not is_write:
            return None
        if self._writes_left is not None and self._dies_at in ("", operation):
            self._writes_left -= 1
            if self._writes_left <= 0:
                self._writes_left = None
                self._note(
                    operation, place, "is where the cluster dies, " + ("after" if self._dies_after else "before")
                )
                self._on_death()
                if not self._dies_after:
                    raise StoreUnavailable("nobody hears this")
        if not self._happens(self.weather.unknown):
            return None
        kind = self._random.randrange(3)
        if kind == 0:
            self._note(operation, place, "has no effect, and its answer is lost")
            raise OutcomeUnknown(f"{operation}: simulated, without effect")
        if kind == 1:
            self._note(operation, place, "has effect later, and its answer is lost")
            return self._wait_long
        self._answers_lost[asyncio.current_task()] = None
        return None

    async def after(self, operation: str, place: int | None) -> None:
        """See `fairlead.storage.faulty.FaultsAt`."""
        if self._answers_lost and asyncio.current_task() in self._answers_lost:
            del self._answers_lost[asyncio.current_task()]
            self._note(operation, place, "has effect, and its answer is lost")
            raise OutcomeUnknown(f"{operation}: simulated, with effect")

    async def _wait(self, slow: float) -> None:
        delay_s = self._random.uniform(DELAY_S_MIN, DELAY_S_MAX)
        if self._happens(slow):
            delay_s += self._random.uniform(0.0, self.weather.slow_s_max)
        await asyncio.sleep(delay_s)

    async def _wait_long(self) -> None:
        await asyncio.sleep(self._random.uniform(0.0, 2 * self.weather.slow_s_max))

    def _happens(self, share: float) -> bool:
        return share > 0.0 and self._random.random() < share

    def _note(self, operation: str, place: int | None, what: str) -> None:
        where = "" if place is None else f" of shard {place}"
        self._transcript.note(self._cluster, f"store: {operation}{where} {what}")


class WatchedHistory(MemoryHistory):
    """A memory store whose commits are seen in the moment in which they take effect."""

    def __init__(self, cluster: str, faults: SeededFaults, watch: CommitWatch) -> None:
        super().__init__(faults)
        self.cluster = cluster
        self.commits = 0
        self._watch = watch

    def _write(self, shard: _Shard, commit: Commit) -> None:
        super()._write(shard, commit)
        self.commits += 1
        self._watch.committed(self.cluster, commit, store=self)

    async def delete_run(self, shard_id: int, range_id: int, key: RunKey, **options: Any) -> None:
        """See the contract."""
        await super().delete_run(shard_id, range_id, key, **options)
        self._watch.deleted(self.cluster, key)


class HostStore:
    """The store as one life of a cluster reaches it. What has been asked for is carried out though it be killed."""

    def __init__(self, store: WatchedHistory) -> None:
        self._store = store
        self.is_over = False

    def as_store(self) -> HistoryStore:
        """All methods of the contract are there, by `__getattr__`."""
        return cast("HistoryStore", self)

    def __getattr__(self, operation: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(self._store, operation)

        async def ask(*arguments: Any, **options: Any) -> Any:
            if self.is_over:
                raise StoreUnavailable("the simulation is over")
            if operation in WRITES:
                return await apart(method(*arguments, **options), f"store.{operation}")
            return await method(*arguments, **options)

        # Next time it is found without coming here.
        setattr(self, operation, ask)
        return ask
