"""The part of a backlog that is in memory: which stored tasks are loaded, and how far all are dispatched.

    <-------------A-----R-----------------------M------------->

A, the ack level: everything at or below it has been dispatched. Nobody reads or writes there again.
R, the read level: everything stored in (A, R] is here, either loaded or acked.
M, the highest level ever written.

The store is not called from here. The owner of the backlog asks what to do next (`next_read`), does it, and tells
how it went. Each method runs to its end, so the owner may have any number of writes and one read under
way at the same time.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from fairlead.core.errors import FixRequest, GiveUp
from fairlead.core.fairness.level import Level

Task = TypeVar("Task")

BATCH_SIZE = 1000
RELOAD_AT = 100
ACKS_MAX = 20_000
EVICTED_ACKS_MAX = 256


class InvalidLimits(FixRequest):
    """The limits of a buffer leave it no room to work in."""


class LevelNotAbove(GiveUp):
    """A task was to be written at or below the ack level, where no reader looks again."""


class NotUnderWay(GiveUp):
    """The outcome was told of a read or write that is not under way: two owners share one buffer."""


@dataclass(frozen=True, slots=True)
class BufferLimits:
    """How much a buffer holds; its memory is bounded by these numbers, not by the backlog's size or its keys."""

    batch_size: int = BATCH_SIZE
    """Loaded tasks at most."""
    reload_at: int = RELOAD_AT
    """More are read when no more than this are left."""
    acks_max: int = ACKS_MAX
    """Acked tasks above the ack level at most: those dispatched while an earlier one is still waiting."""
    evicted_acks_max: int = EVICTED_ACKS_MAX
    """Acks remembered of tasks that were evicted; one too many means that its task is dispatched again."""

    def __post_init__(self) -> None:
        if not 0 <= self.reload_at < self.batch_size or self.acks_max < 1 or self.evicted_acks_max < 0:
            raise InvalidLimits(f"{self}: 0 <= reload_at < batch_size, acks_max >= 1, evicted_acks_max >= 0")


@dataclass(frozen=True, slots=True)
class Read:
    """A read to make: the first `limit` stored tasks above the level `after`, in order."""

    after: Level
    limit: int


@dataclass(frozen=True, slots=True, eq=False)
class Write:
    """A write under way. The ack level stays below its levels until its outcome has been told."""

    levels: Sequence[Level]
    lowest: Level
    highest: Level


@dataclass(frozen=True, slots=True)
class Merge(Generic[Task]):
    """What a read or a write changed: `loaded` may be dispatched from now on, `evicted` no longer."""

    loaded: Sequence[tuple[Level, Task]]
    evicted: Sequence[Level]


class ReadBuffer(Generic[Task]):
    """Holds the lowest tasks of a backlog, whatever is written, read and acked in whichever order.

    Guarantees: a task that was surely written is dispatched at least once; the ack level never goes back, and never
    over a task that was not acked nor over a level that is still being written.
    """

    def __init__(self, *, ack_level: Level, max_level: Level, limits: BufferLimits | None = None) -> None:
        self._limits = limits or BufferLimits()
        self._ack_level = ack_level
        self._read_level = ack_level
        self._max_level = max(ack_level, max_level)
        self._acks_passed = 0
        # What the store holds is not known before the first read: M may be older than the last write.
        self._is_at_end = False
        self._tasks: dict[Level, Task] = {}
        # Both in order, disjoint, and within (A, R]; together they are all that is tracked.
        self._loaded: list[Level] = []
        self._acked: list[Level] = []
        # In order, all above R.
        self._evicted_acks: list[Level] = []
        # The lowest level of each write under way, in order.
        self._pins: list[Level] = []
        self._pending_read: Read | None = None
        # Writes whose outcome came while a read was under way. The read may have been before or after them, so
        # whether it reached the end is true only of what they are merged into.
        self._deferred: list[tuple[Write, Sequence[tuple[Level, Task]] | None]] = []

    @property
    def ack_level(self) -> Level:
        """A: everything at or below has been dispatched."""
        return self._ack_level

    @property
    def read_level(self) -> Level:
        """R: everything stored in (A, R] is tracked here."""
        return self._read_level

    @property
    def max_level(self) -> Level:
        """M: the highest level that was ever written, as far as is known."""
        return self._max_level

    @property
    def acks_passed(self) -> int:
        """How many tasks A has moved over since this buffer was made."""
        return self._acks_passed

    @property
    def is_at_end(self) -> bool:
        """Whether everything stored above A is tracked here, not only what is in (A, R]."""
        return self._is_at_end

    @property
    def loaded(self) -> Sequence[Level]:
        """The tasks that may be dispatched, in order. To be read, not changed."""
        return self._loaded

    @property
    def acked(self) -> Sequence[Level]:
        """The tasks above A that have been dispatched, in order. To be read, not changed."""
        return self._acked

    @property
    def base_pass(self) -> int:
        """The pass at which a new key joins: that up to which everything here has been dispatched.

        A is held below the writes under way and lags behind; to take its pass would let a new key in ever further
        ahead of the others while writes follow upon each other without a pause.
        """
        done = bisect_left(self._acked, self._loaded[0]) if self._loaded else len(self._acked)
        return self._acked[done - 1].pass_number if done else self._ack_level.pass_number

    def begin_write(self, levels: Sequence[Level]) -> Write:
        """Hold A below `levels` (not empty), which have just been chosen, until the write's outcome is told.

        Between the choice of the levels and this call nothing else may run: A could pass them.
        """
        write = Write(levels, lowest=min(levels), highest=max(levels))
        if write.lowest <= self._ack_level:
            raise LevelNotAbove(
                f"level {write.lowest} is not above the ack level {self._ack_level}: nothing was written"
            )
        insort(self._pins, write.lowest)
        return write

    def write_succeeded(self, write: Write, tasks: Sequence[Task]) -> Merge[Task]:
        """Take in what was written, in the order of the write's levels, without reading it back (plan 2)."""
        self._max_level = max(self._max_level, write.highest)
        return self._merge_or_defer(write, tuple(zip(write.levels, tasks, strict=True)))

    def write_failed(self, write: Write) -> None:
        """Nothing was written, and nothing will be."""
        self._unpin(write)

    def write_settled(self, write: Write) -> Merge[Task]:
        """Nobody knows what was written, but it is decided by now: read again from there.

        To be called when the write can no longer take effect if it has not yet, as after a renewal of the lease.
        Until then A stays below it, so that nothing of it can be deleted unseen.
        """
        self._max_level = max(self._max_level, write.highest)
        return self._merge_or_defer(write, None)

    def next_read(self) -> Read | None:
        """Say what to read now, if anything; one read at a time, and its outcome must be told."""
        is_full = len(self._loaded) > self._limits.reload_at or len(self._acked) >= self._limits.acks_max
        if self._pending_read is not None or self._is_at_end or is_full:
            return None
        self._pending_read = Read(self._read_level, self._limits.batch_size - len(self._loaded))
        return self._pending_read

    def read_succeeded(self, tasks: Sequence[tuple[Level, Task]]) -> Merge[Task]:
        """Take in the tasks that the store returned for `next_read`, in order."""
        read = self._end_read()
        loaded = {}
        for level, task in tasks:
            if not self._take_evicted_ack(level):
                self._tasks[level] = loaded[level] = task
                self._loaded.append(level)
        if tasks:
            self._read_level = tasks[-1][0]
        if len(tasks) < read.limit:
            self._is_at_end = True
            # What was not read again is not in the store.
            self._evicted_acks.clear()
        evicted = self._merge_deferred(loaded)
        self._advance()
        return Merge(tuple(loaded.items()), evicted)

    def read_failed(self) -> Merge[Task]:
        """Nothing was read; `next_read` will ask again."""
        self._end_read()
        loaded: dict[Level, Task] = {}
        evicted = self._merge_deferred(loaded)
        return Merge(tuple(loaded.items()), evicted)

    def ack(self, level: Level) -> None:
        """The task at `level` has been dispatched; once for each time it was loaded is enough, more does no harm."""
        if level in self._tasks:
            del self._tasks[level]
            del self._loaded[bisect_left(self._loaded, level)]
            insort(self._acked, level)
            self._advance()
        elif level > self._read_level:
            self._remember_evicted_acks([level])

    def _end_read(self) -> Read:
        read = self._pending_read
        if read is None:
            raise NotUnderWay("a read was reported that this buffer did not ask for: the buffer has two users")
        self._pending_read = None
        return read

    def _merge_or_defer(self, write: Write, tasks: Sequence[tuple[Level, Task]] | None) -> Merge[Task]:
        self._deferred.append((write, tasks))
        loaded: dict[Level, Task] = {}
        evicted = self._merge_deferred(loaded) if self._pending_read is None else ()
        return Merge(tuple(loaded.items()), evicted)

    def _merge_deferred(self, loaded: dict[Level, Task]) -> Sequence[Level]:
        """Merge all that waits. What is loaded and evicted in one go was never here for those outside."""
        evicted: list[Level] = []
        for write, tasks in self._deferred:
            if tasks is None:
                self._cut(write.lowest, evicted)
            else:
                self._merge_written(tasks, loaded)
                self._cut_to_size(evicted)
            self._unpin(write)
        self._deferred.clear()
        passing = {level for level in evicted if level in loaded}
        for level in passing:
            del loaded[level]
        return [level for level in evicted if level not in passing]

    def _merge_written(self, tasks: Iterable[tuple[Level, Task]], loaded: dict[Level, Task]) -> None:
        for level, task in tasks:
            if level > self._read_level:
                if not self._is_at_end:
                    # There may be stored tasks between R and this one: it will be read after them.
                    continue
                self._read_level = level
            elif level in self._tasks or _contains(self._acked, level):
                # A read was faster than the news of the write.
                continue
            self._tasks[level] = loaded[level] = task
            insort(self._loaded, level)

    def _cut_to_size(self, evicted: list[Level]) -> None:
        if len(self._loaded) > self._limits.batch_size:
            self._cut(self._loaded[self._limits.batch_size], evicted)
        if len(self._acked) > self._limits.acks_max:
            self._cut(self._acked[self._limits.acks_max], evicted)

    def _cut(self, level: Level, evicted: list[Level]) -> None:
        """Forget what is tracked at `level` and above it; it will be read again."""
        kept = bisect_left(self._loaded, level)
        for gone in self._loaded[kept:]:
            del self._tasks[gone]
            evicted.append(gone)
        del self._loaded[kept:]
        kept = bisect_left(self._acked, level)
        # Those acks must not carry A over what has just been forgotten below them.
        self._remember_evicted_acks(self._acked[kept:])
        del self._acked[kept:]
        highest = max(self._loaded[-1:] + self._acked[-1:], default=self._ack_level)
        self._read_level = min(self._read_level, max(highest, self._ack_level))
        self._is_at_end = False

    def _remember_evicted_acks(self, levels: Iterable[Level]) -> None:
        for level in levels:
            if not _contains(self._evicted_acks, level):
                insort(self._evicted_acks, level)
        # The highest are read again last.
        del self._evicted_acks[self._limits.evicted_acks_max :]

    def _take_evicted_ack(self, level: Level) -> bool:
        if not _contains(self._evicted_acks, level):
            return False
        self._evicted_acks.remove(level)
        insort(self._acked, level)
        return True

    def _unpin(self, write: Write) -> None:
        if not _contains(self._pins, write.lowest):
            raise NotUnderWay(f"the outcome of the write from {write.lowest} was told twice: the buffer has two users")
        del self._pins[bisect_left(self._pins, write.lowest)]
        self._advance()

    def _advance(self) -> None:
        """Move A up over the acked tasks below the first that is loaded or being written."""
        if not self._acked:
            return
        bounds = self._loaded[:1] + self._pins[:1]
        done = bisect_left(self._acked, min(bounds)) if bounds else len(self._acked)
        if done:
            self._ack_level = self._acked[done - 1]
            self._acks_passed += done
            del self._acked[:done]


def _contains(levels: Sequence[Level], level: Level) -> bool:
    place = bisect_left(levels, level)
    return place < len(levels) and levels[place] == level
