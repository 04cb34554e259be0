"""Namespace names in the lake: read from the journal, and shown in tables, findings and the report."""

import json
from pathlib import Path

import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession

from fairlead.pipeline.job import JobContext
from fairlead.pipeline.jobs import ingest, reconcile, traffic
from fairlead.pipeline.lake import Lake, NoSuchNamespace
from fairlead.pipeline.namespaces import FILE, NAMES_IN_PLAN_MAX, name_findings, namespace_names, with_names
from fairlead.pipeline.report.tables import place, tables_of
from fairlead.replication.plans import read_plan
from tests.pipeline.journals import DAY_US, START_US, history_records, task_records, write_segment

NAMES = {"id-1": "shop", "id-2": "bank"}


def ingested(spark: SparkSession, folder: Path) -> Lake:
    lake = Lake(folder / "lake")
    ingest.run(JobContext(spark=spark, lake=lake, journal=folder / "journal"))
    return lake


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    folder = tmp_path_factory.mktemp("names")
    journal = folder / "journal"
    write_segment(journal, task_records(4, namespace_id="id-1", namespace="shop", kind="added"), number=0)
    write_segment(journal, task_records(2, namespace_id="id-1#app:v1", namespace="shop", kind="added"), number=1)
    # Records of earlier releases, and of clients that use only matching, have no namespace name.
    write_segment(journal, task_records(1, namespace_id="bare", kind="added"), number=2)
    write_segment(journal, history_records(1, namespace_id="id-2", namespace="bank"), kind="history", number=3)
    return ingested(spark, folder)


def test_namespace_names_are_read_from_the_records_of_all_tables(spark: SparkSession, lake: Lake) -> None:
    assert namespace_names(lake, spark) == NAMES
    # A damaged summary file is built again.
    (lake.root / FILE).write_text("{")
    assert namespace_names(lake, spark) == NAMES
    assert json.loads((lake.root / FILE).read_text())["names"] == NAMES


def test_rows_are_chosen_by_the_name_and_by_the_id(spark: SparkSession, lake: Lake) -> None:
    for namespace in ("shop", "id-1"):
        lake.check_namespace(spark, namespace)
        assert lake.read(spark, "task", namespace=namespace).count() == 6
    assert lake.read(spark, "task", namespace="bare").count() == 1
    with pytest.raises(NoSuchNamespace, match=r"it has bare, shop \(id-1\), bank \(id-2\): give the name or id of one"):
        lake.check_namespace(spark, "Shop")


def test_derived_tables_findings_and_the_report_have_names(spark: SparkSession, lake: Lake) -> None:
    summary = traffic.run(JobContext(spark=spark, lake=lake))
    rows = (
        lake.read_derived(spark, "traffic_lists", with_names=True)
        .select("namespace_id", "namespace")
        .distinct()
        .collect()
    )
    assert {tuple(row) for row in rows} == {
        ("id-1", "shop"),
        ("id-1#app:v1", "shop (version app:v1)"),
        ("bare", "bare"),
    }
    reported = name_findings(summary.findings, namespace_names(lake, spark))["busiest"]
    assert {(one["namespace"], one["namespace_id"]) for one in reported} == {tuple(reversed(row)) for row in rows}
    with tables_of(lake) as tables:
        shown = {place(row) for row in tables.queries.rows("FROM traffic_lists")}
    assert {text.rpartition(",")[0] for text in shown} == {
        f"orders of {name} (workflow tasks" for name in ("shop", "shop (version app:v1)", "bare")
    }


def test_a_repair_plan_has_names_for_people(spark: SparkSession, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    write_segment(journal, history_records(2, namespace_id="id-2", namespace="bank"), kind="history", cluster="east")
    write_segment(journal, history_records(1, namespace_id="id-2", namespace="bank"), kind="history", cluster="west")
    lake = ingested(spark, tmp_path)
    reconcile.run(JobContext(spark=spark, lake=lake, options={"grace": 0.0}))
    plan = read_plan(lake.root / reconcile.PLAN_FILE)
    assert {(each.namespace_id, each.namespace) for each in plan.sends} == {("id-2", "bank")}


def test_a_namespace_has_its_latest_name(spark: SparkSession, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    write_segment(journal, task_records(1, namespace_id="old", namespace="shop", start_us=START_US), number=0)
    lake = ingested(spark, tmp_path)
    assert namespace_names(lake, spark) == {"old": "shop"}
    # The namespace is deleted, and a new one with the same name is created.
    later_us = START_US + DAY_US
    write_segment(journal, task_records(1, namespace_id="old", namespace="shop-deleted", start_us=later_us), number=1)
    write_segment(journal, task_records(1, namespace_id="new", namespace="shop", start_us=later_us), number=2)
    lake = ingested(spark, tmp_path)
    assert namespace_names(lake, spark) == {"old": "shop-deleted", "new": "shop"}
    assert lake.read(spark, "task", namespace="shop").count() == 1


@pytest.mark.parametrize("count", [1, NAMES_IN_PLAN_MAX + 1])
def test_few_and_many_names_are_added_in_the_same_way(spark: SparkSession, count: int) -> None:
    names = {f"id-{number}": f"name '{number}'" for number in range(count)}
    frame = spark.createDataFrame(
        [(1, "id-0"), (2, "id-0#app:v1"), (3, "other"), (4, None)], "n int, namespace_id string"
    )
    found = with_names(frame, names).orderBy("n")
    assert found.columns == ["n", "namespace_id", "namespace"]
    assert [row.namespace for row in found.collect()] == ["name '0'", "name '0' (version app:v1)", "other", None]


def test_a_lake_of_an_earlier_release_can_be_read_and_extended(spark: SparkSession, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    write_segment(journal, task_records(1), number=0)
    lake = ingested(spark, tmp_path)
    schema = lake.table("task") / "_schema.json"
    plain = json.loads(schema.read_text())
    plain["fields"] = [field for field in plain["fields"] if field["name"] != "namespace"]
    schema.write_text(json.dumps(plain))
    for file in lake.table("task").rglob("*.parquet"):
        parquet.write_table(parquet.ParquetFile(file).read().drop_columns(["namespace"]), file)
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    write_segment(journal, task_records(1, namespace="Shop"), number=1)
    lake = ingested(spark, tmp_path)
    assert sorted(row["namespace"] or "" for row in lake.read(spark, "task").collect()) == ["", "Shop"]
