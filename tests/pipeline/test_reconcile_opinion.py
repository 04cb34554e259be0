"""The check of a run compared with an independent check, on random journals with losses, changes and repetitions."""

from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairlead.core.versions import Append, BranchTree, Create, EventBatch, EventRange, Fork, VersionHistory
from fairlead.pipeline.kernels.reconcile import Batch, Comparison, Finding, Judgement, Kind, Rules, State, read_copy
from tests.pipeline.reconcile_world import CLUSTERS, NOW_US, RUN_ID, Journals, give_opinion, items_of, random_journals

GRACE_US = 300_000
SEEDS = st.integers(0, 2**32)


def judge(journals: Journals, *, grace_us: int = 0) -> Judgement:
    copies = [read_copy(cluster, RUN_ID, batches) for cluster, batches in journals.batches.items()]
    return Comparison(copies, CLUSTERS, Rules(NOW_US, grace_us)).judge()


def events_of(finding: Finding) -> set[tuple[int, int]]:
    assert finding.first_event_id is not None
    assert finding.last_event_id is not None
    assert finding.version is not None
    return {(event, finding.version) for event in range(finding.first_event_id, finding.last_event_id + 1)}


@pytest.mark.sim
@given(SEEDS, st.sampled_from([0, GRACE_US]))
def test_the_check_agrees_with_a_comparison_of_every_event(seed: int, grace_us: int) -> None:
    random = Random(seed)
    journals = random_journals(random)
    if not journals.batches:
        return
    opinion = give_opinion(journals, grace_us=grace_us)
    judgement = judge(journals, grace_us=grace_us)
    assert judgement.branches[0].to_pairs() == items_of(opinion.current)
    assert judgement.ancestor == opinion.ancestor
    assert set(judgement.disagreeing) == opinion.disagreeing
    for cluster in CLUSTERS:
        for state in (State.WRONG, State.LATE):
            found = {
                (event, finding.kind.value)
                for finding in judgement.findings
                if finding.cluster == cluster and finding.state is state
                if finding.kind in (Kind.GAP, Kind.MISSING_EVENTS)
                for event in events_of(finding)
            }
            assert found == {
                (event, kind)
                for event, kind in opinion.lacking[cluster].items()
                if kind != "missing_run" and (event in opinion.late) == (state is State.LATE)
            }
    missing_runs = {finding.cluster for finding in judgement.findings if finding.kind is Kind.MISSING_RUN}
    assert missing_runs == set(CLUSTERS) - set(journals.batches)
    different = [finding for finding in judgement.findings if finding.kind is Kind.DIFFERENT_EVENTS]
    assert {(finding.cluster, event) for finding in different for event in events_of(finding)} == opinion.deviating
    assert {(pair.left, pair.right): tuple(pair[2:6]) for pair in judgement.pairs} == opinion.pairs
    explained = {Kind.GAP, Kind.MISSING_EVENTS, Kind.MISSING_RUN, Kind.DIFFERENT_EVENTS}
    assert {finding.kind for finding in judgement.findings} <= explained


@pytest.mark.sim
@given(SEEDS, st.sampled_from([0, GRACE_US]))
# An event that differs must not accuse its cluster of the event with the same id on another branch.
@example(244230256, 0)
def test_the_plan_sends_each_overdue_event_once_from_a_cluster_that_has_it(seed: int, grace_us: int) -> None:
    random = Random(seed)
    journals = random_journals(random)
    if not journals.batches:
        return
    opinion = give_opinion(journals, grace_us=grace_us)
    sent = [
        (send.target, (event_id, send.version), send.source)
        for send in judge(journals, grace_us=grace_us).sends
        for event_id in range(send.first_event_id, send.last_event_id + 1)
    ]
    assert all(source in opinion.holders[event] for _, event, source in sent)
    overdue = [
        (cluster, event)
        for cluster in CLUSTERS
        for event in opinion.lacking[cluster]
        if event not in opinion.late
        # A cluster can't apply events that come after events which no cluster has.
        if all(opinion.holders[before] for before in journals.branch_of(event) if before in opinion.lacking[cluster])
    ]
    assert sorted((target, event) for target, event, _ in sent) == sorted(overdue)


@pytest.mark.sim
@given(SEEDS)
def test_all_clusters_agree_after_the_plan(seed: int) -> None:
    """FL-70: the plan repairs by replication, never by deletion."""
    journals = random_journals(Random(seed), changes=0)
    if not journals.batches:
        return
    before = judge(journals)
    for send in before.sends:
        source = {
            (batch.first + place, batch.version): batch.digests[place * 16 : place * 16 + 16]
            for batch in journals.batches[send.source]
            for place in range(batch.last - batch.first + 1)
        }
        event_ids = range(send.first_event_id, send.last_event_id + 1)
        arriving = Batch(
            RUN_ID, f"sent{send.version}", send.first_event_id, send.last_event_id, send.version, 0, NOW_US, 1,
            len(event_ids), "".join(source[event_id, send.version] for event_id in event_ids), send.branch.to_pairs(),
            (), (),
        )  # fmt: skip
        journals.batches.setdefault(send.target, []).append(arriving)
    judgement = judge(journals)
    assert judgement.sends == []
    left = [finding for finding in judgement.findings if finding.other is not None]
    assert left == []
    copies = [read_copy(name, RUN_ID, batches) for name, batches in journals.batches.items()]
    if all(finding.other is not None for finding in before.findings):
        assert len(copies) == len(CLUSTERS)
        assert all((copy.held, copy.current) == (copies[0].held, copies[0].current) for copy in copies)


@pytest.mark.sim
@given(SEEDS)
def test_a_cluster_can_apply_the_events_in_the_order_of_the_plan(seed: int) -> None:
    journals = random_journals(Random(seed), changes=0)
    if not journals.batches:
        return
    judgement = judge(journals)
    for cluster in CLUSTERS:
        copy = read_copy(cluster, RUN_ID, journals.batches[cluster]) if cluster in journals.batches else None
        tree = BranchTree.restore(copy.branches if copy else ())
        for send in judgement.sends:
            # A cluster that claims to have the events would not apply them: an operator must transfer these.
            if send.target == cluster and send.kind is not Kind.GAP:
                events = EventRange(send.first_event_id, send.last_event_id)
                decision = tree.plan(EventBatch(events, send.version, send.branch))
                assert isinstance(decision, Create | Append | Fork)
                assert decision.events == events
                tree = tree.apply(decision)
        if all(finding.other is not None for finding in judgement.findings):
            assert set(tree.branches) == set(judgement.branches)
            assert tree.current == judgement.branches[0]


@given(SEEDS)
def test_the_order_and_repetition_of_journal_records_change_nothing(seed: int) -> None:
    random = Random(seed)
    journals = random_journals(random)
    if not journals.batches:
        return
    before = judge(journals)
    for batches in journals.batches.values():
        batches.extend(random.choices(batches, k=3))
        random.shuffle(batches)
    assert judge(journals) == before


@given(SEEDS)
def test_the_earlier_time_of_a_batch_that_was_journaled_twice_counts(seed: int) -> None:
    random = Random(seed)
    journals = random_journals(random)
    if not journals.batches:
        return
    before = judge(journals)
    for batches in journals.batches.values():
        batches.extend([batch._replace(time_us=batch.time_us + 1_000_000) for batch in batches])
        random.shuffle(batches)
    after = judge(journals)
    assert (after.first_us, after.last_us) == (before.first_us, before.last_us)
    assert after == before


def test_a_branch_is_identified_by_its_events_alone() -> None:
    assert VersionHistory.from_pairs(items_of(((1, 1), (2, 1), (3, 2)))).to_pairs() == ((2, 1), (3, 2))
