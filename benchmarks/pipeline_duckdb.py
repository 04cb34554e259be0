"""The same queries in DuckDB, over the same Parquet: the overhead of Spark on one machine, and a check of its results.

For `traffic`, DuckDB computes both tables completely. For `reconcile`, it computes only the part that one query can:
the runs that differ between clusters, by the ids, versions and digests of their events; no trees, ancestors, verdicts
and repairs.
"""
# ruff: noqa: S608 - all that is put into queries is named here

import json
import sys
import time
from pathlib import Path

import duckdb

from fairlead.core.versions import LOCAL_VERSION
from fairlead.pipeline.kernels.reconcile import Kind
from fairlead.pipeline.stages.traffic import TASK_QUEUE, WINDOW_S

# Relative difference of two sums of doubles that counts as equal: a sum depends on the order.
TOLERANCE = 1e-9
_WINDOW_US = round(WINDOW_S * 1e6)

_RATES = f"""
    waits[1] / 1e6 AS wait_s_p50, waits[2] / 1e6 AS wait_s_p95, waits[3] / 1e6 AS wait_s_p99,
    added / {WINDOW_S} AS write_qps, matched / {WINDOW_S} AS dispatch_qps,
    matched_at_once / nullif(matched, 0) AS at_once_share, matched_forwarded / nullif(matched, 0) AS forwarded_share,
    polls_empty / nullif(polls_empty + matched, 0) AS idle_share
"""
_WAITS = "quantile_cont(wait_us, [0.5, 0.95, 0.99]) FILTER (kind = 'matched') AS waits"
_TASKS = f"""
    SELECT *, time_us - time_us % {_WINDOW_US} AS window_us
    FROM read_parquet('{{lake}}/task/*/*/*/*.parquet', hive_partitioning = true) WHERE task_list IS NOT NULL
"""
_BY = ", ".join(TASK_QUEUE)
TRAFFIC = f"""
CREATE TABLE flows AS
SELECT {_BY}, "partition", window_us,
    count(*) FILTER (kind = 'added') AS added, count(*) FILTER (kind = 'matched') AS matched,
    count(*) FILTER (kind = 'matched' AND was_sync) AS matched_at_once,
    count(*) FILTER (kind = 'matched' AND was_forwarded) AS matched_forwarded,
    count(*) FILTER (kind = 'forwarded') AS forwarded, count(*) FILTER (kind = 'poll_empty') AS polls_empty,
    arg_max(tasks, time_us) FILTER (kind = 'backlog') AS backlog, max(tasks) FILTER (kind = 'backlog') AS backlog_max,
    max(age_us) FILTER (kind = 'backlog') / 1e6 AS backlog_age_s_max,
    avg(pollers) FILTER (kind = 'backlog') AS pollers_mean, {_WAITS}
FROM ({_TASKS}) GROUP BY ALL;
CREATE TABLE traffic AS SELECT * EXCLUDE waits, {_RATES} FROM flows;
CREATE TABLE traffic_lists AS
WITH sums AS (
    SELECT {_BY}, window_us, sum(added) AS added, sum(matched) AS matched, sum(matched_at_once) AS matched_at_once,
        sum(matched_forwarded) AS matched_forwarded, sum(forwarded) AS forwarded, sum(polls_empty) AS polls_empty,
        sum(backlog) AS backlog, sum(backlog_max) AS backlog_max, max(backlog_age_s_max) AS backlog_age_s_max,
        sum(pollers_mean) AS pollers_mean, count(*) AS partitions, max(added) / nullif(avg(added), 0) AS skew,
        stddev_pop(added) / nullif(avg(added), 0) AS skew_deviation
    FROM flows GROUP BY ALL
), waited AS (SELECT {_BY}, window_us, {_WAITS} FROM ({_TASKS}) GROUP BY ALL)
SELECT sums.*, {_RATES} FROM sums JOIN waited USING ({_BY}, window_us);
"""

_RUN = "namespace_id, workflow_id, run_id"
# Represent a cluster by a bit: DuckDB's COUNT(DISTINCT) is slow, and needs memory that it can't spill to disk.
RECONCILE = f"""
CREATE TABLE clusters AS
SELECT cluster, 1::BIGINT << row_number() OVER () AS bit
FROM (SELECT DISTINCT cluster FROM read_parquet('{{lake}}/history/*/*/*/*.parquet', hive_partitioning = true));
CREATE TABLE differing AS
WITH history AS (
    SELECT {_RUN}, bit, first_event_id, last_event_id, coalesce(version, 0) AS version, event_digests
    FROM read_parquet('{{lake}}/history/*/*/*/*.parquet', hive_partitioning = true) JOIN clusters USING (cluster)
), expected AS (SELECT namespace_id, bit_count(bit_or(bit)) AS expected FROM history GROUP BY ALL
), events AS (
    SELECT {_RUN}, bit, version, unnest(range(first_event_id, last_event_id + 1)) AS event_id,
        unnest(event_digests) AS digest
    FROM history
), held AS (
    SELECT {_RUN}, event_id, version, bit_count(bit_or(bit)) AS holders, min(digest) <> max(digest) AS differs
    FROM events GROUP BY ALL
), copies AS (
    SELECT {_RUN}, bit_count(bit_or(bit)) AS copies, max(version) AS last_version FROM history GROUP BY ALL
), runs AS (SELECT {_RUN}, min(holders) AS holders_min, bool_or(differs) AS differs FROM held GROUP BY ALL
)
SELECT {_RUN} FROM runs JOIN copies USING ({_RUN}) JOIN expected USING (namespace_id)
WHERE differs OR holders_min < CASE WHEN last_version = {LOCAL_VERSION} THEN copies ELSE expected END;
"""

# Defects that a query can't judge: the version of an event in an unsound batch, and which of two contents is valid.
_UNSOUND = (Kind.CONTRADICTION, Kind.MIXED_VERSIONS, Kind.MALFORMED_BATCH, Kind.BROKEN_APPEND)
_DIFFERING = (Kind.MISSING_RUN, Kind.MISSING_EVENTS, Kind.GAP, Kind.EXTRA_EVENTS, Kind.DIFFERENT_EVENTS)


def compare_traffic(database: duckdb.DuckDBPyConnection, lake: Path) -> int:
    """Number of rows that differ between Spark's tables and DuckDB's."""
    wrong = 0
    for table, keys in (("traffic", f'{_BY}, "partition", window_us'), ("traffic_lists", f"{_BY}, window_us")):
        described = database.execute(f"DESCRIBE SELECT * FROM {table}").fetchall()
        equal = " AND ".join(
            f"(abs(a.{name} - b.{name}) <= {TOLERANCE} * greatest(1, abs(a.{name})) "
            f"OR (a.{name} IS NULL AND b.{name} IS NULL))"
            for name, kind, *_ in described
            if kind in {"DOUBLE", "BIGINT", "HUGEINT"} and name != "window_us"
        )
        found = database.execute(
            f"SELECT count(*) FROM {table} AS a FULL JOIN read_parquet('{lake}/{table}/*.parquet') AS b USING ({keys}) "
            f"WHERE NOT coalesce({equal}, false)"
        ).fetchone()
        wrong += found[0] if found else 0
    return wrong


def compare_reconcile(database: duckdb.DuckDBPyConnection, lake: Path) -> int:
    """Number of runs that only one of Spark and DuckDB reports as differing; unsound runs are left out."""

    def has(kinds: tuple[Kind, ...]) -> str:
        return f"list_has_any(list_transform(findings, lambda f: f.kind), {[kind.value for kind in kinds]})"

    found = database.execute(
        f"SELECT count(*) FROM read_parquet('{lake}/verdicts/*.parquet') AS a LEFT JOIN differing AS b "
        f"ON (a.namespace_id, a.workflow_id, a.run_id) = (b.namespace_id, b.workflow_id, b.run_id) "
        f"WHERE NOT {has(_UNSOUND)} AND {has(_DIFFERING)} <> (b.run_id IS NOT NULL)"
    ).fetchone()
    return int(found[0]) if found else -1


QUERIES = {"traffic": (TRAFFIC, compare_traffic), "reconcile": (RECONCILE, compare_reconcile)}


def main(job: str, lake: Path) -> dict[str, float]:
    query, compare = QUERIES[job]
    # DuckDB spills here, beside the lake.
    aside = str(lake / "_staging" / "duckdb")
    with duckdb.connect(config={"threads": 2, "memory_limit": "2GB", "temp_directory": aside}) as database:
        database.execute("SET enable_progress_bar = false")
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        database.execute(query.format(lake=lake))
        took = {"wall_s": time.monotonic() - began_s, "cpu_s": time.process_time() - began_cpu_s}
        return took | {"differences": compare(database, lake)}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], Path(sys.argv[2]))))
