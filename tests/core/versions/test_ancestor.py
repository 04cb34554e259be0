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
    """Any histories, most pairs of them contradictory; few numbers, so that beginnings are often shared."""
    size = draw(st.integers(1, 5))
    event_ids = sorted(draw(st.sets(st.integers(1, 7), min_size=size, max_size=size)))
    versions = sorted(draw(st.sets(st.integers(1, 6), min_size=size, max_size=size)))
    return history_of(*zip(event_ids, versions, strict=True))


@pytest.mark.parametrize(
    ("left", "right", "ancestor"),
    [
        ([(2, 1), (4, 2)], [(2, 1), (3, 2), (4, 3)], (3, 2)),  # the document's conflict
        ([(2, 1), (3, 2)], [(2, 1), (3, 2)], (3, 2)),
        ([(2, 1), (3, 2)], [(2, 1), (3, 2), (9, 3)], (3, 2)),
        ([(2, 1)], [(5, 1)], (2, 1)),
        ([(2, 1), (5, 2)], [(2, 1), (5, 3)], (2, 1)),
        ([(2, 1), (5, 2)], [(3, 1), (6, 3)], (2, 1)),
        ([(2, 1), (5, 4), (6, 9)], [(2, 1), (5, 3), (6, 5), (7, 7)], (2, 1)),
    ],
)
def test_the_ancestor_is_the_last_shared_event_from_either_side(
    left: list[tuple[int, int]], right: list[tuple[int, int]], ancestor: tuple[int, int]
) -> None:
    """Seed 004, 'Version History', example with data conflict; invariant 6."""
    assert lowest_common_ancestor(history_of(*left), history_of(*right)) == ancestor
    assert lowest_common_ancestor(history_of(*right), history_of(*left)) == ancestor


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ([(2, 1), (5, 2)], [(3, 1), (6, 2)]),  # the counterexample of facts/ndc.md
        ([(2, 1), (5, 2)], [(3, 1), (5, 2)]),
        ([(2, 1), (5, 3)], [(2, 1), (3, 2), (6, 3)]),
        ([(2, 1), (3, 4), (5, 6), (9, 8)], [(2, 1), (3, 5), (5, 7), (9, 8)]),
    ],
)
def test_histories_that_part_and_share_a_later_version_are_refused(
    left: list[tuple[int, int]], right: list[tuple[int, int]]
) -> None:
    """facts/ndc.md, 2, 'The prefix is never checked'; invariant 6."""
    for one, other in ((left, right), (right, left)):
        with pytest.raises(ContradictingHistories, match="yet both have events of version") as refused:
            lowest_common_ancestor(history_of(*one), history_of(*other))
        assert isinstance(refused.value, GiveUp)


def test_histories_with_different_first_events_are_not_of_one_run() -> None:
    with pytest.raises(NoCommonAncestor, match="one history begins with version 1, the other with version 2"):
        lowest_common_ancestor(history_of((2, 1), (3, 3)), history_of((2, 2), (3, 3)))


@given(histories(), histories())
def test_any_two_histories_have_the_ancestor_that_their_events_have_or_are_refused(
    left: VersionHistory, right: VersionHistory
) -> None:
    """Invariant 6, against a comparison event by event, for histories that no execution may have written, too."""
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
def test_the_place_where_long_histories_part_is_found_wherever_it_is(size: int) -> None:
    trunk = [Item(3 * place + 3, 10 * place + 1) for place in range(size)]
    longest = history_of(*trunk)
    for parting in range(1, size + 1):
        fork = history_of(*trunk[:parting], (9 * size, 10 * size + 2))
        assert lowest_common_ancestor(longest, fork) == trunk[parting - 1]


def test_the_nearest_history_is_the_one_that_shares_the_latest_event() -> None:
    branches = [history_of((2, 1), (6, 2)), history_of((2, 1), (4, 2), (5, 3))]
    assert nearest_history(branches, history_of((2, 1), (4, 2), (5, 3), (6, 4))) == (1, (5, 3))
    assert nearest_history(branches, history_of((2, 1), (5, 2), (7, 4))) == (0, (5, 2))


def test_of_equally_near_histories_the_one_with_fewest_items_is_meant_and_then_the_first() -> None:
    other = history_of((2, 1), (3, 2), (9, 7))
    ends_there = history_of((2, 1), (3, 2))
    goes_on = history_of((2, 1), (3, 2), (5, 4))
    goes_on_elsewhere = history_of((2, 1), (3, 2), (6, 3))
    assert nearest_history([goes_on, ends_there], other) == (1, (3, 2))
    assert nearest_history([ends_there, goes_on], other) == (0, (3, 2))
    assert nearest_history([goes_on, goes_on_elsewhere], other) == (0, (3, 2))
    assert nearest_history([goes_on_elsewhere, goes_on], other) == (0, (3, 2))


def test_every_history_is_checked_and_not_only_the_nearest() -> None:
    with pytest.raises(ContradictingHistories):
        nearest_history([history_of((2, 1), (5, 2)), history_of((3, 1), (6, 3))], history_of((2, 1), (5, 2), (6, 3)))
