"""`fairlead admin failover`: makes another cluster the active one of a namespace."""

import asyncio
from typing import TYPE_CHECKING

import click

from fairlead.cli.admin.cluster import Cluster
from fairlead.cli.admin.command import admin, asks
from fairlead.cli.report import Report, Table
from fairlead.cluster.calls import UnknownMethod
from fairlead.core.errors import FairleadError, FixRequest

# Loaded when it is asked for: whoever looks for help need not wait for it.
if TYPE_CHECKING:
    from fairlead.replication.messages import FailOverAnswer, FailOverRequest

# What the answer may take beyond the time that the failover itself has.
MARGIN_S = 5.0
PROGRESS_S = 1.0


class SharesNothing(FixRequest):
    """The cluster is configured to be alone: there is no other one to fail over to."""


@asks(admin, "failover")
@click.argument("namespace")
@click.option("--to", required=True, metavar="CLUSTER", help="The cluster that is to be active.")
@click.option(
    "--graceful",
    is_flag=True,
    help="Only when that cluster has all that was written: calls wait for a moment, and nothing is lost. Within "
    "--timeout, or not at all.",
)
async def failover(cluster: Cluster, *, namespace: str, to: str, graceful: bool) -> Report:
    """Make another cluster the active one of a namespace.

    Without --graceful it is done at once, also if the cluster that was active is gone: ask the cluster that is to be
    active, or any other. What the old one had written and nobody else has seen comes back when the old one does: its
    signals are applied again, the rest stays on branches that have lost.

    With --graceful the cluster that is active carries it out, whichever is asked. If it does not come about in time,
    everything is as it was.

    \b
    fairlead admin failover orders --to b --graceful --timeout 1m
    fairlead admin failover orders --to b
    """
    from fairlead.replication.failover import FAIL_OVER  # noqa: PLC0415
    from fairlead.replication.messages import FailOverRequest  # noqa: PLC0415

    request = FailOverRequest(namespace, to, graceful, cluster.timeout_s)
    asking = asyncio.create_task(cluster.ask(FAIL_OVER, request, timeout_s=cluster.timeout_s + MARGIN_S))
    telling = asyncio.create_task(_tell_progress(cluster, namespace))
    try:
        answer = await asking
    except UnknownMethod:
        raise SharesNothing(
            "this cluster shares no namespaces with others: it has no `cluster` in its configuration"
        ) from None
    finally:
        telling.cancel()
        asking.cancel()
        await asyncio.gather(telling, asking, return_exceptions=True)
    return failover_report(request, answer)


def failover_report(request: "FailOverRequest", answer: "FailOverAnswer") -> Report:
    """How the namespace is now."""
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


async def _tell_progress(cluster: Cluster, namespace: str) -> None:
    """Each second, to whoever waits, while there is something to tell."""
    from fairlead.replication.failover import (  # noqa: PLC0415
        FAIL_OVER_PROGRESS,
        Phase,
        Progress,
        ProgressRequest,
    )

    told = Progress()
    while True:
        await asyncio.sleep(PROGRESS_S)
        try:
            progress = await cluster.ask(FAIL_OVER_PROGRESS, ProgressRequest(namespace))
        except FairleadError:
            continue
        if progress not in (told, Progress()) and progress.phase != Phase.NONE:
            click.echo(f"{progress.phase}: {progress.ready} of {progress.shards} shards ready", err=True)
        told = progress
