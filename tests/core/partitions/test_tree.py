import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.partitions import PARTITIONS_MAX, InvalidTree, children, parent, path_to_root

numbers = st.integers(1, PARTITIONS_MAX - 1)
degrees = st.integers(1, 50)


def test_six_partitions_in_a_binary_tree() -> None:
    """TQ-4: in this tree, tasks at partition 5 and polls at partition 3 meet at the root."""
    assert [list(children(number, degree=2, count=6)) for number in range(6)] == [[1, 2], [3, 4], [5], [], [], []]
    assert path_to_root(5, degree=2) == (5, 2, 0)
    assert path_to_root(3, degree=2) == (3, 1, 0)


def test_up_to_21_partitions_with_20_children_per_node_form_a_star() -> None:
    """TQ-5."""
    assert {parent(number, degree=20) for number in range(1, 21)} == {0}
    assert parent(21, degree=20) == 1


def test_one_child_per_node_makes_a_chain() -> None:
    assert path_to_root(4, degree=1) == (4, 3, 2, 1, 0)


@given(numbers, degrees)
def test_the_parent_follows_the_formula(number: int, degree: int) -> None:
    """FL-5: the parent of p is ceil(p / d) - 1."""
    assert parent(number, degree=degree) == math.ceil(number / degree) - 1


@given(numbers, degrees)
def test_partition_numbers_strictly_decrease_towards_the_root(number: int, degree: int) -> None:
    """FL-6: each parent has a lower number, and each chain ends at 0."""
    path = path_to_root(number, degree=degree)
    assert path[0] == number
    assert path[-1] == 0
    assert all(lower < higher for higher, lower in pairwise(path))
    assert all(parent(higher, degree=degree) == lower for higher, lower in pairwise(path))


@given(st.integers(1, 300), degrees)
def test_each_partition_is_a_child_of_its_parent_only(count: int, degree: int) -> None:
    listed = [(child, number) for number in range(count) for child in children(number, degree=degree, count=count)]
    assert sorted(listed) == [(child, parent(child, degree=degree)) for child in range(1, count)]


@given(numbers, st.integers(2, 50))
def test_the_depth_is_logarithmic(number: int, degree: int) -> None:
    """Each level holds `degree` times as many partitions as the one above: depth h needs at least degree ** (h - 1)."""
    steps = len(path_to_root(number, degree=degree)) - 1
    assert degree ** (steps - 1) <= number


@given(st.integers(0, 200), degrees, st.integers(1, 200))
def test_no_node_has_more_children_than_its_degree(number: int, degree: int, more: int) -> None:
    assert len(children(number, degree=degree, count=number + more)) <= degree


@pytest.mark.parametrize("degree", [0, -1])
def test_a_tree_needs_at_least_one_child_per_node(degree: int) -> None:
    with pytest.raises(InvalidTree, match="at least 1"):
        parent(3, degree=degree)
    with pytest.raises(InvalidTree, match="at least 1"):
        children(3, degree=degree, count=5)
    with pytest.raises(InvalidTree, match="at least 1"):
        path_to_root(3, degree=degree)


def test_the_root_has_no_parent() -> None:
    with pytest.raises(InvalidTree, match="root"):
        parent(0, degree=20)


@pytest.mark.parametrize("number", [-1, PARTITIONS_MAX])
def test_an_invalid_partition_number_is_rejected(number: int) -> None:
    with pytest.raises(InvalidTree, match=str(number)):
        parent(number, degree=20)
    with pytest.raises(InvalidTree, match=str(number)):
        path_to_root(number, degree=20)


@pytest.mark.parametrize(("number", "count"), [(6, 6), (0, 0), (0, -1), (3, PARTITIONS_MAX + 1)])
def test_asking_for_the_children_of_an_unknown_partition_is_rejected(number: int, count: int) -> None:
    with pytest.raises(InvalidTree, match=str(count)):
        children(number, degree=2, count=count)
