"""Repairs a cluster that has lost events: it fetches exactly these events from another cluster.

Events that are not in the run's state are applied; events that are in the state but not in the store are restored.
Nothing is deleted, and no stored event is overwritten.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

from google.protobuf.message import DecodeError
from temporalio.api.history.v1 import History

from fairlead.aio.backoff import Backoff
from fairlead.api.clusters import Clusters
from fairlead.core.errors import FairleadError, FixRequest, RetryLater
from fairlead.core.versions import MalformedBatch
from fairlead.history.client import HistoryClient
from fairlead.history.messages.ndc import Outcome, ReplicatedBatch, decode_answer
from fairlead.history.messages.restore import BranchRange, DryRunOutcome, DryRunRequest, decode_dry_run, decode_restored
from fairlead.replication.messages import (
    ReadBranchBatch,
    ReadBranchResponse,
    RemoteReadBranch,
    Repaired,
    RepairRequest,
    RepairResponse,
    RepairStep,
)
from fairlead.replication.remote import Remote, RemoteUnavailable
from fairlead.rpc.hosts.caller import Handlers, Method

APPLY_S = 10.0
LINE_BYTES_MAX = 1 << 20
# Seconds that a request waits for its source clusters to respond, before the first step.
REACH_S_MAX = 5.0
# Steps of one request; a run with more steps needs several requests.
STEPS_MAX = 100

REPAIR = Method("replication.Repair", RepairRequest, RepairResponse)


class UnknownRepairCluster(FixRequest):
    """A repair plan names a cluster that is not connected: nothing was changed."""


class TooManySteps(FixRequest):
    """A repair request has more than `STEPS_MAX` steps: nothing was changed."""


class EventsUnavailable(RetryLater):
    """The source cluster does not have the events, or events before them are missing here."""


class Repairs:
    """Carries out repair steps in this cluster, and forwards those for other clusters."""

    def __init__(
        self,
        *,
        clusters: Clusters,
        remotes: Callable[[str], Remote],
        history: HistoryClient,
        random: Callable[[], float],
    ) -> None:
        self._clusters = clusters
        self._remotes = remotes
        self._history = history
        self._random = random

    def handlers(self) -> Handlers:
        """The operations that this host offers to operators."""
        handlers = Handlers()
        handlers.add(REPAIR, self.pass_on)
        return handlers

    async def pass_on(self, request: RepairRequest) -> RepairResponse:
        """Carry out the request here, or forward it to its target."""
        if request.target == self._clusters.here:
            return await self.repair(request)
        if request.target not in self._clusters.remotes:
            raise self._unknown(request.target)
        return await self._remotes(request.target).repair(request)

    async def repair(self, request: RepairRequest) -> RepairResponse:
        """Carry out the request in this cluster, step by step; a failed step does not stop the others."""
        if request.target != self._clusters.here:
            raise UnknownRepairCluster(
                f"the request is for cluster {request.target!r}, but this is cluster {self._clusters.here!r}"
            )
        for source in request.sources:
            if source not in self._clusters.remotes:
                raise self._unknown(source)
        if len(request.steps) > STEPS_MAX:
            raise TooManySteps(
                f"a request has {len(request.steps)} steps, more than the limit of {STEPS_MAX}: divide it"
            )
        await asyncio.gather(*(self._reach(source) for source in {step.source for step in request.steps}))
        if request.is_dry:
            return RepairResponse(await self._dry_run(request))
        return RepairResponse(tuple([await self._caught(request, step) for step in request.steps]))

    def _unknown(self, cluster: str) -> UnknownRepairCluster:
        known = ", ".join(sorted(self._clusters.remotes)) or "none"
        return UnknownRepairCluster(
            f"the plan names cluster {cluster!r}, but {self._clusters.here!r} is connected only to {known}: "
            "nothing was changed"
        )

    async def _reach(self, source: str) -> None:
        """Wait until a source responds: after its restart, the connection to it may still be backing off.

        If it does not respond in time, the steps that need it fail one by one, and the others are carried out.
        """
        backoff = Backoff(random=self._random)
        with suppress(TimeoutError):
            async with asyncio.timeout(REACH_S_MAX):
                while True:
                    try:
                        await self._remotes(source).info()
                    except RemoteUnavailable:
                        await asyncio.sleep(backoff.next_s())
                    else:
                        return

    # Dry run

    async def _dry_run(self, request: RepairRequest) -> tuple[Repaired, ...]:
        if not request.steps:
            return ()
        ranges = tuple(
            BranchRange(step.first_event_id, step.last_event_id, step.version, step.items) for step in request.steps
        )
        asked = DryRunRequest(request.workflow_id, request.run_id, ranges)
        try:
            answer = await self._history.call(
                "DryRun", request.namespace_id, request.workflow_id, asked, timeout_s=APPLY_S
            )
        except FairleadError as failure:
            return (Repaired(error=_described(failure)),) * len(request.steps)
        expected = decode_dry_run(answer).expected
        return tuple([await self._dry_result(request, *each) for each in zip(request.steps, expected, strict=True)])

    async def _dry_result(self, request: RepairRequest, step: RepairStep, expected: DryRunOutcome) -> Repaired:
        """The dry run's result, if the source has the events."""
        if expected.outcome == Outcome.GAP:
            return Repaired(expected.outcome, error=_gap(expected.missing_from, expected.missing_to))
        try:
            async for _ in self._batches(request, step):
                pass
        except FairleadError as failure:
            return Repaired(error=_described(failure))
        return Repaired(expected.outcome, expected.events)

    # Repair

    async def _caught(self, request: RepairRequest, step: RepairStep) -> Repaired:
        try:
            return await self._carry_out(request, step)
        except FairleadError as failure:
            return Repaired(error=_described(failure))

    async def _carry_out(self, request: RepairRequest, step: RepairStep) -> Repaired:
        outcome: str = Outcome.DUPLICATE
        written = 0
        async for batch, count in self._batches(request, step):
            applied = decode_answer(await self._call("ApplyBatch", batch))
            became = applied.outcome
            if became == Outcome.GAP:
                raise EventsUnavailable(_gap(applied.missing_from, applied.missing_to))
            if became == Outcome.DUPLICATE:
                # The events are in the state, but perhaps not in the store.
                count = decode_restored(await self._call("RestoreBatch", batch)).restored  # noqa: PLW2901
                became = Outcome.RESTORED if count else Outcome.DUPLICATE
            written += count if became != Outcome.DUPLICATE else 0
            outcome = became if outcome == Outcome.DUPLICATE else outcome
        return Repaired(outcome, written)

    async def _call(self, name: str, batch: ReplicatedBatch) -> bytes:
        return await self._history.call(name, batch.namespace_id, batch.workflow_id, batch, timeout_s=APPLY_S)

    async def _batches(self, request: RepairRequest, step: RepairStep) -> AsyncIterator[tuple[ReplicatedBatch, int]]:
        """The events of a step as the source has them, in its batches, with the number of events in each."""
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
            raise EventsUnavailable(
                f"source cluster {step.source!r} does not have event {from_id} of run {request.run_id}: reconcile again"
            )

    async def _read(self, request: RepairRequest, step: RepairStep, from_id: int) -> ReadBranchResponse:
        run = (request.namespace_id, request.workflow_id, request.run_id)
        asked = RemoteReadBranch(*run, step.items, from_id, step.last_event_id + 1, LINE_BYTES_MAX)
        return await self._remotes(step.source).read_branch(asked)


def _cut(batch: ReadBranchBatch, from_id: int, end: int) -> ReadBranchBatch:
    """The part of a batch from `from_id` to before `end`."""
    if from_id <= batch.first_event_id and batch.last_event_id < end:
        return batch
    try:
        events = [event for event in History.FromString(batch.events).events if from_id <= event.event_id < end]
    except DecodeError as wrong:
        raise MalformedBatch(f"a batch of {len(batch.events)} bytes is not a valid History message ({wrong})") from None
    if not events:
        raise MalformedBatch(
            f"a batch of events {batch.first_event_id} to {batch.last_event_id} does not have event {from_id}"
        )
    cut = History(events=events).SerializeToString()
    return ReadBranchBatch(events[0].event_id, events[-1].event_id, cut)


def _gap(missing_from: int, missing_to: int) -> str:
    return (
        f"events {missing_from} to {missing_to - 1} before them are missing, too, and the plan does not send them "
        "first: reconcile again"
    )


def _described(failure: FairleadError) -> str:
    return f"{type(failure).__name__}: {failure}"
