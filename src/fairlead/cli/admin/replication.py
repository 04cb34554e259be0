"""`fairlead admin replication status`: how far a cluster is with what the others write."""

from collections.abc import Mapping

from fairlead.cli.admin.cluster import Cluster, why_silent
from fairlead.cli.admin.command import admin, asks
from fairlead.cli.admin.failover import SharesNothing
from fairlead.cli.report import Cell, Report, Table, Told, counted
from fairlead.cluster.calls import UnknownMethod
from fairlead.core.errors import FairleadError
from fairlead.replication.pulling import StreamStatus
from fairlead.replication.service import STATUS, StatusAnswer, StatusRequest


def shares_nothing() -> SharesNothing:
    """What to say of a cluster without others."""
    return SharesNothing("this cluster shares no namespaces with others: it has no `cluster` in its configuration")


@admin.group(no_args_is_help=True)
def replication() -> None:
    """Look at what comes from other clusters."""


@asks(replication, "status")
async def status(cluster: Cluster) -> Report:
    """Show how far this cluster is with the streams of the others: a stream is one shard of another cluster.

    All up to the cursor is safe here. The lag is what the other cluster has written and this one has not taken in: in
    tasks, and in seconds since the oldest of those that have come was written there.
    """
    answers = await cluster.ask_all(STATUS, StatusRequest())
    if all(isinstance(answer, UnknownMethod) for answer in answers.values()):
        raise shares_nothing()
    return status_report(answers)


def status_report(answers: Mapping[str, StatusAnswer | FairleadError]) -> Report:
    """The streams of all hosts, and each other cluster's together."""
    streams: list[StreamStatus] = []
    # Clusters of which no stream is known, with the reason; and hosts of this one.
    unknown: dict[str, str] = {}
    silent: list[tuple[Cell, ...]] = []
    here = ""
    for host, answer in answers.items():
        if isinstance(answer, StatusAnswer):
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
    told = {(row[0], row[-1]) for row in rows}
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
                [_row(stream, is_told=(stream.source, stream.error) in told) for stream in streams],
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


def _row(stream: StreamStatus, *, is_told: bool) -> tuple[Cell, ...]:
    """`is_told`: its error is that of its whole cluster, which people need not read again for each stream."""
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
        Told("", stream.error) if is_told else stream.error or None,
    )
