"""One worker deployment: its versions with their share of new workflows and their drainage."""

from typing import Final

from temporalio.api.deployment.v1 import RoutingConfig, WorkerDeploymentInfo
from temporalio.api.enums.v1 import VersionDrainageStatus, WorkerDeploymentVersionStatus
from temporalio.api.workflowservice.v1 import (
    DescribeWorkerDeploymentRequest,
    DescribeWorkerDeploymentResponse,
    SetWorkerDeploymentCurrentVersionRequest,
    SetWorkerDeploymentCurrentVersionResponse,
    SetWorkerDeploymentRampingVersionRequest,
    SetWorkerDeploymentRampingVersionResponse,
)

from fairlead.console import text as shown
from fairlead.console.context import Context
from fairlead.console.grid import TEMPLATE, Cell, Grid, Grids, button, moment, text
from fairlead.console.view import Action, Field, Form, Parameters, View, workflow_method
from fairlead.core.errors import FixRequest
from fairlead.http import HttpFault

UNVERSIONED: Final = "unversioned workers"
# Colors of the states; the others have none.
_KINDS: Final = {"current": "good", "ramping": "blue", "draining": "warn"}


class Asked(Parameters, frozen=True, kw_only=True):
    """`name` is the deployment."""

    name: str = ""


async def load(context: Context, asked: Asked) -> Grids:
    """Read the deployment with its versions."""
    if not asked.name:
        raise HttpFault(400, "the address names no deployment: add name=...")
    info = (await _describe(context, asked)).worker_deployment_info
    routing = info.routing_config
    return Grids(grids=[_versions(info)], heading=f"Worker deployment {asked.name}", sentence=_sentence(routing))


async def _describe(context: Context, asked: Asked) -> DescribeWorkerDeploymentResponse:
    request = DescribeWorkerDeploymentRequest(namespace=asked.namespace, deployment_name=asked.name)
    return await context.call("DescribeWorkerDeployment", request, DescribeWorkerDeploymentResponse)


def _sentence(routing: RoutingConfig) -> str:
    current = routing.current_deployment_version.build_id
    sentence = f"New workflows start on {f'version {current}' if current else UNVERSIONED}"
    if share := routing.ramping_version_percentage:
        ramping = routing.ramping_deployment_version.build_id
        sentence += f", {share:g} % of them on {f'version {ramping}' if ramping else UNVERSIONED}"
    return f"{sentence}."


def _versions(info: WorkerDeploymentInfo) -> Grid:
    routing = info.routing_config
    rows = []
    for one in sorted(info.version_summaries, key=lambda one: one.create_time.ToNanoseconds(), reverse=True):
        build_id = one.deployment_version.build_id
        status = WorkerDeploymentVersionStatus.Name(one.status).removeprefix("WORKER_DEPLOYMENT_VERSION_STATUS_")
        state = status.replace("_", " ").lower()
        rows.append(
            [
                text(build_id),
                text(state, _KINDS.get(state, "quiet")),
                text(_share(routing, build_id)),
                _drainage(one.drainage_info.status),
                moment(shown.seconds_of(one.drainage_info.last_checked_time) if one.drainage_info.status else None),
                moment(shown.seconds_of(one.create_time)),
                text("") if state == "current" else button("current", build_id=build_id),
                text("") if state == "current" else button("ramp", build_id=build_id),
            ]
        )
    return Grid(
        id="versions",
        title="Versions",
        columns=["Build id", "State", "New workflows", "Drainage", "Checked", "Created", "", ""],
        rows=rows,
        empty="This deployment has no version.",
        hint="A worker with a deployment version creates one with its first poll.",
    )


def _share(routing: RoutingConfig, build_id: str) -> str:
    share = routing.ramping_version_percentage
    if routing.ramping_deployment_version.build_id == build_id and share:
        return f"{share:g} %"
    return f"{100 - share:g} %" if routing.current_deployment_version.build_id == build_id else "none"


def _drainage(status: VersionDrainageStatus.ValueType) -> Cell:
    name = VersionDrainageStatus.Name(status).removeprefix("VERSION_DRAINAGE_STATUS_").lower()
    if name == "unspecified":
        return text("")
    return text(
        "drained: its workers may stop" if name == "drained" else "workflows still run on it", _KINDS.get(name, "")
    )


async def _make_current(context: Context, asked: Asked, form: Form) -> str:
    described = await _describe(context, asked)
    request = SetWorkerDeploymentCurrentVersionRequest(
        namespace=asked.namespace,
        deployment_name=asked.name,
        build_id=form["build_id"],
        conflict_token=described.conflict_token,
        identity=context.identity(),
    )
    await context.call("SetWorkerDeploymentCurrentVersion", request, SetWorkerDeploymentCurrentVersionResponse)
    return f"Version {form['build_id']} is the current one: new workflows start on it."


async def _ramp(context: Context, asked: Asked, form: Form) -> str:
    share = _percentage(form.get("share", ""))
    described = await _describe(context, asked)
    request = SetWorkerDeploymentRampingVersionRequest(
        namespace=asked.namespace,
        deployment_name=asked.name,
        build_id=form["build_id"],
        percentage=share,
        conflict_token=described.conflict_token,
        identity=context.identity(),
    )
    await context.call("SetWorkerDeploymentRampingVersion", request, SetWorkerDeploymentRampingVersionResponse)
    return f"{share:g} % of new workflows start on version {form['build_id']}."


def _percentage(given: str) -> float:
    try:
        share = float(given)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 100:
        raise FixRequest(f"Percent of new workflows is {given!r}: give a number from 0 to 100")
    return share


_BUILD_ID: Final = Field(name="build_id", label="Build id", is_required=True)

VIEW: Final = View(
    path="deployment",
    title="Worker deployment",
    parameters=Asked,
    load=load,
    template=TEMPLATE,
    actions=(
        Action(
            name="current",
            label="Make current",
            access=workflow_method("SetWorkerDeploymentCurrentVersion"),
            act=_make_current,
            fields=(_BUILD_ID,),
            word="current",
            about="All new workflows start on this version.",
        ),
        Action(
            name="ramp",
            label="Ramp",
            access=workflow_method("SetWorkerDeploymentRampingVersion"),
            act=_ramp,
            fields=(_BUILD_ID, Field(name="share", label="Percent of new workflows", is_required=True)),
            about="A share of new workflows starts on this version, the others on the current one.",
        ),
    ),
)
