import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.errors import GiveUp
from fairlead.core.partitions import (
    INITIAL_CONFIG,
    PARTITIONS_MAX,
    AboveMaximum,
    ConflictingConfig,
    InvalidVersion,
    NoWritePartition,
    PartitionConfig,
    ReadBelowWrite,
    accept,
)


def config_of_version(version: int) -> PartitionConfig:
    """A configuration that depends only on its version."""
    write = 1 + version * 7 % 5
    return PartitionConfig(version=version, read=write + version % 3, write=write)


def test_read_cannot_be_less_than_write() -> None:
    """SC-1."""
    with pytest.raises(ReadBelowWrite, match="3 read partitions are fewer than 4 write"):
        PartitionConfig(version=1, read=3, write=4)


@pytest.mark.parametrize("write", [0, -2])
def test_a_configuration_needs_a_write_partition(write: int) -> None:
    with pytest.raises(NoWritePartition, match=str(write)):
        PartitionConfig(version=1, read=4, write=write)


def test_a_version_cannot_be_negative() -> None:
    with pytest.raises(InvalidVersion, match="-1"):
        PartitionConfig(version=-1, read=1, write=1)


def test_the_number_of_partitions_is_bounded() -> None:
    assert PartitionConfig(version=1, read=PARTITIONS_MAX, write=1).read == PARTITIONS_MAX
    with pytest.raises(AboveMaximum, match=str(PARTITIONS_MAX + 1)):
        PartitionConfig(version=1, read=PARTITIONS_MAX + 1, write=1)


def test_a_task_queue_begins_with_one_partition() -> None:
    assert PartitionConfig(version=0, read=1, write=1) == INITIAL_CONFIG


def test_a_lower_version_is_never_accepted() -> None:
    """FL-19."""
    current = PartitionConfig(version=5, read=4, write=4)
    assert accept(current, PartitionConfig(version=4, read=8, write=8)) is current


def test_a_higher_version_is_accepted_with_any_counts() -> None:
    incoming = PartitionConfig(version=9, read=1, write=1)
    assert accept(PartitionConfig(version=5, read=4, write=4), incoming) is incoming


def test_a_repeated_push_changes_nothing() -> None:
    current = PartitionConfig(version=5, read=4, write=4)
    assert accept(current, PartitionConfig(version=5, read=4, write=4)) is current


@pytest.mark.parametrize("incoming", [PartitionConfig(5, 5, 4), PartitionConfig(5, 4, 3)])
def test_two_configurations_of_one_version_are_an_error(incoming: PartitionConfig) -> None:
    with pytest.raises(ConflictingConfig, match="version 5") as raised:
        accept(PartitionConfig(version=5, read=4, write=4), incoming)
    assert isinstance(raised.value, GiveUp)


@given(st.lists(st.integers(0, 30), max_size=40))
def test_no_observer_goes_back_and_all_end_at_the_highest_version(versions: list[int]) -> None:
    """FL-19, with pushes that are reordered, repeated and lost."""
    known = INITIAL_CONFIG
    for version in versions:
        pushed = config_of_version(version) if version else INITIAL_CONFIG
        following = accept(known, pushed)
        assert following.version >= known.version
        known = following
    assert known.version == max(versions, default=0)
