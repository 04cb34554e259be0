import pytest

from fairlead.core.versions import (
    BranchTree,
    DropReason,
    DropTask,
    EventBatch,
    EventRange,
    Fork,
    Item,
    ReloadState,
    RunTask,
    StateView,
    VersionHistory,
    verify_task,
)


def pending_version(tree: BranchTree, event_id: int) -> int | None:
    """The version of the entity that an event has left pending, in a state rebuilt from the current branch."""
    return tree.current.version_of(event_id) if event_id <= tree.current.last.event_id else None


def test_a_task_of_a_losing_branch_is_discarded() -> None:
    """NDC-14: the example of the rule."""
    # T = 0: event 4 at version 2 generates task A.
    tree = BranchTree((VersionHistory.from_pairs([(2, 1), (4, 2)]),))
    task_a = Item(4, 2)
    before = StateView(tree.current.last, pending_version(tree, 4), is_fresh=False)
    assert verify_task(task_a, before) == RunTask()
    # T = 1: conflict resolution; the state is rebuilt, event 4 at version 3 is written.
    batch = EventBatch(EventRange(4, 4), 3, VersionHistory.from_pairs([(2, 1), (3, 2), (4, 3)]))
    decision = tree.plan(batch)
    assert isinstance(decision, Fork)
    assert decision.switches_current
    tree = tree.apply(decision)
    # T = 2: task A is loaded, and discarded.
    rebuilt = StateView(tree.current.last, pending_version(tree, 4), is_fresh=True)
    assert verify_task(task_a, rebuilt) == DropTask(DropReason.OTHER_BRANCH)
    # The rebuild's own task for event 4 is executed.
    assert verify_task(Item(4, 3), rebuilt) == RunTask()


@pytest.mark.parametrize("pending", [None, 2, 3])
@pytest.mark.parametrize("task_event", [Item(9, 2), Item(8, 3), Item(4, 3), Item(9, 3)])
def test_a_task_newer_than_the_state_reloads_the_state_before_it_is_dropped(
    task_event: Item, pending: int | None
) -> None:
    """FL-67: a newer version, like a higher event id, shows that the state is old."""
    last = Item(8, 2)
    assert verify_task(task_event, StateView(last, pending, is_fresh=False)) == ReloadState()
    dropped = DropTask(DropReason.EVENT_NOT_WRITTEN)
    assert verify_task(task_event, StateView(last, pending, is_fresh=True)) == dropped


@pytest.mark.parametrize("is_fresh", [True, False])
def test_a_task_of_the_last_event_is_not_newer_than_the_state(is_fresh: bool) -> None:
    assert verify_task(Item(8, 2), StateView(Item(8, 2), 2, is_fresh=is_fresh)) == RunTask()


def test_a_task_whose_entity_is_done_is_dropped() -> None:
    state = StateView(Item(8, 2), None, is_fresh=True)
    assert verify_task(Item(4, 2), state) == DropTask(DropReason.NOTHING_PENDING)


@pytest.mark.parametrize("task_version", [1, 3])
def test_a_task_whose_version_differs_from_the_pending_entity_is_dropped(task_version: int) -> None:
    state = StateView(Item(8, 11), 2, is_fresh=True)
    assert verify_task(Item(4, task_version), state) == DropTask(DropReason.OTHER_BRANCH)


@pytest.mark.parametrize(
    ("task_event", "cached", "pending"),
    [
        # Cached [(5,1), (10,12)], stored [(5,1), (7,3), (9,13)]: event 6 at version 3 is on the winning branch.
        (Item(6, 3), Item(10, 12), None),
        (Item(6, 3), Item(10, 12), 12),
        # The entity of event 4 ended with event 9 of a branch that has lost: it is pending again.
        (Item(4, 2), Item(9, 2), None),
    ],
)
def test_a_task_is_never_dropped_because_of_an_old_state(task_event: Item, cached: Item, pending: int | None) -> None:
    """FL-67: so every pending entity has a live task after a rebuild."""
    assert verify_task(task_event, StateView(cached, pending, is_fresh=False)) == ReloadState()
