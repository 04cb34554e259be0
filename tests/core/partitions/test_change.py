import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.errors import FairleadError, FixRequest, RetryLater
from fairlead.core.partitions import (
    INITIAL_CONFIG,
    AboveMaximum,
    DrainReport,
    NotDrained,
    NoWritePartition,
    PartitionConfig,
    ReadBelowWrite,
    WriteNotLowered,
    change,
    is_drained,
)

MAXIMUM = 20


def drained(*partitions: int, version: int) -> list[DrainReport]:
    return [DrainReport(number, version, appends_in_flight=0, stored_tasks=0) for number in partitions]


@st.composite
def configs(draw: st.DrawFn) -> PartitionConfig:
    write = draw(st.integers(1, 12))
    return PartitionConfig(version=draw(st.integers(0, 3)), read=write + draw(st.integers(0, 12)), write=write)


reports = st.lists(
    st.builds(
        DrainReport,
        partition=st.integers(0, 25),
        acknowledged_version=st.integers(0, 4),
        appends_in_flight=st.sampled_from([0, 0, 0, 1]),
        stored_tasks=st.sampled_from([0, 0, 0, 5, None]),
    ),
    max_size=40,
)


@pytest.mark.parametrize(("read", "write"), [(4, 4), (4, 1), (9, 3)])
def test_an_increase_takes_one_change(read: int, write: int) -> None:
    """SC-2."""
    assert change(INITIAL_CONFIG, read=read, write=write, maximum=MAXIMUM) == PartitionConfig(1, read, write)


def test_a_decrease_takes_two_phases() -> None:
    """SC-3: lower write, drain, lower read."""
    start = PartitionConfig(version=7, read=6, write=6)
    lowered = change(start, read=6, write=4, maximum=MAXIMUM)
    assert lowered == PartitionConfig(version=8, read=6, write=4)
    with pytest.raises(NotDrained):
        change(lowered, read=4, write=4, maximum=MAXIMUM)
    finished = change(lowered, read=4, write=4, maximum=MAXIMUM, reports=drained(4, 5, version=8))
    assert finished == PartitionConfig(version=9, read=4, write=4)


def test_lowering_read_and_write_at_once_is_rejected() -> None:
    start = PartitionConfig(version=7, read=6, write=6)
    with pytest.raises(WriteNotLowered, match=r"partitions 4 to 5.*lower write to 4 first") as raised:
        change(start, read=4, write=4, maximum=MAXIMUM, reports=drained(4, 5, version=7))
    assert isinstance(raised.value, FixRequest)


def test_lowering_read_over_an_undrained_partition_is_rejected() -> None:
    current = PartitionConfig(version=3, read=6, write=3)
    with pytest.raises(NotDrained, match=r"partition 4 is not known.*lowered to 5 now") as raised:
        change(current, read=3, write=3, maximum=MAXIMUM, reports=drained(3, 5, version=3))
    assert isinstance(raised.value, RetryLater)


def test_read_can_be_lowered_as_far_as_partitions_are_drained() -> None:
    current = PartitionConfig(version=3, read=6, write=3)
    following = change(current, read=5, write=3, maximum=MAXIMUM, reports=drained(3, 5, version=3))
    assert following == PartitionConfig(version=4, read=5, write=3)


def test_drained_partitions_can_be_removed_while_write_is_raised() -> None:
    current = PartitionConfig(version=3, read=8, write=3)
    following = change(current, read=6, write=6, maximum=MAXIMUM, reports=drained(6, 7, version=3))
    assert following == PartitionConfig(version=4, read=6, write=6)


def test_each_invalid_change_has_its_own_error_class() -> None:
    current = PartitionConfig(version=1, read=4, write=4)
    with pytest.raises(ReadBelowWrite):
        change(current, read=4, write=5, maximum=MAXIMUM)
    with pytest.raises(NoWritePartition):
        change(current, read=4, write=0, maximum=MAXIMUM)
    with pytest.raises(AboveMaximum, match="21 read partitions are more than the maximum of 20"):
        change(current, read=MAXIMUM + 1, write=4, maximum=MAXIMUM)
    with pytest.raises(AboveMaximum, match="21 write"):
        change(current, read=MAXIMUM + 1, write=MAXIMUM + 1, maximum=MAXIMUM)


def test_the_maximum_itself_is_allowed() -> None:
    assert change(INITIAL_CONFIG, read=MAXIMUM, write=MAXIMUM, maximum=MAXIMUM).write == MAXIMUM


def test_counts_above_a_lowered_maximum_can_still_be_lowered() -> None:
    """Between the two phases, read is still above the new maximum."""
    start = PartitionConfig(version=1, read=10, write=10)
    lowered = change(start, read=10, write=4, maximum=4)
    assert lowered == PartitionConfig(version=2, read=10, write=4)
    assert change(lowered, read=9, write=4, maximum=4, reports=drained(9, version=2)).read == 9
    with pytest.raises(AboveMaximum):
        change(lowered, read=11, write=4, maximum=4)
    with pytest.raises(AboveMaximum):
        change(lowered, read=10, write=5, maximum=4)


def test_an_update_to_the_same_counts_is_no_change() -> None:
    """SC-7: an unchanged configuration keeps its version."""
    current = PartitionConfig(version=1, read=10, write=10)
    assert change(current, read=10, write=10, maximum=4) is current


def test_force_skips_the_two_phases_and_the_drain_rule() -> None:
    """FL-27."""
    start = PartitionConfig(version=7, read=6, write=6)
    assert change(start, read=2, write=2, maximum=MAXIMUM, force=True) == PartitionConfig(8, 2, 2)
    draining = PartitionConfig(version=7, read=6, write=2)
    assert change(draining, read=2, write=2, maximum=MAXIMUM, force=True) == PartitionConfig(8, 2, 2)


def test_force_skips_no_other_check() -> None:
    current = PartitionConfig(version=1, read=4, write=4)
    with pytest.raises(ReadBelowWrite):
        change(current, read=3, write=4, maximum=MAXIMUM, force=True)
    with pytest.raises(NoWritePartition):
        change(current, read=4, write=0, maximum=MAXIMUM, force=True)
    with pytest.raises(AboveMaximum):
        change(current, read=MAXIMUM + 1, write=4, maximum=MAXIMUM, force=True)


@given(configs(), st.integers(-1, 25), st.integers(-1, 25), st.integers(1, 25), reports)
def test_every_accepted_change_keeps_all_invariants(
    current: PartitionConfig, read: int, write: int, maximum: int, said: list[DrainReport]
) -> None:
    """SC-1, SC-7, FL-26."""
    try:
        following = change(current, read=read, write=write, maximum=maximum, reports=said)
    except FairleadError:
        assert (read, write) != (current.read, current.write)
        return
    assert (following.read, following.write) == (read, write)
    assert following.read >= following.write >= 1
    assert following.version == current.version + ((read, write) != (current.read, current.write))
    assert following.read <= max(current.read, maximum)
    assert following.write <= max(current.write, maximum)
    for leaving in range(following.read, current.read):
        assert leaving >= current.write
        assert any(report.partition == leaving and is_drained(report, current) for report in said)


@given(configs(), st.integers(1, 25), st.integers(1, 25))
def test_any_valid_increase_is_allowed(current: PartitionConfig, more_read: int, more_write: int) -> None:
    write = current.write + more_write
    read = max(write, current.read + more_read)
    assert change(current, read=read, write=write, maximum=60) == PartitionConfig(current.version + 1, read, write)
