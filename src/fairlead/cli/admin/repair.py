"""`fairlead admin repair`: carries out the repair plan of `fairlead pipeline reconcile`."""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click

from fairlead.cli.admin.cluster import connect
from fairlead.cli.admin.command import Target, admin, common_options, target_of
from fairlead.cli.admin.replication import no_remote_clusters
from fairlead.replication.messages import RepairRequest, RepairResponse
from fairlead.replication.plans import ByHand, Plan, PlannedSend, read_plan
from fairlead.replication.repair import REPAIR
from fairlead.replication.repair_run import Done, carry_out, summary_of
from fairlead.report import Cell, DualCell, Output, Report, Table, counted, show
from fairlead.rpc.hosts.caller import UnknownMethod

EXIT_SOME_FAILED = 3
PROGRESS_S = 1.0
ROWS_SHOWN_MAX = 200


@click.command("repair")
@click.option(
    "--plan",
    "file",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The plan of `fairlead pipeline reconcile`: repair_plan.json in the lake.",
)
@click.option("--dry-run", "is_dry", is_flag=True, help="Show what each step would do, and change nothing.")
@click.option("--apply", "is_applied", is_flag=True, help="Carry out the plan.")
def repair(
    *, file: Path, is_dry: bool, is_applied: bool, address: str | None, timeout_s: float | None, output: str
) -> None:
    """Restore events that a cluster has lost, by a plan of `fairlead pipeline reconcile`.

    Without --dry-run or --apply, the plan is shown, and no cluster is called. In each step, a cluster fetches exactly
    the events that it lacks from a cluster that has them, by normal replication. No step deletes or overwrites stored
    events. A plan may be applied twice.

    Call any host of one of the clusters; it forwards the steps of other clusters. Exit codes: 0 all steps are done, 2
    the plan or the arguments are wrong and nothing was changed, 3 some steps failed.

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


async def _carry_out(target: Target, plan: Plan, *, is_dry: bool) -> list[Done]:
    async with connect(target.address, timeout_s=target.timeout_s) as cluster:

        async def ask(request: RepairRequest, timeout_s: float) -> RepairResponse:
            try:
                return await cluster.ask(REPAIR, request, timeout_s=timeout_s)
            except UnknownMethod:
                raise no_remote_clusters() from None

        done: list[Done] = []
        reporting = asyncio.create_task(_report_progress(done, len(plan.sends)))
        try:
            return await carry_out(plan, ask, done, is_dry=is_dry, check_s=target.timeout_s)
        finally:
            reporting.cancel()
            await asyncio.gather(reporting, return_exceptions=True)


async def _report_progress(done: Sequence[Done], count: int) -> None:
    """Print the progress every second."""
    begun_s = time.monotonic()
    while True:
        await asyncio.sleep(PROGRESS_S)
        failed = sum(bool(each.repaired.error) for each in done)
        reported = f"{len(done):,} of {counted(count, 'step')}, {failed:,} failed, {time.monotonic() - begun_s:.0f} s"
        click.echo(reported, err=True)


# Reports

_COLUMNS = ("target", "source", "namespace_id", "workflow_id", "run_id", "version", "events", "reason")


def _namespace(planned: PlannedSend | ByHand) -> DualCell:
    """Return the namespace as a cell: tables show the name, JSON has the id."""
    return DualCell(planned.namespace or planned.namespace_id, planned.namespace_id)


def plan_report(plan: Plan) -> Report:
    """Return a report on the plan, with the findings that need an operator."""
    events = sum(send.events for send in plan.sends)
    return Report(
        "repair",
        f"{counted(len(plan.sends), 'step')} would send {counted(events, 'event')}; {_left(plan)}",
        {"sends": len(plan.sends), "events": events, "by_hand": len(plan.by_hand)},
        [
            Table("sends", "To be sent", _COLUMNS, [_row(send) for send in plan.sends], headings=_headings(_COLUMNS)),
            _by_hand(plan),
        ],
    )


def done_report(plan: Plan, done: Sequence[Done], *, is_dry: bool) -> Report:
    """Return a report on the result of each step, or on its dry run."""
    failed = [each for each in done if each.repaired.error]
    events = sum(each.repaired.events for each in done if not each.repaired.error)
    outcomes = Counter(each.repaired.outcome for each in done if not each.repaired.error)
    summary = summary_of(done, is_dry=is_dry)
    rows = [(*_row(each.send), each.repaired.outcome or None, each.repaired.error or None) for each in done]
    counts: dict[str, Cell] = dict(sorted(outcomes.items()))
    parameters: dict[str, Cell] = {
        "steps": len(done),
        "events": events,
        "failed": len(failed),
        "by_hand": len(plan.by_hand),
        **counts,
    }
    columns = (*_COLUMNS, "outcome", "error")
    steps = Table("steps", "Steps", columns, rows, headings=_headings(columns))
    return Report("repair", f"{summary}; {_left(plan)}", parameters, [steps, _by_hand(plan)])


def _left(plan: Plan) -> str:
    if not plan.by_hand:
        return "no finding is left for manual repair"
    return f"{counted(len(plan.by_hand), 'finding')} left for manual repair"


def _row(send: PlannedSend) -> tuple[Cell, ...]:
    run = (_namespace(send), send.workflow_id, send.run_id)
    return (send.target, send.source, *run, send.version, f"{send.first_event_id}-{send.last_event_id}", send.kind)


def _by_hand(plan: Plan) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (each.kind, each.cluster or None, _namespace(each), each.workflow_id, each.run_id, each.detail or None)
        for each in plan.by_hand
    ]
    columns = ("kind", "cluster", "namespace_id", "workflow_id", "run_id", "detail")
    return Table("by_hand", "For manual repair", columns, rows, headings=_headings(columns))


def _headings(columns: Sequence[str]) -> list[str]:
    """Return headings for display: the column `namespace_id` shows names, so its heading is `namespace`."""
    return ["namespace" if column == "namespace_id" else column.replace("_", " ") for column in columns]
