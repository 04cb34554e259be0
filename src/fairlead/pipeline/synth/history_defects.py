"""Defects to plant in journals: each spoils what one or more clusters journaled of a run that was right."""

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import msgspec

from fairlead.journal.records import HistoryRecord, VersionItem
from fairlead.pipeline.synth.history_runs import (
    Run,
    World,
    chain,
    copies_of,
    crossing,
    parted,
    recent,
    replaced,
    two_open,
)

Copies = dict[str, list[HistoryRecord]]


class Expected(NamedTuple):
    """One finding that a check must report; without a cluster, it is about all."""

    kind: str
    cluster: str | None


class Planted(msgspec.Struct, frozen=True):
    """A run that was spoilt, how, and all that a check must find in it, and nothing else.

    `verdict` is `late` where it is still too early to call it wrong.
    """

    defect: str
    namespace_id: str
    workflow_id: str
    run_id: str
    expected: tuple[Expected, ...]
    verdict: str = "wrong"


class Spoilt(NamedTuple):
    """The journals of the runs of one workflow id, and what was planted in them."""

    copies: list[Copies]
    planted: list[Planted]


Defect = Callable[[World], Spoilt]


def missing_run(world: World) -> Spoilt:
    """A cluster never heard of a run."""
    run, copies, cluster = _crossing(world)
    del copies[cluster]
    return _spoilt(copies, run, "missing_run", Expected("missing_run", cluster))


def missing_end(world: World) -> Spoilt:
    """The last batch did not arrive in a cluster."""
    run, copies, cluster = _crossing(world)
    copies[cluster].pop()
    return _spoilt(copies, run, "missing_end", Expected("missing_events", cluster))


def missing_branch(world: World) -> Spoilt:
    """The winning branch did not arrive in a cluster, which goes on with the lost one."""
    (run,) = parted(world)
    copies = copies_of(world, run)
    cluster = _bystander(world, run)
    winning = copies[cluster][-1].version
    copies[cluster] = [record for record in copies[cluster] if record.version != winning]
    return _spoilt(copies, run, "missing_branch", Expected("missing_events", cluster))


def extra_end(world: World) -> Spoilt:
    """The cluster that wrote the last batch does not have it any more."""
    run, copies, _ = _crossing(world)
    owner = world.versions.owner(run.steps[-1].version)
    copies[owner].pop()
    others = [Expected("extra_events", name) for name in world.clusters if name != owner]
    return _spoilt(copies, run, "extra_end", Expected("missing_events", owner), *others)


def different_event(world: World) -> Spoilt:
    """One event has another content in a cluster."""
    run, copies, cluster = _crossing(world)
    record = world.random.choice(copies[cluster])
    (record.event_digests or [])[-1] = f"{world.random.getrandbits(64):016x}"
    return _spoilt(copies, run, "different_event", Expected("different_events", cluster))


def gap(world: World) -> Spoilt:
    """A batch in the middle is not there."""
    run, copies, cluster = _crossing(world)
    copies[cluster].pop(world.random.randrange(1, len(copies[cluster]) - 1))
    return _spoilt(copies, run, "gap", Expected("gap", cluster))


def gap_at_the_beginning(world: World) -> Spoilt:
    """The first batch is not there."""
    run, copies, cluster = _crossing(world)
    copies[cluster].pop(0)
    return _spoilt(copies, run, "gap_at_the_beginning", Expected("gap", cluster))


def falling_version(world: World) -> Spoilt:
    """A batch says that it follows events of a higher version."""
    run, copies, cluster = _crossing(world)
    record = copies[cluster][-1]
    higher = VersionItem(record.first_event_id - 1, record.version + world.versions.increment)
    record.items = [higher, VersionItem(record.last_event_id, record.version)]
    return _spoilt(copies, run, "falling_version", Expected("broken_append", cluster))


def overwritten(world: World) -> Spoilt:
    """A batch was written over another one."""
    run, copies, cluster = _crossing(world)
    record = world.random.choice(copies[cluster])
    digests = [f"{world.random.getrandbits(64):016x}" for _ in record.event_digests or ()]
    copies[cluster].append(msgspec.structs.replace(record, task_id=record.task_id + 10**9, event_digests=digests))
    expected = Expected("broken_append", cluster), Expected("different_events", cluster)
    return _spoilt(copies, run, "overwritten", *expected)


def shared_branch(world: World) -> Spoilt:
    """Two lines were written to one branch."""
    (run,) = parted(world)
    copies = copies_of(world, run)
    cluster = _bystander(world, run)
    for record in copies[cluster]:
        record.branch_id = copies[cluster][0].branch_id
    return _spoilt(copies, run, "shared_branch", Expected("broken_append", cluster))


def mixed_versions(world: World) -> Spoilt:
    """A batch goes over a failover."""
    run, copies, cluster = _crossing(world)
    records = copies[cluster]
    place = _failover_place(records)
    records[place : place + 2] = [merge(records[place], records[place + 1])]
    return _spoilt(copies, run, "mixed_versions", Expected("mixed_versions", cluster))


def malformed_batch(world: World) -> Spoilt:
    """A batch has fewer digests than events."""
    run, copies, cluster = _crossing(world)
    (world.random.choice(copies[cluster]).event_digests or []).pop()
    return _spoilt(copies, run, "malformed_batch", Expected("malformed_batch", cluster))


def contradiction(world: World) -> Spoilt:
    """A cluster has the events after a failover on a line that leaves the trunk one event too early."""
    run, copies, cluster = _crossing(world)
    records = copies[cluster]
    place = _failover_place(records)
    fork, branch = records[place].last_event_id - 1, world.new_id()
    for record in records[place + 1 :]:
        items = record.items[:-2]
        record.items = [*items, VersionItem(fork, record.items[-2].version), record.items[-1]]
        record.branch_id = branch
    return _spoilt(copies, run, "contradiction", Expected("contradiction", cluster))


def other_status(world: World) -> Spoilt:
    """The same events, and another end."""
    run, copies, cluster = _crossing(world)
    copies[cluster][-1].status = 7
    return _spoilt(copies, run, "other_status", Expected("status_differs", cluster))


def many_open(world: World) -> Spoilt:
    """Two runs of a workflow id are open."""
    runs = two_open(world)
    planted = [_planted(run, "many_open", Expected("many_open", None)) for run in runs]
    return Spoilt([copies_of(world, run) for run in runs], planted)


def zombie(world: World) -> Spoilt:
    """A run that was replaced after a failover was never ended."""
    runs = replaced(world, is_ended=False)
    planted = _planted(runs[0], "zombie", Expected("zombie", None))
    return Spoilt([copies_of(world, run) for run in runs], [planted])


def zombie_in_a_cluster(world: World) -> Spoilt:
    """A run that was replaced has ended, but one cluster was not told."""
    runs = replaced(world)
    copies = [copies_of(world, run) for run in runs]
    cluster = _bystander(world, runs[0])
    copies[0][cluster].pop()
    expected = Expected("missing_events", cluster), Expected("zombie", cluster)
    return Spoilt(copies, [_planted(runs[0], "zombie_in_a_cluster", *expected)])


def lost_signal(world: World) -> Spoilt:
    """The signal of a lost branch was not given to the winning one."""
    (run,) = parted(world, is_reapplied=False)
    return _spoilt(copies_of(world, run), run, "lost_signal", Expected("lost_signal", None))


def missing_successor(world: World) -> Spoilt:
    """A run goes on in another one that no cluster has."""
    *runs, _ = chain(world)
    planted = _planted(runs[-1], "missing_successor", Expected("missing_successor", None))
    return Spoilt([copies_of(world, run) for run in runs], [planted])


def late_end(world: World) -> Spoilt:
    """No defect yet: what a cluster does not have is on its way."""
    (run,) = recent(world, within_us=LATE_US)
    copies = copies_of(world, run)
    copies[_bystander(world, run)].pop()
    return Spoilt([copies], [_planted(run, "late_end", verdict="late")])


def late_run(world: World) -> Spoilt:
    """The same of a whole run."""
    (run,) = recent(world, within_us=LATE_US)
    copies = copies_of(world, run)
    del copies[_bystander(world, run)]
    return Spoilt([copies], [_planted(run, "late_run", verdict="late")])


LATE_US = 120_000_000
DEFECTS: tuple[Defect, ...] = (
    missing_run, missing_end, missing_branch, extra_end, different_event, gap, gap_at_the_beginning, falling_version,
    overwritten, shared_branch, mixed_versions, malformed_batch, contradiction, other_status, many_open, zombie,
    zombie_in_a_cluster, lost_signal, missing_successor, late_end, late_run,
)  # fmt: skip


def merge(left: HistoryRecord, right: HistoryRecord) -> HistoryRecord:
    """Two batches that follow each other as one."""
    signals = [*(left.signals or ()), *(right.signals or ())]
    return msgspec.structs.replace(
        right,
        first_event_id=left.first_event_id,
        event_types=[*(left.event_types or ()), *(right.event_types or ())],
        event_digests=[*(left.event_digests or ()), *(right.event_digests or ())],
        signals=signals or None,
    )


def _crossing(world: World) -> tuple[Run, Copies, str]:
    """A run over a failover, its journals, and the cluster to spoil: one that wrote nothing of it."""
    (run,) = crossing(world)
    return run, copies_of(world, run), _bystander(world, run)


def _bystander(world: World, run: Run) -> str:
    owners = {world.versions.owner(step.version) for step in run.steps}
    return world.random.choice([name for name in world.clusters if name not in owners])


def _failover_place(records: list[HistoryRecord]) -> int:
    """Where the last batch before the failover stands."""
    return next(place for place, (left, right) in enumerate(pairwise(records)) if left.version != right.version)


def _planted(run: Run, defect: str, *expected: Expected, verdict: str = "wrong") -> Planted:
    return Planted(defect, run.namespace_id, run.workflow_id, run.run_id, expected, verdict)


def _spoilt(copies: Copies, run: Run, defect: str, *expected: Expected) -> Spoilt:
    return Spoilt([copies], [_planted(run, defect, *expected)])
