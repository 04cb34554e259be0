"""`fairlead admin failover`: makes another cluster the active one of a namespace."""

import asyncio
from typing import TYPE_CHECKING

import click

from fairlead.cli.admin.cluster import Cluster
from fairlead.cli.admin.command import admin, asks
from fairlead.core.errors import FairleadError, FixRequest
from fairlead.report import Report, Table
from fairlead.rpc.hosts.caller import UnknownMethod

# Imported only when the command runs, so that `--help` is fast.
if TYPE_CHECKING:
    from fairlead.replication.messages import FailOverRequest, FailOverResponse

# Seconds added to the failover's own timeout for the response.
MARGIN_S = 5.0
PROGRESS_S = 1.0


class NoRemoteClusters(FixRequest):
    """The cluster is configured without remote clusters, so it can't fail over."""


@asks(admin, "failover")
@click.argument("namespace")
@click.option("--to", required=True, metavar="CLUSTER", help="The new active cluster.")
@click.option(
    "--graceful",
    is_flag=True,
    help="Move only after the new cluster has all events: calls wait for a moment, and no event is lost. "
    "Changes nothing if this takes longer than --timeout.",
)
async def failover(cluster: Cluster, *, namespace: str, to: str, graceful: bool) -> Report:
    """Make another cluster the active one of a namespace.

    Without --graceful, the failover takes effect at once, even if the active cluster is down: call the new active
    cluster, or any other. Events that only the old cluster has are replicated when it comes back: its signals are
    reapplied, and its other events stay on losing branches.

    With --graceful, the active cluster carries the failover out, even if another cluster is called. If the failover is
    not complete in time, nothing changes.

    \b
    fairlead admin failover orders --to b --graceful --timeout 1m
    fairlead admin failover orders --to b
    """
    from fairlead.replication.failover import FAIL_OVER  # noqa: PLC0415
    from fairlead.replication.messages import FailOverRequest  # noqa: PLC0415

    namespace = await cluster.namespace_name(namespace)
    request = FailOverRequest(namespace, to, graceful, cluster.timeout_s)
    asking = asyncio.create_task(cluster.ask(FAIL_OVER, request, timeout_s=cluster.timeout_s + MARGIN_S))
    reporting = asyncio.create_task(_report_progress(cluster, namespace))
    try:
        answer = await asking
    except UnknownMethod:
        raise NoRemoteClusters(
            "this cluster has no remote clusters: there is no `cluster` in its configuration"
        ) from None
    finally:
        reporting.cancel()
        asking.cancel()
        await asyncio.gather(reporting, asking, return_exceptions=True)
    return failover_report(request, answer)


def failover_report(request: "FailOverRequest", answer: "FailOverResponse") -> Report:
    """Return the state of the namespace after the failover."""
    return Report(
        "failover",
        f"namespace {request.namespace} is active in cluster {answer.active_cluster}, "
        f"at version {answer.failover_version}",
        {"namespace": request.namespace, "to": request.to, "graceful": request.is_graceful},
        [
            Table(
                "namespace",
                "",
                ("active_cluster", "failover_version"),
                [(answer.active_cluster, answer.failover_version)],
                plain={"active_cluster": answer.active_cluster, "failover_version": answer.failover_version},
            )
        ],
    )


async def _report_progress(cluster: Cluster, namespace: str) -> None:
    """Print the progress once a second, when it has changed."""
    from fairlead.replication.failover import (  # noqa: PLC0415
        FAIL_OVER_PROGRESS,
        Phase,
        Progress,
        ProgressRequest,
    )

    reported = Progress()
    while True:
        await asyncio.sleep(PROGRESS_S)
        try:
            progress = await cluster.ask(FAIL_OVER_PROGRESS, ProgressRequest(namespace))
        except FairleadError:
            continue
        if progress not in (reported, Progress()) and progress.phase != Phase.NONE:
            click.echo(f"{progress.phase}: {progress.ready} of {progress.shards} shards ready", err=True)
        reported = progress
