"""Workers and worker deployments of a namespace."""

from typing import Final

import msgspec
from temporalio.api.workflowservice.v1 import (
    ListWorkerDeploymentsRequest,
    ListWorkerDeploymentsResponse,
    ListWorkersRequest,
    ListWorkersResponse,
)

from fairlead.console import text as shown
from fairlead.console.context import Context
from fairlead.console.grid import TEMPLATE, Grid, Grids, link, moment, number, text
from fairlead.console.problems import problem_of
from fairlead.console.view import Parameters, View, workflow_method
from fairlead.rpc import RpcStatus

ROWS: Final = 200


async def load(context: Context, asked: Parameters) -> Grids:
    """Read the workers that report themselves, and the deployments."""
    return Grids(grids=[await _workers(context, asked.namespace), await _deployments(context, asked.namespace)])


async def _workers(context: Context, namespace: str) -> Grid:
    request = ListWorkersRequest(namespace=namespace, page_size=ROWS)
    grid = Grid(
        id="workers",
        title="Workers",
        columns=[
            "Identity",
            "Task queue",
            "Deployment version",
            "SDK",
            "Host",
            "Workflow slots",
            "Activity slots",
            "Seen",
        ],
        rows=[],
        empty="No worker reports itself.",
        hint="Newer SDKs send heartbeats. The page of a task queue shows all workers that poll it.",
    )
    try:
        found = await context.call("ListWorkers", request, ListWorkersResponse)
    except RpcStatus as failure:
        return Grid(id="workers", title="Workers", columns=[], rows=[], problem=problem_of(failure))
    for worker in found.workers_info:
        one = worker.worker_heartbeat
        version = one.deployment_version
        grid.rows.append(
            [
                text(one.worker_identity),
                text(one.task_queue),
                text(f"{version.deployment_name}:{version.build_id}" if version.deployment_name else version.build_id),
                text(f"{one.sdk_name} {one.sdk_version}".strip()),
                text(one.host_info.host_name),
                number(one.workflow_task_slots_info.current_used_slots),
                number(one.activity_task_slots_info.current_used_slots),
                moment(shown.seconds_of(one.heartbeat_time)),
            ]
        )
    return msgspec.structs.replace(grid, note=_cut(found.next_page_token, "temporal worker list"))


def _cut(token: bytes, command: str) -> str:
    return f"These are the first {ROWS}; all of them: {command}" if token else ""


async def _deployments(context: Context, namespace: str) -> Grid:
    request = ListWorkerDeploymentsRequest(namespace=namespace, page_size=ROWS)
    try:
        found = await context.call("ListWorkerDeployments", request, ListWorkerDeploymentsResponse)
    except RpcStatus as failure:
        return Grid(id="deployments", title="Deployments", columns=[], rows=[], problem=problem_of(failure))
    rows = []
    for one in found.worker_deployments:
        routing = one.routing_config
        share = routing.ramping_version_percentage
        rows.append(
            [
                link(one.name, "deployment", name=one.name),
                text(routing.current_deployment_version.build_id or "unversioned"),
                text(f"{routing.ramping_deployment_version.build_id} ({share:g} %)" if share else ""),
                moment(shown.seconds_of(one.create_time)),
            ]
        )
    return Grid(
        id="deployments",
        title="Deployments",
        columns=["Deployment", "Current version", "Ramping version", "Created"],
        rows=rows,
        empty="This namespace has no worker deployment.",
        hint="A worker with a deployment version creates one with its first poll.",
        note=_cut(found.next_page_token, "temporal worker deployment list"),
    )


VIEW: Final = View(
    path="workers",
    title="Workers",
    nav="Workers",
    access=workflow_method("ListWorkers"),
    key="k",
    parameters=Parameters,
    load=load,
    template=TEMPLATE,
)
