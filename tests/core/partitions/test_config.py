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
    """One content a version, as one root would have written it."""
    write = 1 + version * 7 % 5
    return PartitionConfig(version=version, read=write + version % 3, write=write)


def test_read_is_never_less_than_write() -> None:
    """Seed 001, 'How Is the Number of Partitions Manually Configured?': the guardrail."""
    with pytest.raises(ReadBelowWrite, match="3 read partitions are fewer than 4 write"):
        PartitionConfig(version=1, read=3, write=4)


@pytest.mark.parametrize("write", [0, -2])
def test_there_is_always_a_write_partition(write: int) -> None:
    with pytest.raises(NoWritePartition, match=str(write)):
        PartitionConfig(version=1, read=4, write=write)


def test_a_version_is_never_negative() -> None:
    with pytest.raises(InvalidVersion, match="-1"):
        PartitionConfig(version=-1, read=1, write=1)


def test_no_task_list_has_more_partitions_than_the_bound() -> None:
    assert PartitionConfig(version=1, read=PARTITIONS_MAX, write=1).read == PARTITIONS_MAX
    with pytest.raises(AboveMaximum, match=str(PARTITIONS_MAX + 1)):
        PartitionConfig(version=1, read=PARTITIONS_MAX + 1, write=1)


def test_a_task_list_begins_with_the_root_alone() -> None:
    assert PartitionConfig(version=0, read=1, write=1) == INITIAL_CONFIG


def test_a_lower_version_is_never_accepted() -> None:
    """Design, 'Partition configuration': nobody accepts a lower version."""
    current = PartitionConfig(version=5, read=4, write=4)
    assert accept(current, PartitionConfig(version=4, read=8, write=8)) is current


def test_a_higher_version_replaces_whatever_its_counts_are() -> None:
    incoming = PartitionConfig(version=9, read=1, write=1)
    assert accept(PartitionConfig(version=5, read=4, write=4), incoming) is incoming


def test_a_repeated_push_changes_nothing() -> None:
    current = PartitionConfig(version=5, read=4, write=4)
    assert accept(current, PartitionConfig(version=5, read=4, write=4)) is current


@pytest.mark.parametrize("incoming", [PartitionConfig(5, 5, 4), PartitionConfig(5, 4, 3)])
def test_one_version_with_two_contents_is_given_up(incoming: PartitionConfig) -> None:
    with pytest.raises(ConflictingConfig, match="version 5") as refused:
        accept(PartitionConfig(version=5, read=4, write=4), incoming)
    assert isinstance(refused.value, GiveUp)


@given(st.lists(st.integers(0, 30), max_size=40))
def test_no_observer_regresses_and_all_end_at_the_highest_version(versions: list[int]) -> None:
    """Facts, Cadence matching, invariant 5: reordered, repeated and lost pushes."""
    known = INITIAL_CONFIG
    for version in versions:
        pushed = config_of_version(version) if version else INITIAL_CONFIG
        following = accept(known, pushed)
        assert following.version >= known.version
        known = following
    assert known.version == max(versions, default=0)
