from itertools import combinations

import pytest

from fairlead.core.errors import GiveUp
from fairlead.core.versions import (
    ArrivingRun,
    BecomeCurrent,
    ClusterVersions,
    CurrentRun,
    IllegalTransition,
    RunNotMutable,
    RunOrder,
    RunState,
    RunWentBack,
    StayBehind,
    Suppression,
    check_mutable,
    check_transition,
    place_run,
)

CLUSTERS = ClusterVersions(10, {"A": 1, "B": 2, "C": 3})
CREATED, RUNNING, ZOMBIE, COMPLETED = RunState
OPEN = [CREATED, RUNNING]


def run(run_id: str, version: int, task_id: int) -> RunOrder:
    return RunOrder(version, task_id, run_id)


def place_in_b(arriving: ArrivingRun, current: CurrentRun | None) -> BecomeCurrent | StayBehind:
    return place_run(arriving, current=current, here="B", clusters=CLUSTERS)


def test_a_run_that_arrives_after_its_successor_is_a_zombie_until_it_completes() -> None:
    """Seed 004, 'Zombie Workflows': A writes run 1, then run 2; run 2 arrives in B first."""
    run_1, run_1_closed, run_2 = run("run 1", 1, 10), run("run 1", 1, 11), run("run 2", 1, 12)
    # Run 2's events arrive in data center B.
    assert place_in_b(ArrivingRun(run_2, RUNNING), None) == BecomeCurrent(RUNNING)
    current = CurrentRun(run_2, RUNNING)
    # Run 1's events arrive in data center B.
    assert place_in_b(ArrivingRun(run_1, RUNNING), current) == StayBehind(ZOMBIE)
    # "Zombie state indicates a workflow which cannot be actively mutated by a data center."
    with pytest.raises(RunNotMutable, match="run run 1 is a zombie"):
        check_mutable("run 1", ZOMBIE)
    # "... except run 1's workflow state will be zombie before run 1 reaches completion."
    assert place_in_b(ArrivingRun(run_1_closed, COMPLETED, stored=ZOMBIE), current) == StayBehind(COMPLETED)


def test_runs_in_order_never_need_a_zombie() -> None:
    run_1, run_1_closed, run_2 = run("run 1", 1, 10), run("run 1", 1, 11), run("run 2", 1, 12)
    assert place_in_b(ArrivingRun(run_1, RUNNING), None) == BecomeCurrent(RUNNING)
    closed = place_in_b(ArrivingRun(run_1_closed, COMPLETED, stored=RUNNING), CurrentRun(run_1, RUNNING))
    assert closed == BecomeCurrent(COMPLETED)
    assert place_in_b(ArrivingRun(run_2, CREATED), CurrentRun(run_1_closed, COMPLETED)) == BecomeCurrent(CREATED)


def test_a_newer_version_is_newer_and_then_the_writers_task_id_decides() -> None:
    """facts/ndc.md, 4, 'Ordering runs'."""
    newest_last = [run("z", 1, 999), run("y", 2, 1), run("b", 2, 7), run("a", 11, 0)]
    for older, newer in combinations(newest_last, 2):
        assert newer.is_newer_than(older)
        assert not older.is_newer_than(newer)


def test_a_reset_run_of_which_only_the_copied_events_have_come_is_not_newer_than_its_base() -> None:
    """Or the base would be made a zombie in the one cluster that can end it, and stay one everywhere."""
    base, copied, reset = run("base", 3, 5), run("reset", 3, 5), run("reset", 11, 1)
    current = CurrentRun(base, RUNNING)
    placed = place_run(ArrivingRun(copied, RUNNING), current=current, here="C", clusters=CLUSTERS)
    assert placed == StayBehind(ZOMBIE)
    placed = place_run(ArrivingRun(reset, RUNNING, stored=ZOMBIE), current=current, here="C", clusters=CLUSTERS)
    assert placed == BecomeCurrent(RUNNING, Suppression.TERMINATE)


@pytest.mark.parametrize("version", [0, 4])
def test_a_run_last_written_at_a_version_without_an_owner_becomes_a_zombie_for_a_newer_one(version: int) -> None:
    """Version 0: the namespace was local once. Version 4: that cluster has been removed."""
    current = CurrentRun(run("old", version, 5), RUNNING)
    placed = place_in_b(ArrivingRun(run("new", 11, 12), RUNNING), current)
    assert placed == BecomeCurrent(RUNNING, Suppression.MAKE_ZOMBIE)


@pytest.mark.parametrize("state", OPEN)
def test_an_open_run_last_written_here_is_terminated_for_a_newer_one(state: RunState) -> None:
    """facts/ndc.md, 4, 'Suppress'."""
    current = CurrentRun(run("old", 2, 5), state)
    assert place_in_b(ArrivingRun(run("new", 3, 1), RUNNING), current) == BecomeCurrent(RUNNING, Suppression.TERMINATE)


@pytest.mark.parametrize("arriving_version", [1, 3])
def test_an_open_run_last_written_elsewhere_becomes_a_zombie_for_a_newer_one(arriving_version: int) -> None:
    current = CurrentRun(run("old", 1, 5), RUNNING)
    placement = place_in_b(ArrivingRun(run("new", arriving_version, 6), CREATED), current)
    assert placement == BecomeCurrent(CREATED, Suppression.MAKE_ZOMBIE)


def test_a_cluster_that_lost_its_own_writes_does_not_write_at_their_version_again() -> None:
    current = CurrentRun(run("old", 2, 5), RUNNING)
    placement = place_in_b(ArrivingRun(run("new", 2, 6), RUNNING), current)
    assert placement == BecomeCurrent(RUNNING, Suppression.MAKE_ZOMBIE)


@pytest.mark.parametrize("arriving_state", [CREATED, RUNNING, COMPLETED])
def test_a_closed_run_gives_way_to_a_newer_one_without_being_touched(arriving_state: RunState) -> None:
    current = CurrentRun(run("old", 2, 5), COMPLETED)
    assert place_in_b(ArrivingRun(run("new", 3, 1), arriving_state), current) == BecomeCurrent(arriving_state)


def test_a_zombie_that_becomes_the_newest_run_is_revived() -> None:
    current = CurrentRun(run("other", 2, 5), RUNNING)
    arriving = ArrivingRun(run("zombie", 3, 1), RUNNING, stored=ZOMBIE, rebuilt=True)
    assert place_in_b(arriving, current) == BecomeCurrent(RUNNING, Suppression.TERMINATE)


def test_an_older_closed_run_is_stored_closed_and_not_as_a_zombie() -> None:
    current = CurrentRun(run("new", 2, 5), COMPLETED)
    assert place_in_b(ArrivingRun(run("old", 1, 9), COMPLETED), current) == StayBehind(COMPLETED)
    assert place_in_b(ArrivingRun(run("old", 1, 9), RUNNING), current) == StayBehind(ZOMBIE)


def test_a_rebuild_may_open_a_closed_run_again_and_nothing_else_may() -> None:
    """A branch that closed the run may lose to one that has not closed it."""
    current = CurrentRun(run("one", 1, 5), COMPLETED)
    arriving = run("one", 3, 1)
    assert place_in_b(ArrivingRun(arriving, RUNNING, COMPLETED, rebuilt=True), current) == BecomeCurrent(RUNNING)
    with pytest.raises(IllegalTransition, match="completed can't become running"):
        place_in_b(ArrivingRun(arriving, RUNNING, COMPLETED), current)
    behind = CurrentRun(run("two", 11, 1), RUNNING)
    assert place_in_b(ArrivingRun(arriving, RUNNING, COMPLETED, rebuilt=True), behind) == StayBehind(ZOMBIE)


def test_a_run_never_goes_back() -> None:
    current = CurrentRun(run("one", 2, 5), RUNNING)
    assert place_in_b(ArrivingRun(run("one", 2, 5), RUNNING, RUNNING), current) == BecomeCurrent(RUNNING)
    with pytest.raises(RunWentBack, match="a run never goes back") as refused:
        place_in_b(ArrivingRun(run("one", 2, 4), RUNNING, RUNNING), current)
    assert isinstance(refused.value, GiveUp)


def test_the_states_change_as_they_may_and_not_otherwise() -> None:
    """facts/ndc.md, 4, 'States'."""
    legal = {
        *((CREATED, after) for after in RunState),
        *((RUNNING, after) for after in (RUNNING, ZOMBIE, COMPLETED)),
        *((ZOMBIE, after) for after in RunState),
        (COMPLETED, COMPLETED),
    }
    for before in RunState:
        for after in RunState:
            check_transition(before=before, after=after, rebuilt=True)
            if (before, after) in legal:
                check_transition(before=before, after=after)
            else:
                with pytest.raises(IllegalTransition):
                    check_transition(before=before, after=after)


def test_a_zombie_is_neither_current_nor_said_by_events() -> None:
    with pytest.raises(IllegalTransition, match="can't be the current run"):
        CurrentRun(run("one", 1, 1), ZOMBIE)
    with pytest.raises(IllegalTransition, match="events can't say that"):
        ArrivingRun(run("one", 1, 1), ZOMBIE)


def test_only_open_runs_are_written_to() -> None:
    assert [state for state in RunState if state.is_open] == OPEN
    for state in OPEN:
        check_mutable("one", state)
    with pytest.raises(RunNotMutable, match="run one is closed"):
        check_mutable("one", COMPLETED)
