"""The check of one run, one kind of finding after the other, and of many runs at once."""

from dataclasses import replace
from itertools import count, groupby
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from temporalio.api.enums.v1 import EventType, WorkflowExecutionStatus

from fairlead.core.versions import ClusterVersions, Item, VersionHistory
from fairlead.journal import read_segment
from fairlead.pipeline.kernels.reconcile import (
    OPEN_STATUSES,
    RUN_BATCHES,
    Batch,
    Clocks,
    Comparison,
    Judgement,
    Kind,
    Rules,
    State,
    read_copy,
)
from fairlead.pipeline.kernels.reconcile.compare import Lack, _without_blocked
from fairlead.pipeline.kernels.reconcile.plain import BatchColumns, plain_runs
from fairlead.pipeline.kernels.reconcile.records import SIGNALED_EVENT, TASK_FAILED_EVENT, TYPES_UNKNOWN
from fairlead.pipeline.kernels.reconcile.tables import BATCH, judge_batch
from fairlead.pipeline.synth.histories import HistoryShape, write_histories
from tests.pipeline.reconcile_world import CLUSTERS, random_journals

NOW_US = 10_000_000_000
OLD_US = 1_000_000
VERSIONS = ClusterVersions(10, {"a": 1, "b": 2, "c": 3})
RULES = Rules(NOW_US, grace_us=600_000_000, versions=VERSIONS)
_task_ids = count(1)


def batch(
    first: int,
    last: int,
    *items: tuple[int, int],
    branch: str = "main",
    mark: str = "0",
    status: int = 1,
    time_us: int = OLD_US,
    signals: tuple[str, ...] = (),
    tree: str = "run",
    task_id: int | None = None,
) -> Batch:
    version = items[-1][1]
    digests = "".join(f"{mark}{event_id:08x}{version:07x}" for event_id in range(first, last + 1))
    types = (SIGNALED_EVENT,) * len(signals) + (5,) * (last - first + 1 - len(signals)) if signals else ()
    task_id = next(_task_ids) if task_id is None else task_id
    return Batch(
        tree, branch, first, last, version, task_id, time_us, status, last - first + 1, digests, items, signals, types
    )


def judge(rules: Rules = RULES, expected: str = "", **copies: list[Batch]) -> Judgement:
    return Comparison(
        [read_copy(name, "run", batches) for name, batches in copies.items()], tuple(expected), rules
    ).judge()


def found(judgement: Judgement) -> set[tuple[Any, ...]]:
    return {
        (finding.kind.value, finding.cluster, finding.version, finding.first_event_id, finding.last_event_id)
        for finding in judgement.findings
        if finding.state is State.WRONG
    }


def plain_copy(**changes: Any) -> list[Batch]:
    return [batch(1, 2, (2, 1), **changes), batch(3, 5, (5, 1), **changes), batch(6, 7, (5, 1), (7, 2), **changes)]


def test_the_documents_example_of_two_diverging_clusters_agrees() -> None:
    """NDC-8: the example with a conflict."""
    trunk = [batch(1, 2, (2, 1)), batch(3, 3, (2, 1), (3, 2))]
    b_wrote, c_wrote = batch(4, 4, (2, 1), (4, 2)), batch(4, 4, (2, 1), (3, 2), (4, 3), branch="other")
    before = judge(b=[*trunk, b_wrote], c=[*trunk, c_wrote])
    assert before.branches == (
        VersionHistory.from_pairs([(2, 1), (3, 2), (4, 3)]),
        VersionHistory.from_pairs([(2, 1), (4, 2)]),
    )
    assert before.ancestor == Item(3, 2)
    assert before.disagreeing == ("b",)
    assert [(send.target, send.source, send.version, send[3:5]) for send in before.sends] == [
        ("b", "c", 3, (4, 4)),
        ("c", "b", 2, (4, 4)),
    ]
    after = judge(b=[*trunk, b_wrote, c_wrote], c=[*trunk, c_wrote, b_wrote._replace(branch_id="third")])
    assert (after.findings, after.sends, after.disagreeing) == ([], [], ())


def test_clusters_that_agree_have_no_findings() -> None:
    judgement = judge(a=plain_copy(), b=plain_copy(branch="b"), c=plain_copy(branch="c"))
    assert (judgement.findings, judgement.sends, judgement.disagreeing) == ([], [], ())
    assert judgement.ancestor == Item(7, 2)
    assert [tuple(pair) for pair in judgement.pairs] == [(*pair, 7, 0, 0, 0, 0, 0) for pair in ("ab", "ac", "bc")]


def test_other_batch_boundaries_and_repeated_batches_are_no_finding() -> None:
    merged = [batch(1, 5, (5, 1)), batch(6, 7, (5, 1), (7, 2))]
    repeated = plain_copy()
    repeated.extend([repeated[1]._replace(time_us=OLD_US + 5), repeated[2]._replace(task_id=99_999)])
    assert judge(a=merged, b=repeated).findings == []


def test_a_version_history_that_runs_ahead_of_its_batch_is_no_finding() -> None:
    ahead = [batch(1, 2, (2, 1)), batch(3, 5, (5, 1))._replace(items=((5, 1), (7, 2))), batch(6, 7, (5, 1), (7, 2))]
    assert judge(a=plain_copy(), b=ahead).findings == []


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        pytest.param(lambda old: old[:2], {("missing_events", "c", 2, 6, 7)}, id="end"),
        pytest.param(
            lambda old: old[:1], {("missing_events", "c", 1, 3, 5), ("missing_events", "c", 2, 6, 7)}, id="two"
        ),
        pytest.param(lambda old: [old[0], old[2]], {("gap", "c", 1, 3, 5)}, id="gap"),
        pytest.param(lambda old: old[1:], {("gap", "c", 1, 1, 2)}, id="beginning"),
        pytest.param(
            lambda old: [*old[:2], old[2]._replace(digests="f" * 32)],
            {("different_events", "c", 2, 6, 7)},
            id="content",
        ),
        pytest.param(
            lambda old: [*old[:2], old[2]._replace(digests=old[2].digests[:16])],
            {("malformed_batch", "c", 2, 6, 7)},
            id="digest",
        ),
        pytest.param(
            lambda old: [*old[:2], old[2]._replace(types_count=1)], {("malformed_batch", "c", 2, 6, 7)}, id="types"
        ),
        pytest.param(
            lambda old: [*old[:2], old[2]._replace(items=())], {("malformed_batch", "c", 2, 6, 7)}, id="items"
        ),
        pytest.param(
            lambda old: [*old[:2], old[2]._replace(items=((5, 1), (6, 2)))],
            {("malformed_batch", "c", 2, 6, 7)},
            id="short",
        ),
        pytest.param(
            lambda old: [*old[:2], old[2]._replace(items=((5, 12), (7, 2)))],
            {("broken_append", "c", 2, 6, 7)},
            id="falls",
        ),
        pytest.param(
            lambda old: [old[0], batch(3, 7, (5, 1), (7, 2))._replace(digests=old[1].digests + old[2].digests)],
            {("mixed_versions", "c", 2, 3, 7)},
            id="mixed",
        ),
        pytest.param(
            lambda old: [*old[:2], old[2]._replace(status=2)], {("status_differs", "c", 2, 7, 7)}, id="status"
        ),
        pytest.param(
            lambda old: [*old[:2], old[2]._replace(event_types=(5, 9))], {("different_types", "c", 2, 7, 7)}, id="type"
        ),
        pytest.param(
            lambda old: [*old[:2], old[2]._replace(payload_fault="the payload does not match the digests")],
            {("wrong_payload", "c", 2, 6, 7)},
            id="payload",
        ),
        pytest.param(
            lambda old: [*old[:2], old[2]._replace(tree_id="elsewhere")], {("wrong_tree", "c", 2, 6, 7)}, id="tree"
        ),
        pytest.param(
            lambda old: [*old, old[1]._replace(task_id=99_999, digests="f" * 48)],
            {("broken_append", "c", 1, 3, 5), ("different_events", "c", 1, 3, 5)},
            id="overwritten",
        ),
    ],
)
def test_each_kind_of_defect_is_found_once(spoil: Any, expected: set[tuple[Any, ...]]) -> None:
    right = [one._replace(event_types=(5,) * one.types_count) for one in plain_copy()]
    judgement = judge(a=right, b=right, c=spoil(plain_copy()))
    assert found(judgement) == expected


def test_a_signal_with_another_id_in_one_cluster_is_found() -> None:
    right, changed = ([*plain_copy(), batch(8, 8, (5, 1), (8, 2), signals=(name,))] for name in ("s", "t"))
    assert found(judge(a=right, b=right, c=changed)) == {("different_signals", "c", 2, 8, 8)}


def test_the_trees_of_reset_runs_must_be_of_one_base() -> None:
    own = [batch(3, 5, (5, 1), tree="base"), batch(6, 7, (5, 1), (7, 2), tree="base")]
    other = [one._replace(tree_id="another") for one in own]
    assert found(judge(a=own, b=own, c=other)) == {("wrong_tree", "c", 2, 7, 7)}
    assert found(judge(a=own, b=plain_copy(), c=own)) == set()


def typed(copy: list[Batch], *, last: int = 5) -> list[Batch]:
    """The same batches with the types of their events; `last` is the type of the last event."""
    batches = [one._replace(event_types=(5,) * one.types_count) for one in copy]
    return [*batches[:-1], batches[-1]._replace(event_types=(*batches[-1].event_types[:-1], last))]


def test_a_run_in_the_history_tree_of_another_run_is_wrong_unless_it_is_a_reset() -> None:
    right = typed(plain_copy())
    moved = [one._replace(tree_id="another-run") for one in right]
    assert found(judge(a=right, b=right, c=moved)) == {("wrong_tree", "c", 2, 7, 7)}
    # The first batch of a reset run may hold copies of the base's first events; then the reset fails a workflow task.
    reset = typed(plain_copy(), last=TASK_FAILED_EVENT)
    assert found(judge(a=reset, b=reset, c=[one._replace(tree_id="another-run") for one in reset])) == set()
    # Without types, nothing shows whether the run was reset.
    untyped = [one._replace(tree_id="another-run") for one in plain_copy()]
    assert found(judge(a=right, b=right, c=untyped)) == set()


def test_a_run_that_only_one_cluster_has_is_not_sent_from_a_wrong_tree() -> None:
    judgement = judge(expected="abc", a=[one._replace(tree_id="nobody") for one in typed(plain_copy())])
    assert {kind for kind, *_ in found(judgement)} == {"wrong_tree", "missing_run"}
    assert judgement.sends == []


def test_a_batch_without_the_ids_of_its_signals_is_malformed() -> None:
    right = [*plain_copy(), batch(8, 8, (5, 1), (8, 2), signals=("s",))]
    assert found(judge(a=right, b=right, c=[*right[:-1], right[-1]._replace(signals=())])) == {
        ("malformed_batch", "c", 2, 8, 8)
    }


def test_events_of_one_cluster_are_not_sent_if_the_findings_are_against_that_cluster() -> None:
    # Cluster b owns version 2, but lacks the last events, which have that version.
    judgement = judge(a=plain_copy(), b=plain_copy()[:2], expected="ab")
    assert found(judgement) == {("missing_events", "b", 2, 6, 7), ("extra_events", "a", 2, 6, 7)}
    assert judgement.sends == []
    (lack,) = [one for one in judgement.findings if one.kind is Kind.MISSING_EVENTS]
    assert (lack.other, lack.detail) == (None, "only a has these events, and it has findings itself: extra_events")
    # Two clusters have the last events, so they are trusted.
    assert len(judge(a=plain_copy(), b=plain_copy()[:2], c=plain_copy()).sends) == 1
    spoilt = [*plain_copy()[:2], plain_copy()[2]._replace(payload_fault="the payload does not match the digests")]
    assert judge(replace(RULES, versions=None), a=spoilt, b=plain_copy()[:2]).sends == []
    assert judge(replace(RULES, versions=None), expected="abc", a=spoilt, b=spoilt).sends != []


HOUR_US = 3_600_000_000


def on_clocks(ahead_us: int, *, b_delivered_us: int, now_us: int = NOW_US) -> Rules:
    """Rules with a's clock ahead of b's by `ahead_us`, and b's stream delivered up to `b_delivered_us` on b's clock."""
    own = {"a": NOW_US + ahead_us, "b": b_delivered_us}
    others = {("a", "b"): b_delivered_us + ahead_us, ("b", "a"): NOW_US}
    return replace(RULES, clocks=Clocks(now_us, own, others))


@pytest.mark.parametrize("ahead_us", [0, HOUR_US, -HOUR_US])
def test_a_clock_that_is_ahead_causes_no_finding(ahead_us: int) -> None:
    def states(time_us: int, rules: Rules) -> list[State]:
        copy = [one._replace(time_us=time_us + ahead_us) for one in plain_copy()]
        return [finding.state for finding in judge(rules, expected="ab", a=copy).findings]

    rules = on_clocks(ahead_us, b_delivered_us=NOW_US)
    assert states(NOW_US - RULES.grace_us, rules) == [State.WRONG]
    assert states(NOW_US - RULES.grace_us + 1, rules) == [State.LATE]
    # The stream of b lags behind the event: its journal may still arrive.
    behind = on_clocks(ahead_us, b_delivered_us=NOW_US - 2 * HOUR_US)
    assert states(NOW_US - HOUR_US, behind) == [State.LATE]
    assert states(NOW_US - 3 * HOUR_US, behind) == [State.WRONG]


def test_clusters_that_share_no_run_are_not_judged_by_the_clock_of_one_of_them() -> None:
    """How far b's stream was delivered on a's clock is unknown: only the time in the lake counts."""
    arrived_us = 77 * HOUR_US
    copy = [one._replace(time_us=NOW_US, arrived_us=arrived_us) for one in plain_copy()]
    own = {"a": NOW_US + HOUR_US, "b": NOW_US - HOUR_US}
    for waited_us, state in ((RULES.grace_us - 1, State.LATE), (RULES.grace_us, State.WRONG)):
        rules = replace(RULES, clocks=Clocks(arrived_us + waited_us, own))
        judgement = judge(rules, expected="ab", a=copy)
        assert [finding.state for finding in judgement.findings] == [state]
        assert bool(judgement.sends) == (state is State.WRONG)


def test_a_loss_at_the_end_of_a_journal_is_found_after_the_grace_period() -> None:
    arrived_us = 77 * HOUR_US
    copy = [one._replace(time_us=NOW_US, arrived_us=arrived_us) for one in plain_copy()]
    early, due = (
        on_clocks(0, b_delivered_us=NOW_US, now_us=arrived_us + waited_us)
        for waited_us in (RULES.grace_us - 1, RULES.grace_us)
    )
    for rules, state in ((early, State.LATE), (due, State.WRONG)):
        assert [finding.state for finding in judge(rules, expected="ab", a=copy).findings] == [state]
    # The stream of b continues after the time that is judged, so the arrival time does not count.
    cut = replace(due, clocks=replace(due.watermarks, cut=frozenset("b")))
    assert [finding.state for finding in judge(cut, expected="ab", a=copy).findings] == [State.LATE]


def test_a_run_that_a_cluster_should_have_is_missing_there_and_is_sent() -> None:
    judgement = judge(expected="abc", a=plain_copy(), b=plain_copy())
    assert found(judgement) == {("missing_run", "c", None, 1, 7)}
    assert [(send.source, send.version, send[3:5]) for send in judgement.sends] == [("a", 1, (1, 5)), ("b", 2, (6, 7))]


def test_a_run_of_a_local_namespace_is_not_missing_in_other_clusters() -> None:
    assert judge(expected="abc", a=[batch(1, 2, (2, 0))]).findings == []


def test_events_that_only_their_writing_cluster_lacks_are_a_surplus_of_the_others() -> None:
    judgement = judge(a=plain_copy(), b=plain_copy()[:2], c=plain_copy())
    assert found(judgement) == {
        ("missing_events", "b", 2, 6, 7),
        ("extra_events", "a", 2, 6, 7),
        ("extra_events", "c", 2, 6, 7),
    }
    assert found(judge(replace(RULES, versions=None), a=plain_copy(), b=plain_copy()[:2], c=plain_copy())) == {
        ("missing_events", "b", 2, 6, 7)
    }


def test_a_gap_in_the_writers_journal_is_not_a_surplus_of_the_others() -> None:
    assert found(judge(a=[plain_copy()[0], plain_copy()[2]], b=plain_copy())) == {("gap", "a", 1, 3, 5)}


def test_the_content_of_the_writing_cluster_wins_over_that_of_the_others() -> None:
    changed = [*plain_copy()[:2], batch(6, 7, (5, 1), (7, 2), mark="f")]
    assert found(judge(a=changed, b=plain_copy(), c=changed)) == {
        ("different_events", "a", 2, 6, 7),
        ("different_events", "c", 2, 6, 7),
    }
    unowned = replace(RULES, versions=None)
    assert found(judge(unowned, a=changed, b=plain_copy(), c=changed)) == {("different_events", "b", 2, 6, 7)}


def test_missing_events_younger_than_the_grace_period_are_late_and_not_sent() -> None:
    recent = [*plain_copy()[:2], batch(6, 7, (5, 1), (7, 2), time_us=NOW_US - 1)]
    judgement = judge(a=recent, b=recent, c=recent[:2])
    assert [(finding.kind, finding.state) for finding in judgement.findings] == [(Kind.MISSING_EVENTS, State.LATE)]
    assert judgement.sends == []
    assert judgement.pairs[1].late == 2
    on_the_edge = [*plain_copy()[:2], batch(6, 7, (5, 1), (7, 2), time_us=NOW_US - RULES.grace_us)]
    assert found(judge(a=on_the_edge, b=on_the_edge, c=on_the_edge[:2])) == {("missing_events", "c", 2, 6, 7)}


def test_a_closed_run_past_its_retention_may_be_missing() -> None:
    rules = replace(RULES, retention_us=1_000_000_000)
    closed = plain_copy(status=2)
    judgement = judge(rules, expected="ab", a=closed)
    assert [(finding.kind, finding.state) for finding in judgement.findings] == [(Kind.MISSING_RUN, State.EXPIRED)]
    assert judgement.sends == []
    assert found(judge(rules, expected="ab", a=plain_copy(status=1))) == {("missing_run", "b", None, 1, 7)}


def test_events_that_no_cluster_has_are_found_and_nothing_behind_them_is_sent() -> None:
    broken = [plain_copy()[0], plain_copy()[2]]
    judgement = judge(expected="abc", a=broken, b=broken)
    assert {finding[:4:2] for finding in judgement.findings if finding.kind is Kind.GAP} == {("gap", "a"), ("gap", "b")}
    assert [(send.target, send[3:5]) for send in judgement.sends] == [("c", (1, 2))]


def lacks_of(random: Random, branches: list[VersionHistory], events: int) -> list[Lack]:
    """Lacking events on branches; some of these events are in no cluster."""
    lacks = []
    for branch in branches:
        for event_id in sorted(random.sample(range(1, branch.last.event_id + 1), events)):
            source = random.choice(("a", "a", "a", None))
            event = Item(event_id, branch.version_of(event_id))
            lacks.append(Lack(event, Kind.MISSING_EVENTS, State.WRONG, source, branch))
    return lacks


def test_events_after_lost_ones_are_not_sent_on_any_branch() -> None:
    random = Random(3)
    branches = [
        VersionHistory.from_pairs(pairs) for pairs in ([(30, 1)], [(9, 1), (25, 2)], [(9, 1), (20, 3), (30, 12)])
    ]
    for _ in range(100):
        lacks = lacks_of(random, random.sample(branches, random.randint(1, 3)), random.randint(0, 4))
        lost = [lack.event for lack in lacks if lack.source is None]
        blocked = [
            any(event < lack.event and lack.branch.contains(event_id=event[0], version=event[1]) for event in lost)
            for lack in lacks
        ]
        assert _without_blocked(lacks) == [
            replace(lack, source=None) if is_blocked else lack for lack, is_blocked in zip(lacks, blocked, strict=True)
        ]


def test_a_long_range_of_lost_events_is_examined_once_for_each_branch(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = count()
    contains = VersionHistory.contains

    def counted(self: VersionHistory, *, event_id: int, version: int) -> bool:
        next(looks)
        return contains(self, event_id=event_id, version=version)

    monkeypatch.setattr(VersionHistory, "contains", counted)
    branch = VersionHistory.from_pairs([(2000, 1)])
    _without_blocked([replace(lack, source=None) for lack in lacks_of(Random(0), [branch], 2000)])
    assert next(looks) == 2000


def test_two_version_histories_on_one_branch_break_the_append_rule() -> None:
    part = [batch(4, 4, (2, 1), (4, 2)), batch(4, 4, (2, 1), (3, 2), (4, 3))]
    trunk = [batch(1, 2, (2, 1)), batch(3, 3, (2, 1), (3, 2))]
    apart = [*trunk, part[0], part[1]._replace(branch_id="other")]
    judgement = judge(a=apart, b=apart, c=[*trunk, *part])
    assert found(judgement) == {("broken_append", "c", 3, 4, 4)}
    # The batches of c form no branch that c could continue.
    assert judgement.disagreeing == ("c",)


def test_a_contradicting_branch_needs_a_manual_decision() -> None:
    wrong = [*plain_copy()[:2], batch(6, 7, (4, 1), (7, 2), branch="other")]
    judgement = judge(a=plain_copy(), b=plain_copy(), c=wrong)
    assert found(judgement) == {("contradiction", "c", 2, 7, 7)}
    assert judgement.sends == []
    assert judgement.branches == (VersionHistory.from_pairs([(5, 1), (7, 2)]),)


def test_a_cluster_that_contradicts_the_others_is_sent_nothing() -> None:
    longer = [*plain_copy(), batch(8, 9, (5, 1), (9, 2))]
    wrong = [*plain_copy()[:2], batch(6, 7, (4, 1), (7, 2), branch="other")]
    judgement = judge(a=longer, b=longer, c=wrong)
    assert found(judgement) == {("contradiction", "c", 2, 7, 7)}
    assert judgement.sends == []


def test_an_event_id_that_no_server_counts_to_is_refused_and_does_not_fill_the_memory() -> None:
    absurd = batch(1, 2, (2, 1))._replace(first=10**12, last=10**12 + 1, items=((10**12 + 1, 1),))
    judgement = judge(a=plain_copy(), b=[*plain_copy(), absurd])
    assert found(judgement) == {("malformed_batch", "b", 1, 10**12, 10**12 + 1)}


def test_a_run_that_was_reset_begins_with_events_of_another() -> None:
    own = [batch(3, 5, (5, 1), tree="base"), batch(6, 7, (5, 1), (7, 2), tree="base")]
    assert judge(a=own, b=own).findings == []
    assert judge(a=own, b=plain_copy()).findings == []
    lost = judge(a=own, b=own[1:])
    assert found(lost) == {("gap", "b", 1, 3, 5)}


def test_events_of_a_run_that_was_deleted_before_it_was_journaled_do_not_count_as_missing() -> None:
    deleted = [*plain_copy()[:2], plain_copy()[2]._replace(digests="", types_count=TYPES_UNKNOWN)]
    judgement = judge(a=plain_copy(), b=deleted, c=plain_copy())
    assert found(judgement) == set()
    # Cluster b has these events, but without digests they can't be compared.
    assert [(one.kind, one.state, one.cluster, *one[5:7]) for one in judgement.findings] == [
        (Kind.NOT_COMPARABLE, State.NOT_COMPARABLE, "b", 6, 7)
    ]
    assert [(pair.left, pair.right, pair.shared, pair.not_comparable) for pair in judgement.pairs] == [
        ("a", "b", 7, 2),
        ("a", "c", 7, 0),
        ("b", "c", 7, 2),
    ]


def test_a_batch_that_was_journaled_again_after_its_run_was_deleted_has_its_contents() -> None:
    again = plain_copy()[2]._replace(digests="", types_count=TYPES_UNKNOWN)
    assert judge(a=plain_copy(), b=[*plain_copy(), again]).findings == []
    assert judge(a=plain_copy(), b=[*plain_copy(), again._replace(task_id=0)]).findings == []


def test_the_status_is_that_of_the_current_branch_even_if_a_losing_one_is_longer() -> None:
    lost, won = batch(3, 9, (9, 1)), batch(3, 4, (2, 1), (4, 2), branch="won", status=2)
    copy = [batch(1, 2, (2, 1)), lost, won]
    judgement = judge(a=copy, b=copy)
    assert (judgement.status, judgement.findings) == (2, [])
    assert [summary.is_open for summary in judgement.copies] == [False, False]


def parted(*winning: str, fork_us: int = OLD_US) -> list[Batch]:
    return [
        batch(1, 2, (2, 1), signals=("early",)),
        batch(3, 3, (3, 1), signals=("x",)),
        batch(3, 3 + len(winning), (2, 1), (3 + len(winning), 2), branch="won", signals=winning, time_us=fork_us),
    ]


def test_a_signal_of_a_losing_branch_must_be_reapplied_to_the_current_one() -> None:
    kept = judge(a=parted("x"), b=parted("x"))
    assert (kept.lost_signals, kept.current_signals) == ([], ("early", "x"))
    lost = judge(a=parted("y"), b=parted("y"))
    assert lost.lost_signals == [("x", Item(3, 1))]
    assert judge(a=parted(), b=parted()).lost_signals == [("x", Item(3, 1))]


def test_a_signal_may_be_lost_and_reapplied_more_than_once() -> None:
    first, second = batch(3, 3, (3, 1), signals=("x",)), batch(3, 3, (2, 1), (3, 2), branch="second", signals=("x",))
    won = batch(3, 3, (2, 1), (3, 3), branch="won", signals=("x",))
    assert judge(a=[batch(1, 2, (2, 1)), first, second, won]).lost_signals == []
    dropped = batch(3, 3, (2, 1), (3, 3), branch="won")
    lost = judge(a=[batch(1, 2, (2, 1)), first, second, dropped])
    assert lost.lost_signals == [("x", Item(3, 1)), ("x", Item(3, 2))]


def test_a_signal_may_be_reapplied_within_the_grace_period_after_the_fork() -> None:
    assert judge(a=parted(fork_us=NOW_US - 1)).lost_signals == []


def test_the_enum_numbers_are_those_of_temporals_api() -> None:
    assert SIGNALED_EVENT == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
    assert TASK_FAILED_EVENT == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
    names = ("RUNNING", "PAUSED")
    assert {WorkflowExecutionStatus.Value(f"WORKFLOW_EXECUTION_STATUS_{name}") for name in names} == OPEN_STATUSES


# Many runs at once.


def as_arrow(runs: list[tuple[str, dict[str, list[Batch]]]], expected: tuple[str, ...]) -> pa.RecordBatch:
    rows = [
        {
            "namespace_id": "n",
            "workflow_id": run_id,
            "run_id": run_id,
            "expected": expected,
            "batches": [
                {
                    **item._asdict(),
                    "cluster": cluster,
                    "items": [{"event_id": event_id, "version": version} for event_id, version in item.items],
                }
                for cluster, batches in copies.items()
                for item in batches
            ],
        }
        for run_id, copies in runs
    ]
    return pa.RecordBatch.from_pylist(rows, schema=RUN_BATCHES)


def judge_both_ways(batch: pa.RecordBatch, rules: Rules) -> tuple[int, list[Any], list[Any]]:
    columns = BatchColumns(batch)
    is_plain = plain_runs(columns)
    quick = judge_batch(batch, columns, rules, is_plain).to_pylist()
    careful = judge_batch(batch, columns, rules, np.zeros(batch.num_rows, dtype=bool)).to_pylist()
    return int(is_plain.sum()), quick, careful


def test_the_fast_check_agrees_with_the_full_check_on_random_runs() -> None:
    random = Random(7)
    runs = []
    for number in range(600):
        journals = random_journals(random, losses=random.choice([0, 0, 0.1]), changes=random.choice([0, 0, 0.1]))
        copies = {
            name: [item._replace(tree_id=str(number)) for item in batches] for name, batches in journals.batches.items()
        }
        if number % 2 and "a" in copies:
            # All clusters have a's batches, with the same boundaries.
            copies = dict.fromkeys(CLUSTERS, copies["a"])
        if copies:
            runs.append((str(number), copies))
    plain, quick, careful = judge_both_ways(as_arrow(runs, CLUSTERS), RULES)
    assert quick == careful
    assert 30 < plain < len(runs) - 30


@pytest.mark.parametrize("row", range(3))
@pytest.mark.parametrize(
    "change",
    [
        {"tree_id": "other"}, {"branch_id": "other"}, {"first": 2}, {"last": 4}, {"version": 3}, {"status": 2},
        {"types_count": 1}, {"digests": "f" * 32}, {"digests": ""}, {"items": ()}, {"items": ((1, 1), (7, 2))},
        {"items": ((7, 2),)}, {"signals": ("x",)},
    ],
)  # fmt: skip
def test_the_fast_check_misses_no_change_of_a_batch(row: int, change: dict[str, Any]) -> None:
    changed = plain_copy()
    changed[row] = changed[row]._replace(**change)
    runs = [
        ("run", {"a": plain_copy(), "b": changed}),
        ("run", {"a": changed, "b": plain_copy()}),
        ("run", {"a": changed}),
    ]
    for run in runs:
        plain, quick, careful = judge_both_ways(as_arrow([run], tuple(run[1])), RULES)
        assert quick == careful
        if len(run[1]) == 2 and change not in ({"tree_id": "other"}, {"branch_id": "other"}):
            assert plain == 0


def test_the_fast_check_agrees_with_the_full_check_on_synthetic_journals(tmp_path: Path) -> None:
    manifest = write_histories(tmp_path, HistoryShape(runs=500, seed=3))
    records = sorted(
        (
            (record["run_id"], path.parent.name, place, record)
            for path in tmp_path.glob("*/*.zst")
            for place, record in enumerate(read_segment(path))
        ),
        key=lambda entry: entry[:3],
    )
    runs = []
    for run_id, entries in groupby(records, key=lambda entry: entry[0]):
        copies: dict[str, list[Batch]] = {}
        for _, cluster, _, record in entries:
            copies.setdefault(cluster, []).append(from_record(record))
        runs.append((run_id, copies))
    rules = Rules(manifest.now_us, 600_000_000, None, ClusterVersions(manifest.increment, manifest.initial_versions))
    plain, quick, careful = judge_both_ways(as_arrow(runs, tuple(manifest.initial_versions)), rules)
    assert quick == careful
    assert plain > 350


def from_record(record: dict[str, Any]) -> Batch:
    types, signals = record.get("event_types"), tuple(record.get("signals") or ())
    return Batch(
        record["tree_id"], record["branch_id"], record["first_event_id"], record["last_event_id"], record["version"],
        record["task_id"], record["time_us"], record["status"], TYPES_UNKNOWN if types is None else len(types),
        "".join(record.get("event_digests") or ()),
        tuple((item["event_id"], item["version"]) for item in record["items"]),
        signals, tuple(types or ()),
    )  # fmt: skip


def test_a_batch_without_runs_has_no_judgements() -> None:
    empty = pa.RecordBatch.from_pylist([], schema=RUN_BATCHES)
    assert judge_both_ways(empty, RULES) == (0, [], [])
    assert {field.name for field in BATCH} == {"cluster", *Batch._fields}
