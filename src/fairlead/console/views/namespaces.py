"""Namespaces: retention, clusters and state of each."""

from typing import Final

from temporalio.api.enums.v1 import NamespaceState
from temporalio.api.workflowservice.v1 import ListNamespacesRequest, ListNamespacesResponse

from fairlead.console import text as shown
from fairlead.console.context import Context
from fairlead.console.grid import TEMPLATE, Grid, Grids, link, text
from fairlead.console.view import Parameters, View, workflow_method

ROWS: Final = 1_000


async def load(context: Context, _asked: Parameters) -> Grids:
    """Read all namespaces."""
    found = await context.call("ListNamespaces", ListNamespacesRequest(page_size=ROWS), ListNamespacesResponse)
    rows = []
    for one in sorted(found.namespaces, key=lambda one: one.namespace_info.name):
        info, replication = one.namespace_info, one.replication_config
        state = NamespaceState.Name(info.state).removeprefix("NAMESPACE_STATE_").lower()
        rows.append(
            [
                link(info.name, "workflows", namespace=info.name),
                text(state, "good" if state == "registered" else "warn"),
                text(shown.duration(one.config.workflow_execution_retention_ttl)),
                text(replication.active_cluster_name),
                text(", ".join(cluster.cluster_name for cluster in replication.clusters)),
                text(info.owner_email),
                text(info.description),
                text(info.id),
            ]
        )
    columns = ["Namespace", "State", "Retention", "Active cluster", "Clusters", "Owner", "Description", "Id"]
    grid = Grid(id="namespaces", title="Namespaces", columns=columns, rows=rows, empty="There is no namespace.")
    return Grids(grids=[grid])


VIEW: Final = View(
    path="namespaces",
    title="Namespaces",
    nav="Namespaces",
    access=workflow_method("ListNamespaces"),
    key="n",
    parameters=Parameters,
    load=load,
    template=TEMPLATE,
)
