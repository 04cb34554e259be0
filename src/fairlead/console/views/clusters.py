"""Clusters: the lag and dead letters source by target, global namespaces, and past failovers."""

from typing import Final

from temporalio.api.workflowservice.v1 import ListNamespacesRequest, ListNamespacesResponse

from fairlead.authorization.host_methods import HOST_METHODS
from fairlead.console.context import Context
from fairlead.console.grid import TEMPLATE, Cell, Grid, Grids, link, number, text
from fairlead.console.problems import problem_of
from fairlead.console.text import duration
from fairlead.console.text import number as number_text
from fairlead.console.view import Parameters, View
from fairlead.console.views.failover import past_failovers
from fairlead.core.errors import FairleadError
from fairlead.replication.puller import StreamStatus
from fairlead.replication.service import STATUS, StatusRequest, StatusResponse
from fairlead.rpc import RpcStatus
from fairlead.rpc.hosts.caller import UnknownMethod

# Lag in seconds above which the page advises against a failover.
LAG_S_MAX: Final = 10.0
ROWS: Final = 1_000


async def load(context: Context, _asked: Parameters) -> Grids:
    """Read the replication of all hosts, and the global namespaces."""
    await context.require(HOST_METHODS["replication.Status"])
    answers = await _statuses(context)
    if answers is None:
        return Grids(
            grids=[],
            sentence="This cluster is alone: there is no `cluster` in its configuration. "
            "docs/operations.md shows how to share namespaces between data centers.",
        )
    streams = [stream for answer in answers.values() if isinstance(answer, StatusResponse) for stream in answer.streams]
    silent = {
        source: why
        for answer in answers.values()
        if isinstance(answer, StatusResponse)
        for source, why in answer.silent
    }
    here = next((answer.here for answer in answers.values() if isinstance(answer, StatusResponse)), "")
    sources = sorted({stream.source for stream in streams} | silent.keys())
    rows = [
        _source_row(source, here, [one for one in streams if one.source == source], silent.get(source))
        for source in sources
    ]
    # Each cluster knows how far it is behind the others: the rest is in the consoles of the other targets.
    rows += [_other_row(source, target) for target in sources for source in [here, *sources] if source != target]
    lag = Grid(
        id="lag",
        title="Replication",
        columns=["From", "To", "State", "Streams", "Lag, tasks", "Lag", "Outstanding", "Dead letters", "Error"],
        rows=rows,
        empty="No other cluster is connected.",
        hint="Connect one with: temporal operator cluster upsert",
        note="Preflight and failover of a namespace asks its other clusters for their dead letters and lag.",
    )
    hosts = Grid(
        id="hosts",
        title="Hosts that do not answer",
        columns=["Host", "Reason"],
        rows=[[text(host), text(str(why))] for host, why in answers.items() if isinstance(why, FairleadError)],
        empty="All hosts answer.",
    )
    return Grids(grids=[lag, *await _namespaces(context, here, streams), hosts])


async def _statuses(context: Context) -> dict[str, StatusResponse | FairleadError] | None:
    """The response or error of each host; None if replication is off."""
    answers: dict[str, StatusResponse | FairleadError] = {}
    for host in context.backend.ring.hosts:
        try:
            status: StatusResponse = await context.ask_host(host, STATUS, StatusRequest())
            answers[host] = status
        except FairleadError as failure:
            answers[host] = failure
    return None if all(isinstance(answer, UnknownMethod) for answer in answers.values()) else answers


def _other_row(source: str, target: str) -> list[Cell]:
    return [text(source), text(target), text(f"see the console of {target}", "quiet"), *[text("")] * 6]


def _source_row(source: str, here: str, streams: list[StreamStatus], why: str | None) -> list[Cell]:
    error = why or next((one.error for one in streams if one.error), "")
    dead = sum(one.dead_letters for one in streams)
    lag_s = max((one.lag_s for one in streams), default=0.0)
    state = (
        text("cut off", "bad") if error else text("behind", "warn") if lag_s > LAG_S_MAX else text("following", "good")
    )
    return [
        text(source),
        text(here),
        state,
        number(len(streams)),
        number(sum(one.lag_tasks for one in streams)),
        text(duration(lag_s)),
        number(sum(one.outstanding for one in streams)),
        text(str(dead), "bad") if dead else number(0),
        text(error),
    ]


async def _namespaces(context: Context, here: str, streams: list[StreamStatus]) -> list[Grid]:
    """Global namespaces with what this cluster knows of a failover; and past failovers."""
    try:
        found = await context.call("ListNamespaces", ListNamespacesRequest(page_size=ROWS), ListNamespacesResponse)
    except RpcStatus as failure:
        return [Grid(id="namespaces", title="Global namespaces", columns=[], rows=[], problem=problem_of(failure))]
    behind = [one for one in streams if one.lag_s > LAG_S_MAX or one.error]
    dead = sum(one.dead_letters for one in streams)
    rows = []
    for one in sorted(found.namespaces, key=lambda one: one.namespace_info.name):
        if not one.is_global_namespace:
            continue
        active = one.replication_config.active_cluster_name
        name = one.namespace_info.name
        others = [cluster.cluster_name for cluster in one.replication_config.clusters if cluster.cluster_name != active]
        if active == here:
            check = text("active here: the preflight asks the others", "blue")
        elif behind or dead:
            check = text("this cluster is behind" if behind else f"{dead} dead letters here", "warn")
        else:
            check = text("this cluster has caught up", "good")
        rows.append(
            [
                text(name),
                text(active),
                number(one.failover_version),
                text(", ".join(others)),
                check,
                link("Preflight and failover", "failover", name=name) if others else text(""),
            ]
        )
    namespaces = Grid(
        id="namespaces",
        title="Global namespaces",
        columns=["Namespace", "Active in", "Version", "Other clusters", "State", ""],
        rows=rows,
        empty="No namespace is global.",
        hint="Share one with: temporal operator namespace update --promote-global --cluster a --cluster b",
        note=f"Only the first {number_text(ROWS)} namespaces were read." if found.next_page_token else "",
    )
    return [namespaces, await past_failovers(context)]


VIEW: Final = View(
    path="clusters",
    title="Clusters",
    nav="Clusters",
    access=HOST_METHODS["replication.Status"],
    key="c",
    parameters=Parameters,
    load=load,
    template=TEMPLATE,
)
