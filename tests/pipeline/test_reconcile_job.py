"""The check between clusters on Spark: from the journals of synthetic clusters to verdicts, counts and a plan."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pytest
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import DataType, StructType

from fairlead.core.versions import InvalidClusters
from fairlead.pipeline.job import JobContext
from fairlead.pipeline.jobs import reconcile as job
from fairlead.pipeline.kernels import reconcile as kernel
from fairlead.pipeline.kernels.reconcile.clocks import Clocks
from fairlead.pipeline.lake import Lake, SegmentEntry
from fairlead.pipeline.schemas import HISTORY, HISTORY_RECORD
from fairlead.pipeline.schemas_reconcile import JUDGED, PAIRS, REPAIR_PLAN, RUN_BATCHES, VERDICTS
from fairlead.pipeline.stages import reconcile
from fairlead.pipeline.stages.clocks import clocks_in
from fairlead.pipeline.synth.histories import HistoryShape, Manifest, write_histories
from fairlead.replication.plans import PLAN_SCHEMA
from tests.depth import IS_DEEP
from tests.pipeline.reconcile_world import CLUSTERS, NOW_US, random_journals

# Each defect is planted twice, as in any number of runs up to 4,000.
RUNS = 2_000 if IS_DEEP else 600
HISTORIES = 3_000 if IS_DEEP else 600
SEGMENT = "history.v1.host.000000000000.jsonl.zst"


def read_journals(spark: SparkSession, journal: Path) -> DataFrame:
    clusters = [folder for folder in sorted(journal.iterdir()) if folder.is_dir()]
    parts = [
        spark.read.schema(HISTORY_RECORD).json(str(folder)).withColumn("cluster", F.lit(folder.name))
        for folder in clusters
    ]
    return reduce(DataFrame.unionByName, parts)


def fill_lake(spark: SparkSession, rows: DataFrame, folder: Path) -> Lake:
    """Write the history table as `ingest` leaves it."""
    lake = Lake(folder)
    with lake.locked():
        staged = lake.stage("history")
        placed = rows.withColumns(
            {
                "segment": F.lit(SEGMENT),
                "position": F.lit(0).cast("long"),
                "day": F.to_date(F.timestamp_micros("time_us")),
            }
        )
        staged_rows = staged / "rows"
        placed.select(*HISTORY.names).write.partitionBy("cluster", "day").parquet(str(staged_rows))
        for path in staged_rows.iterdir():
            path.rename(staged / path.name)
        staged_rows.rmdir()
        now_us = time.time_ns() // 1000
        names = [row.cluster for row in rows.select("cluster").distinct().collect()]
        entries = [SegmentEntry(name, SEGMENT, 0, "", 0, now_us) for name in names]
        lake.commit("history", staged, entries)
    return lake


def options_of(manifest: Manifest) -> dict[str, Any]:
    versions = tuple(f"{name}={version}" for name, version in manifest.initial_versions.items())
    return {"grace": manifest.grace_s, "increment": manifest.increment, "initial_version": versions}


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Manifest, Lake]:
    folder = tmp_path_factory.mktemp("reconcile")
    # The clock of one cluster is an hour ahead; that must cause no findings.
    shape = HistoryShape(runs=RUNS, seed=11, clocks_ahead_s={"north": 3600.0})
    manifest = write_histories(folder / "journal", shape)
    return manifest, fill_lake(spark, read_journals(spark, folder / "journal"), folder / "lake")


def _columns(schema: StructType) -> list[tuple[str, DataType]]:
    """Names and types of the columns, without their comments."""
    return [(field.name, field.dataType) for field in schema.fields]


@pytest.mark.sim
def test_every_planted_defect_is_found_and_nothing_else(spark: SparkSession, made: tuple[Manifest, Lake]) -> None:
    """FL-70: every defect that the manifest lists is found, without a false alarm."""
    manifest, lake = made
    summary = job.run(JobContext(spark, lake, options=options_of(manifest)))
    verdicts = lake.read_derived(spark, "verdicts")
    assert _columns(verdicts.schema) == _columns(VERDICTS)
    assert _columns(lake.read_derived(spark, "pairs").schema) == _columns(PAIRS)
    assert _columns(lake.read_derived(spark, "repair_plan").schema) == _columns(REPAIR_PLAN)
    assert summary.rows["verdicts"] == verdicts.count() == manifest.runs
    planted = {entry.run_id: (entry.verdict, set(entry.expected)) for entry in manifest.planted}
    found = {
        row.run_id: (
            row.verdict,
            {(finding.kind, finding.cluster) for finding in row.findings if finding.state == "wrong"},
        )
        for row in verdicts.where("verdict != 'agreed'").collect()
    }
    assert found == planted
    wrong = sum(verdict == "wrong" for verdict, _ in planted.values())
    counts = Counter(verdict for verdict, _ in planted.values())
    assert summary.findings["verdicts"] == {"agreed": manifest.runs - len(planted), **counts}
    assert summary.alarm is not None
    assert f"{wrong} of {manifest.runs:,} runs" in summary.alarm

    plan = json.loads((lake.root / job.PLAN_FILE).read_bytes())
    assert plan["schema"] == PLAN_SCHEMA
    assert len(plan["sends"]) == summary.findings["sends"] == lake.read_derived(spark, "repair_plan").count()
    lacks = {"missing_run", "missing_events", "gap"}
    mended = lacks | {"extra_events"}
    by_defect = {entry.run_id: {kind for kind, _ in entry.expected} for entry in manifest.planted}
    kept = {entry.run_id for entry in manifest.planted if entry.is_by_hand}
    assert {send["run_id"] for send in plan["sends"]} == {
        run_id for run_id, kinds in by_defect.items() if kinds & mended and run_id not in kept
    }
    assert {(left["run_id"], left["kind"]) for left in plan["by_hand"]} == {
        (entry.run_id, kind)
        for entry in manifest.planted
        for kind, cluster in entry.expected
        if (kind not in mended and (kind != "zombie" or cluster is None)) or (entry.is_by_hand and kind in lacks)
    }
    assert not list(lake.root.glob(".repair_plan*"))


@pytest.fixture(scope="module")
def judged(spark: SparkSession, made: tuple[Manifest, Lake]) -> Iterator[DataFrame]:
    manifest, lake = made
    history = lake.read(spark, "history")
    measure = reconcile.Measure(
        manifest.now_us, round(manifest.grace_s * 1e6), None, manifest.increment, manifest.initial_versions
    )
    runs = reconcile.gather_runs(history, since_us=None)
    frame = reconcile.judge(runs, reconcile.expected_clusters(history), measure).persist()
    yield frame
    frame.unpersist()


def test_the_pair_counts_agree_with_the_events(
    spark: SparkSession, made: tuple[Manifest, Lake], judged: DataFrame
) -> None:
    manifest, lake = made
    # In runs with these defects the counts differ from the batches: versions come from the branch, only one of two
    # contradicting branches counts, and events that only one cluster has count as a local run.
    defects = ("mixed_versions", "contradiction", "sole_witness", "sole_witness_in_a_wrong_tree")
    odd = [entry.run_id for entry in manifest.planted if entry.defect in defects]
    is_even = ~F.col("run_id").isin(odd)
    events = (
        lake.read(spark, "history")
        .where(is_even)
        .select("run_id", "cluster", F.explode(F.sequence("first_event_id", "last_event_id")).alias("event"), "version")
        .distinct()
    )
    held = events.groupBy("run_id", "event", "version").agg(F.sort_array(F.collect_set("cluster")).alias("clusters"))
    counts = {tuple(row.clusters): row["count"] for row in held.groupBy("clusters").count().collect()}
    pairs = reconcile.pairs(judged.where(is_even)).groupBy("left", "right").sum(*PAIRS.names[3:]).collect()
    assert len(pairs) == 3
    for row in pairs:
        both = sum(count for clusters, count in counts.items() if {row.left, row.right} <= set(clusters))
        only = sum(count for clusters, count in counts.items() if len({row.left, row.right} & set(clusters)) == 1)
        local = sum(
            count for clusters, count in counts.items() if len(clusters) == 1 and clusters[0] in (row.left, row.right)
        )
        assert row["sum(events_shared)"] == both
        assert row["sum(events_only_left)"] + row["sum(events_only_right)"] == only - local
    lonely = sum(entry.defect in ("missing_run", "late_run") for entry in manifest.planted)
    assert sum(row["sum(runs_only_left)"] + row["sum(runs_only_right)"] for row in pairs) == 2 * lonely


def test_only_workflows_with_events_since_the_time_are_judged_by_all_of_their_events(
    spark: SparkSession, made: tuple[Manifest, Lake]
) -> None:
    manifest, lake = made
    history = lake.read(spark, "history")
    since_us = manifest.now_us - 12 * 3_600_000_000
    runs = reconcile.gather_runs(history, since_us=since_us).select("run_id", F.size("batches").alias("batches"))
    recent = history.where(F.col("time_us") >= since_us).select("namespace_id", "workflow_id").distinct()
    every = history.join(recent, ["namespace_id", "workflow_id"]).groupBy("run_id").agg(F.count("*").alias("batches"))
    assert {tuple(row) for row in runs.collect()} == {tuple(row) for row in every.collect()}
    assert 0 < runs.count() < history.select("run_id").distinct().count()


def test_the_options_until_namespace_plan_and_expect_are_applied(
    spark: SparkSession, made: tuple[Manifest, Lake], tmp_path: Path
) -> None:
    manifest, lake = made
    until_us = manifest.now_us - 12 * 3_600_000_000
    namespace = manifest.planted[0].namespace_id
    options = {"expect": (*manifest.initial_versions, "south"), "grace": 0.0, "plan": tmp_path / "plan.json"}
    summary = job.run(JobContext(spark, lake, until_us=until_us, namespace=namespace, options=options))
    seen = lake.read(spark, "history").where((F.col("time_us") < until_us) & (F.col("namespace_id") == namespace))
    assert summary.rows["verdicts"] == seen.select("run_id").distinct().count() > 0
    assert summary.findings["now_us"] == until_us
    assert all(time_us <= until_us for time_us in summary.findings["watermarks_us"].values())
    lacking = lake.read_derived(spark, "verdicts").where(
        F.exists("findings", lambda finding: (finding.kind == "missing_run") & (finding.cluster == "south"))
    )
    assert lacking.count() == summary.rows["verdicts"]
    plan = json.loads((tmp_path / "plan.json").read_bytes())
    assert {send["run_id"] for send in plan["sends"] if send["target"] == "south"} == {
        row.run_id for row in lacking.select("run_id").collect()
    }


def test_on_an_idle_system_a_loss_is_late_at_first_and_found_after_the_grace_period(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Both clusters have run 'shared', only b has run 'lost', and no stream delivers anything later."""
    ahead_us = 3_600_000_000
    rows = [
        one_batch("shared", workflow_id="v", cluster="a", time_us=1_000, new_run_id=None),
        one_batch("shared", workflow_id="v", cluster="b", time_us=1_000 + ahead_us, new_run_id=None),
        one_batch("lost", workflow_id="w", cluster="b", time_us=2_000 + ahead_us, new_run_id=None),
    ]
    fields = {field.name: field for field in HISTORY.fields}
    frame = spark.createDataFrame(rows, StructType([fields[name] for name in rows[0].asDict()]))
    lake = fill_lake(
        spark,
        frame.withColumns({name: F.lit(None).cast("string") for name in ("payload", "namespace", "outline")}),
        tmp_path / "lake",
    )
    first = job.run(JobContext(spark, lake, options={"grace": 3600.0}))
    assert first.findings["verdicts"] == {"agreed": 1, "late": 1}
    manifest = next((lake.root / "history").glob("batch=*/_batch.json"))
    arrived = json.loads(manifest.read_bytes())
    for entry in arrived["segments"]:
        entry["arrived_us"] -= ahead_us
    manifest.write_text(json.dumps(arrived))
    later = job.run(JobContext(spark, lake, options={"grace": 3600.0}))
    assert later.findings["verdicts"] == {"agreed": 1, "wrong": 1}
    assert later.findings["sends"] == 1


def test_a_lagging_cluster_is_not_mistaken_for_one_whose_clock_is_ahead() -> None:
    """Cluster b got the runs of a 3 hours late, and is active since: what b wrote is not overdue in a."""
    hour_us = 3_600_000_000
    ahead_us = 7 * 60_000_000
    rows = [
        (f"run-{place}", cluster, 1, 1, place * hour_us + (lag_us + ahead_us) * (cluster == "b"))
        for place, lag_us in enumerate([2_000_000, 3 * hour_us, 3 * hour_us], 10)
        for cluster in "ab"
    ]
    columns = "run_id VARCHAR, cluster VARCHAR, first_event_id BIGINT, version BIGINT, time_us BIGINT"

    def clocks_of(rows: list[tuple[str, str, int, int, int]]) -> Clocks:
        with duckdb.connect() as database:
            database.execute(f"CREATE TABLE starts ({columns})")
            database.executemany("INSERT INTO starts VALUES (?, ?, ?, ?, ?)", rows)
            database.execute("CREATE VIEW history AS SELECT *, 'n' AS namespace_id, run_id AS workflow_id FROM starts")
            return clocks_in(database, now_us=0, until_us=None, increment=10, initial_versions={"a": 1, "b": 2})

    clocks = clocks_of(rows)
    # The only run without lag shows that b's clock is 7 minutes ahead and that replication took 2 seconds.
    assert clocks.others["b", "a"] - clocks.own["a"] == ahead_us + 2_000_000
    # The last run that b got was 3 hours late, so b is 3 hours behind in the time of a's events.
    assert clocks.others["a", "b"] - clocks.own["b"] == -ahead_us - 3 * hour_us
    # A run that b started: it shows the clock of b on a's without lag.
    back = [("back", "b", 1, 2, 13 * hour_us + ahead_us), ("back", "a", 1, 2, 13 * hour_us + 1_000_000)]
    clocks = clocks_of(rows + back)
    assert clocks.others["b", "a"] - clocks.own["a"] == ahead_us - 1_000_000


def test_an_empty_lake_has_no_verdicts(spark: SparkSession, tmp_path: Path) -> None:
    lake = fill_lake(
        spark, spark.createDataFrame([], StructType(HISTORY.fields)).drop("segment", "position", "day"), tmp_path
    )
    summary = job.run(JobContext(spark, lake))
    assert summary.rows == {"verdicts": 0, "pairs": 0, "repair_plan": 0}
    assert summary.alarm is None
    assert json.loads((tmp_path / job.PLAN_FILE).read_bytes())["sends"] == []


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"increment": 10}, job.WrongVersions, "give both, or neither"),
        ({"initial_version": ("east=1",)}, job.WrongVersions, "give both, or neither"),
        ({"increment": 10, "initial_version": ("east",)}, job.WrongVersions, "'east'"),
        ({"increment": 10, "initial_version": ("east=one",)}, job.WrongVersions, "'east=one'"),
        ({"increment": 10, "initial_version": ("east=1", "west=1")}, InvalidClusters, "make them differ"),
        ({"plan": Path("/no/such/folder/plan.json")}, job.NoPlaceForPlan, "/no/such/folder"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_done(
    spark: SparkSession, made: tuple[Manifest, Lake], options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        job.run(JobContext(spark, made[1], options=options))


def test_the_schemas_of_spark_and_of_the_kernel_are_the_same() -> None:
    for arrow, spark_schema in ((kernel.RUN_BATCHES, RUN_BATCHES), (kernel.JUDGED, JUDGED)):
        assert from_arrow_schema(arrow).simpleString() == spark_schema.simpleString()


# The same decisions as native Spark columns, only for comparison.


def last_of(branch: Column) -> Column:
    return F.element_at(branch, -1)


def common_branch(left: Column, right: Column) -> Column:
    """The common part of two branches: every version that both have, up to the end of the shorter branch."""

    def there(item: Column) -> Column:
        return F.filter(right, lambda other: other.version == item.version)

    shared = F.filter(left, lambda item: F.size(there(item)) > 0)
    return F.transform(
        shared,
        lambda item: F.struct(
            F.least(item.event_id, there(item)[0].event_id).alias("event_id"), item.version.alias("version")
        ),
    )


def native_answers(history: DataFrame) -> DataFrame:
    """The current branch of all clusters together, and the last event common to each cluster's current branch."""
    each = history.groupBy("run_id", "cluster").agg(
        F.max_by("items", F.struct("version", "last_event_id")).alias("branch")
    )
    return each.groupBy("run_id").agg(
        F.max_by(
            "branch", F.struct(last_of(F.col("branch")).version, last_of(F.col("branch")).event_id)
        ).alias("current"),
        F.collect_list("branch").alias("branches"),
    ).select(
        "run_id",
        "current",
        last_of(F.aggregate("branches", F.col("branches")[0], common_branch)).alias("ancestor"),
    )  # fmt: skip


@pytest.mark.sim
def test_native_columns_give_the_same_ancestor_and_current_branch(spark: SparkSession) -> None:
    """NDC-9, FL-58 as native Spark columns, on 600 random histories; `make sim` compares 3,000."""
    random = Random(5)
    rows: list[Row] = []
    for number in range(HISTORIES):
        for cluster, batches in random_journals(random).batches.items():
            rows.extend(
                Row(
                    namespace_id="n", workflow_id=f"w{number}", run_id=f"r{number}", tree_id=f"r{number}",
                    branch_id=item.branch_id, first_event_id=item.first, last_event_id=item.last, version=item.version,
                    items=[Row(event_id=event_id, version=version) for event_id, version in item.items],
                    task_id=item.task_id, time_us=item.time_us, status=item.status,
                    event_types=[5] * item.types_count,
                    event_digests=[item.digests[place : place + 16] for place in range(0, len(item.digests), 16)],
                    signals=None, new_run_id=None, cluster=cluster,
                )
                for item in batches
            )  # fmt: skip
    fields = [field for field in HISTORY.fields if field.name in rows[0]]
    schema = StructType(sorted(fields, key=lambda field: list(rows[0].asDict()).index(field.name)))
    history = spark.createDataFrame(rows, schema).persist()
    expected = history.select("namespace_id").distinct().withColumn("expected", F.array(*map(F.lit, CLUSTERS)))
    judged = reconcile.judge(reconcile.gather_runs(history, since_us=None), expected, reconcile.Measure(NOW_US, 0))
    ours = {
        row.run_id: (row.current, row.ancestor)
        for row in judged.select("run_id", F.col("branches")[0].alias("current"), "ancestor").collect()
    }
    native = {row.run_id: (row.current, row.ancestor) for row in native_answers(history).collect()}
    history.unpersist()
    assert len(native) > HISTORIES * 29 // 30
    assert ours == native
    assert len({ancestor != current[-1] for current, ancestor in ours.values()}) == 2


def one_batch(run_id: str, *, workflow_id: str, cluster: str, time_us: int, new_run_id: str | None) -> Row:
    """A complete run with one event."""
    return Row(
        namespace_id="n", workflow_id=workflow_id, run_id=run_id, tree_id=run_id, branch_id="b", first_event_id=1,
        last_event_id=1, version=1, items=[Row(event_id=1, version=1)], task_id=1, time_us=time_us,
        status=6 if new_run_id else 2, event_types=[1], event_digests=["0" * 16], signals=None, new_run_id=new_run_id,
        cluster=cluster,
    )  # fmt: skip


def test_since_a_time_an_open_run_is_still_found_beside_one_that_has_been_idle_for_long(spark: SparkSession) -> None:
    rows = [
        Row(
            **one_batch(run_id, workflow_id=name, cluster="a", time_us=time_us, new_run_id=None).asDict()
            | {"status": 1}
        )
        for name, run_id, time_us in (("w", "idle", 100), ("w", "busy", 500), ("v", "old-1", 100), ("v", "old-2", 200))
    ]
    fields = {field.name: field for field in HISTORY.fields}
    history = spark.createDataFrame(rows, StructType([fields[name] for name in rows[0].asDict()]))
    measure = reconcile.Measure(now_us=1_000, grace_us=100)
    runs = reconcile.gather_runs(history, since_us=400)
    judged = reconcile.judge(runs, reconcile.expected_clusters(history), measure)
    found = reconcile.many_open(judged, measure).collect()
    assert sorted((row.run_id, row.finding.state) for row in found) == [("busy", "wrong"), ("idle", "wrong")]


@pytest.mark.parametrize("since_us", [None, 400])
def test_only_a_run_whose_successor_no_cluster_has_is_reported(spark: SparkSession, since_us: int | None) -> None:
    """Compared with a plain check of every pair of runs. One commit wrote both runs, so they have the same time."""
    random = Random(7)
    rows: list[Row] = []
    named: list[tuple[str, int, str]] = []
    there: set[str] = set()
    for number in range(300):
        time_us = random.randrange(0, 1_000)
        for place in range(random.randrange(1, 5)):
            run_id, successor = f"r{number}-{place}", f"r{number}-{place + 1}" if random.random() < 0.8 else None
            holders = [cluster for cluster in CLUSTERS if random.random() < 0.6]
            rows.extend(
                one_batch(run_id, workflow_id=f"w{number}", cluster=cluster, time_us=time_us, new_run_id=successor)
                for cluster in holders
            )
            there.update([run_id] * bool(holders))
            if holders and successor:
                named.append((run_id, time_us, successor))
    expected = {
        (run_id, "late" if time_us > 900 else "expired" if time_us < 500 else "wrong")
        for run_id, time_us, successor in named
        if successor not in there and time_us >= (since_us or 0)
    }
    assert {state for _, state in expected} == {"late", "expired", "wrong"}
    fields = {field.name: field for field in HISTORY.fields}
    history = spark.createDataFrame(rows, StructType([fields[name] for name in rows[0].asDict()]))
    measure = reconcile.Measure(now_us=1_000, grace_us=100, retention_us=500)
    judged = reconcile.judge(
        reconcile.gather_runs(history, since_us=since_us), reconcile.expected_clusters(history), measure
    )
    found = reconcile.missing_successors(judged, measure).select("run_id", "finding.kind", "finding.state").collect()
    assert {row.kind for row in found} == {"missing_successor"}
    assert sorted((row.run_id, row.state) for row in found) == sorted(expected)
