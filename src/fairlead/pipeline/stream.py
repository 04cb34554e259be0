"""The streaming form of `ingest`: segments come into the same tables by the same stages, as they are sealed."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from fairlead.core.errors import FixRequest
from fairlead.pipeline.job import JobContext, Summary
from fairlead.pipeline.jobs.ingest import Absorbed, absorb, describe, not_yet_in, taken_in
from fairlead.pipeline.lake import Lake
from fairlead.pipeline.schemas import BRONZE
from fairlead.pipeline.sources.journal import segments_as_sealed
from fairlead.pipeline.sources.segments import find_segments

INTERVAL_S = 5.0
WAIT_S = 1


def run(context: JobContext, *, is_wanted: Callable[[], bool] = lambda: True) -> Summary:
    """Follow the journal until it is not wanted any more; with the option `once`, until all that is there is in.

    Where it stopped is kept in the lake, whose lock is held all the time: one stream, and no ingest beside it.
    """
    journal = context.journal
    if journal is None:
        raise FixRequest("stream needs --journal: the folder that the server writes its journal to")
    if "connect" in type(context.spark).__module__:
        raise FixRequest("stream does not run through Spark Connect: give another --master")
    find_segments(journal)
    totals = {kind: Absorbed() for kind in BRONZE}
    with context.lake.locked():
        queries = [_start(context, journal, kind, totals[kind]) for kind in BRONZE]
        try:
            while is_wanted() and any(query.isActive for query in queries):
                for query in queries:
                    query.awaitTermination(WAIT_S)
                context.progress(", ".join(f"{kind}: {total.rows:,} rows" for kind, total in totals.items()))
            for query in queries:
                if not query.isActive:
                    query.awaitTermination()
        finally:
            for query in queries:
                query.stop()
    quarantined = [found for total in totals.values() for found in total.quarantined]
    return Summary(
        job="stream",
        rows={kind: total.rows for kind, total in totals.items()},
        findings={
            "segments": sum(total.segments for total in totals.values()),
            "batches": sum(total.batches for total in totals.values()),
            "quarantined": [describe(found) for found in quarantined],
        },
        alarm=f"{len(quarantined)} segments can't be read and went into quarantine" if quarantined else None,
    )


def _remove_drafts(checkpoint: Path) -> None:
    """Take away what a killed stream was about to write: Spark refuses to begin where it finds its first draft."""
    for draft in [*checkpoint.rglob(".*.tmp"), *checkpoint.rglob("..*.tmp.crc")]:
        draft.unlink(missing_ok=True)


def _start(context: JobContext, journal: Path, kind: str, total: Absorbed) -> StreamingQuery:
    checkpoint = context.lake.root / "_stream" / kind
    _remove_drafts(checkpoint)
    interval_s = context.options.get("interval_s", INTERVAL_S)
    trigger = {"availableNow": True} if context.options.get("once") else {"processingTime": f"{interval_s} seconds"}
    # What is in the lake is looked up once: nobody else writes to it before this ends.
    done = taken_in(context.lake, kind)
    absorb_named = partial(_absorb, lake=context.lake, journal=journal, kind=kind, total=total, done=done)
    return (
        segments_as_sealed(context.spark, journal, kind)
        .writeStream.queryName(f"stream-{kind}")
        .option("checkpointLocation", str(checkpoint))
        .trigger(**trigger)
        .foreachBatch(absorb_named)
        .start()
    )


def _absorb(
    named: DataFrame,
    _epoch: int,
    *,
    lake: Lake,
    journal: Path,
    kind: str,
    total: Absorbed,
    done: dict[tuple[str, str], int],
) -> None:
    """Bring a micro-batch of segments into the lake.

    Those that are there already are left out: Spark repeats a micro-batch whose end it has not recorded, and the batch
    job may have come before.
    """
    keys = {(row.cluster, Path(row.path).name) for row in named.collect()}
    here = [segment for segment in find_segments(journal, [kind]) if segment.key in keys]
    news, _changed = not_yet_in(lake, done, here)
    if news:
        absorbed = absorb(named.sparkSession, lake, kind, news)
        bad = {(found.entry.cluster, found.entry.name) for found in absorbed.quarantined}
        done |= {segment.key: segment.bytes for segment in news if segment.key not in bad}
        total.add(absorbed)
