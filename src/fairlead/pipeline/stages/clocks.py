"""Watermarks: the time up to which each cluster's histories were delivered, on its own clock and on those of the
others.

The watermark of a stream is the latest time that it has delivered, on its own clock. The difference of two clusters'
clocks converts it to the clock of the other cluster. The difference is measured with runs that both clusters have: the
two times at which they journaled a run's first events differ by the difference of the clocks and by the lag of
replication, and the cluster that started the run journals it first. To leave out the lag, take the largest difference
among the runs that the holder started, but at most the smallest one among those that the other cluster started. If it
is unknown which cluster started a run, the median counts.
"""

import tempfile
from collections.abc import Mapping
from itertools import chain

import duckdb
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from fairlead.pipeline.increments.changes import view_of_table
from fairlead.pipeline.kernels.reconcile.clocks import Clocks
from fairlead.pipeline.lake import Lake
from fairlead.pipeline.queries import MEMORY_MAX
from fairlead.pipeline.schemas import LONG, STRING, struct

# Span before the last run that two clusters share, in µs, over which the difference of their clocks is measured.
SYNC_US = 3_600_000_000
# Window, in µs, of the runs whose smallest difference counts: a longer window allows for a cluster that lagged longer.
LAG_US = 24 * SYNC_US

_ARRIVALS = struct(cluster=STRING, segment=STRING, arrived_us=LONG)
_RUN = "namespace_id, workflow_id, run_id"
_WATERMARKS = "SELECT cluster, max(time_us) FROM history WHERE time_us IS NOT NULL GROUP BY cluster"
# For each pair of clusters, by how much the holder's clock is ahead of the other's.
_DIFFERENCES = f"""
    WITH starts AS (
        SELECT {_RUN}, {{starter}} AS starter, cluster, min(time_us) AS time_us
        FROM history WHERE first_event_id = 1 GROUP BY ALL
    ), shared AS (
        SELECT holder.cluster AS holder, other.cluster AS other, starter, holder.time_us AS holder_us,
               holder.time_us - other.time_us AS ahead_us
        FROM starts AS holder JOIN starts AS other USING ({_RUN}, starter) WHERE holder.cluster <> other.cluster
    ), latest AS (
        SELECT holder, other, starter, max(holder_us) AS latest_us FROM shared GROUP BY ALL
    ), dated AS (
        SELECT shared.*, latest_us - holder_us AS age_us FROM shared JOIN latest USING (holder, other, starter)
    ), measured AS (
        SELECT holder, other,
               max(ahead_us) FILTER (age_us < {SYNC_US} AND starter = holder) AS low,
               min(ahead_us) FILTER (age_us < {LAG_US} AND starter = other) AS high,
               quantile_cont(ahead_us, 0.5) FILTER (age_us < {SYNC_US}) AS middle
        FROM dated GROUP BY ALL
    )
    SELECT holder, other, coalesce(least(low, high), middle) AS ahead_us FROM measured
"""  # noqa: S608 - our own names


def read_clocks(
    lake: Lake,
    *,
    now_us: int,
    until_us: int | None,
    increment: int | None = None,
    initial_versions: Mapping[str, int] | None = None,
) -> Clocks:
    """Compute the clocks of all clusters from all delivered batches; `until_us` is the time to judge at.

    `increment` and `initial_versions` say which cluster starts runs at a version. Each run of the job reads all
    batches, also old ones. DuckDB reads them, because Spark takes ten times the CPU for it.
    """
    with (
        tempfile.TemporaryDirectory(prefix="fairlead-clocks-") as folder,
        duckdb.connect(config={"memory_limit": MEMORY_MAX, "temp_directory": folder}) as database,
    ):
        view_of_table(database, lake, "history")
        return clocks_in(
            database, now_us=now_us, until_us=until_us, increment=increment, initial_versions=initial_versions
        )


def clocks_in(
    database: duckdb.DuckDBPyConnection,
    *,
    now_us: int,
    until_us: int | None,
    increment: int | None = None,
    initial_versions: Mapping[str, int] | None = None,
) -> Clocks:
    """Like `read_clocks`, but from the batches in the view `history`."""
    latest: dict[str, int] = dict(database.execute(_WATERMARKS).fetchall())
    cut = frozenset(name for name, time_us in latest.items() if until_us is not None and time_us >= until_us)
    own = {name: min(time_us, until_us or time_us) for name, time_us in latest.items()}
    versions = dict(initial_versions or {})
    query = _DIFFERENCES.format(starter=_starter(len(versions), increment or 1))
    found = database.execute(query, list(chain.from_iterable((number, name) for name, number in versions.items())))
    others = {(holder, other): own[other] + round(ahead_us) for holder, other, ahead_us in found.fetchall()}
    return Clocks(now_us, own, others, cut)


def _starter(clusters: int, increment: int) -> str:
    """Return the expression for the cluster that writes at a version; an empty name if unknown.

    Its parameters are the initial version and the name of each cluster.
    """
    cases = " ".join(f"WHEN (version - ?) % {increment} = 0 THEN ?" for _ in range(clusters))
    return f"CASE {cases} ELSE '' END" if clusters else "''"


def with_arrivals(history: DataFrame, spark: SparkSession, lake: Lake) -> DataFrame:
    """Add the time at which the row's segment arrived in the lake, by the clock of the pipeline."""
    rows = [(entry.cluster, entry.name, entry.arrived_us) for entry in lake.segments("history")]
    arrivals = spark.createDataFrame(rows, _ARRIVALS)
    return history.join(F.broadcast(arrivals), ["cluster", "segment"], "left")
