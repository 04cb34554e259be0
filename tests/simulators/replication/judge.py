"""Runs the pipeline's `reconcile` job on all runs of all clusters at the end: it must find no fault."""

from collections.abc import Iterator, Mapping

from fairlead.history.events.signal_ids import signal_id
from fairlead.history.shard.journal import event_digest
from fairlead.pipeline.kernels.reconcile import Batch, Comparison, Judgement, Rules, read_copy
from fairlead.storage.history import RunKey
from tests.simulators.replication.convergence import SIGNALED, had_task
from tests.simulators.replication.reader import Branch, Run, Snapshot

_RULES = Rules(now_us=2)
_TIME_US = 1


def alarms(snapshots: Mapping[str, Snapshot]) -> Iterator[str]:
    """All findings; none is excused as replication lag."""
    runs = sorted({key for held in snapshots.values() for key in held.runs})
    judgements = {key: _judge(key, snapshots) for key in runs}
    given: dict[tuple[str, str], set[str]] = {}
    for key, judgement in judgements.items():
        given.setdefault(key[:2], set()).update(judgement.current_signals)
    for key, judgement in judgements.items():
        for finding in judgement.findings:
            yield f"reconcile finds in {key.workflow_id} {key.run_id}: {finding}"
        for signal, event in judgement.lost_signals:
            if signal not in given[key[:2]] and _can_be_reapplied(key, snapshots):
                yield f"reconcile finds in {key.workflow_id} {key.run_id}: signal {signal} of {event} is lost"


def _can_be_reapplied(key: RunKey, snapshots: Mapping[str, Snapshot]) -> bool:
    run = next(held.runs[key] for held in snapshots.values() if key in held.runs)
    return run.state.is_open or had_task(run)


def _judge(key: RunKey, snapshots: Mapping[str, Snapshot]) -> Judgement:
    copies = [
        read_copy(name, key.run_id, _batches(key.run_id, held.runs[key]))
        for name, held in snapshots.items()
        if key in held.runs
    ]
    return Comparison(copies, sorted(snapshots), _RULES).judge()


def _batches(run_id: str, run: Run) -> Iterator[Batch]:
    """The batches as in the journal, but with consecutive events of one version on a branch in one batch."""
    reported: set[tuple[int, int]] = set()
    for place, branch in enumerate((run.current, *run.others)):
        before = 0
        for last, version in branch.pairs:
            first = before + 1
            while first <= last and (first, version) in reported:
                first += 1
            if first <= last:
                reported.update((event_id, version) for event_id in range(first, last + 1))
                yield _batch(run_id, run, branch, branch_id=str(place), first=first, last=last)
            before = last


def _batch(run_id: str, run: Run, branch: Branch, *, branch_id: str, first: int, last: int) -> Batch:
    events = [event for event in branch.events if first <= event.event_id <= last]
    return Batch(
        tree_id=run_id,
        branch_id=branch_id,
        first=first,
        last=last,
        version=events[-1].version,
        task_id=first,
        time_us=_TIME_US,
        status=run.state.status,
        types_count=len(events),
        digests="".join(map(event_digest, events)),
        items=tuple(pair for pair in branch.pairs if pair[0] <= last),
        signals=tuple(signal_id(event, run_id) for event in events if event.event_type == SIGNALED),
        event_types=tuple(event.event_type for event in events),
    )
