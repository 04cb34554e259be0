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
    """The document numbers its examples by one number; the ids here follow the passes."""
    return Level(pass_number, pass_number)


def rows(*passes: int) -> list[tuple[Level, str]]:
    return [(at(number), f"task {number}") for number in passes]


def passes(levels: object) -> list[int]:
    assert isinstance(levels, list | tuple)
    return [level.pass_number for level in levels]


def buffer_with(*stored: int, ack: int = 0, at_end: bool = True, limits: BufferLimits = SMALL) -> ReadBuffer[str]:
    """A buffer that has read the tasks `stored`, and whether they were all."""
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
    """Read what is asked for, which is `stored`; what was loaded for it."""
    under_way = buffer.next_read()
    assert under_way is not None
    return passes([level for level, _ in buffer.read_succeeded(under_way, rows(*stored)).loaded])


def write(buffer: ReadBuffer[str], *chosen: int) -> tuple[list[int], list[int]]:
    """Write tasks at once; what was loaded and evicted for it."""
    under_way = buffer.pin([at(number) for number in chosen])
    merge = buffer.write_succeeded(under_way, [f"task {number}" for number in chosen])
    return passes([level for level, _ in merge.loaded]), passes(list(merge.evicted))


# Reading without concurrent writes


def test_r_begins_at_a_and_a_read_asks_for_what_is_above_r() -> None:
    """Seed 003: 'Initialize R to A', 'Do a read for tasks with level > R, limit Bt'."""
    buffer = ReadBuffer[str](ack_level=at(10), max_level=at(99), limits=SMALL)
    assert buffer.read_level == at(10)
    begin_read(buffer, after=10, limit=4)


def test_a_read_moves_r_to_the_last_task_read() -> None:
    """Seed 003: 'Add them to the in-memory buffer and update R to the last task read.'"""
    buffer = buffer_with(11, 21, 31, 41, ack=10, at_end=False)
    assert buffer.read_level == at(41)
    assert passes(list(buffer.loaded)) == [11, 21, 31, 41]


def test_an_empty_read_leaves_r_where_it_was() -> None:
    """Seed 003: 'If we get no tasks, we can leave R where it was.'"""
    buffer = buffer_with(ack=10)
    assert buffer.read_level == at(10)
    assert buffer.is_at_end
    assert buffer.next_read() is None


def test_a_page_that_is_full_to_the_last_task_is_not_the_end() -> None:
    buffer = buffer_with(11, 21, 31, 41, at_end=False)
    for number in (11, 21, 31):
        buffer.ack(at(number))
    under_way = begin_read(buffer, after=41, limit=3)
    buffer.read_succeeded(under_way, [])
    assert buffer.is_at_end


def test_more_is_read_only_when_few_are_left_and_one_read_at_a_time() -> None:
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


def test_a_write_above_r_waits_to_be_read_when_the_end_has_not_been_reached() -> None:
    """Seed 003: 'If Wmin > R, then they'll show up when we read above R'."""
    buffer = buffer_with(11, 21, 31, 41, at_end=False)
    assert write(buffer, 50) == ([], [])
    assert buffer.read_level == at(41)


def test_a_write_above_r_is_kept_when_the_end_has_been_reached() -> None:
    """Seed 003, plan 2: 'we shouldn't have to re-read the tasks we just wrote'."""
    buffer = buffer_with(11, 21)
    assert write(buffer, 50) == ([50], [])
    assert (buffer.read_level, buffer.is_at_end) == (at(50), True)


def test_a_write_below_r_is_merged_in_order() -> None:
    """Seed 003, plan 2: 'Take the tasks in the buffer plus the tasks that were just written and sort them by level.'"""
    buffer = buffer_with(11, 21, 31)
    assert write(buffer, 15) == ([15], [])
    assert passes(list(buffer.loaded)) == [11, 15, 21, 31]


def test_what_is_too_much_is_discarded_from_the_top_and_r_follows() -> None:
    """Seed 003, plan 2: 'Take the first Bt of them ... Set R to the maximum level in that set. Discard the rest'."""
    buffer = buffer_with(11, 21, 31)
    assert write(buffer, 12, 13) == ([12, 13], [31])
    assert passes(list(buffer.loaded)) == [11, 12, 13, 21]
    assert (buffer.read_level, buffer.is_at_end) == (at(21), False)


def test_in_the_middle_of_the_queue_only_what_is_below_the_buffers_end_is_merged() -> None:
    """Seed 003: 'merge in any new tasks below the current end of the buffer, but ... throw out anything above that'."""
    buffer = buffer_with(11, 21, 31, 41, at_end=False)
    assert write(buffer, 15, 55) == ([15], [41])
    assert passes(list(buffer.loaded)) == [11, 15, 21, 31]
    assert buffer.read_level == at(31)


def test_a_task_that_is_written_and_at_once_evicted_was_never_loaded() -> None:
    buffer = buffer_with(1, 2, 3)
    assert write(buffer, 8, 9) == ([8], [])
    assert passes(list(buffer.loaded)) == [1, 2, 3, 8]


def test_m_is_the_highest_level_ever_written() -> None:
    buffer = buffer_with(11)
    write(buffer, 90)
    write(buffer, 20)
    assert buffer.max_level == at(90)


def test_a_level_at_or_below_the_ack_level_can_not_be_written() -> None:
    """Seed 003: 'we must never write below A'."""
    buffer = buffer_with(ack=10)
    with pytest.raises(LevelNotAbove, match=r"<10, 10> is not above the ack level <10, 10>"):
        buffer.pin([at(10), at(20)])


# Acks


def test_a_moves_over_leading_acks_only() -> None:
    buffer = buffer_with(11, 21, 31, ack=10)
    buffer.ack(at(21))
    assert buffer.ack_level == at(10)
    buffer.ack(at(11))
    assert buffer.ack_level == at(21)
    assert buffer.acks_passed == 2


def test_a_repeated_or_unknown_ack_does_no_harm() -> None:
    buffer = buffer_with(11, 21, ack=10)
    for _ in range(2):
        buffer.ack(at(11))
    buffer.ack(at(5))
    buffer.ack(at(15))
    assert (buffer.ack_level, passes(list(buffer.loaded))) == (at(11), [21])


def test_acks_above_a_cut_do_not_carry_a_over_what_was_discarded() -> None:
    """Facts, temporal-matching 2.6: 'Acks above a cut must not move A over dropped rows'."""
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
    # 41 has been dispatched before: it comes back as acked, not to be dispatched again.
    assert [level for level, _ in merge.loaded] == [at(31)]
    buffer.ack(at(31))
    assert buffer.ack_level == at(41)


def test_the_ack_of_an_evicted_task_is_remembered_until_it_is_read_again() -> None:
    buffer = buffer_with(11, 21, 31, ack=10)
    write(buffer, 12, 13)
    buffer.ack(at(31))
    for number in (11, 12, 13, 21):
        buffer.ack(at(number))
    assert buffer.ack_level == at(21)
    assert read(buffer, 31) == []
    assert buffer.ack_level == at(31)


def test_of_too_many_remembered_acks_the_highest_are_dropped() -> None:
    buffer = buffer_with(1, 2, 3)
    for number in (50, 50, 80, 60, 70):
        buffer.ack(at(number))
    for number in (1, 2, 3):
        buffer.ack(at(number))
    buffer.write_settled(buffer.pin([at(10)]))
    # The three lowest are remembered. Of 80 nothing is known any more: it is dispatched again.
    assert read(buffer, 50, 60, 70, 80) == [80]
    assert buffer.ack_level == at(70)


def test_an_ack_of_what_is_long_gone_does_not_crowd_out_one_that_is_needed() -> None:
    limits = BufferLimits(batch_size=4, reload_at=1, evicted_acks_max=1)
    buffer = buffer_with(11, 21, 31, ack=10, limits=limits)
    write(buffer, 12, 13)
    buffer.ack(at(11))
    for number in (5, 11, 31, 11, 5):
        buffer.ack(at(number))
    for number in (12, 13, 21):
        buffer.ack(at(number))
    assert read(buffer, 31) == []


# The races of seed 003; the interleavings are restored in facts/temporal-matching.md 2.6


def test_consider() -> None:
    """Seed 003, 'Consider': A=10, buffer 11, 21, 31; 13, 15, 25 are being written; 11 and 21 are acked."""
    buffer = buffer_with(11, 21, 31, ack=10, limits=BufferLimits())
    under_way = buffer.pin([at(13), at(15), at(25)])
    buffer.ack(at(11))
    buffer.ack(at(21))
    # Unpinned, A would be 21 here, and would have to go back when 13 lands.
    assert buffer.ack_level == at(11)
    buffer.write_succeeded(under_way, ["", "", ""])
    assert buffer.ack_level == at(11)
    assert passes(list(buffer.loaded)) == [13, 15, 25, 31]
    buffer.ack(at(13))
    assert buffer.ack_level == at(13)
    buffer.ack(at(15))
    assert buffer.ack_level == at(21)


def test_even_worse() -> None:
    """Seed 003, 'Even worse': as in 'Consider', and then everything up to A is deleted after the write's commit."""
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


def test_fencing_a_write_of_the_old_owner_never_lands_behind_the_new_owners_back() -> None:
    """Seed 003, fencing: either the write took effect before the new owner's lease, or it fails."""
    table = Table()
    old = table.take_lease()
    new = table.take_lease()
    assert table.read(new.ack_level, 10) == []
    with pytest.raises(LeaseLost):
        table.insert(old.range_id, rows(5))
    assert table.rows == {}


def test_fencing_a_delete_of_the_old_owner_can_not_take_what_the_new_owner_wrote() -> None:
    """Facts, temporal-matching 2.8 [R]: where deletes carry no range id, this interleaving loses a task.

    The old owner has acked up to 21, but what it saved is A=10. The new owner begins at 10 and writes 13.
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


def test_a_task_that_is_read_before_the_news_of_its_own_write_comes_with_the_news_once() -> None:
    """Facts, temporal-matching 2.6: read and acked before the news, it left the reader of today's system stuck."""
    buffer = ReadBuffer[str](ack_level=at(10), max_level=LEVEL_ZERO, limits=SMALL)
    under_way = buffer.pin([at(11)])
    assert read(buffer, 11, 12) == [12]
    buffer.ack(at(12))
    assert (buffer.ack_level, buffer.read_level) == (at(10), at(12))
    assert passes([level for level, _ in buffer.write_succeeded(under_way, ["task 11"]).loaded]) == [11]
    buffer.ack(at(11))
    assert (buffer.ack_level, buffer.read_level, buffer.is_at_end) == (at(12), at(12), True)


def test_a_write_that_a_read_did_not_see_is_merged_after_that_read() -> None:
    """Facts, temporal-matching 2.5: 'Writes landing during a read are merged after it and hold the pin.'"""
    buffer = ReadBuffer[str](ack_level=at(10), max_level=LEVEL_ZERO, limits=SMALL)
    reading = begin_read(buffer, after=10, limit=4)
    for number in (50, 60):
        assert buffer.write_succeeded(buffer.pin([at(number)]), [f"task {number}"]).loaded == ()
    # The store had answered before the writes were there; without the merge afterwards "at the end" would be a lie.
    merge = buffer.read_succeeded(reading, rows(20))
    assert passes([level for level, _ in merge.loaded]) == [20, 50, 60]
    assert buffer.is_at_end
    assert write(buffer, 70) == ([70], [])


def test_a_write_that_waits_for_a_read_still_holds_the_ack_level() -> None:
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


def test_overlapping_writes_do_not_hold_the_ack_level_forever() -> None:
    """The seed's simplest pin holds A still while any write is under way; with group commit one always is.

    A is held below what is being written instead, and new keys join where the service has come to.
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


def test_how_far_the_service_has_come_does_not_wait_for_the_ack_level() -> None:
    buffer = buffer_with(11, 21, 31, ack=10)
    assert buffer.served_pass == 10
    buffer.pin([at(12)])
    buffer.ack(at(21))
    assert (buffer.ack_level, buffer.served_pass) == (at(10), 21)
    buffer.ack(at(11))
    assert (buffer.ack_level, buffer.served_pass) == (at(11), 21)


# An unknown outcome


def test_until_an_unknown_outcome_is_settled_nothing_of_it_can_be_passed_or_deleted() -> None:
    buffer = buffer_with(11, 21, ack=10)
    buffer.pin([at(15)])
    buffer.ack(at(11))
    buffer.ack(at(21))
    assert buffer.ack_level == at(11)


def test_a_settled_unknown_outcome_is_read_again_from_there() -> None:
    """Stronger than the systems of today, which may pass over such a task and delete it undispatched."""
    buffer = buffer_with(11, 21, ack=10)
    under_way = buffer.pin([at(15), at(40)])
    buffer.ack(at(11))
    merge = buffer.write_settled(under_way)
    assert (passes(list(merge.evicted)), buffer.read_level, buffer.is_at_end) == ([21], at(11), False)
    assert buffer.max_level == at(40)
    begin_read(buffer, after=11, limit=4)


def test_a_failed_write_lets_the_ack_level_go_on() -> None:
    buffer = buffer_with(11, 21, ack=10)
    under_way = buffer.pin([at(15)])
    buffer.ack(at(11))
    buffer.ack(at(21))
    buffer.write_failed(under_way)
    assert (buffer.ack_level, buffer.is_at_end) == (at(21), True)


def test_what_is_settled_during_a_read_is_read_again_after_it() -> None:
    buffer = buffer_with(11, 21, 31, 41, ack=10, at_end=False)
    earlier, later = buffer.pin([at(15)]), buffer.pin([at(35)])
    for number in (11, 21, 31):
        buffer.ack(at(number))
    reading = begin_read(buffer, after=41, limit=3)
    assert buffer.write_settled(later) == buffer.write_settled(earlier)
    # Until then, A stays below the lowest of what is to be read again.
    assert buffer.ack_level == at(11)
    merge = buffer.read_succeeded(reading, rows(51, 61))
    assert (merge.loaded, passes(merge.evicted)) == ((), [41])
    assert (buffer.ack_level, buffer.read_level, buffer.is_at_end) == (at(11), at(11), False)
    # 21 and 31 have been dispatched, and one ack stands for both: the higher is remembered.
    assert read(buffer, 21, 31, 41, 51) == [21, 41, 51]


def test_after_a_cut_r_is_the_highest_level_that_is_still_known() -> None:
    buffer = buffer_with(5, 7)
    buffer.ack(at(7))
    buffer.write_settled(buffer.pin([at(10)]))
    assert buffer.read_level == at(7)


# Bounds


def test_one_task_that_does_not_end_neither_stops_the_others_nor_fills_the_memory() -> None:
    """One ack stands for all that A could not stop between."""
    buffer = buffer_with(1)
    for number in range(2, 50_000):
        assert write(buffer, number) == ([number], [])
        buffer.ack(at(number))
        assert len(buffer.acked) <= 2
    assert buffer.ack_level == at(0)
    buffer.ack(at(1))
    assert buffer.ack_level == at(49_999)
    assert buffer.acks_passed == 49_999


def test_acks_are_kept_apart_by_what_is_loaded_and_by_what_is_being_written() -> None:
    buffer = buffer_with(1, 2, 3, 4, 5, 6, limits=BufferLimits())
    pinned = buffer.pin([Level(3, 99)])
    for number in (2, 3, 4, 6):
        buffer.ack(at(number))
    assert list(buffer.acked) == [at(3), at(4), at(6)]
    buffer.write_failed(pinned)
    assert list(buffer.acked) == [at(4), at(6)]
    buffer.ack(at(1))
    assert (buffer.ack_level, buffer.acks_passed) == (at(4), 4)


def test_tasks_that_can_not_be_dispatched_for_now_do_not_keep_others_from_being_read() -> None:
    """A key that is held back by a limit has the lowest tasks, and many of them."""
    limits = BufferLimits(batch_size=4, reload_at=1, parked_max=6)
    buffer = buffer_with(1, 2, 3, 4, at_end=False, limits=limits)
    assert buffer.next_read(parked=2) is None
    under_way = buffer.next_read(parked=4)
    assert under_way is not None
    assert under_way.limit == 4
    buffer.read_succeeded(under_way, rows(5, 6, 7, 8))
    assert passes(list(buffer.loaded)) == [1, 2, 3, 4, 5, 6, 7, 8]
    # The bound: of eight parked tasks six do not count, and two are still more than the one at which more is read.
    assert buffer.next_read(parked=8) is None


def test_written_tasks_that_wait_for_a_slow_read_are_bounded_and_what_is_more_is_read_again() -> None:
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


def test_limits_that_leave_no_room_are_refused() -> None:
    with pytest.raises(InvalidLimits) as refused:
        BufferLimits(batch_size=10, reload_at=10)
    assert isinstance(refused.value, FixRequest)


# Misuse


def test_an_outcome_is_told_once_and_of_its_own_read_or_write() -> None:
    buffer = buffer_with(ack=10)
    under_way = buffer.pin([at(11)])
    buffer.write_succeeded(under_way, [""])
    for tell in (buffer.write_failed, buffer.write_settled):
        with pytest.raises(NotUnderWay, match="tell each outcome once"):
            tell(under_way)
    with pytest.raises(NotUnderWay):
        buffer.write_succeeded(under_way, [""])
    buffer.ack(at(11))
    # Nothing was changed by the refusals.
    assert (buffer.ack_level, list(buffer.loaded)) == (at(11), [])
    assert write(buffer, 12) == ([12], [])


def test_the_late_answer_of_a_failed_read_is_not_taken_for_the_next_ones() -> None:
    buffer = ReadBuffer[str](ack_level=at(0), max_level=LEVEL_ZERO, limits=SMALL)
    failed = begin_read(buffer, after=0, limit=4)
    buffer.read_failed(failed)
    write(buffer, 5)
    begin_read(buffer, after=0, limit=4)
    with pytest.raises(NotUnderWay, match="of its own read") as refused:
        buffer.read_succeeded(failed, [])
    assert isinstance(refused.value, GiveUp)
    assert not buffer.is_at_end


@pytest.mark.parametrize("page", [(10, 11), (12, 11), (11, 11), (11, 12, 13, 14, 15)])
def test_a_page_that_was_not_asked_for_is_refused(page: tuple[int, ...]) -> None:
    buffer = ReadBuffer[str](ack_level=at(10), max_level=LEVEL_ZERO, limits=SMALL)
    under_way = begin_read(buffer, after=10, limit=4)
    with pytest.raises(InvalidPage, match="nothing was taken in"):
        buffer.read_succeeded(under_way, rows(*page))
    assert list(buffer.loaded) == []
    buffer.read_failed(under_way)
    assert read(buffer, 11) == [11]
