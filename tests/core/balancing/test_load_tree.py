from bisect import bisect_right
from fractions import Fraction
from itertools import accumulate

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairlead.core.balancing.load_tree import LoadTree

# Whole numbers, so that the sums of the tree and of the model are the same to the bit.
whole_loads = st.lists(st.integers(0, 1000).map(float), min_size=1, max_size=40)
any_loads = st.lists(st.floats(0.0, 1e18), min_size=1, max_size=40)


def naive_draw(loads: list[float], share: float) -> int:
    return bisect_right(list(accumulate(loads)), share * sum(loads))


@given(loads=whole_loads, share=st.floats(0.0, 1.0, exclude_max=True))
def test_a_draw_is_where_the_running_sum_exceeds_the_share(loads: list[float], share: float) -> None:
    tree = LoadTree(loads)

    if sum(loads) > 0 and share * sum(loads) < sum(loads):
        assert tree.draw(share) == naive_draw(loads, share)


@given(loads=any_loads, share=st.floats(0.0, 1.0))
@example(loads=[1.0, 2.0, 0.0], share=1.0)
@example(loads=[0.0, 1.0, 0.0, 0.0, 0.0], share=1.0)
def test_a_draw_never_finds_a_partition_without_load(loads: list[float], share: float) -> None:
    """Even with a share of exactly 1, and with loads that vanish beside others."""
    tree = LoadTree(loads)

    if tree.total > 0.0:
        assert loads[tree.draw(share)] > 0.0


@given(loads=whole_loads, data=st.data())
def test_sum_and_largest_follow_every_change(loads: list[float], data: st.DataObject) -> None:
    tree = LoadTree(loads)
    changes = data.draw(st.lists(st.tuples(st.integers(0, len(loads) - 1), st.integers(0, 1000).map(float))))
    for index, load in changes:
        loads[index] = load
        tree[index] = load
        assert tree.total == sum(loads)
        assert tree.largest == max(loads)
        assert [tree[place] for place in range(len(loads))] == loads


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 9, 400])
def test_each_load_is_drawn_exactly_in_proportion(count: int) -> None:
    """Draws at the middle of every unit of load, so that each must come out exactly as often as it weighs."""
    loads = [float(index % 5) for index in range(count)] if count > 1 else [3.0]
    tree = LoadTree(loads)
    units = int(sum(loads))
    drawn = [tree.draw(float(Fraction(2 * unit + 1, 2 * units))) for unit in range(units)]

    assert [drawn.count(index) for index in range(count)] == loads
