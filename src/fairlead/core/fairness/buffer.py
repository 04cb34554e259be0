"""The part of a backlog that is in memory: which stored tasks are loaded, and up to which level all are dispatched.

    <-------------A-----R-----------------------M------------->

A, the ack level: all tasks at or below it have been dispatched. No task is read or written there again.
R, the read level: all stored tasks in (A, R] are known here: each is loaded, or was acked.
M, the max level: the highest level ever written.

This code does not call the store. The owner of the backlog asks what to do next, does it, and reports the outcome:

    read = buffer.next_read()
    if read is not None:
        rows = await store.read(read.after, read.limit)
        merge = buffer.read_succeeded(read, rows)     # or buffer.read_failed(read)

No method waits, so the owner may have any number of writes and one read in progress at the same time.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Generic

from fairlead.core.fairness.buffer_limits import BufferLimits
from fairlead.core.fairness.buffer_operations import (
    InvalidPage,
    LevelNotAbove,
    Merge,
    NotUnderWay,
    Read,
    Task,
    Write,
    merged,
)
from fairlead.core.fairness.level import Level


class ReadBuffer(Generic[Task]):
    """Holds the lowest tasks of a backlog; writes, reads and acks may come in any order.

    Guarantees: a task whose write succeeded is dispatched at least once; the ack level never goes back, and never
    passes a task that was not acked or a level that is still being written.

    Many methods, because each outcome of a read, a write or a delete has its own method, and each method changes the
    lists of loaded, acked and pinned levels together.
    """

    __slots__ = (
        "_ack_level",
        "_acked",
        "_acks_of",
        "_acks_passed",
        "_deferred",
        "_deferred_tasks",
        "_evicted_acks",
        "_is_at_end",
        "_limits",
        "_loaded",
        "_max_level",
        "_parked",
        "_pending_read",
        "_pinned",
        "_pins",
        "_read_level",
        "_reread_from",
        "_served_pass",
        "_tasks",
        "_writes",
    )

    def __init__(self, *, ack_level: Level, max_level: Level, limits: BufferLimits | None = None) -> None:
        self._limits = limits or BufferLimits()
        self._ack_level = ack_level
        self._read_level = ack_level
        self._max_level = max(ack_level, max_level)
        self._served_pass = ack_level.pass_number
        self._acks_passed = 0
        # False before the first read, since the store's content is unknown: M may be older than the last write.
        self._is_at_end = False
        self._parked = 0
        self._tasks: dict[Level, Task] = {}
        # The keys of `_tasks`, in order, within (A, R].
        self._loaded: list[Level] = []
        # Acked levels within (A, R], in order: only levels that A may stop at, each with the number of acks that it
        # stands for. If no loaded or pinned level lies between two of them, only the higher one is kept.
        self._acked: list[Level] = []
        self._acks_of: dict[Level, int] = {}
        # Acked levels of evicted tasks, in order, all above R.
        self._evicted_acks: list[Level] = []
        # None while no write is in progress, as `_pinned`.
        self._writes: set[Write] | None = None
        # The lowest level of each write that is in progress or waits to be merged, in order, and all their levels.
        self._pins: list[Level] = []
        self._pinned: set[Level] | None = None
        self._pending_read: Read | None = None
        # Writes that ended during a read. The store may have carried out the read before or after them, so they are
        # merged only after the result of the read.
        self._deferred: list[tuple[Write, Sequence[Task]]] = []
        self._deferred_tasks = 0
        # After the read in progress, this level and all above it must be read again. The level is pinned.
        self._reread_from: Level | None = None

    @property
    def ack_level(self) -> Level:
        """A: all tasks at or below it have been dispatched."""
        return self._ack_level

    @property
    def read_level(self) -> Level:
        """R: all stored tasks in (A, R] are known here."""
        return self._read_level

    @property
    def max_level(self) -> Level:
        """M: the highest level ever written, as far as this owner knows."""
        return self._max_level

    @property
    def served_pass(self) -> int:
        """The highest pass of a dispatched task.

        A may be far behind it: A waits for the writes in progress, and for every task that is slow to be acked.
        """
        return self._served_pass

    @property
    def acks_passed(self) -> int:
        """Number of acks that A has passed since this buffer was made."""
        return self._acks_passed

    @property
    def is_at_end(self) -> bool:
        """Whether all stored tasks above A are known here."""
        return self._is_at_end

    @property
    def loaded(self) -> Sequence[Level]:
        """The levels of the tasks that may be dispatched, in order. Read only."""
        return self._loaded

    @property
    def acked(self) -> Sequence[Level]:
        """The levels above A that A may move to next, in order. Read only."""
        return self._acked

    def pin(self, levels: Sequence[Level], charged: Sequence[tuple[str, int]] = ()) -> Write:
        """Keep A below `levels` (not empty), which have just been chosen, until the write's outcome is reported.

        No other code may run between the choice of the levels and this call: A could pass them.
        """
        write = Write(levels, charged)
        lowest = write.lowest
        if lowest <= self._ack_level:
            raise LevelNotAbove(f"level {lowest} is not above the ack level {self._ack_level}: nothing was written")
        self._writes = self._writes or set()
        self._writes.add(write)
        insort(self._pins, lowest)
        self._pinned = self._pinned or set()
        self._pinned.update(levels)
        return write

    def write_succeeded(self, write: Write, tasks: Sequence[Task]) -> Merge[Task]:
        """FB-11: merge written tasks, in the order of the write's levels, without reading them back."""
        self._end_write(write)
        self._max_level = max(self._max_level, *write.levels)
        if self._pending_read is None:
            loaded, evicted = dict[Level, Task](), list[Level]()
            self._merge_written(write, tasks, loaded, evicted)
            return merged(loaded, evicted)
        if self._deferred_tasks + len(tasks) > self._limits.batch_size:
            return self._reread(write)
        self._deferred.append((write, tasks))
        self._deferred_tasks += len(tasks)
        return Merge((), ())

    def write_failed(self, write: Write) -> None:
        """Report that nothing was written, and never will be."""
        self._end_write(write)
        self._unpin(write)

    def write_settled(self, write: Write) -> Merge[Task]:
        """Report a write with an unknown but final outcome: its lowest level and all above it are read again.

        Call it when the write can't take effect any more, for example after a renewal of the lease. Until then A stays
        below the write, so that none of its tasks can be deleted unread.
        """
        self._end_write(write)
        self._max_level = max(self._max_level, *write.levels)
        return self._reread(write)

    def is_read_due(self, *, parked: int = 0) -> bool:
        """Whether `next_read` would return a read."""
        if self._is_at_end or self._pending_read is not None:
            return False
        return len(self._loaded) - min(parked, self._limits.parked_max) <= self._limits.reload_at

    def next_read(self, *, parked: int = 0) -> Read | None:
        """Return the read to carry out now, or None. One read runs at a time, and the caller must report its outcome.

        `parked` is the number of loaded tasks that can't be dispatched now, because a rate limit holds their key back.
        Up to `parked_max` of them are not counted as loaded, so that tasks of other keys are read and need not wait.
        """
        is_due = self.is_read_due(parked=parked)
        self._parked = min(parked, self._limits.parked_max)
        if not is_due:
            return None
        self._pending_read = Read(self._read_level, self._limits.batch_size + self._parked - len(self._loaded))
        return self._pending_read

    def read_succeeded(self, read: Read, tasks: Sequence[tuple[Level, Task]]) -> Merge[Task]:
        """Merge the tasks that the store returned; if there are fewer than the limit, the backlog ends with them."""
        self._check_page(read, tasks)
        self._end_read(read)
        loaded, evicted = dict[Level, Task](), list[Level]()
        for level, task in tasks:
            if self._pinned and level in self._pinned:
                # The level belongs to a write in progress: the outcome of the write will load the task, once.
                continue
            if self._forget_evicted_ack(level):
                self._add_ack(level, 1)
            else:
                # The level is above R, and so above all loaded ones.
                self._tasks[level] = loaded[level] = task
                self._loaded.append(level)
        if tasks:
            self._read_level = tasks[-1][0]
        if len(tasks) < read.limit:
            self._is_at_end = True
            # Evicted tasks that were not read again are no longer in the store.
            self._evicted_acks.clear()
        self._merge_deferred(loaded, evicted)
        self._advance()
        return merged(loaded, evicted)

    def read_failed(self, read: Read) -> Merge[Task]:
        """Report that nothing was read; `next_read` will return the read again."""
        self._end_read(read)
        loaded, evicted = dict[Level, Task](), list[Level]()
        self._merge_deferred(loaded, evicted)
        return merged(loaded, evicted)

    def ack(self, level: Level) -> None:
        """Report that the task at `level` was dispatched, once for each time it was loaded.

        Extra acks have no effect.
        """
        self._served_pass = max(self._served_pass, level.pass_number)
        if level in self._tasks:
            del self._tasks[level]
            if not self._tasks:
                # Gives back the memory of an empty dictionary.
                self._tasks.clear()
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
                f"from {tasks[0][0]} to {tasks[-1][0]}: nothing was loaded"
            )

    def _end_read(self, read: Read) -> None:
        if read is not self._pending_read:
            raise NotUnderWay(
                f"the read above {read.after} is not in progress: report each outcome once, with its read"
            )
        self._pending_read = None

    def _end_write(self, write: Write) -> None:
        if self._writes is None or write not in self._writes:
            raise NotUnderWay(f"the write from {write.lowest} is not in progress: report each outcome once")
        self._writes.remove(write)
        if not self._writes:
            self._writes = None

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
                    # There may be stored tasks between R and this level: the task will be read after them.
                    continue
                self._read_level = level
            self._tasks[level] = loaded[level] = task
            insort(self._loaded, level)
        size = self._limits.batch_size + self._parked
        if len(self._loaded) > size:
            self._cut(self._loaded[size], evicted)
        self._unpin(write)

    def _reread(self, write: Write) -> Merge[Task]:
        """Read everything from the write's lowest level on again, now or after the read in progress."""
        evicted = list[Level]()
        if self._pending_read is None:
            self._cut(write.lowest, evicted)
            self._unpin(write)
            return Merge((), evicted)
        # One pin is enough for all writes that wait to be read again.
        if self._reread_from is None or write.lowest < self._reread_from:
            insort(self._pins, write.lowest)
            if self._reread_from is not None:
                self._unpin_level(self._reread_from)
            self._reread_from = write.lowest
        self._unpin(write)
        return Merge((), ())

    def _cut(self, level: Level, evicted: list[Level]) -> None:
        """Forget `level` and all levels above it; they will be read again."""
        kept = bisect_left(self._loaded, level)
        for gone in self._loaded[kept:]:
            del self._tasks[gone]
            evicted.append(gone)
        del self._loaded[kept:]
        kept = bisect_left(self._acked, level)
        # These acks must not move A past the tasks below them that have just been forgotten.
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
        # Drop the acks of the highest levels, which are read again last.
        del self._evicted_acks[self._limits.evicted_acks_max :]

    def _forget_evicted_ack(self, level: Level) -> bool:
        if not _contains(self._evicted_acks, level):
            return False
        self._evicted_acks.remove(level)
        return True

    def _add_ack(self, level: Level, acks: int) -> None:
        position = bisect_left(self._acked, level)
        self._acked.insert(position, level)
        self._acks_of[level] = acks
        self._join_acks(position)
        self._join_acks(position - 1)

    def _join_acks(self, position: int) -> None:
        """Merge the ack at `position` into the next one, if no loaded or pinned level makes A stop between them."""
        if not 0 <= position < len(self._acked) - 1:
            return
        lower, upper = self._acked[position : position + 2]
        for barriers in (self._loaded, self._pins):
            barrier = bisect_right(barriers, lower)
            if barrier < len(barriers) and barriers[barrier] <= upper:
                return
        self._acks_of[upper] += self._acks_of.pop(lower)
        del self._acked[position]

    def _unpin(self, write: Write) -> None:
        if self._pinned is not None:
            self._pinned.difference_update(write.levels)
            if not self._pinned:
                self._pinned = None
        self._unpin_level(write.lowest)

    def _unpin_level(self, level: Level) -> None:
        del self._pins[bisect_left(self._pins, level)]
        self._join_acks(bisect_left(self._acked, level) - 1)
        self._advance()

    def _advance(self) -> None:
        """Move A up over the acked levels below the first level that is loaded or pinned."""
        if not self._acked:
            return
        bounds = self._loaded[:1] + self._pins[:1]
        done = bisect_left(self._acked, min(bounds)) if bounds else len(self._acked)
        if done:
            self._ack_level = self._acked[done - 1]
            self._acks_passed += sum(self._acks_of.pop(level) for level in self._acked[:done])
            del self._acked[:done]
            if not self._acks_of:
                self._acks_of.clear()


def _contains(levels: Sequence[Level], level: Level) -> bool:
    position = bisect_left(levels, level)
    return position < len(levels) and levels[position] == level
