import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.errors import GiveUp
from fairlead.core.versions import (
    ContradictingHistories,
    Item,
    NoCommonAncestor,
    VersionHistory,
    lowest_common_ancestor,
    nearest_history,
)
from tests.core.versions.world import expand


def history_of(*pairs: tuple[int, int]) -> VersionHistory:
    return VersionHistory.from_pairs(pairs)


@st.composite
def histories(draw: st.DrawFn) -> VersionHistory:
    """Any histories; most pairs contradict each other. The numbers are small, so that many share their first events."""
    size = draw(st.integers(1, 5))
    event_ids = sorted(draw(st.sets(st.integers(1, 7), min_size=size, max_size=size)))
    versions = sorted(draw(st.sets(st.integers(1, 6), min_size=size, max_size=size)))
    return history_of(*zip(event_ids, versions, strict=True))


@pytest.mark.parametrize(
    ("left", "right", "ancestor"),
    [
        ([(2, 1), (4, 2)], [(2, 1), (3, 2), (4, 3)], (3, 2)),  # the example of NDC-8
        ([(2, 1), (3, 2)], [(2, 1), (3, 2)], (3, 2)),
        ([(2, 1), (3, 2)], [(2, 1), (3, 2), (9, 3)], (3, 2)),
        ([(2, 1)], [(5, 1)], (2, 1)),
        ([(2, 1), (5, 2)], [(2, 1), (5, 3)], (2, 1)),
        ([(2, 1), (5, 2)], [(3, 1), (6, 3)], (2, 1)),
        ([(2, 1), (5, 4), (6, 9)], [(2, 1), (5, 3), (6, 5), (7, 7)], (2, 1)),
    ],
)
def test_the_common_ancestor_is_the_last_shared_event_in_either_order(
    left: list[tuple[int, int]], right: list[tuple[int, int]], ancestor: tuple[int, int]
) -> None:
    """FL-58."""
    assert lowest_common_ancestor(history_of(*left), history_of(*right)) == ancestor
    assert lowest_common_ancestor(history_of(*right), history_of(*left)) == ancestor


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ([(2, 1), (5, 2)], [(3, 1), (6, 2)]),  # the example of FL-58
        ([(2, 1), (5, 2)], [(3, 1), (5, 2)]),
        ([(2, 1), (5, 3)], [(2, 1), (3, 2), (6, 3)]),
        ([(2, 1), (3, 4), (5, 6), (9, 8)], [(2, 1), (3, 5), (5, 7), (9, 8)]),
    ],
)
def test_histories_that_diverge_and_share_a_later_version_are_rejected(
    left: list[tuple[int, int]], right: list[tuple[int, int]]
) -> None:
    """FL-58: such histories can't belong to one run."""
    for one, other in ((left, right), (right, left)):
        with pytest.raises(ContradictingHistories, match="yet both have events of version") as raised:
            lowest_common_ancestor(history_of(*one), history_of(*other))
        assert isinstance(raised.value, GiveUp)


def test_histories_with_different_first_events_have_no_common_ancestor() -> None:
    with pytest.raises(NoCommonAncestor, match="one history begins with version 1, the other with version 2"):
        lowest_common_ancestor(history_of((2, 1), (3, 3)), history_of((2, 2), (3, 3)))


@given(histories(), histories())
def test_the_common_ancestor_agrees_with_an_event_by_event_comparison(
    left: VersionHistory, right: VersionHistory
) -> None:
    """FL-58, also for histories that no run could have written."""
    lefts, rights = expand(left), expand(right)
    size = 0
    while size < min(len(lefts), len(rights)) and lefts[size] == rights[size]:
        size += 1
    versions_after = {e.version for e in lefts[size:]} & {e.version for e in rights[size:]}
    if size == 0:
        with pytest.raises(NoCommonAncestor):
            lowest_common_ancestor(left, right)
    elif versions_after:
        with pytest.raises(ContradictingHistories):
            lowest_common_ancestor(left, right)
    else:
        assert lowest_common_ancestor(left, right) == lefts[size - 1]
        assert lowest_common_ancestor(right, left) == lefts[size - 1]


@pytest.mark.parametrize("size", [1, 2, 3, 10, 1000])
def test_the_common_ancestor_of_long_histories_is_found_at_any_position(size: int) -> None:
    trunk = [Item(3 * position + 3, 10 * position + 1) for position in range(size)]
    longest = history_of(*trunk)
    for parting in range(1, size + 1):
        fork = history_of(*trunk[:parting], (9 * size, 10 * size + 2))
        assert lowest_common_ancestor(longest, fork) == trunk[parting - 1]


def test_the_nearest_history_is_the_one_that_shares_the_latest_event() -> None:
    branches = [history_of((2, 1), (6, 2)), history_of((2, 1), (4, 2), (5, 3))]
    assert nearest_history(branches, history_of((2, 1), (4, 2), (5, 3), (6, 4))) == (1, (5, 3))
    assert nearest_history(branches, history_of((2, 1), (5, 2), (7, 4))) == (0, (5, 2))


def test_a_tie_between_near_histories_is_decided_by_fewest_items_and_then_by_order() -> None:
    other = history_of((2, 1), (3, 2), (9, 7))
    ends_there = history_of((2, 1), (3, 2))
    goes_on = history_of((2, 1), (3, 2), (5, 4))
    goes_on_elsewhere = history_of((2, 1), (3, 2), (6, 3))
    assert nearest_history([goes_on, ends_there], other) == (1, (3, 2))
    assert nearest_history([ends_there, goes_on], other) == (0, (3, 2))
    assert nearest_history([goes_on, goes_on_elsewhere], other) == (0, (3, 2))
    assert nearest_history([goes_on_elsewhere, goes_on], other) == (0, (3, 2))


def test_every_history_is_checked_not_only_the_nearest() -> None:
    with pytest.raises(ContradictingHistories):
        nearest_history([history_of((2, 1), (5, 2)), history_of((3, 1), (6, 3))], history_of((2, 1), (5, 2), (6, 3)))
