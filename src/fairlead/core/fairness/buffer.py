"""The part of a backlog that is in memory: which stored tasks are loaded, and how far all are dispatched.

    <-------------A-----R-----------------------M------------->

A, the ack level: everything at or below it has been dispatched. Nobody reads or writes there again.
R, the read level: everything stored in (A, R] is known here: it is loaded, or it has been acked.
M, the highest level ever written.

The store is not called from here. The owner of the backlog asks what to do next, does it, and tells how it went:

    read = buffer.next_read()
    if read is not None:
        rows = await store.read(read.after, read.limit)
        merge = buffer.read_succeeded(read, rows)     # or buffer.read_failed(read)

Each method runs to its end, so the owner may have any number of writes and one read under way at the same time.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, TypeVar

from fairlead.core.errors import FixRequest, GiveUp
from fairlead.core.fairness.level import Level

Task = TypeVar("Task")


class InvalidLimits(FixRequest):
    """The limits of a buffer leave it no room to work in."""


class LevelNotAbove(GiveUp):
    """A task was to be written at or below the ack level, where no reader looks again."""


class NotUnderWay(GiveUp):
    """The outcome was told of something that is not under way: it was told twice, or two owners share one backlog."""


class InvalidPage(GiveUp):
    """A store returned what was not asked for: rows out of order, below the level asked for, or too many."""


@dataclass(frozen=True, slots=True)
class BufferLimits:
    """How much a buffer holds. Its memory is bounded by these and by the writes under way, not by the backlog.

    `batch_size`: loaded tasks at most, and written ones that wait for a read to end.
    `reload_at`: more are read when no more than this are left.
    `parked_max`: loaded tasks beyond the batch at most, in place of parked ones (see `next_read`).
    `evicted_acks_max`: acks remembered of tasks that were evicted; one too many means a task is dispatched again.
    """

    batch_size: int = 1000
    reload_at: int = 100
    parked_max: int = 10_000
    evicted_acks_max: int = 256

    def __post_init__(self) -> None:
        if not 0 <= self.reload_at < self.batch_size or self.parked_max < 0 or self.evicted_acks_max < 0:
            raise InvalidLimits(f"{self}: 0 <= reload_at < batch_size, parked_max >= 0, evicted_acks_max >= 0")


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """A read to make: the first `limit` stored tasks above the level `after`, in order; fewer only at the end."""

    after: Level
    limit: int


@dataclass(frozen=True, slots=True, eq=False)
class Write:
    """A write under way. The ack level stays below its levels until its outcome has been told.

    `charged` holds the key and the stride of each level, for those who chose the levels by them.
    """

    levels: Sequence[Level]
    charged: Sequence[tuple[str, int]] = ()

    @property
    def lowest(self) -> Level:
        """The lowest of its levels."""
        return min(self.levels)


@dataclass(frozen=True, slots=True)
class Merge(Generic[Task]):
    """What a read or a write changed: `loaded` may be dispatched from now on, `evicted` no longer.

    An evicted task may be on its way to a worker: that goes on, and its ack is remembered.
    """

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
        self._served_pass = ack_level.pass_number
        self._acks_passed = 0
        # What the store holds is not known before the first read: M may be older than the last write.
        self._is_at_end = False
        self._parked = 0
        self._tasks: dict[Level, Task] = {}
        # The keys of `_tasks`, in order, within (A, R].
        self._loaded: list[Level] = []
        # What has been acked within (A, R], in order: only the levels that A may stop at, each with how many acks it
        # stands for. Of neighbours with nothing loaded or being written between them the highest is enough.
        self._acked: list[Level] = []
        self._acks_of: dict[Level, int] = {}
        # In order, all above R.
        self._evicted_acks: list[Level] = []
        self._writes: set[Write] = set()
        # The lowest level of each write that is under way or waits to be merged, in order, and all levels of these.
        self._pins: list[Level] = []
        self._pinned: set[Level] = set()
        self._pending_read: Read | None = None
        # Writes that ended while a read was under way. That may have been before or after them, so whether it reached
        # the end is true only of what they are merged into.
        self._deferred: list[tuple[Write, Sequence[Task]]] = []
        self._deferred_tasks = 0
        # From here on everything is to be read again, once the read is over. It is pinned.
        self._reread_from: Level | None = None

    @property
    def ack_level(self) -> Level:
        """A: everything at or below has been dispatched."""
        return self._ack_level

    @property
    def read_level(self) -> Level:
        """R: everything stored in (A, R] is known here."""
        return self._read_level

    @property
    def max_level(self) -> Level:
        """M: the highest level that was ever written, as far as is known."""
        return self._max_level

    @property
    def served_pass(self) -> int:
        """The highest pass of which a task has been dispatched: how far the service has come.

        A itself may be far behind it: it waits for the writes under way, and for every task that is slow to end.
        """
        return self._served_pass

    @property
    def acks_passed(self) -> int:
        """How many acks A has moved over since this buffer was made."""
        return self._acks_passed

    @property
    def is_at_end(self) -> bool:
        """Whether everything stored above A is known here, not only what is in (A, R]."""
        return self._is_at_end

    @property
    def loaded(self) -> Sequence[Level]:
        """The tasks that may be dispatched, in order. To be read, not changed."""
        return self._loaded

    @property
    def acked(self) -> Sequence[Level]:
        """The levels above A that A may move to next, in order. To be read, not changed."""
        return self._acked

    def pin(self, levels: Sequence[Level], charged: Sequence[tuple[str, int]] = ()) -> Write:
        """Hold A below `levels` (not empty), which have just been chosen, until the write's outcome is told.

        Between the choice of the levels and this call nothing else may run: A could pass them.
        """
        write = Write(levels, charged)
        lowest = write.lowest
        if lowest <= self._ack_level:
            raise LevelNotAbove(f"level {lowest} is not above the ack level {self._ack_level}: nothing was written")
        self._writes.add(write)
        insort(self._pins, lowest)
        self._pinned.update(levels)
        return write

    def write_succeeded(self, write: Write, tasks: Sequence[Task]) -> Merge[Task]:
        """Take in what was written, in the order of the write's levels, without reading it back (plan 2)."""
        self._end_write(write)
        self._max_level = max(self._max_level, *write.levels)
        if self._pending_read is None:
            loaded, evicted = dict[Level, Task](), list[Level]()
            self._merge_written(write, tasks, loaded, evicted)
            return _merge(loaded, evicted)
        if self._deferred_tasks + len(tasks) > self._limits.batch_size:
            return self._reread(write)
        self._deferred.append((write, tasks))
        self._deferred_tasks += len(tasks)
        return Merge((), ())

    def write_failed(self, write: Write) -> None:
        """Nothing was written, and nothing will be."""
        self._end_write(write)
        self._unpin(write)

    def write_settled(self, write: Write) -> Merge[Task]:
        """Nobody knows what was written, but it is decided by now: read again from there.

        To be called when the write can no longer take effect if it has not yet, as after a renewal of the lease.
        Until then A stays below it, so that nothing of it can be deleted unseen.
        """
        self._end_write(write)
        self._max_level = max(self._max_level, *write.levels)
        return self._reread(write)

    def next_read(self, *, parked: int = 0) -> Read | None:
        """Say what to read now, if anything; one read at a time, and its outcome must be told.

        `parked` of the loaded tasks can't be dispatched for now, as those of a key that is held back. They do not
        count, up to a bound: others are read beyond them, so that nobody waits behind them.
        """
        self._parked = min(parked, self._limits.parked_max)
        room = self._limits.batch_size + self._parked - len(self._loaded)
        is_full = room < self._limits.batch_size - self._limits.reload_at
        if self._pending_read is not None or self._is_at_end or is_full:
            return None
        self._pending_read = Read(self._read_level, room)
        return self._pending_read

    def read_succeeded(self, read: Read, tasks: Sequence[tuple[Level, Task]]) -> Merge[Task]:
        """Take in what the store returned; fewer tasks than the limit mean that there are no more."""
        self._check_page(read, tasks)
        self._end_read(read)
        loaded, evicted = dict[Level, Task](), list[Level]()
        for level, task in tasks:
            if level in self._pinned:
                # The news of its write brings it, and exactly once.
                continue
            if self._forget_evicted_ack(level):
                self._add_ack(level, 1)
            else:
                # Above R, and so above all that is loaded.
                self._tasks[level] = loaded[level] = task
                self._loaded.append(level)
        if tasks:
            self._read_level = tasks[-1][0]
        if len(tasks) < read.limit:
            self._is_at_end = True
            # What was not read again is not in the store.
            self._evicted_acks.clear()
        self._merge_deferred(loaded, evicted)
        self._advance()
        return _merge(loaded, evicted)

    def read_failed(self, read: Read) -> Merge[Task]:
        """Nothing was read; `next_read` will ask again."""
        self._end_read(read)
        loaded, evicted = dict[Level, Task](), list[Level]()
        self._merge_deferred(loaded, evicted)
        return _merge(loaded, evicted)

    def ack(self, level: Level) -> None:
        """The task at `level` has been dispatched; once for each time it was loaded is enough, more does no harm."""
        self._served_pass = max(self._served_pass, level.pass_number)
        if level in self._tasks:
            del self._tasks[level]
            del self._loaded[bisect_left(self._loaded, level)]
            self._add_ack(level, 1)
            self._advance()
        elif level > self._read_level:
            self._remember_evicted_acks([level])

    def _check_page(self, read: Read, tasks: Sequence[tuple[Level, Task]]) -> None:
        is_rising = all(one[0] < other[0] for one, other in pairwise(tasks))
        if not is_rising or len(tasks) > read.limit or (tasks and tasks[0][0] <= read.after):
            raise InvalidPage(
                f"asked for {read.limit} tasks above {read.after} in order, the store returned {len(tasks)} "
                f"from {tasks[0][0]} to {tasks[-1][0]}: nothing was taken in"
            )

    def _end_read(self, read: Read) -> None:
        if read is not self._pending_read:
            raise NotUnderWay(f"the read above {read.after} is not under way: tell each outcome once, of its own read")
        self._pending_read = None

    def _end_write(self, write: Write) -> None:
        if write not in self._writes:
            raise NotUnderWay(f"the write from {write.lowest} is not under way: tell each outcome once")
        self._writes.remove(write)

    def _merge_deferred(self, loaded: dict[Level, Task], evicted: list[Level]) -> None:
        for write, tasks in self._deferred:
            self._merge_written(write, tasks, loaded, evicted)
        self._deferred.clear()
        self._deferred_tasks = 0
        if self._reread_from is not None:
            level, self._reread_from = self._reread_from, None
            self._cut(level, evicted)
            self._unpin_level(level)

    def _merge_written(
        self, write: Write, tasks: Sequence[Task], loaded: dict[Level, Task], evicted: list[Level]
    ) -> None:
        for level, task in zip(write.levels, tasks, strict=True):
            if level > self._read_level:
                if not self._is_at_end:
                    # There may be stored tasks between R and this one: it will be read after them.
                    continue
                self._read_level = level
            self._tasks[level] = loaded[level] = task
            insort(self._loaded, level)
        size = self._limits.batch_size + self._parked
        if len(self._loaded) > size:
            self._cut(self._loaded[size], evicted)
        self._unpin(write)

    def _reread(self, write: Write) -> Merge[Task]:
        """Have everything from the write's lowest level on read again, now or when the read under way is over."""
        evicted = list[Level]()
        if self._pending_read is None:
            self._cut(write.lowest, evicted)
            self._unpin(write)
            return Merge((), evicted)
        # One pin is enough for all that wait for this.
        if self._reread_from is None or write.lowest < self._reread_from:
            insort(self._pins, write.lowest)
            if self._reread_from is not None:
                self._unpin_level(self._reread_from)
            self._reread_from = write.lowest
        self._unpin(write)
        return Merge((), ())

    def _cut(self, level: Level, evicted: list[Level]) -> None:
        """Forget what is known from `level` on; it will be read again."""
        kept = bisect_left(self._loaded, level)
        for gone in self._loaded[kept:]:
            del self._tasks[gone]
            evicted.append(gone)
        del self._loaded[kept:]
        kept = bisect_left(self._acked, level)
        # Those acks must not carry A over what has just been forgotten below them.
        self._remember_evicted_acks(self._acked[kept:])
        for gone in self._acked[kept:]:
            del self._acks_of[gone]
        del self._acked[kept:]
        highest = max(self._loaded[-1:] + self._acked[-1:], default=self._ack_level)
        self._read_level = min(self._read_level, highest)
        self._is_at_end = False

    def _remember_evicted_acks(self, levels: Iterable[Level]) -> None:
        for level in levels:
            if not _contains(self._evicted_acks, level):
                insort(self._evicted_acks, level)
        # The highest are read again last.
        del self._evicted_acks[self._limits.evicted_acks_max :]

    def _forget_evicted_ack(self, level: Level) -> bool:
        if not _contains(self._evicted_acks, level):
            return False
        self._evicted_acks.remove(level)
        return True

    def _add_ack(self, level: Level, acks: int) -> None:
        place = bisect_left(self._acked, level)
        self._acked.insert(place, level)
        self._acks_of[level] = acks
        self._join_acks(place)
        self._join_acks(place - 1)

    def _join_acks(self, place: int) -> None:
        """Let the next ack stand for the one at `place`, if A could not stop between them anyway."""
        if not 0 <= place < len(self._acked) - 1:
            return
        lower, upper = self._acked[place : place + 2]
        for barriers in (self._loaded, self._pins):
            barrier = bisect_right(barriers, lower)
            if barrier < len(barriers) and barriers[barrier] <= upper:
                return
        self._acks_of[upper] += self._acks_of.pop(lower)
        del self._acked[place]

    def _unpin(self, write: Write) -> None:
        self._pinned.difference_update(write.levels)
        self._unpin_level(write.lowest)

    def _unpin_level(self, level: Level) -> None:
        del self._pins[bisect_left(self._pins, level)]
        self._join_acks(bisect_left(self._acked, level) - 1)
        self._advance()

    def _advance(self) -> None:
        """Move A up over the acked tasks below the first that is loaded or being written."""
        if not self._acked:
            return
        bounds = self._loaded[:1] + self._pins[:1]
        done = bisect_left(self._acked, min(bounds)) if bounds else len(self._acked)
        if done:
            self._ack_level = self._acked[done - 1]
            self._acks_passed += sum(self._acks_of.pop(level) for level in self._acked[:done])
            del self._acked[:done]


def _merge(loaded: dict[Level, Task], evicted: Sequence[Level]) -> Merge[Task]:
    """What is loaded and evicted in one go was never here for those outside."""
    passing = {level for level in evicted if level in loaded}
    if passing:
        evicted = [level for level in evicted if level not in passing]
        loaded = {level: task for level, task in loaded.items() if level not in passing}
    return Merge(tuple(loaded.items()), tuple(evicted))


def _contains(levels: Sequence[Level], level: Level) -> bool:
    place = bisect_left(levels, level)
    return place < len(levels) and levels[place] == level
