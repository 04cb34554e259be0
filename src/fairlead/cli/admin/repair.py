"""`fairlead admin repair`: carries out the plan of repair that `fairlead pipeline reconcile` writes."""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import NamedTuple

import click

from fairlead.cli.admin.cluster import Cluster, connect
from fairlead.cli.admin.command import Target, admin, common_options, target_of
from fairlead.cli.admin.replication import shares_nothing
from fairlead.cli.report import Cell, Output, Report, Table, counted, show
from fairlead.cluster.calls import UnknownMethod
from fairlead.core.errors import FairleadError, FixRequest
from fairlead.replication.messages import RepairAnswer, Repaired, RepairRequest, RepairStep
from fairlead.replication.plans import Plan, PlannedSend, read_plan
from fairlead.replication.repairing import REPAIR, STEPS_MAX

EXIT_SOME_FAILED = 3
# Runs that are repaired at a time, and how long one request may take: it may bring a whole history.
RUNS_AT_ONCE = 8
REQUEST_S = 90.0
PROGRESS_S = 1.0
ROWS_SHOWN_MAX = 200


class Job(NamedTuple):
    """One request, and the sends of the plan that it carries out."""

    request: RepairRequest
    sends: Sequence[PlannedSend]


class Done(NamedTuple):
    """What became of a send."""

    send: PlannedSend
    repaired: Repaired


@click.command("repair")
@click.option(
    "--plan",
    "file",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="What `fairlead pipeline reconcile` wrote: repair_plan.json in the lake.",
)
@click.option("--dry-run", "is_dry", is_flag=True, help="Ask the clusters what would become of each step.")
@click.option("--apply", "is_applied", is_flag=True, help="Have the clusters carry it out.")
def repair(
    *, file: Path, is_dry: bool, is_applied: bool, address: str | None, timeout_s: float | None, output: str
) -> None:
    """Bring events back that a cluster has lost, by a plan of `fairlead pipeline reconcile`.

    Without --dry-run or --apply the plan is shown, and no cluster is asked. Each step has a cluster get exactly the
    events that it lacks from one that has them, in the way in which it got them the first time. Nothing is deleted,
    and nothing that is stored is overwritten. To do it twice does no harm.

    Ask any host of one of the clusters; it passes on what concerns others. Exit codes: 0 all of it is done, 2 the plan
    or the arguments are wrong and nothing was changed, 3 some steps could not be done.

    \b
    fairlead admin repair --plan lake/repair_plan.json
    fairlead admin repair --plan lake/repair_plan.json --dry-run
    fairlead admin repair --plan lake/repair_plan.json --apply -o json
    """
    if is_dry and is_applied:
        raise click.UsageError("give --dry-run or --apply, not both", click.get_current_context())
    plan = read_plan(file)
    if not (is_dry or is_applied):
        show(plan_report(plan), output=Output(output), plot=None, rows_max=ROWS_SHOWN_MAX)
        return
    done = asyncio.run(_carry_out(target_of(address, timeout_s), plan, is_dry=is_dry))
    show(done_report(plan, done, is_dry=is_dry), output=Output(output), plot=None, rows_max=ROWS_SHOWN_MAX)
    if any(each.repaired.error for each in done):
        sys.exit(EXIT_SOME_FAILED)


repair.params += common_options()
admin.add_command(repair)


def jobs_of(plan: Plan, *, is_dry: bool) -> Iterator[Job]:
    """The requests that a plan comes to: each is about one run in one cluster, beginnings before what follows."""

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


def _sources(plan: Plan) -> dict[str, tuple[str, ...]]:
    found: dict[str, set[str]] = {}
    for send in plan.sends:
        found.setdefault(send.target, set()).add(send.source)
    return {target: tuple(sorted(sources)) for target, sources in sorted(found.items())}


async def _carry_out(target: Target, plan: Plan, *, is_dry: bool) -> list[Done]:
    async with connect(target.address, timeout_s=target.timeout_s) as cluster:
        # Before anything is changed: each cluster must be there and know those that it is to ask.
        for name, sources in _sources(plan).items():
            await _ask(cluster, RepairRequest(name, sources), timeout_s=target.timeout_s)
        done: list[Done] = []
        telling = asyncio.create_task(_tell_progress(done, len(plan.sends)))
        try:
            jobs = jobs_of(plan, is_dry=is_dry)
            await asyncio.gather(*(_work(cluster, jobs, done) for _ in range(RUNS_AT_ONCE)))
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)
        return sorted(done, key=lambda each: (each.send.target, *_place(each.send)))


async def _work(cluster: Cluster, jobs: Iterator[Job], done: list[Done]) -> None:
    for request, sends in jobs:
        try:
            answer = await _ask(cluster, request, timeout_s=REQUEST_S)
        except FixRequest:
            raise
        except FairleadError as failure:
            answer = RepairAnswer((Repaired(error=str(failure)),) * len(sends))
        done += map(Done, sends, answer.repaired)


async def _ask(cluster: Cluster, request: RepairRequest, *, timeout_s: float) -> RepairAnswer:
    try:
        return await cluster.ask(REPAIR, request, timeout_s=timeout_s)
    except UnknownMethod:
        raise shares_nothing() from None


async def _tell_progress(done: Sequence[Done], count: int) -> None:
    """To whoever waits for longer."""
    begun_s = time.monotonic()
    while True:
        await asyncio.sleep(PROGRESS_S)
        failed = sum(bool(each.repaired.error) for each in done)
        told = f"{len(done):,} of {counted(count, 'step')}, {failed:,} failed, {time.monotonic() - begun_s:.0f} s"
        click.echo(told, err=True)


# What is told

_COLUMNS = ("target", "source", "namespace_id", "workflow_id", "run_id", "version", "events", "reason")


def plan_report(plan: Plan) -> Report:
    """The plan itself, with what is left to people."""
    events = sum(send.events for send in plan.sends)
    return Report(
        "repair",
        f"{counted(len(plan.sends), 'step')} would send {counted(events, 'event')}; {_left(plan)}",
        {"sends": len(plan.sends), "events": events, "by_hand": len(plan.by_hand)},
        [Table("sends", "To be sent", _COLUMNS, [_row(send) for send in plan.sends]), _by_hand(plan)],
    )


def done_report(plan: Plan, done: Sequence[Done], *, is_dry: bool) -> Report:
    """What became of each step, or would."""
    failed = [each for each in done if each.repaired.error]
    events = sum(each.repaired.events for each in done if not each.repaired.error)
    outcomes = Counter(each.repaired.outcome for each in done if not each.repaired.error)
    verb = "would be" if is_dry else "were"
    summary = (
        f"{counted(events, 'event')} {verb} written by {len(done) - len(failed):,} of {counted(len(done), 'step')}"
    )
    if failed:
        summary += f", {len(failed):,} could not be done"
    rows = [(*_row(each.send), each.repaired.outcome or None, each.repaired.error or None) for each in done]
    counts: dict[str, Cell] = dict(sorted(outcomes.items()))
    parameters: dict[str, Cell] = {
        "steps": len(done),
        "events": events,
        "failed": len(failed),
        "by_hand": len(plan.by_hand),
        **counts,
    }
    steps = Table("steps", "Steps", (*_COLUMNS, "outcome", "error"), rows)
    return Report("repair", f"{summary}; {_left(plan)}", parameters, [steps, _by_hand(plan)])


def _left(plan: Plan) -> str:
    if not plan.by_hand:
        return "nothing is left to people"
    return f"{counted(len(plan.by_hand), 'finding')} no sending of events mends"


def _row(send: PlannedSend) -> tuple[Cell, ...]:
    run = (send.namespace_id, send.workflow_id, send.run_id)
    return (send.target, send.source, *run, send.version, f"{send.first_event_id}-{send.last_event_id}", send.kind)


def _by_hand(plan: Plan) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (each.kind, each.cluster or None, each.namespace_id, each.workflow_id, each.run_id, each.detail or None)
        for each in plan.by_hand
    ]
    columns = ("kind", "cluster", "namespace_id", "workflow_id", "run_id", "detail")
    return Table("by_hand", "To be looked at by people", columns, rows)


def _place(send: PlannedSend) -> tuple[str, str, str, int, int]:
    return send.namespace_id, send.workflow_id, send.run_id, send.first_event_id, send.version
