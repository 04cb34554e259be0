from bisect import bisect_right
from fractions import Fraction
from itertools import accumulate

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairlead.core.balancing.load_tree import LoadTree

# Whole numbers, so that the sums in the tree and in the model are exactly equal.
whole_loads = st.lists(st.integers(0, 1000).map(float), min_size=1, max_size=40)
any_loads = st.lists(st.floats(0.0, 1e18), min_size=1, max_size=40)


def naive_draw(loads: list[float], share: float) -> int:
    return bisect_right(list(accumulate(loads)), share * sum(loads))


@given(loads=whole_loads, share=st.floats(0.0, 1.0, exclude_max=True))
def test_a_draw_returns_the_first_partition_whose_running_sum_exceeds_the_share(
    loads: list[float], share: float
) -> None:
    tree = LoadTree(loads)

    if sum(loads) > 0 and share * sum(loads) < sum(loads):
        assert tree.draw(share) == naive_draw(loads, share)


@given(loads=any_loads, share=st.floats(0.0, 1.0))
@example(loads=[1.0, 2.0, 0.0], share=1.0)
@example(loads=[0.0, 1.0, 0.0, 0.0, 0.0], share=1.0)
def test_a_draw_never_returns_a_partition_without_load(loads: list[float], share: float) -> None:
    """This holds even with a share of exactly 1, and with loads that are tiny beside others."""
    tree = LoadTree(loads)

    if tree.total > 0.0:
        assert loads[tree.draw(share)] > 0.0


@given(loads=whole_loads, data=st.data())
def test_sum_and_maximum_are_right_after_every_change(loads: list[float], data: st.DataObject) -> None:
    tree = LoadTree(loads)
    changes = data.draw(st.lists(st.tuples(st.integers(0, len(loads) - 1), st.integers(0, 1000).map(float))))
    for index, load in changes:
        loads[index] = load
        tree[index] = load
        assert tree.total == sum(loads)
        assert tree.largest == max(loads)
        assert [tree[position] for position in range(len(loads))] == loads


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 9, 400])
def test_the_number_of_draws_is_proportional_to_the_load(count: int) -> None:
    """One draw at the middle of every unit of load, so each partition must come out exactly as often as its load."""
    loads = [float(index % 5) for index in range(count)] if count > 1 else [3.0]
    tree = LoadTree(loads)
    units = int(sum(loads))
    drawn = [tree.draw(float(Fraction(2 * unit + 1, 2 * units))) for unit in range(units)]

    assert [drawn.count(index) for index in range(count)] == loads
