"""Brings events back that a cluster has lost: it gets exactly these from another one, as it got them the first time.

What the run's state knows nothing of is applied, what it has summed up is put back into the store. Nothing is deleted,
and nothing that is stored is overwritten.
"""

from collections.abc import AsyncIterator, Callable

from google.protobuf.message import DecodeError
from temporalio.api.history.v1 import History

from fairlead.cluster.calls import Handlers, Method
from fairlead.core.errors import FairleadError, FixRequest, RetryLater
from fairlead.core.versions import MalformedBatch
from fairlead.history.applying.messages import Outcome, ReplicatedBatch, decode_answer
from fairlead.history.applying.restoring import (
    Foreseen,
    ForeseeRequest,
    LineRange,
    decode_foreseen,
    decode_restored,
)
from fairlead.history.client import HistoryClient
from fairlead.history.clusters import Clusters
from fairlead.replication.messages import (
    ReadLineAnswer,
    ReadLineBatch,
    RemoteReadLine,
    RepairAnswer,
    Repaired,
    RepairRequest,
    RepairStep,
)
from fairlead.replication.remote import Remote

APPLY_S = 10.0
LINE_BYTES_MAX = 1 << 20
# Of one request; whoever has more of a run asks again.
STEPS_MAX = 100

REPAIR = Method("replication.Repair", RepairRequest, RepairAnswer)


class UnknownRepairCluster(FixRequest):
    """A plan of repair names a cluster that nobody knows: nothing was changed."""


class TooManySteps(FixRequest):
    """A request of repair has more steps than are taken at once: nothing was changed."""


class NotToBeHad(RetryLater):
    """The cluster that should have events does not have them, or those before them are missing here."""


class Repairs:
    """Carries out steps of repair in this cluster, and passes on what is another one's to do."""

    def __init__(self, *, clusters: Clusters, remotes: Callable[[str], Remote], history: HistoryClient) -> None:
        self._clusters = clusters
        self._remotes = remotes
        self._history = history

    def handlers(self) -> Handlers:
        """What this host answers to operators."""
        handlers = Handlers()
        handlers.add(REPAIR, self.pass_on)
        return handlers

    async def pass_on(self, request: RepairRequest) -> RepairAnswer:
        """Have the target carry it out, whichever cluster that is."""
        if request.target == self._clusters.here:
            return await self.repair(request)
        if request.target not in self._clusters.remotes:
            raise self._unknown(request.target)
        return await self._remotes(request.target).repair(request)

    async def repair(self, request: RepairRequest) -> RepairAnswer:
        """Carry it out here: each step by itself, in order."""
        if request.target != self._clusters.here:
            raise UnknownRepairCluster(
                f"cluster {request.target!r} was looked for, and this is {self._clusters.here!r}"
            )
        for source in request.sources:
            if source not in self._clusters.remotes:
                raise self._unknown(source)
        if len(request.steps) > STEPS_MAX:
            raise TooManySteps(f"a request has {len(request.steps)} steps, the most are {STEPS_MAX}: divide it")
        if request.is_dry:
            return RepairAnswer(await self._foresee(request))
        return RepairAnswer(tuple([await self._caught(request, step) for step in request.steps]))

    def _unknown(self, cluster: str) -> UnknownRepairCluster:
        known = ", ".join(sorted(self._clusters.remotes)) or "none"
        return UnknownRepairCluster(
            f"the plan names cluster {cluster!r}, which {self._clusters.here!r} is not connected with (only: {known}): "
            "nothing was changed"
        )

    # What would be done

    async def _foresee(self, request: RepairRequest) -> tuple[Repaired, ...]:
        if not request.steps:
            return ()
        ranges = tuple(
            LineRange(step.first_event_id, step.last_event_id, step.version, step.items) for step in request.steps
        )
        asked = ForeseeRequest(request.workflow_id, request.run_id, ranges)
        try:
            answer = await self._history.call(
                "Foresee", request.namespace_id, request.workflow_id, asked, timeout_s=APPLY_S
            )
        except FairleadError as failure:
            return (Repaired(error=_told(failure)),) * len(request.steps)
        foreseen = decode_foreseen(answer).foreseen
        return tuple([await self._looked_for(request, *each) for each in zip(request.steps, foreseen, strict=True)])

    async def _looked_for(self, request: RepairRequest, step: RepairStep, foreseen: Foreseen) -> Repaired:
        """The same, if the source has the events."""
        if foreseen.outcome == Outcome.GAP:
            return Repaired(foreseen.outcome, error=_gap(foreseen.missing_from, foreseen.missing_to))
        try:
            async for _ in self._batches(request, step):
                pass
        except FairleadError as failure:
            return Repaired(error=_told(failure))
        return Repaired(foreseen.outcome, foreseen.events)

    # What is done

    async def _caught(self, request: RepairRequest, step: RepairStep) -> Repaired:
        try:
            return await self._carry_out(request, step)
        except FairleadError as failure:
            return Repaired(error=_told(failure))

    async def _carry_out(self, request: RepairRequest, step: RepairStep) -> Repaired:
        outcome: str = Outcome.DUPLICATE
        written = 0
        async for batch, count in self._batches(request, step):
            applied = decode_answer(await self._call("ApplyBatch", batch))
            became = applied.outcome
            if became == Outcome.GAP:
                raise NotToBeHad(_gap(applied.missing_from, applied.missing_to))
            if became == Outcome.DUPLICATE:
                # The state has them. Whether the store has them, too, is another matter.
                count = decode_restored(await self._call("RestoreBatch", batch)).restored  # noqa: PLW2901
                became = Outcome.RESTORED if count else Outcome.DUPLICATE
            written += count if became != Outcome.DUPLICATE else 0
            outcome = became if outcome == Outcome.DUPLICATE else outcome
        return Repaired(outcome, written)

    async def _call(self, name: str, batch: ReplicatedBatch) -> bytes:
        return await self._history.call(name, batch.namespace_id, batch.workflow_id, batch, timeout_s=APPLY_S)

    async def _batches(self, request: RepairRequest, step: RepairStep) -> AsyncIterator[tuple[ReplicatedBatch, int]]:
        """Exactly the events of a step, as its source has them, in the batches that it has; and how many each has."""
        from_id, end = step.first_event_id, step.last_event_id + 1
        while from_id < end:
            answer = await self._read(request, step, from_id)
            for read in answer.batches:
                if read.first_event_id > from_id:
                    break
                batch = _cut(read, from_id, end)
                yield (
                    ReplicatedBatch(
                        *(request.namespace_id, request.workflow_id, request.run_id, step.source),
                        step.items,
                        batch.events,
                        answer.start_request_id,
                    ),
                    batch.last_event_id - batch.first_event_id + 1,
                )
                from_id = batch.last_event_id + 1
            else:
                if answer.batches:
                    continue
            raise NotToBeHad(
                f"cluster {step.source!r} has no event {from_id} of run {request.run_id} itself: reconcile again"
            )

    async def _read(self, request: RepairRequest, step: RepairStep, from_id: int) -> ReadLineAnswer:
        run = (request.namespace_id, request.workflow_id, request.run_id)
        asked = RemoteReadLine(*run, step.items, from_id, step.last_event_id + 1, LINE_BYTES_MAX)
        return await self._remotes(step.source).read_line(asked)


def _cut(batch: ReadLineBatch, from_id: int, end: int) -> ReadLineBatch:
    """Those of its events that are wanted."""
    if from_id <= batch.first_event_id and batch.last_event_id < end:
        return batch
    try:
        events = [event for event in History.FromString(batch.events).events if from_id <= event.event_id < end]
    except DecodeError as wrong:
        raise MalformedBatch(f"{len(batch.events)} bytes are no history of events ({wrong})") from None
    if not events:
        raise MalformedBatch(
            f"a batch of events {batch.first_event_id} to {batch.last_event_id} does not have event {from_id}"
        )
    cut = History(events=events).SerializeToString()
    return ReadLineBatch(events[0].event_id, events[-1].event_id, cut)


def _gap(missing_from: int, missing_to: int) -> str:
    return (
        f"events {missing_from} to {missing_to - 1} before them are missing, too, and the plan does not bring them "
        "first: reconcile again"
    )


def _told(failure: FairleadError) -> str:
    return f"{type(failure).__name__}: {failure}"
