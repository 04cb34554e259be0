import pytest

from fairlead.core.errors import FairleadError, GiveUp
from fairlead.core.versions import (
    Append,
    BranchTree,
    ContradictingHistories,
    Create,
    Duplicate,
    EventBatch,
    EventRange,
    Fork,
    Gap,
    Item,
    MalformedTree,
    NoCommonAncestor,
    StaleDecision,
    VersionHistory,
    draw_tree,
)
from tests.core.versions.world import expand

Pairs = list[tuple[int, int]]


def history_of(*pairs: tuple[int, int]) -> VersionHistory:
    return VersionHistory.from_pairs(pairs)


def tree_of(*branches: Pairs) -> BranchTree:
    return BranchTree.restore([history_of(*branch) for branch in branches])


def batch_of(first: int, last: int, *pairs: tuple[int, int]) -> EventBatch:
    history = history_of(*pairs)
    return EventBatch(EventRange(first, last), history.version_of(last), history)


def test_both_data_centers_end_with_the_same_tree_after_a_conflict() -> None:
    """NDC-8, NDC-9: the example of the rules."""
    # T = 0: the same view in B and C.
    shared = history_of((2, 1), (3, 2))
    assert expand(shared) == ((1, 1), (2, 1), (3, 2))
    b = c = BranchTree((shared,))
    # T = 1: event 4 at version 2 in B.
    from_b = batch_of(4, 4, (2, 1), (4, 2))
    decision = b.plan(from_b)
    assert decision == Append(EventRange(4, 4), history_of((2, 1), (4, 2)), branch_index=0, switches_current=False)
    b = b.apply(decision)
    assert expand(b.current) == ((1, 1), (2, 1), (3, 2), (4, 2))
    # T = 1: failover to C, event 4 at version 3 in C.
    from_c = batch_of(4, 4, (2, 1), (3, 2), (4, 3))
    decision = c.plan(from_c)
    assert decision == Append(EventRange(4, 4), history_of((2, 1), (3, 2), (4, 3)), 0, switches_current=False)
    c = c.apply(decision)
    assert expand(c.current) == ((1, 1), (2, 1), (3, 2), (4, 3))
    # T = 2: the replication task from C arrives in B: a fork at event 4, and the branch of version 3 wins.
    decision = b.plan(from_c)
    assert decision == Fork(
        EventRange(4, 4), history_of((2, 1), (3, 2), (4, 3)), branch_index=0, after=Item(3, 2), switches_current=True
    )
    b = b.apply(decision)
    # T = 2: the replication task from B arrives in C: the same fork, but the winning branch is already current.
    decision = c.plan(from_b)
    assert decision == Fork(
        EventRange(4, 4), history_of((2, 1), (4, 2)), branch_index=0, after=Item(3, 2), switches_current=False
    )
    c = c.apply(decision)
    wanted = {history_of((2, 1), (4, 2)), history_of((2, 1), (3, 2), (4, 3))}
    assert set(b.branches) == set(c.branches) == wanted
    assert b.current == c.current == history_of((2, 1), (3, 2), (4, 3))
    assert draw_tree(b) == draw_tree(c) == ("1-2 v1, 3 v2", "├─ 4 v2", "└─ 4 v3  <- current")


def test_the_first_events_create_the_run() -> None:
    decision = BranchTree().plan(batch_of(1, 3, (3, 1)))
    assert decision == Create(EventRange(1, 3), history_of((3, 1)))
    assert BranchTree().apply(decision) == BranchTree((history_of((3, 1)),), current_index=0)


def test_later_events_of_an_unknown_run_leave_a_gap_from_the_first_event() -> None:
    decision = BranchTree().plan(batch_of(4, 5, (3, 1), (5, 2)))
    assert decision == Gap(after=None, before=Item(4, 2))
    assert decision.missing == EventRange(1, 3)


@pytest.mark.parametrize("first", [4, 5])
def test_events_that_are_already_stored_are_a_duplicate(first: int) -> None:
    """FL-56."""
    tree = tree_of([(2, 1), (5, 2)], [(2, 1), (3, 2), (4, 3)])
    losing = tree.branches.index(history_of((2, 1), (5, 2)))
    assert tree.plan(batch_of(first, 5, (2, 1), (5, 2))) == Duplicate(losing)
    assert tree.plan(batch_of(3, 4, (2, 1), (4, 2))) == Duplicate(losing)


def test_a_stored_batch_with_a_longer_history_is_still_a_duplicate() -> None:
    assert tree_of([(2, 1), (4, 2)]).plan(batch_of(3, 4, (2, 1), (8, 2), (9, 3))) == Duplicate(0)


def test_only_the_missing_end_of_an_overlapping_batch_is_written() -> None:
    """FL-59: the missing end must not be dropped with the duplicate part."""
    tree = tree_of([(2, 1), (4, 2)])
    decision = tree.plan(batch_of(3, 7, (2, 1), (7, 2)))
    assert decision == Append(EventRange(5, 7), history_of((2, 1), (7, 2)), 0, switches_current=False)
    assert tree.apply(decision).branches == (history_of((2, 1), (7, 2)),)


def test_an_overlapping_batch_forks_where_its_branch_diverges() -> None:
    tree = tree_of([(2, 1), (4, 2), (6, 3)])
    decision = tree.plan(batch_of(3, 7, (2, 1), (7, 2)))
    assert decision == Fork(EventRange(5, 7), history_of((2, 1), (7, 2)), 0, after=Item(4, 2), switches_current=False)
    assert tree.apply(decision).current == history_of((2, 1), (4, 2), (6, 3))


@pytest.mark.parametrize(
    ("pairs", "after", "missing"),
    [
        ([(2, 1), (9, 2)], (4, 2), (5, 7)),  # on the first branch, further on
        ([(2, 1), (4, 2), (9, 12)], (4, 2), (5, 7)),
        ([(2, 1), (3, 2), (9, 12)], (3, 2), (4, 7)),  # on a branch that diverges before the end of the first one
        ([(1, 1), (9, 13)], (1, 1), (2, 7)),
        ([(2, 1), (3, 2), (9, 3)], (5, 3), (6, 7)),  # on the second branch
    ],
)
def test_a_gap_names_exactly_the_missing_events(pairs: Pairs, after: tuple[int, int], missing: tuple[int, int]) -> None:
    """FL-60."""
    tree = tree_of([(2, 1), (4, 2)], [(2, 1), (3, 2), (5, 3)])
    decision = tree.plan(batch_of(8, 9, *pairs))
    assert isinstance(decision, Gap)
    assert decision.after == after
    assert decision.before == (8, pairs[-1][1])
    assert decision.missing == missing


def test_events_for_a_losing_branch_do_not_change_the_current_branch() -> None:
    """FL-61."""
    tree = tree_of([(2, 1), (4, 2)], [(2, 1), (3, 2), (4, 3)])
    decision = tree.plan(batch_of(5, 6, (2, 1), (6, 2)))
    assert decision == Append(EventRange(5, 6), history_of((2, 1), (6, 2)), 0, switches_current=False)
    tree = tree.apply(decision)
    assert tree.current == history_of((2, 1), (3, 2), (4, 3))
    assert set(tree.branches) == {history_of((2, 1), (6, 2)), history_of((2, 1), (3, 2), (4, 3))}


def test_a_losing_branch_that_gets_a_newer_version_becomes_current() -> None:
    tree = tree_of([(2, 1), (4, 2)], [(2, 1), (3, 2), (4, 3)])
    decision = tree.plan(batch_of(5, 5, (2, 1), (4, 2), (5, 12)))
    assert decision == Append(EventRange(5, 5), history_of((2, 1), (4, 2), (5, 12)), 0, switches_current=True)
    assert tree.apply(decision).current == history_of((2, 1), (4, 2), (5, 12))


def test_events_of_a_newer_version_on_the_current_branch_need_no_switch() -> None:
    tree = tree_of([(2, 1), (4, 2)], [(2, 1), (3, 2), (4, 3)])
    decision = tree.plan(batch_of(5, 5, (2, 1), (3, 2), (4, 3), (5, 11)))
    assert isinstance(decision, Append)
    assert not decision.switches_current
    assert tree.apply(decision).current == history_of((2, 1), (3, 2), (4, 3), (5, 11))


def test_no_two_branches_can_end_with_the_same_version() -> None:
    """FL-61: so the current branch never switches on an equal version."""
    tree = tree_of([(2, 1), (4, 2)], [(2, 1), (3, 2), (4, 3)])
    for contradiction in (batch_of(5, 5, (2, 1), (4, 2), (5, 3)), batch_of(3, 5, (2, 1), (5, 3))):
        with pytest.raises(ContradictingHistories):
            tree.plan(contradiction)
    for current_index in (0, 1):
        with pytest.raises(MalformedTree, match=r"end with versions \[3, 3\]") as raised:
            BranchTree((history_of((2, 1), (4, 3)), history_of((2, 1), (3, 2), (4, 3))), current_index)
        assert isinstance(raised.value, GiveUp)


def test_a_batch_that_contradicts_any_branch_is_rejected_and_changes_nothing() -> None:
    tree = tree_of([(2, 1), (5, 2)], [(2, 1), (4, 2), (6, 3)])
    refusals: list[tuple[EventBatch, type[FairleadError]]] = [
        (batch_of(7, 7, (3, 1), (7, 2)), ContradictingHistories),
        (batch_of(6, 6, (2, 1), (5, 2), (6, 3)), ContradictingHistories),
        (batch_of(1, 1, (1, 4)), NoCommonAncestor),
    ]
    for batch, error in refusals:
        with pytest.raises(error):
            tree.plan(batch)
    assert tree == tree_of([(2, 1), (5, 2)], [(2, 1), (4, 2), (6, 3)])


def test_the_current_branch_must_have_the_highest_version() -> None:
    branches = (history_of((2, 1), (9, 2)), history_of((2, 1), (3, 3)))
    assert BranchTree(branches, 1).current == branches[1]
    for wrong in (0, 2):
        with pytest.raises(MalformedTree, match=f"branch {wrong} is marked as current"):
            BranchTree(branches, wrong)


def test_stored_branches_are_checked_against_each_other() -> None:
    with pytest.raises(ContradictingHistories):
        tree_of([(2, 1), (5, 2)], [(3, 1), (6, 2), (7, 3)])
    with pytest.raises(MalformedTree, match="is only the beginning of the other"):
        tree_of([(2, 1), (5, 2)], [(2, 1), (5, 2), (7, 3)])
    assert BranchTree.restore([]) == BranchTree()


def test_a_tree_without_branches_has_no_current_branch() -> None:
    with pytest.raises(MalformedTree, match="no current branch"):
        _ = BranchTree().current


def test_a_decision_can_only_be_applied_to_the_tree_it_was_made_for() -> None:
    tree = tree_of([(2, 1), (4, 2)])
    append = tree.plan(batch_of(5, 5, (2, 1), (5, 2)))
    fork = tree.plan(batch_of(4, 4, (2, 1), (3, 2), (4, 3)))
    create = BranchTree().plan(batch_of(1, 2, (2, 1)))
    assert isinstance(append, Append)
    assert isinstance(fork, Fork)
    assert isinstance(create, Create)
    for decision, other in (
        (append, tree.apply(append)),
        (append, BranchTree()),
        (fork, tree.apply(fork)),
        (fork, tree_of([(2, 1), (3, 2)])),
        (create, tree),
    ):
        with pytest.raises(StaleDecision, match="plan again"):
            other.apply(decision)
