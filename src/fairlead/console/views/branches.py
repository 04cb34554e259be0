"""The branches of a workflow's history: versions, fork points, the current branch, and zombies."""

from typing import Final

from msgspec import Struct

from fairlead.console.context import Context
from fairlead.console.view import Parameters, View
from fairlead.core.versions import BranchTree, VersionHistory, draw_tree
from fairlead.history.messages.stream import TreeRequest
from fairlead.history.service import TREE


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


class Branches(Struct, frozen=True, kw_only=True):
    """The branches of a run; `lines` draw the tree."""

    id: str
    run: str
    is_zombie: bool
    lines: list[str]
    branches: list[Branch]


async def load(context: Context, asked: Asked) -> Branches:
    """Read the branches of a run."""
    request = TreeRequest(asked.namespace, asked.id, asked.run)
    found = await context.ask_host(context.backend.host, TREE, request)
    histories = [VersionHistory.from_pairs(items) for _, items in found.branches]
    return Branches(
        id=asked.id,
        run=found.run_id,
        is_zombie=found.is_zombie,
        lines=list(draw_tree(BranchTree.restore(histories))),
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
    )


VIEW: Final = View(path="branches", title="Branches", parameters=Asked, load=load, template="branches.html")
