"""Takes in what another cluster sent: one task at a time, with what is missing before it."""

from collections.abc import Callable

from fairlead.core.errors import FairleadError, FixRequest, GiveUp, RetryElsewhere, RetryLater
from fairlead.history.applying.messages import ApplyAnswer, Outcome, ReplicatedBatch, ReplicatedProgress, decode_answer
from fairlead.history.client import HistoryClient
from fairlead.history.refusals import Refused
from fairlead.history.stream_messages import ReadLineAnswer, ReplicationTask
from fairlead.history.stream_rows import PROGRESS, decode_progress
from fairlead.replication.dead_letters import DeadLetter
from fairlead.replication.messages import RemoteReadLine
from fairlead.replication.remote import Remote, RemoteUnavailable
from fairlead.rpc import Code
from fairlead.telemetry import REPLICATION_BATCHES_RESENT, REPLICATION_TASKS_APPLIED, Metrics

APPLY_S = 10.0
LINE_BYTES_MAX = 1 << 20
# A gap is filled, and then another one may be found behind it: what was filled is of a branch that came meanwhile.
GAPS_MAX = 3
# Refusals that say "not now": the namespace is yet to come from another cluster, or a bound is reached.
_PASSING = frozenset((Code.NOT_FOUND, Code.RESOURCE_EXHAUSTED, Code.UNAVAILABLE, Code.ABORTED, Code.DEADLINE_EXCEEDED))


class StillMissing(RetryLater):
    """Events before a batch are missing here, and the other cluster does not send them."""


def is_permanent(failure: Exception) -> bool:
    """Whether to try again is of no use."""
    if isinstance(failure, Refused):
        return failure.code not in _PASSING
    return isinstance(failure, GiveUp | FixRequest)


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
        batch = ReplicatedBatch(
            task.namespace_id,
            task.workflow_id,
            task.run_id,
            self._source,
            task.items,
            task.events,
            task.start_request_id,
        )
        return await self._apply("ApplyBatch", task, batch)

    async def replay(self, letter: DeadLetter) -> str:
        """Get the events of a dead letter from its source, and carry it out."""
        asked = _asked(letter, letter.first_event_id, letter.last_event_id + 1)
        outcome: str = Outcome.DUPLICATE
        if letter.first_event_id == PROGRESS:
            answer = await self._read_line(asked)
            if answer.progress:
                outcome = await self._apply_progress(_task_of(letter, answer.progress))
            return outcome
        from_id = letter.first_event_id
        while from_id <= letter.last_event_id:
            answer = await self._read_line(_asked(letter, from_id, letter.last_event_id + 1))
            if not answer.batches:
                raise StillMissing(
                    f"cluster {self._source!r} has no event {from_id} of run {letter.run_id} any more: purge the letter"
                )
            for next_id, batch in self._batches(letter, answer):
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
        return await self._apply("ApplyProgress", task, progress)

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
            for next_id, batch in self._batches(task, answer):
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

    def _batches(self, task: ReplicationTask | DeadLetter, answer: ReadLineAnswer) -> list[tuple[int, ReplicatedBatch]]:
        """Each batch of a line, and the event after it."""
        return [
            (
                batch.last_event_id + 1,
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
            for batch in answer.batches
        ]

    async def _call(self, name: str, request: ReplicatedBatch | ReplicatedProgress) -> ApplyAnswer:
        answer = decode_answer(
            await self._history.call(name, request.namespace_id, request.workflow_id, request, timeout_s=APPLY_S)
        )
        self._metrics.count(REPLICATION_TASKS_APPLIED, self._source, answer.outcome)
        return answer


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
