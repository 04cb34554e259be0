"""`fairlead admin replication status`: how far a cluster has replicated the others."""

from collections.abc import Mapping

from fairlead.cli.admin.cluster import Cluster, why_silent
from fairlead.cli.admin.command import admin, asks
from fairlead.cli.admin.failover import NoRemoteClusters
from fairlead.core.errors import FairleadError
from fairlead.replication.puller import StreamStatus
from fairlead.replication.service import STATUS, StatusRequest, StatusResponse
from fairlead.report import Cell, DualCell, Report, Table, counted
from fairlead.rpc.hosts.caller import UnknownMethod


def no_remote_clusters() -> NoRemoteClusters:
    """Return the error for a cluster without remote clusters."""
    return NoRemoteClusters("this cluster has no remote clusters: there is no `cluster` in its configuration")


@admin.group(no_args_is_help=True)
def replication() -> None:
    """Show the replication from other clusters."""


@asks(replication, "status")
async def status(cluster: Cluster) -> Report:
    """Show how far this cluster has replicated the streams of the others: a stream is one shard of another cluster.

    This cluster has stored all tasks up to the cursor. The lag is the number of tasks that the other cluster has
    written and this one has not applied, and the age in seconds of the oldest task that has arrived.
    """
    answers = await cluster.ask_all(STATUS, StatusRequest())
    if all(isinstance(answer, UnknownMethod) for answer in answers.values()):
        raise no_remote_clusters()
    return status_report(answers)


def status_report(answers: Mapping[str, StatusResponse | FairleadError]) -> Report:
    """Return the streams of all hosts, and the totals of each remote cluster."""
    streams: list[StreamStatus] = []
    # Remote clusters whose streams are not known, with the reason; and the hosts of this cluster that did not respond.
    unknown: dict[str, str] = {}
    silent: list[tuple[Cell, ...]] = []
    here = ""
    for host, answer in answers.items():
        if isinstance(answer, StatusResponse):
            here = answer.here
            streams += answer.streams
            unknown |= dict(answer.silent)
        elif not isinstance(answer, UnknownMethod):
            silent.append((host, why_silent(answer)))
    streams.sort(key=lambda stream: (stream.source, stream.shard_id, stream.host))
    sources = sorted({stream.source for stream in streams} | unknown.keys())
    rows = [
        _together(source, [stream for stream in streams if stream.source == source], unknown.get(source))
        for source in sources
    ]
    reported = {(row[0], row[-1]) for row in rows}
    lag_tasks = sum(stream.lag_tasks for stream in streams)
    summary = f"cluster {here} pulls {counted(len(streams), 'stream')} of {counted(len(sources), 'other cluster')}"
    return Report(
        "replication",
        f"{summary}; it is behind by {counted(lag_tasks, 'task')}" if streams else f"{summary}",
        {"cluster": here},
        [
            Table(
                "clusters",
                "",
                ("source", "streams", "lag_tasks", "lag_s", "outstanding", "dead_letters", "error"),
                rows,
            ),
            Table(
                "streams",
                "Streams",
                (
                    *("source", "shard", "host", "cursor", "read_id"),
                    *("lag_tasks", "lag_s", "outstanding", "dead_letters", "error"),
                ),
                [_row(stream, is_reported=(stream.source, stream.error) in reported) for stream in streams],
            ),
            Table("silent", "Hosts that do not answer", ("host", "reason"), silent),
        ],
    )


def _together(source: str, streams: list[StreamStatus], why_unknown: str | None) -> tuple[Cell, ...]:
    if not streams:
        return (source, 0, None, None, None, None, why_unknown)
    return (
        source,
        len(streams),
        sum(stream.lag_tasks for stream in streams),
        max(stream.lag_s for stream in streams),
        sum(stream.outstanding for stream in streams),
        sum(stream.dead_letters for stream in streams),
        next((stream.error for stream in streams if stream.error), None),
    )


def _row(stream: StreamStatus, *, is_reported: bool) -> tuple[Cell, ...]:
    """Return a row of the table. With `is_reported`, the row leaves out the error, which is shown for the whole
    cluster.
    """
    return (
        stream.source,
        stream.shard_id,
        stream.host,
        stream.cursor,
        stream.read_id,
        stream.lag_tasks,
        stream.lag_s,
        stream.outstanding,
        stream.dead_letters,
        DualCell("", stream.error) if is_reported else stream.error or None,
    )
