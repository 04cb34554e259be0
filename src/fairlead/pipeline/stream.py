"""The streaming form of `ingest`: moves segments into the same tables, by the same stages, as they are sealed."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from fairlead.core.errors import FairleadError, FixRequest
from fairlead.pipeline.job import JobContext, Summary
from fairlead.pipeline.jobs import fairness, traffic
from fairlead.pipeline.jobs.ingest import (
    Absorbed,
    TakenIn,
    absorb,
    describe,
    quarantine_alarm,
    sort_out,
    taken_in,
    unknown_in,
)
from fairlead.pipeline.lake import Lake
from fairlead.pipeline.schemas import BRONZE
from fairlead.pipeline.sources.journal import segments_as_sealed
from fairlead.pipeline.sources.segments import find_segments
from fairlead.pipeline.upkeep.compaction import compact
from fairlead.telemetry import get_log

_log = get_log("pipeline.stream")

INTERVAL_S = 5.0
WAIT_S = 1
# Number of batches after which the stream merges small ones: each micro-batch with a new segment makes a batch.
COMPACT_BATCHES = 32


def run(context: JobContext, *, is_wanted: Callable[[], bool] = lambda: True) -> Summary:
    """Follow the journal until `is_wanted` returns False; with the option `once`, until all present segments are in.

    With the option `tables_s`, the stream also writes the tables of `traffic` and `fairness` after new records, at most
    once in as many seconds. These are the jobs themselves, which compute only the windows that the records touch.

    The position is stored in the lake, whose lock is held throughout: no second stream or ingest can run beside it.
    So the stream also merges the small batches that it makes.
    """
    journal = context.journal
    if journal is None:
        raise FixRequest("stream needs --journal: the folder that the server writes its journal to")
    if "connect" in type(context.spark).__module__:
        raise FixRequest("stream does not run through Spark Connect: give another --master")
    find_segments(journal)
    totals = {kind: Absorbed() for kind in BRONZE}
    tables = _Tables(context, totals["task"])
    with context.lake.locked():
        queries = [_start(context, journal, kind, totals[kind]) for kind in BRONZE]
        try:
            while is_wanted() and any(query.isActive for query in queries):
                for query in queries:
                    query.awaitTermination(WAIT_S)
                tables.refresh_if_due()
                context.progress(", ".join(f"{kind}: {total.rows:,} rows" for kind, total in totals.items()))
            for query in queries:
                if not query.isActive:
                    query.awaitTermination()
        finally:
            for query in queries:
                query.stop()
        tables.refresh()
        # A stream that ends early makes too few batches to merge any while it runs.
        for kind, total in totals.items():
            if context.lake.has(kind):
                _compact(context.lake, kind, total)
        alarm, unknown = quarantine_alarm(context.lake), unknown_in(context.lake)
    quarantined = [found for total in totals.values() for found in total.quarantined]
    return Summary(
        job="stream",
        rows={kind: total.rows for kind, total in totals.items()},
        findings={
            "segments": sum(total.segments for total in totals.values()),
            "batches": sum(total.batches for total in totals.values()),
            "quarantined": [describe(found) for found in quarantined],
            "segments_duplicate": [
                f"{one.cluster}/{one.name}" for total in totals.values() for one in total.duplicates
            ],
            **tables.findings,
            "not_merged": [total.not_merged for total in totals.values() if total.not_merged],
            **unknown,
        },
        alarm=alarm,
    )


class _Tables:
    """Keeps the tables of `traffic` and `fairness` up to date with the records that the stream ingests."""

    def __init__(self, context: JobContext, ingested: Absorbed) -> None:
        self._context = context
        self._ingested = ingested
        self._every_s: float | None = context.options.get("tables_s") or None
        self._next_s = 0.0
        # The first refresh also includes records that were ingested before.
        self._rows = -1
        self._refreshes = 0
        self._failure = ""

    @property
    def findings(self) -> dict[str, Any]:
        """Findings about the tables, for the summary."""
        if self._every_s is None:
            return {}
        return {"tables_refreshed": self._refreshes, "tables_failed": [self._failure] if self._failure else []}

    def refresh_if_due(self) -> None:
        """Write the tables if there are new records, and the last time was long enough ago."""
        if time.monotonic() >= self._next_s:
            self.refresh()

    def refresh(self) -> None:
        """Write the tables if there are new records. A failure must not end the stream: the next refresh repeats it."""
        rows = self._ingested.rows
        if self._every_s is None or rows == self._rows or not self._context.lake.has("task"):
            return
        try:
            for job in (traffic, fairness):
                job.run(self._context)
            self._rows, self._failure = rows, ""
            self._refreshes += 1
        except (FairleadError, PySparkException, OSError) as failure:
            self._failure = str(failure)
            _log.warning("tables not refreshed", reason=self._failure)
        self._next_s = time.monotonic() + self._every_s


def _remove_drafts(checkpoint: Path) -> None:
    """Remove the drafts of a killed stream: Spark does not start if its first checkpoint file exists as a draft."""
    for draft in [*checkpoint.rglob(".*.tmp"), *checkpoint.rglob("..*.tmp.crc")]:
        draft.unlink(missing_ok=True)


def _start(context: JobContext, journal: Path, kind: str, total: Absorbed) -> StreamingQuery:
    checkpoint = context.lake.root / "_stream" / kind
    _remove_drafts(checkpoint)
    interval_s = context.options.get("interval_s", INTERVAL_S)
    trigger = {"availableNow": True} if context.options.get("once") else {"processingTime": f"{interval_s} seconds"}
    # Read once: the lock prevents other writers until the stream ends.
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
    done: TakenIn,
) -> None:
    """Ingest a micro-batch of segments.

    Segments that are already in the lake are skipped: Spark repeats a micro-batch whose end was not recorded, and the
    job `ingest` may have ingested them before.
    """
    keys = {(row.cluster, Path(row.path).name) for row in named.collect()}
    here = [segment for segment in find_segments(journal, [kind]) if segment.key in keys]
    sorted_out = sort_out(lake, done, here)
    total.duplicates += sorted_out.duplicates
    total.quarantined += sorted_out.waiting
    if sorted_out.news:
        absorbed = absorb(named.sparkSession, lake, kind, sorted_out.news)
        bad = {(found.entry.cluster, found.entry.name) for found in absorbed.quarantined}
        for segment in sorted_out.news:
            if segment.key not in bad:
                done.add(segment)
        total.add(absorbed)
        if total.batches % COMPACT_BATCHES == 0:
            _compact(lake, kind, total)


def _compact(lake: Lake, kind: str, total: Absorbed) -> None:
    """Merge small batches. A failure must not end the stream: it continues without merging."""
    if total.not_merged:
        return
    try:
        compact(lake, kind)
    except (FairleadError, OSError) as failure:
        total.not_merged = str(failure)
        _log.warning("small batches not merged", table=kind, reason=total.not_merged)
