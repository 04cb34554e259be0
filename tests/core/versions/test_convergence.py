"""FL-55: in any order, and with repetitions and overlaps of events, all clusters end with the same branches."""

from collections import Counter
from random import Random

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from fairlead.core.versions import (
    BranchTree,
    Duplicate,
    EventBatch,
    EventRange,
    ExecutionState,
    Gap,
    cut_batches,
    draw_tree,
    lowest_common_ancestor,
)
from tests.core.versions.world import Path, Step, World, expand, summarise

RUN = "A000"
SMALL = st.integers(0, 4)
SEEDS = st.integers(0, 2**32 - 1)


def programs(*operations: str) -> st.SearchStrategy[list[Step]]:
    steps = st.tuples(st.sampled_from(operations), SMALL, st.integers(0, 999), st.integers(1, 4))
    return st.lists(steps, min_size=25, max_size=80)


ONE_RUN = programs("write", "write", "write", "failover", "failover", "learn", "deliver", "deliver")
MANY_RUNS = programs("write", "write", "start", "start", "close", "failover", "learn", "deliver", "deliver", "deliver")


def world_of_one_run(cluster_count: int, program: list[Step]) -> World:
    world = World(cluster_count)
    begin = [("start", 0, 0, 1), *(("deliver", cluster, 0, 1) for cluster in range(cluster_count))]
    world.run_program([*begin, *program])
    return world


@pytest.mark.sim
@given(st.integers(2, 5), ONE_RUN, SEEDS)
def test_all_clusters_end_with_the_same_branches_and_the_same_current_branch(
    cluster_count: int, program: list[Step], seed: int
) -> None:
    """FL-55, FL-56, FL-57, FL-61."""
    world = world_of_one_run(cluster_count, program)
    world.settle(Random(seed))
    paths = world.paths(RUN)
    event(f"branches: {len(paths)}")
    newest = max(paths, key=lambda path: path[-1].version)
    events = world.clusters[0].runs[RUN].events
    assert set(events) == set(world.parents[RUN])
    for cluster in world.clusters:
        tree = cluster.runs[RUN].tree
        assert len(tree.branches) == len(paths)
        assert {expand(branch) for branch in tree.branches} == paths
        assert expand(tree.current) == newest
        assert cluster.runs[RUN].events == events
        assert draw_tree(tree) == draw_tree(world.clusters[0].runs[RUN].tree)
        assert set(BranchTree.restore(tree.branches).branches) == set(tree.branches)


@pytest.mark.sim
@given(st.integers(2, 5), ONE_RUN, SEEDS)
def test_overlapping_batches_with_longer_histories_give_the_same_tree(
    cluster_count: int, program: list[Step], seed: int
) -> None:
    """FL-55, FL-56, FL-59, FL-62: batches overlap stored events, and histories go beyond their batches."""
    world = world_of_one_run(cluster_count, program)
    random = Random(seed)
    paths = sorted(world.paths(RUN))
    waiting = [batch for path in paths for batch in split_with_overlaps(path, random)]
    random.shuffle(waiting)
    tree = BranchTree()
    while waiting:
        batch = waiting.pop()
        decision = tree.plan(batch)
        if isinstance(decision, Gap):
            assert_exactly_missing(tree, batch, decision)
            resend = cut_batches(batch.history, decision.missing) if random.random() < 0.5 else ()
            waiting.insert(0, batch)
            waiting.extend(reversed(resend))
        elif not isinstance(decision, Duplicate):
            tree_before = tree
            tree = tree.apply(decision)
            assert tree.plan(batch) == Duplicate(tree.branches.index(decision.branch))
            if tree_before.branches:
                assert tree.current.last.version >= tree_before.current.last.version
    assert {expand(branch) for branch in tree.branches} == set(paths)
    assert expand(tree.current) == max(paths, key=lambda path: path[-1].version)


def assert_exactly_missing(tree: BranchTree, batch: EventBatch, gap: Gap) -> None:
    """FL-60: the gap is exactly the range between the stored events and the batch."""
    here = {item for branch in tree.branches for item in expand(branch)}
    assert gap.missing.last == batch.events.first - 1
    for item in expand(batch.history)[: gap.missing.last]:
        assert (item in here) == (item.event_id < gap.missing.first)


def split_with_overlaps(path: Path, random: Random) -> list[EventBatch]:
    """Overlapping batches of all events, each with the whole history."""
    history = summarise(path)
    batches = []
    for item in path:
        first = item.event_id - random.randrange(3)
        while first < 1 or path[first - 1].version != item.version:
            first += 1
        batches.append(EventBatch(EventRange(first, item.event_id), item.version, history))
    return batches


@pytest.mark.sim
@given(st.integers(2, 5), ONE_RUN, st.data())
def test_the_common_ancestor_is_the_last_event_that_two_branches_share(
    cluster_count: int, program: list[Step], data: st.DataObject
) -> None:
    """FL-58, compared event by event."""
    world = world_of_one_run(cluster_count, program)
    tips = sorted(world.parents[RUN])
    left = world.path(RUN, data.draw(st.sampled_from(tips)))
    right = world.path(RUN, data.draw(st.sampled_from(tips)))
    common = [a for a, b in zip(left, right, strict=False) if a == b]
    assert lowest_common_ancestor(summarise(left), summarise(right)) == common[-1]
    assert lowest_common_ancestor(summarise(right), summarise(left)) == common[-1]


@pytest.mark.sim
@given(st.integers(2, 5), MANY_RUNS, SEEDS)
def test_all_clusters_end_with_the_same_current_run_and_never_have_two_open_runs(
    cluster_count: int, program: list[Step], seed: int
) -> None:
    """NDC-11, NDC-13, FL-66. `World.check` checks every cluster after every step."""
    world = World(cluster_count)
    world.run_program(program)
    world.settle(Random(seed))
    first = world.clusters[0]
    event(f"runs: {len(world.parents)}")
    for what in sum((cluster.happened for cluster in world.clusters), Counter[str]()):
        event(what)
    for cluster in world.clusters:
        assert cluster.current_run_id == first.current_run_id
        assert set(cluster.runs) == set(world.parents)
        for run_id, copy in cluster.runs.items():
            assert {expand(branch) for branch in copy.tree.branches} == world.paths(run_id)
            assert copy.state is first.runs[run_id].state
            # The cluster that wrote the last event of a losing run has terminated it, and the event has reached all
            # clusters.
            assert copy.state is not ExecutionState.ZOMBIE
