import pytest

from fairlead.core.errors import RetryLater
from fairlead.core.fairness import BlockExhausted, IdBlock, InvalidIds


def test_the_blocks_of_two_leases_share_no_id() -> None:
    """Facts, temporal-matching 2.4: block r = [(r-1)*100000+1, r*100000]; invariant 5: ids never repeat."""
    first, second = IdBlock(1), IdBlock(2)
    assert first.take(100_000) == range(1, 100_001)
    assert second.take(100_000) == range(100_001, 200_001)


def test_ids_rise_and_none_is_given_twice() -> None:
    block = IdBlock(3)
    assert [*block.take(2), *block.take(3)] == [200_001, 200_002, 200_003, 200_004, 200_005]
    assert block.left == 99_995


def test_an_exhausted_block_gives_nothing_and_says_to_renew_the_lease() -> None:
    block = IdBlock(1)
    block.take(99_999)
    with pytest.raises(BlockExhausted, match="2 task ids wanted, 1 left") as refused:
        block.take(2)
    assert isinstance(refused.value, RetryLater)
    assert block.take(1) == range(100_000, 100_001)


def test_no_lease_is_below_the_first_and_no_ids_are_taken_back() -> None:
    with pytest.raises(InvalidIds, match="counted from 1"):
        IdBlock(0)
    with pytest.raises(InvalidIds, match="at least 1"):
        IdBlock(1).take(0)
