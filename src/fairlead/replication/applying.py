"""Takes in what another cluster sent: one task at a time, with what is missing before it."""

from collections.abc import Callable, Iterator, Sequence

from fairlead.cluster.calls import CallLost, Exhausted
from fairlead.core.errors import FairleadError, FixRequest, GiveUp, RetryElsewhere, RetryLater
from fairlead.core.routing import NoHosts
from fairlead.core.versions import VersionHistory
from fairlead.history.applying.messages import ApplyAnswer, Outcome, ReplicatedBatch, ReplicatedProgress, decode_answer
from fairlead.history.client import HistoryClient
from fairlead.history.refusals import Refused
from fairlead.history.stream_messages import BranchesAnswer, BranchesRequest, ReadLineAnswer, ReplicationTask
from fairlead.history.stream_rows import NO_PROGRESS, PROGRESS, decode_progress
from fairlead.replication.dead_letters import DeadLetter
from fairlead.replication.messages import RemoteReadLine
from fairlead.replication.remote import Remote, RemoteUnavailable
from fairlead.replication.wire import decode
from fairlead.rpc import Code
from fairlead.storage.history_contract import OPEN_STATUSES, OutcomeUnknown, StoreUnavailable
from fairlead.telemetry import REPLICATION_BATCHES_RESENT, REPLICATION_TASKS_APPLIED, Metrics

APPLY_S = 10.0
LINE_BYTES_MAX = 1 << 20
# A gap is filled, and then another one may be found behind it: what was filled is of a branch that came meanwhile.
GAPS_MAX = 3
# Refusals that say "not now": the namespace is yet to come from another cluster, or a bound is reached.
_PASSING = frozenset((Code.NOT_FOUND, Code.RESOURCE_EXHAUSTED, Code.UNAVAILABLE, Code.ABORTED, Code.DEADLINE_EXCEEDED))

# Of clusters: the source is away, or a shard here is on its way to another host, or a host or the store is.
_PASSED = (RemoteUnavailable, RetryElsewhere, CallLost, Exhausted, OutcomeUnknown, StoreUnavailable, NoHosts)


class StillMissing(RetryLater):
    """Events before a batch are missing here, and the other cluster does not send them."""


class LineGone(RetryLater):
    """The other cluster does not have the run, or not that line of it."""


class BatchGone(GiveUp):
    """A run that goes on here lacks events that its cluster has deleted."""


def is_permanent(failure: Exception) -> bool:
    """Whether to try again is of no use."""
    if isinstance(failure, Refused):
        return failure.code not in _PASSING
    return isinstance(failure, GiveUp | FixRequest)


def is_its_own(failure: Exception) -> bool:
    """Whether a failure has to do with the task, and not with how this cluster or the source fares just now."""
    return not isinstance(failure, _PASSED)


class Applier:
    """Takes in the tasks of one source."""

    def __init__(self, source: str, *, remote: Callable[[], Remote], history: HistoryClient, metrics: Metrics) -> None:
        self._source = source
        self._remote = remote
        self._history = history
        self._metrics = metrics

    async def apply(self, task: ReplicationTask) -> str:
        """Have a task carried out, and all that is missing before it; the outcome."""
        if task.first_event_id == PROGRESS:
            return await self._apply_progress(task)
        if task.is_gone:
            return await self._do_without(task)
        return await self._apply("ApplyBatch", task, self._batch_of([task]))

    async def apply_together(self, tasks: Sequence[ReplicationTask]) -> None:
        """Have tasks of one run carried out, in as few commits as may be.

        Of activities' progress only the last of a line is wanted: it has all that the ones before have of what is
        pending still.
        """
        batches = [task for task in tasks if task.first_event_id != PROGRESS]
        for row in _in_a_row(batches):
            if row[0].is_gone:
                await self._do_without(row[0])
            else:
                await self._apply("ApplyBatch", row[0], self._batch_of(row))
        for task in _last_of_lines([task for task in tasks if task.first_event_id == PROGRESS]):
            await self._apply_progress(task)

    async def _do_without(self, task: ReplicationTask) -> str:
        """See whether a batch that can't be had any more is missed: by a run that is open here and does not have it."""
        asked = BranchesRequest(task.workflow_id, task.run_id)
        try:
            answer = await self._history.call("Branches", task.namespace_id, task.workflow_id, asked, timeout_s=APPLY_S)
        except Refused as refusal:
            if refusal.code != Code.NOT_FOUND:
                raise
            return Outcome.DUPLICATE
        found = decode(answer, BranchesAnswer)
        last = VersionHistory.from_pairs(task.items).last
        lines = [VersionHistory.from_pairs(items) for _, items in found.branches]
        if found.status not in OPEN_STATUSES or any(
            line.contains(event_id=task.last_event_id, version=last.version) for line in lines
        ):
            return Outcome.DUPLICATE
        raise BatchGone(
            f"cluster {self._source!r} does not have events {task.first_event_id} to {task.last_event_id} of run "
            f"{task.run_id} any more, and the run is open here: get them from another cluster, or end the run"
        )

    def _batch_of(self, row: Sequence[ReplicationTask]) -> ReplicatedBatch:
        first, last = row[0], row[-1]
        return ReplicatedBatch(
            first.namespace_id,
            first.workflow_id,
            first.run_id,
            self._source,
            last.items,
            b"".join(task.events for task in row),
            first.start_request_id,
            tuple(len(task.events) for task in row) if len(row) > 1 else (),
        )

    async def replay(self, letter: DeadLetter) -> str:
        """Get the events of a dead letter from its source, and carry it out."""
        asked = _asked(letter, letter.first_event_id, letter.last_event_id + 1)
        outcome: str = Outcome.DUPLICATE
        if letter.first_event_id == PROGRESS:
            answer = await self._read_line(asked)
            # Where there is none, the line itself may be missing here.
            return await self._apply_progress(_task_of(letter, answer.progress or NO_PROGRESS))
        from_id = letter.first_event_id
        while from_id <= letter.last_event_id:
            answer = await self._read_line(_asked(letter, from_id, letter.last_event_id + 1))
            if not answer.batches:
                raise StillMissing(
                    f"cluster {self._source!r} has no event {from_id} of run {letter.run_id} any more: purge the letter"
                )
            for next_id, batch in self._batches(letter, answer, from_id):
                outcome = await self._apply("ApplyBatch", letter, batch)
                from_id = next_id
        return outcome

    async def _apply_progress(self, task: ReplicationTask) -> str:
        progress = ReplicatedProgress(
            task.namespace_id,
            task.workflow_id,
            task.run_id,
            self._source,
            task.items,
            decode_progress(task.events),
        )
        try:
            return await self._apply("ApplyProgress", task, progress)
        except LineGone:
            # It was deleted before it was known here: there is nothing to have progress.
            return Outcome.DUPLICATE

    async def _apply(
        self, name: str, task: ReplicationTask | DeadLetter, request: ReplicatedBatch | ReplicatedProgress
    ) -> str:
        gaps = 0
        while True:
            answer = await self._call(name, request)
            if answer.outcome != Outcome.GAP:
                return answer.outcome
            gaps += 1
            if gaps > GAPS_MAX:
                raise _still_missing(task, answer)
            await self._fill(task, answer)

    async def _fill(self, task: ReplicationTask | DeadLetter, gap: ApplyAnswer) -> None:
        """Get exactly what is missing, in pages."""
        from_id = gap.missing_from
        while from_id < gap.missing_to:
            answer = await self._read_line(_asked(task, from_id, gap.missing_to))
            if not answer.batches:
                raise _still_missing(task, gap)
            for next_id, batch in self._batches(task, answer, from_id):
                applied = await self._call("ApplyBatch", batch)
                if applied.outcome == Outcome.GAP:
                    raise _still_missing(task, applied)
                self._metrics.count(REPLICATION_BATCHES_RESENT, self._source)
                from_id = next_id

    async def _read_line(self, asked: RemoteReadLine) -> ReadLineAnswer:
        try:
            return await self._remote().read_line(asked)
        except (RetryLater, RetryElsewhere) as failure:
            # The source is away or not well, which is no fault of the task.
            raise RemoteUnavailable(f"cluster {self._source!r} does not send events: {failure}") from failure
        except Refused as refusal:
            if refusal.code != Code.NOT_FOUND:
                raise
            raise LineGone(f"cluster {self._source!r} does not have it any more: {refusal}") from refusal

    def _batches(
        self, task: ReplicationTask | DeadLetter, answer: ReadLineAnswer, from_id: int
    ) -> Iterator[tuple[int, ReplicatedBatch]]:
        """Each batch of a line that was asked for from an event on, and the event after it."""
        for batch in answer.batches:
            if batch.last_event_id < from_id:
                # Whoever goes on asking after that one never comes to an end.
                raise StillMissing(
                    f"cluster {self._source!r} sends events up to {batch.last_event_id} of run {task.run_id} where "
                    f"those from {from_id} on are wanted"
                )
            from_id = batch.last_event_id + 1
            yield (
                from_id,
                ReplicatedBatch(
                    task.namespace_id,
                    task.workflow_id,
                    task.run_id,
                    self._source,
                    task.items,
                    batch.events,
                    answer.start_request_id,
                ),
            )

    async def _call(self, name: str, request: ReplicatedBatch | ReplicatedProgress) -> ApplyAnswer:
        answer = decode_answer(
            await self._history.call(name, request.namespace_id, request.workflow_id, request, timeout_s=APPLY_S)
        )
        together = len(request.sizes) if isinstance(request, ReplicatedBatch) else 0
        self._metrics.count(REPLICATION_TASKS_APPLIED, self._source, answer.outcome, amount=max(1, together))
        return answer


def _in_a_row(tasks: Sequence[ReplicationTask]) -> Iterator[list[ReplicationTask]]:
    """Batches that follow each other on one line, at one version."""
    row: list[ReplicationTask] = []
    for task in tasks:
        if row and not _follows(row[-1], task):
            yield row
            row = []
        row.append(task)
    if row:
        yield row


def _follows(before: ReplicationTask, task: ReplicationTask) -> bool:
    """Whether its line is that of the one before and goes on where that ends.

    The rest is checked where the batch is taken in: a line is not always as long as its batch.
    """
    if task.first_event_id != before.last_event_id + 1 or not before.items or not task.items:
        return False
    if before.is_gone or task.is_gone:
        return False
    *lower, (_, version) = before.items
    return task.items[:-1] == tuple(lower) and task.items[-1][1] == version


def _last_of_lines(tasks: Sequence[ReplicationTask]) -> list[ReplicationTask]:
    """Progress that no later one is on the line of."""
    found: list[ReplicationTask] = []
    lines: list[VersionHistory] = []
    for task in reversed(tasks):
        line = VersionHistory.from_pairs(task.items)
        if not any(later.contains(event_id=line.last.event_id, version=line.last.version) for later in lines):
            found.append(task)
            lines.append(line)
    return found[::-1]


def _asked(task: ReplicationTask | DeadLetter, from_event_id: int, to_event_id: int) -> RemoteReadLine:
    return RemoteReadLine(
        task.namespace_id,
        task.workflow_id,
        task.run_id,
        task.items,
        from_event_id,
        to_event_id,
        LINE_BYTES_MAX,
    )


def _task_of(letter: DeadLetter, progress: bytes) -> ReplicationTask:
    return ReplicationTask(
        letter.task_id,
        0,
        letter.namespace_id,
        letter.workflow_id,
        letter.run_id,
        PROGRESS,
        PROGRESS,
        letter.items,
        progress,
    )


def _still_missing(task: ReplicationTask | DeadLetter, gap: ApplyAnswer) -> FairleadError:
    return StillMissing(
        f"events {gap.missing_from} to {gap.missing_to - 1} of run {task.run_id} are missing here, and what its "
        "cluster sends does not fill the gap"
    )
