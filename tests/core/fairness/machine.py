"""A Hypothesis state machine: owners of a backlog work on one table, in any order of steps that is possible in reality.

Each step of a write, a read or a delete is a separate rule: the owner begins it, the table executes it, the owner gets
the outcome. Owners crash, or lose their lease without noticing. An assertion message begins with the number of the
broken invariant: 1 is FL-1; 2 is FB-9 and FB-14; 3 is FB-3 and FB-4; 4 is FL-42; 5 is FB-1 and FB-17; 6 is FL-47; 7 is
FL-48.
"""

import sys
from copy import copy
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fairlead.core.fairness import (
    BufferLimits,
    Delete,
    DeleteSchedule,
    FairBacklog,
    Level,
    Merge,
    Read,
    ReadBuffer,
    Share,
    WeightOverrides,
    Write,
)
from tests.core.fairness.table import LeaseLost, Table

LIMITS = BufferLimits(batch_size=4, reload_at=1, parked_max=2, evicted_acks_max=2)
OVERRIDES = WeightOverrides({"gold": 5.0})
IDS_A_LEASE = 10_000
# Minimum number of steps before an owner may be replaced, so that it reaches an interesting state first.
STEPS_OF_OWNER_MIN = 12
SHARES = st.lists(
    st.builds(Share, st.sampled_from(["gold", "a", "b", "c", "flood", "flood"]), st.sampled_from([1.0, 2.0, 0.5])),
    min_size=1,
    max_size=3,
)


@dataclass(eq=False)
class WriteUnderWay:
    write: Write
    range_id: int
    # None until the table has executed the write; then whether it was stored.
    is_stored: bool | None = None

    @property
    def keys(self) -> list[str]:
        return [key for key, _ in self.write.charged]


@dataclass(eq=False)
class Owner:
    range_id: int
    backlog: FairBacklog[str]
    next_id: int
    highest_ack: Level
    ready: set[Level] = field(default_factory=set)
    in_flight: set[Level] = field(default_factory=set)
    acked: set[Level] = field(default_factory=set)
    writes: list[WriteUnderWay] = field(default_factory=list)
    # Writes reported during a read: the buffer merges them after it.
    deferred: list[Write] = field(default_factory=list)
    read: Read | None = None
    read_rows: list[tuple[Level, str]] | None = None
    deletes: DeleteSchedule = field(default_factory=DeleteSchedule)
    delete: tuple[Delete, int] | None = None

    @property
    def buffer(self) -> ReadBuffer[str]:
        return self.backlog

    def ack(self, level: Level) -> None:
        self.acked.add(level)
        self.buffer.ack(level)

    def take(self, merge: Merge[str]) -> None:
        loaded = {level for level, _ in merge.loaded}
        evicted = set(merge.evicted)
        assert not loaded & evicted
        assert not loaded & self.ready, "7: a loaded task was loaded again"
        assert evicted <= self.ready | self.in_flight, "7: a task that was not loaded was evicted"
        self.ready |= loaded
        self.ready -= evicted


class BacklogMachine(RuleBasedStateMachine):
    """Runs the real backlog code on a table model; the machine chooses when each step happens."""

    backlog_class: type[FairBacklog[Any]] = FairBacklog
    table_class: type[Table] = Table

    def __init__(self) -> None:
        super().__init__()
        self.table = self.table_class()
        self.clock = count(0, 20)
        self.stale: list[Owner] = []
        self.acknowledged: set[Level] = set()
        self.dispatched: set[Level] = set()
        self.given_ids: set[int] = set()
        self.steps_of_owner = 0

    # Owners

    @initialize()
    def begin(self) -> None:
        self.owner = self.new_owner()

    def new_owner(self) -> Owner:
        lease = self.table.take_lease()
        backlog: FairBacklog[str] = self.backlog_class(
            ack_level=lease.ack_level,
            max_level=lease.max_level,
            stored=self.table.stored_keys(lease.ack_level),
            overrides=OVERRIDES,
            limits=LIMITS,
            keys_max=3,
        )
        return Owner(lease.range_id, backlog, lease.range_id * IDS_A_LEASE + 1, lease.ack_level)

    @precondition(lambda self: self.steps_of_owner > STEPS_OF_OWNER_MIN)
    @rule(goes_on=st.booleans())
    def take_over(self, goes_on: bool) -> None:
        """Another owner takes the lease; the old owner has crashed, or continues without knowing it."""
        if goes_on:
            self.stale.append(self.owner)
        self.owner = self.new_owner()
        self.steps_of_owner = 0

    @precondition(lambda self: self.stale)
    @rule(data=st.data())
    def a_stale_owner_acks_and_deletes(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from(self.stale))
        for level in sorted(owner.ready)[:2]:
            owner.ready.discard(level)
            self.dispatched.add(level)
            owner.ack(level)
        level = owner.buffer.ack_level
        try:
            self.delete(owner.range_id, level)
        except LeaseLost:
            return

    # Writes

    @rule(shares=SHARES)
    def begin_write(self, shares: list[Share]) -> None:
        owner = self.owner
        ids = range(owner.next_id, owner.next_id + len(shares))
        owner.next_id += len(shares)
        assert not self.given_ids & set(ids), "5: an id was used twice"
        self.given_ids |= set(ids)
        write = owner.backlog.begin_write(shares, ids=ids)
        assert write.lowest > owner.buffer.ack_level, "2: a new level is not above A"
        owner.writes.append(WriteUnderWay(write, owner.range_id))

    def writes_under_way(self) -> list[WriteUnderWay]:
        return [write for owner in [self.owner, *self.stale] for write in owner.writes if write.is_stored is None]

    @precondition(lambda self: self.writes_under_way())
    @rule(data=st.data())
    def the_table_stores_a_write(self, data: st.DataObject) -> None:
        self.store(data.draw(st.sampled_from(self.writes_under_way())))

    def store(self, under_way: WriteUnderWay) -> None:
        try:
            self.table.insert(under_way.range_id, list(zip(under_way.write.levels, under_way.keys, strict=True)))
            under_way.is_stored = True
            ack_level = self.owner.buffer.ack_level
            assert under_way.write.lowest > ack_level, "2: a committed level is not above A"
        except LeaseLost:
            under_way.is_stored = False

    @precondition(lambda self: self.owner.writes)
    @rule(data=st.data(), is_answer_lost=st.booleans())
    def a_write_outcome_is_reported(self, data: st.DataObject, is_answer_lost: bool) -> None:
        under_way = data.draw(st.sampled_from(self.owner.writes))
        self.report_write(under_way, is_answer_lost=is_answer_lost)

    def report_write(self, under_way: WriteUnderWay, *, is_answer_lost: bool) -> None:
        owner = self.owner
        owner.writes.remove(under_way)
        if under_way.is_stored is False:
            # The write was sent under a lease that has been renewed since.
            owner.buffer.write_failed(under_way.write)
            return
        if owner.read is not None:
            owner.deferred.append(under_way.write)
        if under_way.is_stored and not is_answer_lost:
            self.acknowledged |= set(under_way.write.levels)
            owner.take(owner.buffer.write_succeeded(under_way.write, under_way.keys))
            return
        # The outcome is unknown: renewing the lease settles it, because a later write under the old lease fails.
        owner.range_id = self.table.renew_lease(owner.range_id).range_id
        owner.next_id = owner.range_id * IDS_A_LEASE + 1
        owner.take(owner.buffer.write_settled(under_way.write))

    @rule(shares=SHARES)
    def write_at_once(self, shares: list[Share]) -> None:
        self.begin_write(shares)
        under_way = self.owner.writes[-1]
        self.store(under_way)
        self.report_write(under_way, is_answer_lost=False)

    # Reads

    @precondition(lambda self: self.owner.read is None)
    @rule(is_answered=st.booleans(), parked=st.integers(0, 3))
    def begin_read(self, is_answered: bool, parked: int = 0) -> None:
        self.owner.read = self.owner.buffer.next_read(parked=min(parked, len(self.owner.ready)))
        if self.owner.read is not None and is_answered:
            self.the_table_executes_a_read()

    @precondition(lambda self: self.owner.read is not None and self.owner.read_rows is None)
    @rule()
    def the_table_executes_a_read(self) -> None:
        read = self.owner.read
        assert read is not None
        self.owner.read_rows = self.table.read(read.after, read.limit)

    @precondition(lambda self: self.owner.read is not None)
    @rule(is_answer_lost=st.booleans())
    def a_read_outcome_is_reported(self, is_answer_lost: bool) -> None:
        owner = self.owner
        read, rows, owner.read, owner.read_rows = owner.read, owner.read_rows, None, None
        assert read is not None
        owner.deferred.clear()
        if rows is None or is_answer_lost:
            owner.take(owner.buffer.read_failed(read))
        else:
            owner.take(owner.buffer.read_succeeded(read, rows))

    @precondition(lambda self: self.owner.read is None)
    @rule()
    def read_at_once(self) -> None:
        self.begin_read(is_answered=True)
        if self.owner.read is not None:
            self.a_read_outcome_is_reported(is_answer_lost=False)

    # Dispatch, acks, deletes

    @precondition(lambda self: self.owner.ready)
    @rule(tasks=st.integers(1, 3))
    def dispatch_at_once(self, tasks: int) -> None:
        for level in sorted(self.owner.ready)[:tasks]:
            self.owner.ready.discard(level)
            self.dispatched.add(level)
            self.owner.ack(level)

    @precondition(lambda self: self.owner.ready)
    @rule(data=st.data())
    def dispatch(self, data: st.DataObject) -> None:
        level = data.draw(st.sampled_from(sorted(self.owner.ready)))
        self.owner.ready.discard(level)
        self.owner.in_flight.add(level)
        self.dispatched.add(level)

    @precondition(lambda self: self.owner.in_flight)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        level = data.draw(st.sampled_from(sorted(self.owner.in_flight)))
        self.owner.in_flight.discard(level)
        # The task was evicted and loaded again while it was in flight: this ack counts for both.
        self.owner.ready.discard(level)
        self.owner.ack(level)

    @precondition(lambda self: self.owner.delete is None)
    @rule()
    def begin_delete(self) -> None:
        buffer = self.owner.buffer
        delete = self.owner.deletes.next_delete(
            ack_level=buffer.ack_level, acks_passed=buffer.acks_passed, now_s=next(self.clock)
        )
        if delete is not None:
            self.owner.delete = (delete, self.owner.range_id)

    @precondition(lambda self: self.owner.delete is not None)
    @rule(is_answer_lost=st.booleans())
    def the_table_deletes(self, is_answer_lost: bool) -> None:
        assert self.owner.delete is not None
        (delete, range_id), self.owner.delete = self.owner.delete, None
        try:
            self.delete(range_id, delete.through)
        except LeaseLost:
            is_answer_lost = True
        if is_answer_lost:
            self.owner.deletes.delete_failed(delete)
        else:
            self.owner.deletes.delete_succeeded(delete)

    def delete(self, range_id: int, level: Level) -> None:
        gone = self.table.delete_through(range_id, level)
        assert set(gone) <= self.dispatched, "4: a task that was never dispatched was deleted"

    @rule()
    def save(self) -> None:
        buffer = self.owner.buffer
        self.table.save(self.owner.range_id, ack_level=buffer.ack_level, max_level=buffer.max_level)

    # Invariants

    @invariant()
    def the_ack_level_is_safe(self) -> None:
        self.steps_of_owner += 1
        buffer = self.owner.buffer
        assert buffer.ack_level >= self.owner.highest_ack, "3: A decreased"
        self.owner.highest_ack = buffer.ack_level
        passed = {level for level in self.table.rows if level <= buffer.ack_level}
        assert passed <= self.dispatched, "3: A passed a task that was never dispatched"
        for under_way in self.owner.writes:
            assert buffer.ack_level < under_way.write.lowest, "2: A passed a level that is still being written"

    @invariant()
    def everything_up_to_r_is_tracked(self) -> None:
        owner, buffer = self.owner, self.owner.buffer
        unmerged = {level for write in owner.writes for level in write.write.levels}
        unmerged |= {level for write in owner.deferred for level in write.levels}
        for level in self.table.rows:
            if level > buffer.ack_level and level not in unmerged and level not in buffer.loaded:
                is_acked = level in owner.acked
                assert is_acked or level > buffer.read_level, "7: a task in (A, R] is neither loaded nor acked"
                assert is_acked or not buffer.is_at_end, (
                    "6: the buffer is at the end, but a task is neither loaded nor acked"
                )
        assert buffer.ack_level <= buffer.read_level
        assert set(buffer.acked) <= owner.acked
        assert len(buffer.acked) <= len(buffer.loaded) + len(owner.writes) + len(owner.deferred) + 2

    @invariant()
    def loaded_tasks_are_ready_or_in_flight(self) -> None:
        owner, buffer = self.owner, self.owner.buffer
        assert len(buffer.loaded) <= LIMITS.batch_size + LIMITS.parked_max, (
            "7: more tasks are loaded than the limits allow"
        )
        assert owner.ready <= set(buffer.loaded), "7: a ready task is not loaded"
        assert set(buffer.loaded) <= owner.ready | owner.in_flight, "7: a loaded task is neither ready nor in flight"

    @invariant()
    def the_reader_is_never_stuck(self) -> None:
        buffer = self.owner.buffer
        if not buffer.is_at_end and not buffer.loaded and self.owner.read is None:
            assert copy(buffer).next_read() is not None, "6: no task is loaded, and no read would start"

    def teardown(self) -> None:
        """Finish all pending steps, then drain the backlog."""
        # After a failure, skip the rest: another error would hide the first one.
        if sys.exc_info()[0] is not None:
            return
        if not hasattr(self, "owner"):
            return
        owner = self.owner
        for under_way in [*owner.writes]:
            self.report_write(under_way, is_answer_lost=False)
        if owner.read is not None:
            owner.read_rows = None
            self.a_read_outcome_is_reported(is_answer_lost=True)
        for _ in range(10_000):
            for level in sorted(owner.ready):
                owner.in_flight.add(level)
                self.dispatched.add(level)
            owner.ready.clear()
            for level in sorted(owner.in_flight):
                owner.ack(level)
            owner.in_flight.clear()
            read = owner.buffer.next_read()
            if read is None:
                break
            owner.take(owner.buffer.read_succeeded(read, self.table.read(read.after, read.limit)))
        assert owner.buffer.is_at_end, "6: the reader is stuck before the end"
        lost = self.acknowledged - self.dispatched
        assert not lost, f"1: tasks were acknowledged but never dispatched: {sorted(lost)}"
        self.delete(owner.range_id, owner.buffer.ack_level)
        assert not self.table.rows, "the backlog is empty, but the table still has tasks"
