import pytest

from fairlead.core.errors import FixRequest, GiveUp
from fairlead.core.fairness import (
    LEVEL_ZERO,
    BufferLimits,
    InvalidLimits,
    InvalidPage,
    Level,
    LevelNotAbove,
    NotUnderWay,
    Read,
    ReadBuffer,
)
from tests.core.fairness.table import LeaseLost, Table

SMALL = BufferLimits(batch_size=4, reload_at=1, evicted_acks_max=3)


def at(pass_number: int) -> Level:
    """A level whose id equals its pass, because the examples of FB-14 give each task one number."""
    return Level(pass_number, pass_number)


def rows(*passes: int) -> list[tuple[Level, str]]:
    return [(at(number), f"task {number}") for number in passes]


def passes(levels: object) -> list[int]:
    assert isinstance(levels, list | tuple)
    return [level.pass_number for level in levels]


def buffer_with(*stored: int, ack: int = 0, at_end: bool = True, limits: BufferLimits = SMALL) -> ReadBuffer[str]:
    """A buffer that has read the tasks `stored`; `at_end` says that these are all."""
    buffer = ReadBuffer[str](ack_level=at(ack), max_level=LEVEL_ZERO, limits=limits)
    read(buffer, *stored)
    assert buffer.is_at_end == at_end
    return buffer


def begin_read(buffer: ReadBuffer[str], *, after: int, limit: int) -> Read:
    under_way = buffer.next_read()
    assert under_way is not None
    assert (under_way.after, under_way.limit) == (at(after), limit)
    return under_way


def read(buffer: ReadBuffer[str], *stored: int) -> list[int]:
    """Execute the read that the buffer asks for, with the result `stored`. Returns the passes that were loaded."""
    under_way = buffer.next_read()
    assert under_way is not None
    return passes([level for level, _ in buffer.read_succeeded(under_way, rows(*stored)).loaded])


def write(buffer: ReadBuffer[str], *chosen: int) -> tuple[list[int], list[int]]:
    """Write tasks at once. Returns the passes that were loaded and evicted."""
    under_way = buffer.pin([at(number) for number in chosen])
    merge = buffer.write_succeeded(under_way, [f"task {number}" for number in chosen])
    return passes([level for level, _ in merge.loaded]), passes(list(merge.evicted))


# Reading without concurrent writes


def test_the_read_level_begins_at_the_ack_level_and_a_read_asks_for_higher_levels() -> None:
    """FB-7, FB-8: a read asks for at most one batch."""
    buffer = ReadBuffer[str](ack_level=at(10), max_level=at(99), limits=SMALL)
    assert buffer.read_level == at(10)
    begin_read(buffer, after=10, limit=4)


def test_a_read_moves_the_read_level_to_the_last_task_read() -> None:
    """FB-8."""
    buffer = buffer_with(11, 21, 31, 41, ack=10, at_end=False)
    assert buffer.read_level == at(41)
    assert passes(list(buffer.loaded)) == [11, 21, 31, 41]


def test_an_empty_read_does_not_change_the_read_level() -> None:
    """FB-8."""
    buffer = buffer_with(ack=10)
    assert buffer.read_level == at(10)
    assert buffer.is_at_end
    assert buffer.next_read() is None


def test_a_full_page_is_not_the_end() -> None:
    buffer = buffer_with(11, 21, 31, 41, at_end=False)
    for number in (11, 21, 31):
        buffer.ack(at(number))
    under_way = begin_read(buffer, after=41, limit=3)
    buffer.read_succeeded(under_way, [])
    assert buffer.is_at_end


def test_a_read_starts_only_when_few_tasks_are_left_and_no_other_read_runs() -> None:
    buffer = buffer_with(11, 21, 31, 41, at_end=False)
    buffer.ack(at(11))
    buffer.ack(at(21))
    assert buffer.next_read() is None
    buffer.ack(at(31))
    under_way = begin_read(buffer, after=41, limit=3)
    assert buffer.next_read() is None
    buffer.read_failed(under_way)
    begin_read(buffer, after=41, limit=3)


# Writing


def test_a_write_above_the_read_level_is_left_in_the_store_before_the_end_is_reached() -> None:
    """FB-10."""
    buffer = buffer_with(11, 21, 31, 41, at_end=False)
    assert write(buffer, 50) == ([], [])
    assert buffer.read_level == at(41)


def test_a_write_above_the_read_level_is_loaded_after_the_end_was_reached() -> None:
    """FB-11: written tasks are not read back."""
    buffer = buffer_with(11, 21)
    assert write(buffer, 50) == ([50], [])
    assert (buffer.read_level, buffer.is_at_end) == (at(50), True)


def test_a_write_below_the_read_level_is_merged_in_order() -> None:
    """FB-11: written tasks and those in memory are sorted by level."""
    buffer = buffer_with(11, 21, 31)
    assert write(buffer, 15) == ([15], [])
    assert passes(list(buffer.loaded)) == [11, 15, 21, 31]


def test_tasks_above_the_batch_size_are_evicted_and_the_read_level_is_lowered() -> None:
    """FB-11: the lowest batch is kept, R becomes its highest level, and the rest is evicted."""
    buffer = buffer_with(11, 21, 31)
    assert write(buffer, 12, 13) == ([12, 13], [31])
    assert passes(list(buffer.loaded)) == [11, 12, 13, 21]
    assert (buffer.read_level, buffer.is_at_end) == (at(21), False)


def test_only_writes_below_the_read_level_are_merged_before_the_end_is_reached() -> None:
    """FB-12: tasks below R are merged, tasks above R are left in the store."""
    buffer = buffer_with(11, 21, 31, 41, at_end=False)
    assert write(buffer, 15, 55) == ([15], [41])
    assert passes(list(buffer.loaded)) == [11, 15, 21, 31]
    assert buffer.read_level == at(31)


def test_a_task_evicted_by_its_own_write_is_not_reported_as_loaded() -> None:
    buffer = buffer_with(1, 2, 3)
    assert write(buffer, 8, 9) == ([8], [])
    assert passes(list(buffer.loaded)) == [1, 2, 3, 8]


def test_the_maximum_level_is_the_highest_ever_written() -> None:
    """FB-6."""
    buffer = buffer_with(11)
    write(buffer, 90)
    write(buffer, 20)
    assert buffer.max_level == at(90)


def test_a_level_at_or_below_the_ack_level_cannot_be_written() -> None:
    """FB-3."""
    buffer = buffer_with(ack=10)
    with pytest.raises(LevelNotAbove, match=r"<10, 10> is not above the ack level <10, 10>"):
        buffer.pin([at(10), at(20)])


# Acks


def test_the_ack_level_advances_only_over_leading_acks() -> None:
    """FB-4."""
    buffer = buffer_with(11, 21, 31, ack=10)
    buffer.ack(at(21))
    assert buffer.ack_level == at(10)
    buffer.ack(at(11))
    assert buffer.ack_level == at(21)
    assert buffer.acks_passed == 2


def test_a_repeated_or_unknown_ack_is_ignored() -> None:
    buffer = buffer_with(11, 21, ack=10)
    for _ in range(2):
        buffer.ack(at(11))
    buffer.ack(at(5))
    buffer.ack(at(15))
    assert (buffer.ack_level, passes(list(buffer.loaded))) == (at(11), [21])


def test_acks_above_evicted_tasks_do_not_advance_the_ack_level_over_them() -> None:
    """FL-43."""
    buffer = buffer_with(11, 21, 31, ack=10)
    write(buffer, 41)
    buffer.ack(at(41))
    write(buffer, 12, 13)
    assert (passes(list(buffer.loaded)), buffer.read_level) == ([11, 12, 13, 21], at(21))
    for number in (11, 12, 13, 21):
        buffer.ack(at(number))
    assert buffer.ack_level == at(21)
    under_way = begin_read(buffer, after=21, limit=4)
    merge = buffer.read_succeeded(under_way, rows(31, 41))
    # 41 was dispatched before: the read loads it as acked, and it is not dispatched again.
    assert [level for level, _ in merge.loaded] == [at(31)]
    buffer.ack(at(31))
    assert buffer.ack_level == at(41)


def test_the_ack_of_an_evicted_task_is_kept_until_the_task_is_read_again() -> None:
    buffer = buffer_with(11, 21, 31, ack=10)
    write(buffer, 12, 13)
    buffer.ack(at(31))
    for number in (11, 12, 13, 21):
        buffer.ack(at(number))
    assert buffer.ack_level == at(21)
    assert read(buffer, 31) == []
    assert buffer.ack_level == at(31)


def test_the_highest_acks_of_evicted_tasks_are_dropped_above_the_bound() -> None:
    buffer = buffer_with(1, 2, 3)
    for number in (50, 50, 80, 60, 70):
        buffer.ack(at(number))
    for number in (1, 2, 3):
        buffer.ack(at(number))
    buffer.write_settled(buffer.pin([at(10)]))
    # The three lowest acks are kept. The ack of 80 is dropped, so 80 is dispatched again.
    assert read(buffer, 50, 60, 70, 80) == [80]
    assert buffer.ack_level == at(70)


def test_the_ack_of_a_deleted_task_does_not_displace_a_needed_ack() -> None:
    limits = BufferLimits(batch_size=4, reload_at=1, evicted_acks_max=1)
    buffer = buffer_with(11, 21, 31, ack=10, limits=limits)
    write(buffer, 12, 13)
    buffer.ack(at(11))
    for number in (5, 11, 31, 11, 5):
        buffer.ack(at(number))
    for number in (12, 13, 21):
        buffer.ack(at(number))
    assert read(buffer, 31) == []


# Races


def test_the_ack_level_stays_below_a_write_in_progress() -> None:
    """FB-14: A=10, buffer 11, 21, 31; 13, 15, 25 are being written; 11 and 21 are acked."""
    buffer = buffer_with(11, 21, 31, ack=10, limits=BufferLimits())
    under_way = buffer.pin([at(13), at(15), at(25)])
    buffer.ack(at(11))
    buffer.ack(at(21))
    # If the write didn't hold A, A would be 21 here, and would have to go back when 13 is stored.
    assert buffer.ack_level == at(11)
    buffer.write_succeeded(under_way, ["", "", ""])
    assert buffer.ack_level == at(11)
    assert passes(list(buffer.loaded)) == [13, 15, 25, 31]
    buffer.ack(at(13))
    assert buffer.ack_level == at(13)
    buffer.ack(at(15))
    assert buffer.ack_level == at(21)


def test_a_delete_up_to_the_ack_level_spares_a_concurrent_write() -> None:
    """FB-15: as in FB-14; then a delete of everything up to A follows the write's commit."""
    table = Table(rows=dict(rows(11, 21, 31)), ack_level=at(10))
    range_id = table.take_lease().range_id
    buffer = buffer_with(11, 21, 31, ack=10, limits=BufferLimits())
    under_way = buffer.pin([at(13), at(15), at(25)])
    buffer.ack(at(11))
    buffer.ack(at(21))
    table.insert(range_id, rows(13, 15, 25))
    assert table.delete_through(range_id, buffer.ack_level) == [at(11)]
    buffer.write_succeeded(under_way, ["", "", ""])
    assert set(buffer.loaded) <= set(table.rows)
    assert {at(13), at(15), at(25)} <= set(table.rows)


def test_a_write_of_the_old_owner_fails_after_the_takeover() -> None:
    """FB-17: a write takes effect before the new owner's takeover, or it fails."""
    table = Table()
    old = table.take_lease()
    new = table.take_lease()
    assert table.read(new.ack_level, 10) == []
    with pytest.raises(LeaseLost):
        table.insert(old.range_id, rows(5))
    assert table.rows == {}


def test_a_delete_of_the_old_owner_cannot_remove_a_task_of_the_new_owner() -> None:
    """FL-42: this interleaving loses a task if deletes carry no range id.

    The old owner has acked up to 21, but has saved A=10. The new owner begins at 10 and writes 13.
    """
    table = Table(rows=dict(rows(11, 21)), ack_level=at(10))
    old_lease = table.take_lease()
    old = buffer_with(11, 21, ack=10)
    old.ack(at(11))
    old.ack(at(21))
    new_lease = table.take_lease()
    assert new_lease.ack_level == at(10)
    table.insert(new_lease.range_id, rows(13))
    assert old.ack_level == at(21)
    with pytest.raises(LeaseLost):
        table.delete_through(old_lease.range_id, old.ack_level)
    assert at(13) in table.rows


def test_a_task_that_is_read_before_its_write_is_reported_is_loaded_once() -> None:
    """FL-45: the read skips the task, and the report of its write loads it."""
    buffer = ReadBuffer[str](ack_level=at(10), max_level=LEVEL_ZERO, limits=SMALL)
    under_way = buffer.pin([at(11)])
    assert read(buffer, 11, 12) == [12]
    buffer.ack(at(12))
    assert (buffer.ack_level, buffer.read_level) == (at(10), at(12))
    assert passes([level for level, _ in buffer.write_succeeded(under_way, ["task 11"]).loaded]) == [11]
    buffer.ack(at(11))
    assert (buffer.ack_level, buffer.read_level, buffer.is_at_end) == (at(12), at(12), True)


def test_a_write_that_ends_during_a_read_is_merged_after_the_read() -> None:
    """FL-44: until the merge, the write holds A."""
    buffer = ReadBuffer[str](ack_level=at(10), max_level=LEVEL_ZERO, limits=SMALL)
    reading = begin_read(buffer, after=10, limit=4)
    for number in (50, 60):
        assert buffer.write_succeeded(buffer.pin([at(number)]), [f"task {number}"]).loaded == ()
    # The read took place before the writes: without the merge, `is_at_end` would be wrong.
    merge = buffer.read_succeeded(reading, rows(20))
    assert passes([level for level, _ in merge.loaded]) == [20, 50, 60]
    assert buffer.is_at_end
    assert write(buffer, 70) == ([70], [])


def test_a_write_that_waits_for_a_read_holds_the_ack_level() -> None:
    buffer = buffer_with(11, 21, 31, 41, ack=10, at_end=False)
    under_way = buffer.pin([at(25)])
    for number in (11, 21, 31):
        buffer.ack(at(number))
    reading = begin_read(buffer, after=41, limit=3)
    buffer.write_succeeded(under_way, ["task 25"])
    assert buffer.ack_level == at(21)
    assert passes([level for level, _ in buffer.read_failed(reading).loaded]) == [25]
    buffer.ack(at(25))
    assert buffer.ack_level == at(31)


def test_overlapping_writes_do_not_stop_the_ack_level() -> None:
    """With group commit a write is always in progress, so A must not wait for a moment without writes.

    A stays below the levels that are being written, and new keys join at the served pass.
    """
    buffer = buffer_with()
    earlier = buffer.pin([at(1)])
    for number in range(2, 1000):
        later = buffer.pin([at(number)])
        buffer.write_succeeded(earlier, [""])
        buffer.ack(earlier.lowest)
        earlier = later
        assert buffer.ack_level == at(number - 1)
        assert buffer.served_pass == number - 1
        assert len(buffer.acked) == 0


def test_the_served_pass_does_not_wait_for_the_ack_level() -> None:
    buffer = buffer_with(11, 21, 31, ack=10)
    assert buffer.served_pass == 10
    buffer.pin([at(12)])
    buffer.ack(at(21))
    assert (buffer.ack_level, buffer.served_pass) == (at(10), 21)
    buffer.ack(at(11))
    assert (buffer.ack_level, buffer.served_pass) == (at(11), 21)


# Unknown outcomes


def test_the_ack_level_stays_below_a_write_of_unknown_outcome() -> None:
    buffer = buffer_with(11, 21, ack=10)
    buffer.pin([at(15)])
    buffer.ack(at(11))
    buffer.ack(at(21))
    assert buffer.ack_level == at(11)


def test_a_settled_write_of_unknown_outcome_lowers_the_read_level_so_that_its_tasks_are_read() -> None:
    """Otherwise the ack level could move beyond such a task, and a delete would remove it before its dispatch."""
    buffer = buffer_with(11, 21, ack=10)
    under_way = buffer.pin([at(15), at(40)])
    buffer.ack(at(11))
    merge = buffer.write_settled(under_way)
    assert (passes(list(merge.evicted)), buffer.read_level, buffer.is_at_end) == ([21], at(11), False)
    assert buffer.max_level == at(40)
    begin_read(buffer, after=11, limit=4)


def test_a_failed_write_no_longer_holds_the_ack_level() -> None:
    buffer = buffer_with(11, 21, ack=10)
    under_way = buffer.pin([at(15)])
    buffer.ack(at(11))
    buffer.ack(at(21))
    buffer.write_failed(under_way)
    assert (buffer.ack_level, buffer.is_at_end) == (at(21), True)


def test_writes_settled_during_a_read_are_read_after_it() -> None:
    buffer = buffer_with(11, 21, 31, 41, ack=10, at_end=False)
    earlier, later = buffer.pin([at(15)]), buffer.pin([at(35)])
    for number in (11, 21, 31):
        buffer.ack(at(number))
    reading = begin_read(buffer, after=41, limit=3)
    assert buffer.write_settled(later) == buffer.write_settled(earlier)
    # Until then, A stays below the lowest settled write.
    assert buffer.ack_level == at(11)
    merge = buffer.read_succeeded(reading, rows(51, 61))
    assert (merge.loaded, passes(merge.evicted)) == ((), [41])
    assert (buffer.ack_level, buffer.read_level, buffer.is_at_end) == (at(11), at(11), False)
    # 21 and 31 were dispatched. One kept ack stands for both, at the higher level: 21 is dispatched again.
    assert read(buffer, 21, 31, 41, 51) == [21, 41, 51]


def test_the_read_level_becomes_the_highest_known_level_after_a_settled_write() -> None:
    buffer = buffer_with(5, 7)
    buffer.ack(at(7))
    buffer.write_settled(buffer.pin([at(10)]))
    assert buffer.read_level == at(7)


# Bounds


def test_one_unfinished_task_does_not_block_the_others_or_fill_the_memory() -> None:
    """Acks between two loaded levels are joined into one."""
    buffer = buffer_with(1)
    for number in range(2, 50_000):
        assert write(buffer, number) == ([number], [])
        buffer.ack(at(number))
        assert len(buffer.acked) <= 2
    assert buffer.ack_level == at(0)
    buffer.ack(at(1))
    assert buffer.ack_level == at(49_999)
    assert buffer.acks_passed == 49_999


def test_acks_are_joined_only_between_loaded_or_pinned_levels() -> None:
    buffer = buffer_with(1, 2, 3, 4, 5, 6, limits=BufferLimits())
    pinned = buffer.pin([Level(3, 99)])
    for number in (2, 3, 4, 6):
        buffer.ack(at(number))
    assert list(buffer.acked) == [at(3), at(4), at(6)]
    buffer.write_failed(pinned)
    assert list(buffer.acked) == [at(4), at(6)]
    buffer.ack(at(1))
    assert (buffer.ack_level, buffer.acks_passed) == (at(4), 4)


def test_parked_tasks_do_not_block_reads() -> None:
    """A rate-limited key has the lowest tasks, and many of them."""
    limits = BufferLimits(batch_size=4, reload_at=1, parked_max=6)
    buffer = buffer_with(1, 2, 3, 4, at_end=False, limits=limits)
    assert buffer.next_read(parked=2) is None
    under_way = buffer.next_read(parked=4)
    assert under_way is not None
    assert under_way.limit == 4
    buffer.read_succeeded(under_way, rows(5, 6, 7, 8))
    assert passes(list(buffer.loaded)) == [1, 2, 3, 4, 5, 6, 7, 8]
    # Eight tasks are parked. The buffer ignores only six of them (`parked_max`); the other two exceed `reload_at`.
    assert buffer.next_read(parked=8) is None


def test_the_number_of_writes_that_wait_for_a_read_is_bounded_and_the_rest_is_read_later() -> None:
    buffer = ReadBuffer[str](ack_level=at(0), max_level=LEVEL_ZERO, limits=SMALL)
    reading = begin_read(buffer, after=0, limit=4)
    for number in range(100, 200, 2):
        buffer.write_succeeded(buffer.pin([at(number), at(number + 1)]), ["", ""])
    assert buffer._deferred_tasks <= SMALL.batch_size
    assert len(buffer._pins) <= 3
    merge = buffer.read_succeeded(reading, [])
    assert passes([level for level, _ in merge.loaded]) == [100, 101, 102, 103]
    for number in range(100, 104):
        buffer.ack(at(number))
    assert read(buffer, 104, 105, 106, 107) == [104, 105, 106, 107]


def test_a_reload_threshold_as_large_as_the_batch_is_rejected() -> None:
    with pytest.raises(InvalidLimits) as raised:
        BufferLimits(batch_size=10, reload_at=10)
    assert isinstance(raised.value, FixRequest)


# Misuse


def test_an_outcome_that_is_reported_twice_is_rejected() -> None:
    buffer = buffer_with(ack=10)
    under_way = buffer.pin([at(11)])
    buffer.write_succeeded(under_way, [""])
    for notify in (buffer.write_failed, buffer.write_settled):
        with pytest.raises(NotUnderWay, match="report each outcome once"):
            notify(under_way)
    with pytest.raises(NotUnderWay):
        buffer.write_succeeded(under_way, [""])
    buffer.ack(at(11))
    # The rejected reports changed nothing.
    assert (buffer.ack_level, list(buffer.loaded)) == (at(11), [])
    assert write(buffer, 12) == ([12], [])


def test_a_late_result_of_a_failed_read_is_rejected() -> None:
    buffer = ReadBuffer[str](ack_level=at(0), max_level=LEVEL_ZERO, limits=SMALL)
    failed = begin_read(buffer, after=0, limit=4)
    buffer.read_failed(failed)
    write(buffer, 5)
    begin_read(buffer, after=0, limit=4)
    with pytest.raises(NotUnderWay, match="with its read") as raised:
        buffer.read_succeeded(failed, [])
    assert isinstance(raised.value, GiveUp)
    assert not buffer.is_at_end


@pytest.mark.parametrize("page", [(10, 11), (12, 11), (11, 11), (11, 12, 13, 14, 15)])
def test_a_page_that_does_not_fit_its_read_is_rejected(page: tuple[int, ...]) -> None:
    buffer = ReadBuffer[str](ack_level=at(10), max_level=LEVEL_ZERO, limits=SMALL)
    under_way = begin_read(buffer, after=10, limit=4)
    with pytest.raises(InvalidPage, match="nothing was loaded"):
        buffer.read_succeeded(under_way, rows(*page))
    assert list(buffer.loaded) == []
    buffer.read_failed(under_way)
    assert read(buffer, 11) == [11]
