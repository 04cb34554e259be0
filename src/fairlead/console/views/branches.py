"""The branches of a workflow's history: versions, fork points, the current branch, zombies, and what was reapplied."""

from typing import Final

from msgspec import Struct

from fairlead.console.context import HOST_TIMEOUT_S, Context
from fairlead.console.runs import describe
from fairlead.console.view import Parameters, View, workflow_method
from fairlead.core.versions import CURRENT_MARK, BranchTree, VersionHistory, draw_tree
from fairlead.history.messages.stream import TreeRequest
from fairlead.history.service import TREE
from fairlead.http import HttpFault

# Events that the drawing names as reapplied; the table below it has all.
MARKED_MAX: Final = 12


class Asked(Parameters, frozen=True, kw_only=True):
    """`run` is empty for the current run."""

    id: str = ""
    run: str = ""


class Branch(Struct, frozen=True, kw_only=True):
    """A branch with the last event of each version, as (event id, version)."""

    id: str
    is_current: bool
    last_event_id: int
    last_version: int
    items: list[tuple[int, int]]


class Reapplied(Struct, frozen=True, kw_only=True):
    """A signal or update of a losing branch; `to_run` has its copy, empty if there is none yet.

    `to_event_id` is the event that copies it, 0 if the copy is in another run or waits for a workflow task.
    """

    kind: str
    name: str
    branch: str
    event_id: int
    version: int
    at_s: float
    to_run: str
    to_event_id: int


class Branches(Struct, frozen=True, kw_only=True):
    """The branches of a run; `lines` draw the tree, with the events that were reapplied to the current branch."""

    id: str
    run: str
    is_zombie: bool
    lines: list[str]
    branches: list[Branch]
    reapplied: list[Reapplied]
    is_reapplied_cut: bool


async def load(context: Context, asked: Asked) -> Branches:
    """Read the branches of a run, for viewers who may read its history."""
    if not asked.id:
        raise HttpFault(400, "the address names no workflow: add id=...")
    await context.require(workflow_method("GetWorkflowExecutionHistory"), asked.namespace)
    described = await describe(context, asked.namespace, asked.id, asked.run)
    run = described.workflow_execution_info.execution.run_id
    request = TreeRequest(asked.namespace, asked.id, run, with_reapplied=True)
    # With this host's rights: `fairlead admin` needs a role in the whole system, this run only one in its namespace.
    found = await context.backend.caller.call(context.backend.host, TREE, request, timeout_s=HOST_TIMEOUT_S)
    histories = [VersionHistory.from_pairs(items) for _, items in found.branches]
    marks = [one.to_event_id for one in found.reapplied if one.to_event_id]
    return Branches(
        id=asked.id,
        run=found.run_id,
        is_zombie=found.is_zombie,
        lines=[_marked(line, sorted(marks)) for line in draw_tree(BranchTree.restore(histories))],
        branches=[
            Branch(
                id=branch_id,
                is_current=number == 0,
                last_event_id=versions.last.event_id,
                last_version=versions.last.version,
                items=[(item.event_id, item.version) for item in versions.items],
            )
            for number, ((branch_id, _), versions) in enumerate(zip(found.branches, histories, strict=True))
        ],
        reapplied=[
            Reapplied(
                kind=one.kind,
                name=one.name,
                branch=one.branch_id,
                event_id=one.event_id,
                version=one.version,
                at_s=one.time_s,
                to_run=one.to_run_id,
                to_event_id=one.to_event_id,
            )
            for one in found.reapplied
        ],
        is_reapplied_cut=found.is_reapplied_cut,
    )


def _marked(line: str, event_ids: list[int]) -> str:
    """The line of the current branch with the events that were reapplied to it."""
    if not event_ids or not line.endswith(CURRENT_MARK):
        return line
    shown = ", ".join(map(str, event_ids[:MARKED_MAX])) + (", ..." if len(event_ids) > MARKED_MAX else "")
    return f"{line} (reapplied here: {shown})"


VIEW: Final = View(path="branches", title="Branches", parameters=Asked, load=load, template="branches.html")
