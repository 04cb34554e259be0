"""The lake: the last report of the pipeline, the findings of its reconciliation, and their repair."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fairlead.authorization.host_methods import HOST_METHODS
from fairlead.console import lake
from fairlead.console.context import Context
from fairlead.console.grid import Cell, Grid, Grids, link, moment, number, text
from fairlead.console.problems import problem_of
from fairlead.console.text import plural
from fairlead.console.view import Action, Form, Parameters, View
from fairlead.core.errors import FairleadError, FixRequest, RetryLater
from fairlead.http import HttpFault, Response
from fairlead.replication.messages import RepairRequest, RepairResponse
from fairlead.replication.plans import Plan, PlannedSend
from fairlead.replication.repair import REPAIR
from fairlead.replication.repair_run import Done, carry_out, summary_of
from fairlead.rpc.hosts.caller import UnknownMethod

# The report needs no scripts and loads nothing; with this policy, a forged file can't do so either.
PAGE_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; sandbox"
)
# Steps of a plan that the console carries out, and seconds that they may take; the command line has no such limits.
STEPS_MAX: Final = 1_000
APPLY_S_MAX: Final = 60.0
CHECK_S: Final = 10.0
ROWS_MAX: Final = 200

_STATUS: Final = HOST_METHODS["replication.Status"]
_REPAIR: Final = HOST_METHODS["replication.Repair"]
_SEND_COLUMNS: Final = ["Workflow", "Namespace", "Run", "To", "From", "Events", "Version", "Reason"]


class NoPlan(FixRequest):
    """The lake has no repair plan, a newer plan than the viewer saw, or a plan that is too large for the console."""


class NotDone(RetryLater):
    """The repair did not end in time."""


class Asked(Parameters, frozen=True, kw_only=True):
    """`dry` shows the result that each step of the repair plan would have."""

    dry: bool = False


class LakeReport(Grids, frozen=True, kw_only=True):
    """The data of the view."""

    lake: str = ""
    # Time and bytes of the report's page; 0 if there is none.
    page_at_s: float = 0.0
    page_bytes: int = 0
    # Time of the repair plan in microseconds, which names it; 0 if there is none to carry out.
    plan_us: int = 0
    is_dry: bool = False
    commands: tuple[str, ...] = ()


async def load(context: Context, asked: Asked) -> LakeReport:
    """Read the report, the findings and the repair plan from the lake."""
    await context.require(_STATUS)
    folder = _lake_of(context)
    if folder is None:
        return LakeReport(
            grids=[],
            sentence="No lake is configured: start the server with --ui-lake DIR, or set ui.lake in its file.",
        )
    if not await asyncio.to_thread(lake.is_lake, folder):
        return LakeReport(
            grids=[],
            lake=str(folder),
            sentence=f"There is no lake in {folder} yet. Fill it with: "
            f"fairlead pipeline all --journal DIR --lake {folder}",
        )
    tables = await asyncio.to_thread(lake.tables, folder)
    at_s, size = await asyncio.to_thread(_page_facts, folder)
    grids = await _findings(folder)
    try:
        plan = await asyncio.to_thread(lake.plan_of, folder)
        grids += await _plan_grids(context, plan, is_dry=asked.dry)
    except FairleadError as failure:
        plan = None
        grids.append(_failed("plan", "Repair plan", failure))
    has_steps = plan is not None and bool(plan.sends)
    grids.append(
        Grid(
            id="tables",
            title="Tables",
            columns=["Table", "Written"],
            rows=[[text(name), moment(written_s)] for name, written_s in tables],
            empty="No job has written a table yet.",
        )
    )
    return LakeReport(
        grids=grids,
        lake=str(folder),
        page_at_s=at_s,
        page_bytes=size,
        plan_us=plan.now_us if plan is not None and 0 < len(plan.sends) <= STEPS_MAX else 0,
        is_dry=asked.dry,
        commands=_commands(folder) if has_steps else (),
    )


def _lake_of(context: Context) -> Path | None:
    ui = context.backend.config.ui
    return None if ui is None else ui.lake


def _page_facts(folder: Path) -> tuple[float, int]:
    file = folder / lake.REPORT_FILE
    if not file.is_file():
        return 0.0, 0
    found = file.stat()
    return found.st_mtime, found.st_size


def _commands(folder: Path) -> tuple[str, ...]:
    plan = folder / lake.PLAN_FILE
    return tuple(f"fairlead admin repair --plan {plan} {flag}" for flag in ("--dry-run", "--apply"))


def _failed(name: str, title: str, failure: FairleadError) -> Grid:
    return Grid(id=name, title=title, columns=[], rows=[], problem=problem_of(failure))


async def _findings(folder: Path) -> list[Grid]:
    title = "Reconciliation"
    try:
        found = await asyncio.to_thread(lake.findings, folder)
    except FairleadError as failure:
        return [_failed("verdicts", title, failure)]
    hint = f"Compare the clusters with: fairlead pipeline reconcile --lake {folder}"
    if found is None:
        return [Grid(id="verdicts", title=title, columns=[], rows=[], empty="Nothing was compared yet.", hint=hint)]
    counts = [(name, "", count) for name, count in found.verdicts.items()]
    counts += [("wrong", name, count) for name, count in found.kinds.items()]
    verdicts = Grid(
        id="verdicts",
        title=title,
        columns=["Verdict", "Kind", "Runs"],
        rows=[
            [text(verdict, "bad" if verdict == "wrong" else ""), text(kind), number(count)]
            for verdict, kind, count in counts
        ],
        empty="The lake has no runs to compare.",
        note=f"Only the first {lake.VERDICTS_MAX:,} runs are counted." if found.is_cut else "",
    )
    wrong = Grid(
        id="wrong",
        title="Wrong runs",
        columns=["Workflow", "Namespace", "Run", "Kinds"],
        rows=[
            [
                link(run.workflow_id, "workflow", id=run.workflow_id, run=run.run_id, namespace=run.namespace),
                text(run.namespace),
                text(run.run_id),
                text(", ".join(run.kinds)),
            ]
            for run in found.wrong
        ],
        empty="No run is wrong.",
        note=f"The first {lake.WRONG_MAX}; all are in the table verdicts."
        if len(found.wrong) == lake.WRONG_MAX
        else "",
    )
    return [verdicts, wrong]


async def _plan_grids(context: Context, plan: Plan | None, *, is_dry: bool) -> list[Grid]:
    if plan is None:
        empty = "There is no repair plan: fairlead pipeline reconcile writes one."
        return [Grid(id="plan", title="Repair plan", columns=[], rows=[], empty=empty)]
    by_hand = Grid(
        id="by-hand",
        title="For manual repair",
        columns=["Workflow", "Namespace", "Run", "Kind", "Cluster", "Detail"],
        rows=[
            [
                link(one.workflow_id, "workflow", id=one.workflow_id, run=one.run_id, namespace=one.namespace),
                *map(text, (one.namespace or one.namespace_id, one.run_id, one.kind, one.cluster, one.detail)),
            ]
            for one in plan.by_hand[:ROWS_MAX]
        ],
        empty="No finding is left for manual repair.",
        note=_shown(len(plan.by_hand)),
    )
    if is_dry and plan.sends:
        return [await _dry_run(context, plan), by_hand]
    events = sum(send.events for send in plan.sends)
    size = f": {plural(len(plan.sends), 'step')}, {plural(events, 'event')}" if plan.sends else ""
    steps = Grid(
        id="plan",
        title=f"Repair plan{size}",
        columns=_SEND_COLUMNS,
        rows=[_send_row(send) for send in plan.sends[:ROWS_MAX]],
        empty="There is nothing to send: no cluster lacks events that another one has.",
        note=_shown(len(plan.sends)),
    )
    return [steps, by_hand]


async def _dry_run(context: Context, plan: Plan) -> Grid:
    try:
        done = await _repair(context, plan, is_dry=True)
    except FairleadError as failure:
        return _failed("plan", "Dry run of the repair", failure)
    return Grid(
        id="plan",
        title=f"Dry run: {summary_of(done, is_dry=True)}",
        columns=[*_SEND_COLUMNS, "Result"],
        rows=[[*_send_row(each.send), _result(each)] for each in _failed_first(done)[:ROWS_MAX]],
        note=_shown(len(done)),
    )


def _failed_first(done: Sequence[Done]) -> list[Done]:
    return sorted(done, key=lambda each: not each.repaired.error)


def _result(each: Done) -> Cell:
    return text(each.repaired.error, "bad") if each.repaired.error else text(each.repaired.outcome, "good")


def _send_row(send: PlannedSend) -> list[Cell]:
    return [
        link(send.workflow_id, "workflow", id=send.workflow_id, run=send.run_id, namespace=send.namespace),
        text(send.namespace or send.namespace_id),
        text(send.run_id),
        text(send.target),
        text(send.source),
        text(f"{send.first_event_id}-{send.last_event_id}"),
        number(send.version),
        text(send.kind),
    ]


def _shown(count: int) -> str:
    return f"The first {ROWS_MAX} of {count:,}." if count > ROWS_MAX else ""


async def _repair(context: Context, plan: Plan, *, is_dry: bool) -> list[Done]:
    """Carry out the plan with the viewer's rights."""
    if len(plan.sends) > STEPS_MAX:
        raise NoPlan(f"the plan has {len(plan.sends):,} steps, more than {STEPS_MAX:,}: use fairlead admin repair")

    async def ask(request: RepairRequest, timeout_s: float) -> RepairResponse:
        try:
            return await context.ask_host(context.backend.host, REPAIR, request, timeout_s=timeout_s)
        except UnknownMethod:
            raise NoPlan("this cluster has no remote clusters: there is no `cluster` in its configuration") from None

    done: list[Done] = []
    try:
        async with asyncio.timeout(APPLY_S_MAX):
            return await carry_out(plan, ask, done, is_dry=is_dry, check_s=CHECK_S)
    except TimeoutError:
        raise NotDone(
            f"{len(done):,} of {plural(len(plan.sends), 'step')} ended in {APPLY_S_MAX:g} s; a plan may be applied "
            "twice: try again, or use fairlead admin repair"
        ) from None


async def _apply(context: Context, _asked: Asked, form: Form) -> str:
    folder = _lake_of(context)
    plan = None if folder is None else await asyncio.to_thread(lake.plan_of, folder)
    if plan is None:
        raise NoPlan("there is no repair plan: run fairlead pipeline reconcile")
    if form.get("plan") != str(plan.now_us):
        raise NoPlan("the lake has a newer repair plan; look at it, then apply it")
    done = await _repair(context, plan, is_dry=False)
    errors = [each.repaired.error for each in done if each.repaired.error]
    return f"{summary_of(done, is_dry=False)}." + (f" The first failure: {errors[0]}" if errors else "")


async def _page(context: Context) -> Response:
    """The report's own page."""
    await context.require(_STATUS)
    folder = _lake_of(context)
    if folder is None or not await asyncio.to_thread((folder / lake.REPORT_FILE).is_file):
        raise HttpFault(404, "the lake has no report yet: run fairlead pipeline report")
    content = await asyncio.to_thread(lake.read_report, folder)
    return Response(200, content, "text/html; charset=utf-8", (("Content-Security-Policy", PAGE_POLICY),))


VIEW: Final = View(
    path="report",
    title="Report",
    nav="Report",
    access=_STATUS,
    key="p",
    parameters=Asked,
    load=load,
    template="report.html",
    # Not live: a lake changes only when a job ends, and each dry run calls other clusters.
    is_live=False,
    actions=(
        Action(
            name="apply",
            label="Apply the repair plan",
            access=_REPAIR,
            act=_apply,
            word="repair",
            about="Each cluster fetches exactly the events that it lacks. No stored event is deleted or overwritten.",
            applies=lambda data: bool(data.plan_us),
        ),
    ),
    documents={"page": _page},
)
