"""Any interleaving of writes, reads, acks, evictions, deletes, crashes and takeovers keeps the backlog's invariants.

And the search that says so is itself tested: each bug that today's systems have had, planted, is found.
"""

from bisect import insort
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from fairlead.core.fairness import Level, Merge, ReadBuffer, Write
from tests.core.fairness.machine import BacklogMachine
from tests.core.fairness.table import Table


@pytest.mark.sim
def test_every_interleaving_keeps_the_invariants() -> None:
    """Facts, temporal-matching (b): invariants 1 to 7."""
    run_state_machine_as_test(BacklogMachine)


class UnpinnedAckLevel(ReadBuffer[Any]):
    def begin_write(self, levels: Sequence[Level]) -> Write:
        write = super().begin_write(levels)
        self._pins.remove(write.lowest)
        return write

    def _unpin(self, write: Write) -> None:
        insort(self._pins, write.lowest)
        super()._unpin(write)


class MergesDuringARead(ReadBuffer[Any]):
    def _merge_or_defer(self, write: Write, tasks: Sequence[tuple[Level, Any]] | None) -> Merge[Any]:
        pending, self._pending_read = self._pending_read, None
        merge = super()._merge_or_defer(write, tasks)
        self._pending_read = pending
        return merge


class StaysAtEndAfterACut(ReadBuffer[Any]):
    def _cut(self, level: Level, evicted: list[Level]) -> None:
        was_at_end = self._is_at_end
        super()._cut(level, evicted)
        self._is_at_end = was_at_end


class KeepsAcksAboveACut(ReadBuffer[Any]):
    def _remember_evicted_acks(self, levels: Any) -> None:
        kept = list(levels)
        super()._remember_evicted_acks(kept)
        self._kept = [*getattr(self, "_kept", []), *kept]

    def _advance(self) -> None:
        for level in getattr(self, "_kept", []):
            if level not in self._acked and level > self._ack_level:
                insort(self._acked, level)
        self._kept = []
        super()._advance()


class MergesAboveRInTheMiddle(ReadBuffer[Any]):
    def _merge_written(self, tasks: Any, loaded: Any) -> None:
        was_at_end, self._is_at_end = self._is_at_end, True
        super()._merge_written(tasks, loaded)
        self._is_at_end = was_at_end


class ForgetsUnknownOutcomes(ReadBuffer[Any]):
    def write_settled(self, write: Write) -> Merge[Any]:
        self.write_failed(write)
        return Merge((), ())


class UnfencedDelete(Table):
    def delete_through(self, range_id: int, level: Level) -> list[Level]:  # noqa: ARG002
        return super().delete_through(self.range_id, level)


class UnfencedInsert(Table):
    def insert(self, range_id: int, tasks: list[tuple[Level, str]]) -> None:  # noqa: ARG002
        super().insert(self.range_id, tasks)


@pytest.mark.parametrize(
    "planted",
    [
        UnpinnedAckLevel,
        MergesDuringARead,
        StaysAtEndAfterACut,
        KeepsAcksAboveACut,
        MergesAboveRInTheMiddle,
        ForgetsUnknownOutcomes,
        UnfencedDelete,
        UnfencedInsert,
    ],
)
def test_the_search_finds_a_planted(planted: type[ReadBuffer[Any]] | type[Table]) -> None:
    is_table = issubclass(planted, Table)
    machine = type(
        f"With{planted.__name__}", (BacklogMachine,), {("table_class" if is_table else "buffer_class"): planted}
    )
    search = settings(
        max_examples=2000, stateful_step_count=50, database=None, print_blob=False, phases=[Phase.generate]
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine, settings=search)
