"""Namespaces: retention, clusters and state of each."""

import base64
from typing import Final

from temporalio.api.enums.v1 import NamespaceState
from temporalio.api.workflowservice.v1 import ListNamespacesRequest, ListNamespacesResponse

from fairlead.console import text as shown
from fairlead.console.context import Context
from fairlead.console.grid import TEMPLATE, Grid, Grids, link, text
from fairlead.console.view import Parameters, View, workflow_method
from fairlead.http import HttpFault

ROWS: Final = 500


class Asked(Parameters, frozen=True, kw_only=True):
    """`after` is the token of a page."""

    after: str = ""


async def load(context: Context, asked: Asked) -> Grids:
    """Read a page of namespaces; each page is sorted by name."""
    try:
        token = base64.urlsafe_b64decode(asked.after)
    except ValueError:
        raise HttpFault(400, "the parameter `after` is not a token of a page: begin with the first page") from None
    request = ListNamespacesRequest(page_size=ROWS, next_page_token=token)
    found = await context.call("ListNamespaces", request, ListNamespacesResponse)
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
    return Grids(grids=[grid], next=base64.urlsafe_b64encode(found.next_page_token).decode())


VIEW: Final = View(
    path="namespaces",
    title="Namespaces",
    nav="Namespaces",
    access=workflow_method("ListNamespaces"),
    key="n",
    parameters=Asked,
    load=load,
    template=TEMPLATE,
)
