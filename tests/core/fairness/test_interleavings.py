"""Any interleaving of writes, reads, acks, evictions, deletes, crashes and takeovers keeps the backlog's invariants.

The search itself is tested too: it finds each of the planted bugs.
"""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from fairlead.core.fairness import FairBacklog, Level, Merge, Read, Write
from tests.core.fairness.machine import BacklogMachine
from tests.core.fairness.table import Table


@pytest.mark.sim
def test_every_interleaving_keeps_the_invariants() -> None:
    """FL-1, FB-1, FB-3, FB-4, FB-9, FB-14, FB-15, FB-17, FL-42, FL-47, FL-48."""
    run_state_machine_as_test(BacklogMachine)


class UnpinnedAckLevel(FairBacklog[Any]):
    def _advance(self) -> None:
        pins, self._pins = self._pins, []
        super()._advance()
        self._pins = pins


class MergesDuringARead(FairBacklog[Any]):
    def write_succeeded(self, write: Write, tasks: Sequence[Any]) -> Merge[Any]:
        reading, self._pending_read = self._pending_read, None
        merge = super().write_succeeded(write, tasks)
        self._pending_read = reading
        return merge


class StaysAtEndAfterACut(FairBacklog[Any]):
    def _cut(self, level: Level, evicted: list[Level]) -> None:
        was_at_end = self._is_at_end
        super()._cut(level, evicted)
        self._is_at_end = was_at_end


class KeepsAcksAboveACut(FairBacklog[Any]):
    def _cut(self, level: Level, evicted: list[Level]) -> None:
        above = {one: acks for one, acks in self._acks_of.items() if one >= level}
        super()._cut(level, evicted)
        for one, acks in above.items():
            self._add_ack(one, acks)


class JoinsAcksAcrossLoadedTasks(FairBacklog[Any]):
    def _advance(self) -> None:
        if self._acked:
            self._ack_level = self._acked[-1]
        super()._advance()


class MergesAboveRInTheMiddle(FairBacklog[Any]):
    def _merge_written(self, write: Write, tasks: Any, loaded: Any, evicted: Any) -> None:
        was_at_end, self._is_at_end = self._is_at_end, True
        super()._merge_written(write, tasks, loaded, evicted)
        self._is_at_end = was_at_end


class ForgetsUnknownOutcomes(FairBacklog[Any]):
    def write_settled(self, write: Write) -> Merge[Any]:
        self.write_failed(write)
        return Merge((), ())


class LoadsTasksOfUnreportedWrites(FairBacklog[Any]):
    def read_succeeded(self, read: Read, tasks: Any) -> Merge[Any]:
        pinned, self._pinned = self._pinned, set()
        merge = super().read_succeeded(read, tasks)
        self._pinned = pinned
        return merge


class UnfencedDelete(Table):
    def delete_through(self, range_id: int, level: Level) -> list[Level]:
        return super().delete_through(self.range_id, level)


class UnfencedInsert(Table):
    def insert(self, range_id: int, tasks: list[tuple[Level, str]]) -> None:
        super().insert(self.range_id, tasks)


@pytest.mark.parametrize(
    "planted",
    [
        UnpinnedAckLevel,
        MergesDuringARead,
        StaysAtEndAfterACut,
        KeepsAcksAboveACut,
        JoinsAcksAcrossLoadedTasks,
        MergesAboveRInTheMiddle,
        ForgetsUnknownOutcomes,
        LoadsTasksOfUnreportedWrites,
        UnfencedDelete,
        UnfencedInsert,
    ],
)
def test_the_search_finds_a_planted_bug(planted: type[FairBacklog[Any]] | type[Table]) -> None:
    is_table = issubclass(planted, Table)
    machine = type(
        f"With{planted.__name__}", (BacklogMachine,), {("table_class" if is_table else "backlog_class"): planted}
    )
    search = settings(
        max_examples=2000, stateful_step_count=50, database=None, print_blob=False, phases=[Phase.generate]
    )
    # A planted bug may raise a KeyError before an invariant is checked.
    with pytest.raises((AssertionError, KeyError)):
        run_state_machine_as_test(machine, settings=search)
