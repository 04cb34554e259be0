"""Checks of the final state: all clusters have the same data, and nothing that was acknowledged is lost."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from fairlead.history.state import RunState
from fairlead.storage.history import RunKey
from tests.simulators.replication.reader import Branch, Run, Snapshot, rebuilt

SIGNALED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
ADMITTED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ADMITTED
ACCEPTED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED
TASK_COMPLETED = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED

# Fields that may differ between two clusters, with the reason.
STATE_EXCLUDED = {
    "identity": "each cluster's store has its own ids for tree and branch",
    "live": "fields that don't follow from the events are compared one by one, see below",
}
LIVE_EXCLUDED = {
    "history_size_bytes": "depends on the batches in which the events were written, which a fork may split",
    "task_attempt": "repeated failures of a workflow task leave no event, and another cluster starts again at 1",
    "task_row_since_ns": "likewise",
    "unwritten_task": "a transient or speculative task belongs to one cluster until it is written",
    "sticky_task_queue": "a worker keeps the run in its cache only for the cluster that it polls",
    "sticky_timeout_ns": "likewise",
    "request_ids": "each cluster deduplicates its own requests, and reapplied signals by their events",
    "routing_revision": "each cluster has its own worker deployments",
    "transitions": "counts the writes in this cluster",
    "branches": "compared as sets of version histories, because each cluster has its own branch ids",
    "ancestors": "likewise",
    "rebuilds": "the number of switches of the current branch depends on the order of the batches",
    "reset_run_id": "only the cluster of the reset notes the new run; the new run names its base everywhere",
    "is_settled": "only the active cluster knows whether all events were reapplied",
    "activities": "compared without the fields of one cluster only",
    "ending": "belongs to buffered events, which only the active cluster has",
    "buffered": "likewise",
    "reported_problems": "depends on failed attempts, which leave no event",
    "cancel_buffered": "likewise",
}
REBUILT_EXCLUDED = {"live": "does not follow from the events"}
PROGRESS_EXCLUDED = {
    "stamp": "marks obsolete tasks of this cluster",
}
NAMESPACE_EXCLUDED = {
    "version": "the number of writes to this cluster's store",
    "handover_until_ns": "only the cluster that hands over waits",
    "handover_to": "likewise",
}


def differences(snapshots: Mapping[str, Snapshot]) -> Iterator[str]:
    """All differences between the clusters."""
    first, *others = snapshots
    for other in others:
        yield from _between(first, snapshots[first], other, snapshots[other])
    for name, held in snapshots.items():
        yield from _within(name, held)


def _between(one: str, left: Snapshot, other: str, right: Snapshot) -> Iterator[str]:
    for namespace_id in sorted(left.namespaces.keys() | right.namespaces.keys()):
        pair = left.namespaces.get(namespace_id), right.namespaces.get(namespace_id)
        if None in pair:
            yield f"namespace {namespace_id} is not in {one if pair[0] is None else other}"
        else:
            yield from _fields(f"namespace {namespace_id}", one, pair[0], other, pair[1], NAMESPACE_EXCLUDED)
    for key in sorted(left.currents.keys() | right.currents.keys()):
        if left.currents.get(key) != right.currents.get(key):
            yield f"{key[1]} is run {left.currents.get(key)} in {one} and {right.currents.get(key)} in {other}"
    for run_key in sorted(left.runs.keys() | right.runs.keys()):
        if run_key not in left.runs or run_key not in right.runs:
            yield f"{_named(run_key)} is not in {one if run_key not in left.runs else other}"
        else:
            yield from _between_runs(_named(run_key), one, left.runs[run_key], other, right.runs[run_key])


def _between_runs(name: str, one: str, left: Run, other: str, right: Run) -> Iterator[str]:
    if left.current.pairs != right.current.pairs:
        yield f"{name}: the current branch is {left.current.pairs} in {one} and {right.current.pairs} in {other}"
    branches = [{branch.pairs for branch in (run.current, *run.others)} for run in (left, right)]
    if branches[0] != branches[1]:
        yield f"{name}: the branches are {sorted(branches[0])} in {one} and {sorted(branches[1])} in {other}"
    yield from _fields(name, one, left.state, other, right.state, STATE_EXCLUDED)
    yield from _fields(f"{name} live", one, left.state.live, other, right.state.live, LIVE_EXCLUDED)
    if left.state.is_open and right.state.is_open:
        activities = [run.state.live.activities for run in (left, right)]
        for event_id in sorted(left.state.activities.keys() & right.state.activities.keys()):
            progress = [found.get(event_id) for found in activities]
            if None not in progress:
                where = f"{name} activity {event_id}"
                yield from _fields(where, one, progress[0], other, progress[1], PROGRESS_EXCLUDED)


def _fields(name: str, one: str, left: Any, other: str, right: Any, excluded: Mapping[str, str]) -> Iterator[str]:
    for field in left.__struct_fields__:
        values = getattr(left, field), getattr(right, field)
        if field not in excluded and values[0] != values[1]:
            yield f"{name}: {field} is {values[0]!r} in {one} and {values[1]!r} in {other}"


def _within(cluster: str, held: Snapshot) -> Iterator[str]:
    """All faults in the state of one cluster."""
    for key, run in held.runs.items():
        name = f"{_named(key)} in {cluster}"
        for branch in (run.current, *run.others):
            yield from _branch_faults(name, branch)
        newest = max((branch.pairs[-1][1] for branch in run.others), default=-1)
        if newest >= run.current.pairs[-1][1]:
            yield f"{name}: a branch of version {newest} is not the current one, which has {run.current.pairs}"
        yield from _fields(name, "the store", run.state, "the events", rebuilt(run), REBUILT_EXCLUDED)
        if run.is_zombie and not run.state.is_open:
            yield f"{name} is a zombie, and closed"
        if run.is_zombie and held.currents.get(key[:2]) == key.run_id:
            yield f"{name} is a zombie, and the current run"


def _branch_faults(name: str, branch: Branch) -> Iterator[str]:
    ids = [event.event_id for event in branch.events]
    if ids != list(range(1, branch.pairs[-1][0] + 1)):
        yield f"{name}: the branch {branch.pairs} has events {ids}"
        return
    pairs: list[tuple[int, int]] = []
    for event in branch.events:
        if pairs and pairs[-1][1] == event.version:
            pairs.pop()
        pairs.append((event.event_id, event.version))
    if tuple(pairs) != branch.pairs:
        yield f"{name}: the branch {branch.pairs} has events of versions {pairs}"


def open_runs(held: Snapshot) -> list[str]:
    """The runs that have not ended."""
    return [
        f"{_named(key)} ({'zombie, ' if run.is_zombie else ''}{_pending(run.state)})"
        for key, run in held.runs.items()
        if run.state.is_open
    ]


def _pending(state: RunState) -> str:
    task = state.workflow_task
    return (
        f"events to {state.next_event_id - 1}, version {state.last_version}, "
        f"{'no' if task is None else task.kind.name} workflow task, {len(state.timers)} timers, "
        f"{len(state.activities)} activities, {len(state.live.buffered)} buffered"
    )


def lost(acknowledged: Mapping[str, tuple[str, str]], held: Snapshot) -> Iterator[str]:
    """The acknowledged signals and updates that are not exactly once on the current branches of their workflow.

    A signal must be once on the current branch of one run of its workflow. `Watching` checks at every commit that no
    cluster writes a signal to a second run if it has the first. There are two exceptions, in which both runs have the
    signal: a reset, and a run that was closed because another run is newer. A signal on a losing branch can't be
    reapplied if its run was closed on the current branch before any workflow task was completed.
    """
    on_current: dict[str, Counter[RunKey]] = {}
    behind: dict[str, set[RunKey]] = {}
    for key, run in held.runs.items():
        for name in _signals_and_updates(run.current.events):
            on_current.setdefault(name, Counter())[key] += 1
        for branch in run.others:
            for name in _signals_and_updates(branch.events):
                behind.setdefault(name, set()).add(key)
    for name, (namespace_id, workflow_id) in sorted(acknowledged.items()):
        found = on_current.get(name, Counter())
        where = f"{name} to {workflow_id}"
        if any(key[:2] != (namespace_id, workflow_id) for key in found):
            yield f"{where} is in another workflow: {dict(found)}"
        for key, times in found.items():
            if times > 1:
                yield f"{where} is {times} times on the current branch of {_named(key)}"
        if not found:
            losers = behind.get(name, set())
            if not losers or any(had_task(held.runs[key]) or held.runs[key].state.is_open for key in losers):
                yield f"{where} is on no current branch; on losing branches of {', '.join(map(_named, sorted(losers)))}"


def twice_on_a_branch(held: Snapshot) -> Iterator[str]:
    """Signals and updates, acknowledged or not, that are twice on a current branch although they were sent once."""
    for key, run in held.runs.items():
        for name, times in Counter(_signals_and_updates(run.current.events)).items():
            if times > 1:
                yield f"{name} is {times} times on the current branch of {_named(key)}"


def _signals_and_updates(events: tuple[HistoryEvent, ...]) -> list[str]:
    """The signals and updates of a branch. A reapplied update is first admitted, and may be accepted later."""
    reported: list[str] = []
    admitted: set[str] = set()
    for event in events:
        if event.event_type == SIGNALED:
            reported.append(f"signal {event.workflow_execution_signaled_event_attributes.signal_name}")
        elif event.event_type == ADMITTED:
            update_id = event.workflow_execution_update_admitted_event_attributes.request.meta.update_id
            admitted.add(update_id)
            reported.append(f"update {update_id}")
        elif event.event_type == ACCEPTED:
            update_id = event.workflow_execution_update_accepted_event_attributes.protocol_instance_id
            if update_id not in admitted:
                reported.append(f"update {update_id}")
            admitted.discard(update_id)
    return reported


def had_task(run: Run) -> bool:
    """Whether a run can be reset. If not, its lost events can't be reapplied after its end."""
    return any(event.event_type == TASK_COMPLETED for event in run.current.events)


def _named(key: RunKey) -> str:
    return f"{key.workflow_id} {key.run_id}"
