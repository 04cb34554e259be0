"""The store of one simulated cluster: injects faults by seed, and reports its effects to the checks."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol, cast

from fairlead.storage.commit import Commit
from fairlead.storage.history import HistoryStore, RunKey
from fairlead.storage.memory.history import MemoryHistory, _Shard
from fairlead.storage.tasks import OutcomeUnknown, StoreUnavailable
from tests.simulators.matching.store import apart
from tests.simulators.matching.transcript import Transcript

DELAY_S_MIN, DELAY_S_MAX = 0.0005, 0.004
# Share of reads that take time. All writes do, so that other work can run between any two steps.
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
    """The share of store operations with each fault, from 0 (never) to 1 (always)."""

    slow: float = 0.0
    slow_s_max: float = 0.5
    unavailable: float = 0.0
    # Share of writes with an unknown outcome: a third of them fail, a third take effect at once, a third later.
    unknown: float = 0.0


CALM = StoreWeather()


class CommitWatch(Protocol):
    """Is called for each effect in the store, in order."""

    def committed(self, cluster: str, commit: Commit, *, store: MemoryHistory) -> None:
        """A commit is in the store of `cluster`."""
        ...

    def deleted(self, cluster: str, key: RunKey) -> None:
        """A run is deleted."""
        ...


class SeededFaults:
    """Decides how long each operation takes, and how it fails."""

    def __init__(self, cluster: str, random: Random, transcript: Transcript) -> None:
        self._cluster = cluster
        self._random = random
        self._transcript = transcript
        self.weather = CALM
        # Running operations, by asyncio task, whose response is lost after they take effect.
        self._answers_lost: dict[object, None] = {}
        # Number of writes until the cluster crashes, before or after the last of them takes effect.
        self._writes_left: int | None = None
        self._dies_at = ""
        self._dies_after = False
        self._on_death: Callable[[], None] = lambda: None

    def die_in(self, writes: int, on_death: Callable[[], None], *, operation: str, is_after: bool) -> None:
        """Call `on_death` after this number of writes; if `operation` is set, only writes of that name count."""
        self._writes_left, self._on_death = writes, on_death
        self._dies_at, self._dies_after = operation, is_after

    def live(self) -> None:
        """Cancel the planned crash: a new life has begun."""
        self._writes_left = None

    async def before(self, operation: str, place: int | None) -> Callable[[], Awaitable[None]] | None:
        """See `fairlead.storage.memory.faults.FaultsAt`."""
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
                    raise StoreUnavailable("the cluster has crashed")
        if not self._happens(self.weather.unknown):
            return None
        kind = self._random.randrange(3)
        if kind == 0:
            self._note(operation, place, "has no effect, and its response is lost")
            raise OutcomeUnknown(f"{operation}: simulated, without effect")
        if kind == 1:
            self._note(operation, place, "has effect later, and its response is lost")
            return self._wait_long
        self._answers_lost[asyncio.current_task()] = None
        return None

    async def after(self, operation: str, place: int | None) -> None:
        """See `fairlead.storage.memory.faults.FaultsAt`."""
        if self._answers_lost and asyncio.current_task() in self._answers_lost:
            del self._answers_lost[asyncio.current_task()]
            self._note(operation, place, "has effect, and its response is lost")
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
    """A memory store that reports each commit at the moment it takes effect."""

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
    """The store as one life of a cluster sees it. A request that was sent is executed even if the life ends."""

    def __init__(self, store: WatchedHistory) -> None:
        self._store = store
        self.is_over = False

    def as_store(self) -> HistoryStore:
        """This object as a `HistoryStore`: `__getattr__` supplies all methods of the contract."""
        return cast("HistoryStore", self)

    def __getattr__(self, operation: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(self._store, operation)

        async def ask(*arguments: Any, **options: Any) -> Any:
            if self.is_over:
                raise StoreUnavailable("the simulation is over")
            if operation in WRITES:
                return await apart(method(*arguments, **options), f"store.{operation}")
            return await method(*arguments, **options)

        # Later calls find the method without `__getattr__`.
        setattr(self, operation, ask)
        return ask
