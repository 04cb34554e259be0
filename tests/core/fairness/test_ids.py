import pytest

from fairlead.core.errors import RetryLater
from fairlead.core.fairness import BlockExhausted, IdBlock, InvalidIds


def test_the_blocks_of_two_leases_share_no_id() -> None:
    """FL-46, FB-1: lease r hands out the ids (r - 1) * 100000 + 1 to r * 100000."""
    first, second = IdBlock(1), IdBlock(2)
    assert first.take(100_000) == range(1, 100_001)
    assert second.take(100_000) == range(100_001, 200_001)


def test_ids_increase_and_are_unique() -> None:
    block = IdBlock(3)
    assert [*block.take(2), *block.take(3)] == [200_001, 200_002, 200_003, 200_004, 200_005]
    assert block.left == 99_995


def test_an_exhausted_block_raises_an_error() -> None:
    block = IdBlock(1)
    block.take(99_999)
    with pytest.raises(BlockExhausted, match="2 task ids wanted, 1 left") as raised:
        block.take(2)
    assert isinstance(raised.value, RetryLater)
    assert block.take(1) == range(100_000, 100_001)


def test_an_invalid_range_id_or_count_is_rejected() -> None:
    with pytest.raises(InvalidIds, match="range ids start at 1"):
        IdBlock(0)
    with pytest.raises(InvalidIds, match="at least 1"):
        IdBlock(1).take(0)
