"""Defects to plant in journals: each spoils the records of one or more clusters about a correct run."""

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import msgspec

from fairlead.journal.records import HistoryRecord, VersionItem
from fairlead.pipeline.synth.history_payloads import spoil_payload, with_payloads
from fairlead.pipeline.synth.history_runs import (
    Run,
    World,
    chain,
    copies_of,
    crossing,
    parted,
    recent,
    replaced,
    signalled,
    two_open,
)

Copies = dict[str, list[HistoryRecord]]


class Expected(NamedTuple):
    """One finding that a check must report; without a cluster, it concerns all clusters."""

    kind: str
    cluster: str | None


class Planted(msgspec.Struct, frozen=True):
    """A spoilt run, its defect, and exactly the findings that a check must report.

    `verdict` is `late` if it is too early to call the run wrong, and `not_comparable` if the journals don't show it.
    `is_by_hand`: some events are missing, but the plan may not send them.
    """

    defect: str
    namespace_id: str
    workflow_id: str
    run_id: str
    expected: tuple[Expected, ...]
    verdict: str = "wrong"
    is_by_hand: bool = False


class Spoilt(NamedTuple):
    """The journals of the runs of one workflow id, and what was planted in them."""

    copies: list[Copies]
    planted: list[Planted]


Defect = Callable[[World], Spoilt]


def missing_run(world: World) -> Spoilt:
    """A cluster has no batch of a run."""
    run, copies, cluster = _crossing(world)
    del copies[cluster]
    return _spoilt(copies, run, "missing_run", Expected("missing_run", cluster))


def missing_end(world: World) -> Spoilt:
    """The last batch did not arrive in a cluster."""
    run, copies, cluster = _crossing(world)
    copies[cluster].pop()
    return _spoilt(copies, run, "missing_end", Expected("missing_events", cluster))


def missing_branch(world: World) -> Spoilt:
    """The winning branch did not arrive in a cluster, which keeps the losing one as its current branch."""
    (run,) = parted(world)
    copies = copies_of(world, run)
    cluster = _bystander(world, run)
    winning = copies[cluster][-1].version
    copies[cluster] = [record for record in copies[cluster] if record.version != winning]
    return _spoilt(copies, run, "missing_branch", Expected("missing_events", cluster))


def extra_end(world: World) -> Spoilt:
    """The cluster that wrote the last batch has lost it."""
    run, copies, _ = _crossing(world)
    owner = world.versions.owner(run.steps[-1].version)
    copies[owner].pop()
    others = [Expected("extra_events", name) for name in world.clusters if name != owner]
    return _spoilt(copies, run, "extra_end", Expected("missing_events", owner), *others)


def different_event(world: World) -> Spoilt:
    """One event has a different content in a cluster."""
    run, copies, cluster = _crossing(world)
    record = world.random.choice(copies[cluster])
    (record.event_digests or [])[-1] = f"{world.random.getrandbits(64):016x}"
    return _spoilt(copies, run, "different_event", Expected("different_events", cluster))


def gap(world: World) -> Spoilt:
    """A batch in the middle is missing."""
    run, copies, cluster = _crossing(world)
    copies[cluster].pop(world.random.randrange(1, len(copies[cluster]) - 1))
    return _spoilt(copies, run, "gap", Expected("gap", cluster))


def gap_at_the_beginning(world: World) -> Spoilt:
    """The first batch is missing."""
    run, copies, cluster = _crossing(world)
    copies[cluster].pop(0)
    return _spoilt(copies, run, "gap_at_the_beginning", Expected("gap", cluster))


def falling_version(world: World) -> Spoilt:
    """A batch claims to follow events of a higher version."""
    run, copies, cluster = _crossing(world)
    record = copies[cluster][-1]
    higher = VersionItem(record.first_event_id - 1, record.version + world.versions.increment)
    record.items = [higher, VersionItem(record.last_event_id, record.version)]
    return _spoilt(copies, run, "falling_version", Expected("broken_append", cluster))


def overwritten(world: World) -> Spoilt:
    """A batch was overwritten by another one."""
    run, copies, cluster = _crossing(world)
    record = world.random.choice(copies[cluster])
    digests = [f"{world.random.getrandbits(64):016x}" for _ in record.event_digests or ()]
    copies[cluster].append(msgspec.structs.replace(record, task_id=record.task_id + 10**9, event_digests=digests))
    expected = Expected("broken_append", cluster), Expected("different_events", cluster)
    return _spoilt(copies, run, "overwritten", *expected)


def shared_branch(world: World) -> Spoilt:
    """Two branches were written under one branch id."""
    (run,) = parted(world)
    copies = copies_of(world, run)
    cluster = _bystander(world, run)
    for record in copies[cluster]:
        record.branch_id = copies[cluster][0].branch_id
    return _spoilt(copies, run, "shared_branch", Expected("broken_append", cluster))


def mixed_versions(world: World) -> Spoilt:
    """A batch contains a failover."""
    run, copies, cluster = _crossing(world)
    records = copies[cluster]
    place = _failover_position(records)
    records[place : place + 2] = [merge(records[place], records[place + 1])]
    return _spoilt(copies, run, "mixed_versions", Expected("mixed_versions", cluster))


def malformed_batch(world: World) -> Spoilt:
    """A batch has fewer digests than events."""
    run, copies, cluster = _crossing(world)
    (world.random.choice(copies[cluster]).event_digests or []).pop()
    return _spoilt(copies, run, "malformed_batch", Expected("malformed_batch", cluster))


def contradiction(world: World) -> Spoilt:
    """A cluster has the events after a failover on a branch that forks one event too early."""
    run, copies, cluster = _crossing(world)
    records = copies[cluster]
    place = _failover_position(records)
    fork, branch = records[place].last_event_id - 1, world.new_id()
    for record in records[place + 1 :]:
        items = record.items[:-2]
        record.items = [*items, VersionItem(fork, record.items[-2].version), record.items[-1]]
        record.branch_id = branch
    return _spoilt(copies, run, "contradiction", Expected("contradiction", cluster))


def other_status(world: World) -> Spoilt:
    """The events are the same, but the run's status differs."""
    run, copies, cluster = _crossing(world)
    copies[cluster][-1].status = 7
    return _spoilt(copies, run, "other_status", Expected("status_differs", cluster))


def many_open(world: World) -> Spoilt:
    """Two runs of a workflow id are open."""
    runs = two_open(world)
    planted = [_planted(run, "many_open", Expected("many_open", None)) for run in runs]
    return Spoilt([copies_of(world, run) for run in runs], planted)


def zombie(world: World) -> Spoilt:
    """A run that was replaced after a failover was never closed."""
    runs = replaced(world, is_ended=False)
    planted = _planted(runs[0], "zombie", Expected("zombie", None))
    return Spoilt([copies_of(world, run) for run in runs], [planted])


def zombie_in_a_cluster(world: World) -> Spoilt:
    """A replaced run is closed, but its end did not arrive in one cluster."""
    runs = replaced(world)
    copies = [copies_of(world, run) for run in runs]
    cluster = _bystander(world, runs[0])
    copies[0][cluster].pop()
    expected = Expected("missing_events", cluster), Expected("zombie", cluster)
    return Spoilt(copies, [_planted(runs[0], "zombie_in_a_cluster", *expected)])


def lost_signal(world: World) -> Spoilt:
    """The signal of a losing branch was not reapplied to the winning one."""
    (run,) = parted(world, is_reapplied=False)
    return _spoilt(copies_of(world, run), run, "lost_signal", Expected("lost_signal", None))


def missing_successor(world: World) -> Spoilt:
    """A run continues in another run that no cluster has."""
    *runs, _ = chain(world)
    planted = _planted(runs[-1], "missing_successor", Expected("missing_successor", None))
    return Spoilt([copies_of(world, run) for run in runs], [planted])


def other_types(world: World) -> Spoilt:
    """A copy has the same digests, but another type of one event."""
    run, copies, cluster = _crossing(world)
    (copies[cluster][0].event_types or [])[-1] = OTHER_TYPE
    return _spoilt(copies, run, "other_types", Expected("different_types", cluster))


def other_signal(world: World) -> Spoilt:
    """A copy has the same signal under another id."""
    (run,) = signalled(world)
    copies = copies_of(world, run)
    cluster = _bystander(world, run)
    next(record for record in copies[cluster] if record.signals).signals = [f"{world.random.getrandbits(64):016x}"]
    return _spoilt(copies, run, "other_signal", Expected("different_signals", cluster))


def other_tree(world: World) -> Spoilt:
    """A copy's history tree belongs to no run."""
    run, copies, cluster = _crossing(world)
    tree_id = world.new_id()
    for record in copies[cluster]:
        record.tree_id = tree_id
    return _spoilt(copies, run, "other_tree", Expected("wrong_tree", cluster))


def torn_tree(world: World) -> Spoilt:
    """One batch of a copy is in another tree than the rest."""
    run, copies, cluster = _crossing(world)
    copies[cluster][-1].tree_id = world.new_id()
    return _spoilt(copies, run, "torn_tree", Expected("wrong_tree", cluster))


def tree_of_another(world: World) -> Spoilt:
    """A copy's history tree belongs to the previous run, although the run was not reset."""
    runs = chain(world)
    last = runs[-1]
    copies = [copies_of(world, run) for run in runs]
    owner = world.versions.owner(last.steps[-1].version)
    cluster = world.random.choice([name for name in world.clusters if name != owner])
    for record in copies[-1][cluster]:
        record.tree_id = runs[0].run_id
    return Spoilt(copies, [_planted(last, "tree_of_another", Expected("wrong_tree", cluster))])


def unnamed_signal(world: World) -> Spoilt:
    """A copy has a signal without an id."""
    (run,) = signalled(world)
    copies = copies_of(world, run)
    cluster = _bystander(world, run)
    next(record for record in copies[cluster] if record.signals).signals = None
    return _spoilt(copies, run, "unnamed_signal", Expected("malformed_batch", cluster))


def wrong_payload(world: World) -> Spoilt:
    """The payload of a batch does not fit its digests."""
    run, copies, cluster = _crossing(world)
    with_payloads(copies)
    spoil_payload(world.random.choice(copies[cluster]))
    return _spoilt(copies, run, "wrong_payload", Expected("wrong_payload", cluster))


def sole_witness(world: World) -> Spoilt:
    """Only one cluster has the end of a run, at a version at which another cluster writes: the plan may not send it."""
    run, copies, witness = _crossing(world)
    owner = world.versions.owner(run.steps[-1].version)
    others = [name for name in world.clusters if name != witness]
    for name in others:
        copies[name].pop()
    expected = [Expected("missing_events", name) for name in others]
    planted = Planted(
        "sole_witness", run.namespace_id, run.workflow_id, run.run_id,
        (*expected, Expected("extra_events", witness)), is_by_hand=True,
    )  # fmt: skip
    assert owner in others  # noqa: S101 - the witness wrote no batch of the run
    return Spoilt([copies], [planted])


def sole_witness_in_a_wrong_tree(world: World) -> Spoilt:
    """Only one cluster has a run, and its history tree belongs to no run: the plan may not send it."""
    run, copies, witness = _crossing(world)
    tree_id = world.new_id()
    for record in copies[witness]:
        record.tree_id = tree_id
    others = [name for name in world.clusters if name != witness]
    expected = [*(Expected("missing_run", name) for name in others), Expected("wrong_tree", witness)]
    planted = Planted(
        "sole_witness_in_a_wrong_tree", run.namespace_id, run.workflow_id, run.run_id, (*expected,), is_by_hand=True
    )
    return Spoilt([{witness: copies[witness]}], [planted])


def without_digests(world: World) -> Spoilt:
    """A batch that was journaled after its run was deleted has no digests, so it can't be compared."""
    run, copies, cluster = _crossing(world)
    record = world.random.choice(copies[cluster])
    record.event_types = record.event_digests = record.signals = None
    return Spoilt([copies], [_planted(run, "without_digests", verdict="not_comparable")])


def late_end(world: World) -> Spoilt:
    """Not a defect yet: the events that a cluster lacks may still arrive."""
    (run,) = recent(world, within_us=LATE_US)
    copies = copies_of(world, run)
    copies[_bystander(world, run)].pop()
    return Spoilt([copies], [_planted(run, "late_end", verdict="late")])


def late_run(world: World) -> Spoilt:
    """Like `late_end`, but the whole run is missing."""
    (run,) = recent(world, within_us=LATE_US)
    copies = copies_of(world, run)
    del copies[_bystander(world, run)]
    return Spoilt([copies], [_planted(run, "late_run", verdict="late")])


LATE_US = 120_000_000
OTHER_TYPE = 17  # TIMER_STARTED, which none of the runs has.
DEFECTS: tuple[Defect, ...] = (
    missing_run, missing_end, missing_branch, extra_end, different_event, gap, gap_at_the_beginning, falling_version,
    overwritten, shared_branch, mixed_versions, malformed_batch, contradiction, other_status, many_open, zombie,
    zombie_in_a_cluster, lost_signal, missing_successor, late_end, late_run, other_types, other_signal, other_tree,
    torn_tree, wrong_payload, sole_witness, without_digests, tree_of_another, unnamed_signal,
    sole_witness_in_a_wrong_tree,
)  # fmt: skip


def merge(left: HistoryRecord, right: HistoryRecord) -> HistoryRecord:
    """Merge two consecutive batches into one."""
    signals = [*(left.signals or ()), *(right.signals or ())]
    return msgspec.structs.replace(
        right,
        first_event_id=left.first_event_id,
        event_types=[*(left.event_types or ()), *(right.event_types or ())],
        event_digests=[*(left.event_digests or ()), *(right.event_digests or ())],
        signals=signals or None,
    )


def _crossing(world: World) -> tuple[Run, Copies, str]:
    """Return a run with a failover, its journals, and the cluster to spoil, which wrote no batch of the run."""
    (run,) = crossing(world)
    return run, copies_of(world, run), _bystander(world, run)


def _bystander(world: World, run: Run) -> str:
    owners = {world.versions.owner(step.version) for step in run.steps}
    return world.random.choice([name for name in world.clusters if name not in owners])


def _failover_position(records: list[HistoryRecord]) -> int:
    """Return the position of the last batch before the failover."""
    return next(place for place, (left, right) in enumerate(pairwise(records)) if left.version != right.version)


def _planted(run: Run, defect: str, *expected: Expected, verdict: str = "wrong") -> Planted:
    return Planted(defect, run.namespace_id, run.workflow_id, run.run_id, expected, verdict)


def _spoilt(copies: Copies, run: Run, defect: str, *expected: Expected) -> Spoilt:
    return Spoilt([copies], [_planted(run, defect, *expected)])
