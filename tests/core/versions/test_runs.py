from itertools import combinations

import pytest

from fairlead.core.errors import GiveUp
from fairlead.core.versions import (
    ArrivingRun,
    BecomeCurrent,
    ClusterVersions,
    CurrentExecution,
    ExecutionState,
    IllegalTransition,
    RunNotMutable,
    RunOrder,
    RunWentBack,
    StayBehind,
    Suppression,
    check_mutable,
    check_transition,
    resolve_current_run,
)

CLUSTERS = ClusterVersions(10, {"A": 1, "B": 2, "C": 3})
CREATED, RUNNING, ZOMBIE, COMPLETED = ExecutionState
OPEN = [CREATED, RUNNING]


def run(run_id: str, version: int, task_id: int) -> RunOrder:
    return RunOrder(version, task_id, run_id)


def resolve_in_b(arriving: ArrivingRun, current: CurrentExecution | None) -> BecomeCurrent | StayBehind:
    return resolve_current_run(arriving, current=current, here="B", clusters=CLUSTERS)


def test_a_run_that_arrives_after_its_successor_is_a_zombie_until_it_completes() -> None:
    """NDC-12, NDC-13: A writes run 1, then run 2; run 2 arrives in B first."""
    run_1, run_1_closed, run_2 = run("run 1", 1, 10), run("run 1", 1, 11), run("run 2", 1, 12)
    # Run 2's events arrive in data center B.
    assert resolve_in_b(ArrivingRun(run_2, RUNNING), None) == BecomeCurrent(RUNNING)
    current = CurrentExecution(run_2, RUNNING)
    # Run 1's events arrive in data center B.
    assert resolve_in_b(ArrivingRun(run_1, RUNNING), current) == StayBehind(ZOMBIE)
    # This cluster can't write to a zombie.
    with pytest.raises(RunNotMutable, match="run run 1 is a zombie"):
        check_mutable("run 1", ZOMBIE)
    # The run stays a zombie until its closing event arrives.
    assert resolve_in_b(ArrivingRun(run_1_closed, COMPLETED, stored=ZOMBIE), current) == StayBehind(COMPLETED)


def test_runs_that_arrive_in_order_are_never_zombies() -> None:
    run_1, run_1_closed, run_2 = run("run 1", 1, 10), run("run 1", 1, 11), run("run 2", 1, 12)
    assert resolve_in_b(ArrivingRun(run_1, RUNNING), None) == BecomeCurrent(RUNNING)
    closed = resolve_in_b(ArrivingRun(run_1_closed, COMPLETED, stored=RUNNING), CurrentExecution(run_1, RUNNING))
    assert closed == BecomeCurrent(COMPLETED)
    assert resolve_in_b(ArrivingRun(run_2, CREATED), CurrentExecution(run_1_closed, COMPLETED)) == BecomeCurrent(
        CREATED
    )


def test_runs_are_ordered_by_version_and_then_by_task_id() -> None:
    """FL-63."""
    newest_last = [run("z", 1, 999), run("y", 2, 1), run("b", 2, 7), run("a", 11, 0)]
    for older, newer in combinations(newest_last, 2):
        assert newer.is_newer_than(older)
        assert not older.is_newer_than(newer)


def test_a_reset_run_with_only_its_copied_events_is_not_newer_than_its_base() -> None:
    """Otherwise the base run would become a zombie in the only cluster that can terminate it."""
    base, copied, reset = run("base", 3, 5), run("reset", 3, 5), run("reset", 11, 1)
    current = CurrentExecution(base, RUNNING)
    placed = resolve_current_run(ArrivingRun(copied, RUNNING), current=current, here="C", clusters=CLUSTERS)
    assert placed == StayBehind(ZOMBIE)
    placed = resolve_current_run(
        ArrivingRun(reset, RUNNING, stored=ZOMBIE), current=current, here="C", clusters=CLUSTERS
    )
    assert placed == BecomeCurrent(RUNNING, Suppression.TERMINATE)


@pytest.mark.parametrize("version", [0, 4])
def test_an_older_run_becomes_a_zombie_if_its_version_has_no_owner(version: int) -> None:
    """Version 0: the namespace was local. Version 4: the cluster has been removed."""
    current = CurrentExecution(run("old", version, 5), RUNNING)
    placed = resolve_in_b(ArrivingRun(run("new", 11, 12), RUNNING), current)
    assert placed == BecomeCurrent(RUNNING, Suppression.MAKE_ZOMBIE)


@pytest.mark.parametrize("state", OPEN)
def test_an_older_open_run_last_written_by_this_cluster_is_terminated(state: ExecutionState) -> None:
    """FL-64."""
    current = CurrentExecution(run("old", 2, 5), state)
    assert resolve_in_b(ArrivingRun(run("new", 3, 1), RUNNING), current) == BecomeCurrent(
        RUNNING, Suppression.TERMINATE
    )


@pytest.mark.parametrize("arriving_version", [1, 3])
def test_an_older_open_run_last_written_by_another_cluster_becomes_a_zombie(arriving_version: int) -> None:
    current = CurrentExecution(run("old", 1, 5), RUNNING)
    placement = resolve_in_b(ArrivingRun(run("new", arriving_version, 6), CREATED), current)
    assert placement == BecomeCurrent(CREATED, Suppression.MAKE_ZOMBIE)


def test_an_older_run_of_the_same_version_becomes_a_zombie_even_if_this_cluster_wrote_it() -> None:
    current = CurrentExecution(run("old", 2, 5), RUNNING)
    placement = resolve_in_b(ArrivingRun(run("new", 2, 6), RUNNING), current)
    assert placement == BecomeCurrent(RUNNING, Suppression.MAKE_ZOMBIE)


@pytest.mark.parametrize("arriving_state", [CREATED, RUNNING, COMPLETED])
def test_an_older_closed_run_is_not_changed(arriving_state: ExecutionState) -> None:
    current = CurrentExecution(run("old", 2, 5), COMPLETED)
    assert resolve_in_b(ArrivingRun(run("new", 3, 1), arriving_state), current) == BecomeCurrent(arriving_state)


def test_a_zombie_that_becomes_the_newest_run_is_running_again() -> None:
    current = CurrentExecution(run("other", 2, 5), RUNNING)
    arriving = ArrivingRun(run("zombie", 3, 1), RUNNING, stored=ZOMBIE, rebuilt=True)
    assert resolve_in_b(arriving, current) == BecomeCurrent(RUNNING, Suppression.TERMINATE)


def test_an_older_run_that_arrives_closed_is_not_a_zombie() -> None:
    current = CurrentExecution(run("new", 2, 5), COMPLETED)
    assert resolve_in_b(ArrivingRun(run("old", 1, 9), COMPLETED), current) == StayBehind(COMPLETED)
    assert resolve_in_b(ArrivingRun(run("old", 1, 9), RUNNING), current) == StayBehind(ZOMBIE)


def test_only_a_rebuild_can_reopen_a_closed_run() -> None:
    """The branch that closed the run may lose to a branch on which it is open."""
    current = CurrentExecution(run("one", 1, 5), COMPLETED)
    arriving = run("one", 3, 1)
    assert resolve_in_b(ArrivingRun(arriving, RUNNING, COMPLETED, rebuilt=True), current) == BecomeCurrent(RUNNING)
    with pytest.raises(IllegalTransition, match="completed can't become running"):
        resolve_in_b(ArrivingRun(arriving, RUNNING, COMPLETED), current)
    behind = CurrentExecution(run("two", 11, 1), RUNNING)
    assert resolve_in_b(ArrivingRun(arriving, RUNNING, COMPLETED, rebuilt=True), behind) == StayBehind(ZOMBIE)


def test_a_run_cannot_go_back_to_an_older_task_id() -> None:
    current = CurrentExecution(run("one", 2, 5), RUNNING)
    assert resolve_in_b(ArrivingRun(run("one", 2, 5), RUNNING, RUNNING), current) == BecomeCurrent(RUNNING)
    with pytest.raises(RunWentBack, match="a run never goes back") as raised:
        resolve_in_b(ArrivingRun(run("one", 2, 4), RUNNING, RUNNING), current)
    assert isinstance(raised.value, GiveUp)


def test_only_legal_state_transitions_are_allowed() -> None:
    """FL-65."""
    legal = {
        *((CREATED, after) for after in ExecutionState),
        *((RUNNING, after) for after in (RUNNING, ZOMBIE, COMPLETED)),
        *((ZOMBIE, after) for after in ExecutionState),
        (COMPLETED, COMPLETED),
    }
    for before in ExecutionState:
        for after in ExecutionState:
            check_transition(before=before, after=after, rebuilt=True)
            if (before, after) in legal:
                check_transition(before=before, after=after)
            else:
                with pytest.raises(IllegalTransition):
                    check_transition(before=before, after=after)


def test_a_zombie_cannot_be_current_or_follow_from_events() -> None:
    with pytest.raises(IllegalTransition, match="can't be the current run"):
        CurrentExecution(run("one", 1, 1), ZOMBIE)
    with pytest.raises(IllegalTransition, match="does not follow from events"):
        ArrivingRun(run("one", 1, 1), ZOMBIE)


def test_only_open_runs_can_be_written() -> None:
    assert [state for state in ExecutionState if state.is_open] == OPEN
    for state in OPEN:
        check_mutable("one", state)
    with pytest.raises(RunNotMutable, match="run one is closed"):
        check_mutable("one", COMPLETED)
