"""The `traffic` job, compared with the same queries in DuckDB."""

import math
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from fairlead.core.partitions import STICKY
from fairlead.pipeline.job import JobContext
from fairlead.pipeline.jobs import traffic
from fairlead.pipeline.lake import Lake
from fairlead.pipeline.schemas import TASK
from fairlead.pipeline.schemas_traffic import TRAFFIC, TRAFFIC_LISTS
from fairlead.pipeline.stages.traffic import (
    TASK_QUEUE,
    InvalidWindow,
    list_traffic,
    partition_flows,
    partition_traffic,
    window_us_of,
)
from tests.pipeline.schemas import differences

KINDS = ("added", "added", "matched", "matched", "forwarded", "acked", "poll_empty", "config", "backlog")
COLUMNS = tuple(TASK.names)
# Few examples: each runs Spark on many random cases. Shrinking is off, because a seed can't be made simpler.
FEW = settings(
    max_examples=2,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def random_records(random: Random, count: int, *, span_us: int = 300_000_000) -> list[dict[str, Any]]:
    """Records of every kind for a few partitions, unordered; possibly inconsistent, as after lost records."""
    records = []
    for _ in range(count):
        kind = random.choice(KINDS)
        record: dict[str, Any] = {
            "cluster": random.choice("ab"),
            "time_us": random.randrange(span_us),
            "kind": kind,
            "namespace_id": "n",
            "task_list": random.choice("xy"),
            "task_type": random.choice((1, 2)),
            "partition": random.randrange(3),
            "host": "h",
        }
        if kind == "matched":
            record |= {
                "was_sync": random.choice((True, False, None)),
                "was_forwarded": random.choice((True, False)),
                "wait_us": random.choice((random.randrange(1000), random.randrange(10**9))),
            }
        if kind == "backlog":
            record |= {"tasks": random.randrange(3), "age_us": random.randrange(10**7), "pollers": random.randrange(5)}
        records.append(record)
    # At most one snapshot per moment: if two have the same time, neither is the last.
    times = random.sample(range(span_us), count)
    return [record | {"time_us": time_us} for record, time_us in zip(records, times, strict=True)]


def frame_of(spark: SparkSession, records: list[dict[str, Any]]) -> DataFrame:
    """The records as a lake table."""
    return spark.createDataFrame([tuple(record.get(name) for name in COLUMNS) for record in records], TASK)


def in_duckdb(records: list[dict[str, Any]], query: str) -> list[dict[str, Any]]:
    """Query the records in DuckDB as the table `task`."""
    names = [name for name in COLUMNS if name != "day"]
    kinds = {"long": pa.int64(), "bigint": pa.int64(), "int": pa.int32(), "double": pa.float64(), "boolean": pa.bool_()}
    columns = {
        name: pa.array(
            [record.get(name) for record in records], kinds.get(TASK[name].dataType.simpleString(), pa.string())
        )
        for name in names
    }
    task = pa.table(columns)
    with duckdb.connect() as connection:
        connection.register("task", task)
        found: list[dict[str, Any]] = connection.sql(query).to_arrow_table().to_pylist()
    return found


FLOW = """
    count(*) FILTER (kind = 'added') AS added,
    count(*) FILTER (kind = 'matched') AS matched,
    count(*) FILTER (kind = 'matched' AND was_sync) AS matched_at_once,
    count(*) FILTER (kind = 'matched' AND was_forwarded) AS matched_forwarded,
    count(*) FILTER (kind = 'forwarded') AS forwarded,
    count(*) FILTER (kind = 'poll_empty') AS polls_empty,
    count(*) FILTER (kind = 'added') / 60.0 AS write_qps,
    count(*) FILTER (kind = 'matched') / 60.0 AS dispatch_qps,
    quantile_cont(wait_us, 0.5) FILTER (kind = 'matched') / 1e6 AS wait_s_p50,
    quantile_cont(wait_us, 0.95) FILTER (kind = 'matched') / 1e6 AS wait_s_p95,
    quantile_cont(wait_us, 0.99) FILTER (kind = 'matched') / 1e6 AS wait_s_p99,
    count(*) FILTER (kind = 'matched' AND was_sync) / nullif(count(*) FILTER (kind = 'matched'), 0) AS at_once_share,
    count(*) FILTER (kind = 'matched' AND was_forwarded) / nullif(count(*) FILTER (kind = 'matched'), 0)
        AS forwarded_share,
    count(*) FILTER (kind = 'poll_empty') / nullif(count(*) FILTER (kind IN ('poll_empty', 'matched')), 0) AS idle_share
"""
TOLD = """
    arg_max(tasks, time_us) FILTER (kind = 'backlog') AS backlog,
    max(tasks) FILTER (kind = 'backlog') AS backlog_max,
    max(age_us) FILTER (kind = 'backlog') / 1e6 AS backlog_age_s_max,
    avg(pollers) FILTER (kind = 'backlog') AS pollers_mean
"""
LIST = "cluster, namespace_id, task_list, task_type"
PARTITIONS = f"""
    SELECT {LIST}, partition, time_us // 60000000 * 60000000 AS window_us, {FLOW}, {TOLD} FROM task GROUP BY ALL
"""
LISTS = f"""
    WITH partitions AS ({PARTITIONS}),
    flows AS (SELECT {LIST}, time_us // 60000000 * 60000000 AS window_us, {FLOW} FROM task GROUP BY ALL),
    others AS (
        SELECT {LIST}, window_us, sum(backlog) AS backlog, sum(backlog_max) AS backlog_max,
            max(backlog_age_s_max) AS backlog_age_s_max, sum(pollers_mean) AS pollers_mean, count(*) AS partitions,
            CASE WHEN sum(added) > 0 THEN max(added) / avg(added) END AS skew,
            CASE WHEN sum(added) > 0 THEN stddev_pop(added) / avg(added) END AS skew_deviation
        FROM partitions GROUP BY ALL
    )
    SELECT * FROM flows JOIN others USING ({LIST}, window_us)
"""


def same(found: list[dict[str, Any]], expected: list[dict[str, Any]], *, by: tuple[str, ...]) -> None:
    """Check that both have the same rows, up to the rounding of floating-point numbers."""

    def ordered(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return sorted(rows, key=lambda row: tuple(str(row[name]) for name in by))

    assert len(found) == len(expected)
    for one, other in zip(ordered(found), ordered(expected), strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            if isinstance(value, float) and other[name] is not None:
                assert math.isclose(value, other[name], rel_tol=1e-9, abs_tol=1e-9), (name, one, other)
            else:
                assert value == other[name], (name, one, other)


@FEW
@given(seed=st.integers(0, 2**32))
def test_the_figures_of_partitions_and_task_queues_agree_with_duckdb(spark: SparkSession, seed: int) -> None:
    random = Random(seed)
    records = random_records(random, random.choice((1, 50, 400)))
    tasks = frame_of(spark, records)
    flows = partition_flows(tasks).cache()
    partitions, lists = partition_traffic(flows), list_traffic(flows)
    assert differences(expected=TRAFFIC, found=partitions.schema) == []
    assert differences(expected=TRAFFIC_LISTS, found=lists.schema) == []
    by = (*LIST.split(", "), "window_us")
    same([row.asDict() for row in partitions.collect()], in_duckdb(records, PARTITIONS), by=(*by, "partition"))
    same([row.asDict() for row in lists.collect()], in_duckdb(records, LISTS), by=by)
    flows.unpersist()


def test_a_record_at_the_edge_belongs_to_the_window_that_begins_there(spark: SparkSession) -> None:
    at = {"cluster": "a", "kind": "added", "namespace_id": "n", "task_list": "x", "task_type": 1, "partition": 0}
    tasks = frame_of(spark, [at | {"time_us": time_us} for time_us in (9_999_999, 10_000_000, 19_999_999)])
    found = {
        row.window_us: row.write_qps
        for row in partition_traffic(partition_flows(tasks, window_s=10.0), window_s=10.0).collect()
    }
    assert found == {0: 0.1, 10_000_000: 0.2}


def test_the_backlog_of_all_sticky_task_queues_together_is_unknown(spark: SparkSession) -> None:
    at = {"cluster": "a", "namespace_id": "n", "task_list": STICKY, "task_type": 1, "partition": 0}
    reported = [
        at | {"kind": "backlog", "time_us": time, "tasks": time, "age_us": time, "pollers": 1} for time in (3, 2)
    ]
    tasks = frame_of(spark, [*reported, at | {"kind": "added", "time_us": 1}])
    flows = partition_flows(tasks)
    for row in (*partition_traffic(flows).collect(), *list_traffic(flows).collect()):
        assert (row.added, row.backlog, row.backlog_max, row.pollers_mean) == (1, None, None, None)
        assert row.backlog_age_s_max == 3e-6


@pytest.mark.parametrize("window_s", [0.0, 3600.1, math.inf, math.nan])
def test_a_window_without_length_or_of_more_than_an_hour_is_refused(window_s: float) -> None:
    with pytest.raises(InvalidWindow, match="at least a millisecond, and at most an hour"):
        window_us_of(window_s)


class LakeOfFrames(Lake):
    """A lake with given journal tables."""

    def __init__(self, root: Path, tasks: DataFrame) -> None:
        super().__init__(root)
        self.tasks = tasks

    def read(self, spark: SparkSession, table: str, **bounds: Any) -> DataFrame:
        rows = self.tasks
        if bounds.get("since") is not None:
            rows = rows.where(F.col("time_us") >= bounds["since"])
        if bounds.get("until") is not None:
            rows = rows.where(F.col("time_us") < bounds["until"])
        return rows


def test_the_job_writes_both_tables_and_reports_the_worst_task_queues(spark: SparkSession, tmp_path: Path) -> None:
    records = random_records(Random(1), 300)
    lake = LakeOfFrames(tmp_path, frame_of(spark, records))
    reported: list[str] = []
    summary = traffic.run(JobContext(spark, lake, progress=reported.append, options={"window_s": 60.0}))
    assert summary.rows == {
        "traffic": len(in_duckdb(records, PARTITIONS)),
        "traffic_lists": len(in_duckdb(records, LISTS)),
    }
    assert summary.findings["added"] == sum(record["kind"] == "added" for record in records)
    worst = max(row["wait_s_p99"] for row in in_duckdb(records, LISTS) if row["wait_s_p99"] is not None)
    assert summary.findings["slowest"][0]["wait_s_p99"] == pytest.approx(worst)
    for one in summary.findings["most_skewed"]:
        its = [row for row in in_duckdb(records, LISTS) if all(row[name] == one[name] for name in TASK_QUEUE)]
        assert one["at_us"] == min(row["window_us"] for row in its if row["skew"] == pytest.approx(one["skew"]))
    assert len(reported) == 2
    assert lake.read_derived(spark, "traffic").count() == summary.rows["traffic"]


def test_a_journal_without_tasks_gives_empty_tables(spark: SparkSession, tmp_path: Path) -> None:
    summary = traffic.run(JobContext(spark, LakeOfFrames(tmp_path, frame_of(spark, []))))
    assert summary.rows == {"traffic": 0, "traffic_lists": 0}
    assert summary.findings["added"] == 0
    assert summary.findings["busiest"] == []
