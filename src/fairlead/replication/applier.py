"""Applies the replication tasks of another cluster, one at a time, and fetches the events missing before them."""

from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

from fairlead.api.errors import NotFound
from fairlead.core.errors import FairleadError, FixRequest, GiveUp, RetryElsewhere, RetryLater
from fairlead.core.routing import NoHosts
from fairlead.core.versions import VersionHistory
from fairlead.history.client import HistoryClient
from fairlead.history.messages.ndc import ApplyResponse, Outcome, ReplicatedBatch, ReplicatedProgress, decode_answer
from fairlead.history.messages.progress import NO_PROGRESS, PROGRESS, decode_progress
from fairlead.history.messages.stream import BranchesRequest, BranchesResponse, ReadBranchResponse, ReplicationTask
from fairlead.replication.dead_letters import DeadLetter
from fairlead.replication.messages import RemoteReadBranch
from fairlead.replication.remote import Remote, RemoteUnavailable
from fairlead.replication.wire import decode
from fairlead.rpc.hosts.caller import CallLost, Overloaded
from fairlead.storage.history import OPEN_STATUSES, OutcomeUnknown, StoreUnavailable
from fairlead.telemetry import REPLICATION_BATCHES_RESENT, REPLICATION_TASKS_APPLIED, Metrics

APPLY_S = 10.0
LINE_BYTES_MAX = 1 << 20
# Number of gaps that are filled for one task: a branch that arrives meanwhile may open another gap.
GAPS_MAX = 3
# Temporary errors: the source is down, a shard here is moving to another host, or a host or the store is down.
_PASSED = (RemoteUnavailable, RetryElsewhere, CallLost, Overloaded, OutcomeUnknown, StoreUnavailable, NoHosts)


class StillMissing(RetryLater):
    """Events before a batch are missing here, and the source cluster does not send them."""


class BranchGone(RetryLater):
    """The source cluster does not have the run, or not that branch of it."""


class BatchGone(GiveUp):
    """An open run here lacks events that the source cluster has deleted."""


def is_permanent(failure: Exception) -> bool:
    """Whether a retry is useless."""
    # The namespace may not be replicated yet.
    return isinstance(failure, GiveUp | FixRequest) and not isinstance(failure, NotFound)


def is_its_own(failure: Exception) -> bool:
    """Whether a failure is caused by the task itself, and not by the state of this cluster or of the source."""
    return not isinstance(failure, _PASSED)


class Applier:
    """Applies the tasks of one source cluster."""

    def __init__(self, source: str, *, remote: Callable[[], Remote], history: HistoryClient, metrics: Metrics) -> None:
        self._source = source
        self._remote = remote
        self._history = history
        self._metrics = metrics

    def apply(self, task: ReplicationTask) -> Coroutine[Any, Any, str]:
        """Apply a task, and all events missing before it; returns the outcome."""
        if task.first_event_id == PROGRESS:
            return self._apply_progress(task)
        if task.is_gone:
            return self._do_without(task)
        return self._apply("ApplyBatch", task, self._batch_of([task]))

    async def apply_together(self, tasks: Sequence[ReplicationTask]) -> None:
        """Apply tasks of one run, in as few commits as possible.

        Applies only the last progress of each branch: it includes the earlier progress of all pending activities.
        """
        batches = [task for task in tasks if task.first_event_id != PROGRESS]
        for row in _in_a_row(batches):
            if row[0].is_gone:
                await self._do_without(row[0])
            else:
                await self._apply("ApplyBatch", row[0], self._batch_of(row))
        for task in _last_of_branches([task for task in tasks if task.first_event_id == PROGRESS]):
            await self._apply_progress(task)

    async def _do_without(self, task: ReplicationTask) -> str:
        """Check whether a deleted batch is needed: `BatchGone` if the run is open here and lacks its events."""
        asked = BranchesRequest(task.workflow_id, task.run_id)
        try:
            answer = await self._history.call("Branches", task.namespace_id, task.workflow_id, asked, timeout_s=APPLY_S)
        except NotFound:
            return Outcome.DUPLICATE
        found = decode(answer, BranchesResponse)
        last = VersionHistory.from_pairs(task.items).last
        branches = [VersionHistory.from_pairs(items) for _, items in found.branches]
        if found.status not in OPEN_STATUSES or any(
            branch.contains(event_id=task.last_event_id, version=last.version) for branch in branches
        ):
            return Outcome.DUPLICATE
        raise BatchGone(
            f"cluster {self._source!r} does not have events {task.first_event_id} to {task.last_event_id} of run "
            f"{task.run_id} any more, and the run is open here: get them from another cluster, or terminate the run"
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

    async def replay(self, dead_letter: DeadLetter) -> str:
        """Fetch the events of a dead letter from its source, and apply them."""
        asked = _asked(dead_letter, dead_letter.first_event_id, dead_letter.last_event_id + 1)
        outcome: str = Outcome.DUPLICATE
        if dead_letter.first_event_id == PROGRESS:
            answer = await self._read_branch(asked)
            # The call is needed even without progress: it fetches the events of the branch if they are missing here.
            return await self._apply_progress(_task_of(dead_letter, answer.progress or NO_PROGRESS))
        from_id = dead_letter.first_event_id
        while from_id <= dead_letter.last_event_id:
            answer = await self._read_branch(_asked(dead_letter, from_id, dead_letter.last_event_id + 1))
            if not answer.batches:
                raise StillMissing(
                    f"cluster {self._source!r} has no event {from_id} of run {dead_letter.run_id} any more: "
                    "purge the dead letter"
                )
            for next_id, batch in self._batches(dead_letter, answer, from_id):
                outcome = await self._apply("ApplyBatch", dead_letter, batch)
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
        except BranchGone:
            # The run was deleted before it was replicated here: there is no activity to progress.
            return Outcome.DUPLICATE

    async def _apply(
        self, name: str, task: ReplicationTask | DeadLetter, request: ReplicatedBatch | ReplicatedProgress
    ) -> str:
        gaps = 0
        while True:
            answer = self._counted(
                request,
                await self._history.call(name, request.namespace_id, request.workflow_id, request, timeout_s=APPLY_S),
            )
            if answer.outcome != Outcome.GAP:
                return answer.outcome
            gaps += 1
            if gaps > GAPS_MAX:
                raise _still_missing(task, answer)
            await self._fill(task, answer)

    async def _fill(self, task: ReplicationTask | DeadLetter, gap: ApplyResponse) -> None:
        """Fetch exactly the missing events, page by page."""
        from_id = gap.missing_from
        while from_id < gap.missing_to:
            answer = await self._read_branch(_asked(task, from_id, gap.missing_to))
            if not answer.batches:
                raise _still_missing(task, gap)
            for next_id, batch in self._batches(task, answer, from_id):
                applied = self._counted(
                    batch,
                    await self._history.call(
                        "ApplyBatch", batch.namespace_id, batch.workflow_id, batch, timeout_s=APPLY_S
                    ),
                )
                if applied.outcome == Outcome.GAP:
                    raise _still_missing(task, applied)
                self._metrics.count(REPLICATION_BATCHES_RESENT, self._source)
                from_id = next_id

    async def _read_branch(self, asked: RemoteReadBranch) -> ReadBranchResponse:
        try:
            return await self._remote().read_branch(asked)
        except (RetryLater, RetryElsewhere) as failure:
            # The source is down or overloaded, which is not the task's fault.
            raise RemoteUnavailable(f"cluster {self._source!r} does not send events: {failure}") from failure
        except NotFound as missing:
            raise BranchGone(f"cluster {self._source!r} does not have the run any more: {missing}") from missing

    def _batches(
        self, task: ReplicationTask | DeadLetter, answer: ReadBranchResponse, from_id: int
    ) -> Iterator[tuple[int, ReplicatedBatch]]:
        """Yield each batch of a response, from `from_id` on, and the id of the event after it."""
        for batch in answer.batches:
            if batch.last_event_id < from_id:
                # Raise, or the loop would ask for the same events again and again.
                raise StillMissing(
                    f"cluster {self._source!r} sends events up to {batch.last_event_id} of run {task.run_id}, but "
                    f"events from {from_id} on were requested"
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

    def _counted(self, request: ReplicatedBatch | ReplicatedProgress, response: bytes) -> ApplyResponse:
        """Decode the response to a request, and count its outcome."""
        answer = decode_answer(response)
        together = len(request.sizes) if isinstance(request, ReplicatedBatch) else 0
        self._metrics.count(REPLICATION_TASKS_APPLIED, self._source, answer.outcome, amount=max(1, together))
        return answer


def _in_a_row(tasks: Sequence[ReplicationTask]) -> Iterator[list[ReplicationTask]]:
    """Yield groups of consecutive batches of one branch and one version."""
    row: list[ReplicationTask] = []
    for task in tasks:
        if row and not _follows(row[-1], task):
            yield row
            row = []
        row.append(task)
    if row:
        yield row


def _follows(before: ReplicationTask, task: ReplicationTask) -> bool:
    """Whether a task's version history extends the history of the previous task, from its last event on.

    The rest is checked when the batch is applied: a version history may continue after its batch's last event.
    """
    if task.first_event_id != before.last_event_id + 1 or not before.items or not task.items:
        return False
    if before.is_gone or task.is_gone:
        return False
    *lower, (_, version) = before.items
    return task.items[:-1] == tuple(lower) and task.items[-1][1] == version


def _last_of_branches(tasks: Sequence[ReplicationTask]) -> list[ReplicationTask]:
    """The last progress task of each branch."""
    found: list[ReplicationTask] = []
    branches: list[VersionHistory] = []
    for task in reversed(tasks):
        branch = VersionHistory.from_pairs(task.items)
        if not any(later.contains(event_id=branch.last.event_id, version=branch.last.version) for later in branches):
            found.append(task)
            branches.append(branch)
    return found[::-1]


def _asked(task: ReplicationTask | DeadLetter, from_event_id: int, to_event_id: int) -> RemoteReadBranch:
    return RemoteReadBranch(
        task.namespace_id,
        task.workflow_id,
        task.run_id,
        task.items,
        from_event_id,
        to_event_id,
        LINE_BYTES_MAX,
    )


def _task_of(dead_letter: DeadLetter, progress: bytes) -> ReplicationTask:
    return ReplicationTask(
        dead_letter.task_id,
        0,
        dead_letter.namespace_id,
        dead_letter.workflow_id,
        dead_letter.run_id,
        PROGRESS,
        PROGRESS,
        dead_letter.items,
        progress,
    )


def _still_missing(task: ReplicationTask | DeadLetter, gap: ApplyResponse) -> FairleadError:
    return StillMissing(
        f"events {gap.missing_from} to {gap.missing_to - 1} of run {task.run_id} are missing here, and the "
        "source cluster does not send them"
    )
