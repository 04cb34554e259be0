"""`fairlead admin history tree`: the branches of a run's history, written by several clusters."""

import click

from fairlead.cli.admin.cluster import Cluster
from fairlead.cli.admin.command import DEFAULT_NAMESPACE, admin, asks
from fairlead.core.versions import BranchTree, VersionHistory, draw_tree
from fairlead.history.messages.stream import BranchesResponse, TreeRequest
from fairlead.history.service import TREE
from fairlead.report import DualCell, Report, Table, counted


@admin.group(no_args_is_help=True)
def history() -> None:
    """Show the histories of workflows."""


@asks(history, "tree")
@click.argument("workflow_id")
@click.option(
    "--namespace", default=DEFAULT_NAMESPACE, show_default=True, metavar="NAME", help="Name or id of the namespace."
)
@click.option("--run-id", default="", metavar="ID", help="Id of the run. [default: the current run]")
async def tree(cluster: Cluster, *, workflow_id: str, namespace: str, run_id: str) -> Report:
    """Draw the branches of a run, with their events and versions, and mark the current branch.

    A run has several branches if two clusters wrote to it at the same time, before the events of one were replicated to
    the other. The branch with the highest version is the current one; the events of the others are kept.
    """
    name = await cluster.namespace_name(namespace)
    answer = await cluster.ask(TREE, TreeRequest(name, workflow_id, run_id, with_reapplied=True))
    return tree_report(workflow_id, answer)


def tree_report(workflow_id: str, answer: BranchesResponse) -> Report:
    """Return the drawing, and each branch with its version history."""
    histories = [VersionHistory.from_pairs(items) for _, items in answer.branches]
    lines = draw_tree(BranchTree.restore(histories))
    branches = [
        (
            branch_id,
            is_current,
            versions.last.event_id,
            versions.last.version,
            DualCell(
                ", ".join(f"{event_id} v{version}" for event_id, version in versions.items),
                [{"event_id": event_id, "version": version} for event_id, version in versions.items],
            ),
        )
        for (branch_id, _), versions, is_current in zip(
            answer.branches, histories, [True, *[False] * len(histories)], strict=False
        )
    ]
    zombie = ", a zombie: another run is the current one" if answer.is_zombie else ""
    return Report(
        "history",
        f"run {answer.run_id} of {workflow_id} has {_branches(len(branches))}{zombie}",
        {"workflow_id": workflow_id, "run_id": answer.run_id},
        [
            Table("tree", "", ("events",), [(line,) for line in lines], plain=list(lines)),
            Table(
                "branches",
                "Branches",
                ("branch_id", "is_current", "last_event_id", "last_version", "version_history"),
                branches,
            ),
            Table(
                "reapplied",
                "Signals and updates of losing branches" + (", the first ones" if answer.is_reapplied_cut else ""),
                ("kind", "name", "branch_id", "event_id", "version", "reapplied_to_run_id", "reapplied_event_id"),
                [
                    (one.kind, one.name, one.branch_id, one.event_id, one.version, one.to_run_id, one.to_event_id)
                    for one in answer.reapplied
                ],
            ),
        ],
    )


def _branches(count: int) -> str:
    return counted(count, "branch") if count == 1 else f"{count} branches"
