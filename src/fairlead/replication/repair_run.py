"""Carries out a repair plan: checks the clusters, then sends the steps of each run to its target."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import groupby, islice
from typing import NamedTuple

from fairlead.core.errors import FairleadError, FixRequest
from fairlead.replication.messages import Repaired, RepairRequest, RepairResponse, RepairStep
from fairlead.replication.plans import Plan, PlannedSend
from fairlead.replication.repair import STEPS_MAX
from fairlead.report import counted

# Runs that are repaired concurrently, and the timeout of a request in seconds: one may transfer a whole history.
RUNS_AT_ONCE = 8
REQUEST_S = 90.0

# A function that sends a request to a host of any cluster, with a timeout in seconds.
Ask = Callable[[RepairRequest, float], Awaitable[RepairResponse]]


class Job(NamedTuple):
    """One request, and the planned sends that it carries out."""

    request: RepairRequest
    sends: Sequence[PlannedSend]


class Done(NamedTuple):
    """The result of a send."""

    send: PlannedSend
    repaired: Repaired


async def carry_out(plan: Plan, ask: Ask, done: list[Done], *, is_dry: bool, check_s: float) -> list[Done]:
    """Carry out the plan, or its dry run; return the result of each step, in order.

    Steps that end are added to `done` at once. Before any change, each cluster is asked within `check_s` seconds
    whether it knows its source clusters.
    """
    for name, sources in _sources(plan).items():
        await ask(RepairRequest(name, sources), check_s)
    jobs = jobs_of(plan, is_dry=is_dry)
    await asyncio.gather(*(_work(ask, jobs, done) for _ in range(RUNS_AT_ONCE)))
    return sorted(done, key=lambda each: (each.send.target, *_place(each.send)))


def jobs_of(plan: Plan, *, is_dry: bool) -> Iterator[Job]:
    """Yield the requests of a plan: each is about one run in one cluster, with its events in order."""

    def run(send: PlannedSend) -> tuple[str, str, str, str]:
        return send.target, send.namespace_id, send.workflow_id, send.run_id

    sources = _sources(plan)
    ordered = sorted(plan.sends, key=lambda send: (*run(send), send.first_event_id, send.version))
    for (target, namespace_id, workflow_id, run_id), sends in groupby(ordered, run):
        while part := tuple(islice(sends, STEPS_MAX)):
            steps = tuple(
                RepairStep(send.source, send.first_event_id, send.last_event_id, send.version, send.pairs)
                for send in part
            )
            yield Job(RepairRequest(target, sources[target], namespace_id, workflow_id, run_id, steps, is_dry), part)


def summary_of(done: Sequence[Done], *, is_dry: bool) -> str:
    """Return the start of a sentence that sums up the results of all steps, or of their dry run."""
    right = [each.repaired for each in done if not each.repaired.error]
    events = sum(each.events for each in right)
    verb = "would be" if is_dry else "were"
    summary = f"{counted(events, 'event')} {verb} written by {len(right):,} of {counted(len(done), 'step')}"
    return f"{summary}, {len(done) - len(right):,} failed" if len(right) < len(done) else summary


def _sources(plan: Plan) -> dict[str, tuple[str, ...]]:
    found: dict[str, set[str]] = {}
    for send in plan.sends:
        found.setdefault(send.target, set()).add(send.source)
    return {target: tuple(sorted(sources)) for target, sources in sorted(found.items())}


async def _work(ask: Ask, jobs: Iterator[Job], done: list[Done]) -> None:
    for request, sends in jobs:
        try:
            answer = await ask(request, REQUEST_S)
        except FixRequest:
            raise
        except FairleadError as failure:
            answer = RepairResponse((Repaired(error=str(failure)),) * len(sends))
        done += map(Done, sends, answer.repaired)


def _place(send: PlannedSend) -> tuple[str, str, str, int, int]:
    return send.namespace_id, send.workflow_id, send.run_id, send.first_event_id, send.version
