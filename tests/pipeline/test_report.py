"""The page: what it says, that nothing of the data becomes markup, and that it stays small."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from fairlead.pipeline.job import JobContext, Summary
from fairlead.pipeline.jobs import report
from fairlead.pipeline.lake import Lake
from fairlead.pipeline.report.charts import Axis, Dot, Line, bars, heat, lines, scatter
from fairlead.pipeline.report.markup import TEXT_MAX, join, shown, table, tag
from fairlead.pipeline.report.page import Finding, Section, page
from fairlead.pipeline.report.tables import length
from fairlead.pipeline.schemas_backtest import BACKTEST, BACKTEST_SETTINGS, BACKTEST_TIMELINE
from fairlead.pipeline.schemas_fairness import FAIRNESS, FAIRNESS_KEYS
from fairlead.pipeline.schemas_histories import ACTIVITIES, ACTIVITY_TYPES, WORKFLOW_TYPES, WORKFLOWS
from fairlead.pipeline.schemas_placement import PLACEMENT, PLACEMENT_HOSTS, PLACEMENT_MOVES
from fairlead.pipeline.schemas_reconcile import PAIRS, REPAIR_PLAN, VERDICTS
from fairlead.pipeline.schemas_traffic import TRAFFIC_LISTS
from tests.pipeline.browser import look_at

START_US = 1_767_225_600_000_000
EVIL = '<script>alert("x")</script><img src="http://127.0.0.1:9/x.png" onerror="alert(1)">'
PAGE_BYTES_MAX = 5_000_000
# How many there are of what has much in it; of all other texts there are as many as rows.
FEW = {"cluster": 3, "namespace_id": 1, "task_list": 12, "left": 5, "right": 4}
TABLES: dict[str, StructType] = {
    "traffic_lists": TRAFFIC_LISTS,
    "fairness": FAIRNESS,
    "fairness_keys": FAIRNESS_KEYS,
    "backtest": BACKTEST,
    "backtest_settings": BACKTEST_SETTINGS,
    "backtest_timeline": BACKTEST_TIMELINE,
    "placement": PLACEMENT,
    "placement_hosts": PLACEMENT_HOSTS,
    "placement_moves": PLACEMENT_MOVES,
    "verdicts": VERDICTS,
    "pairs": PAIRS,
    "repair_plan": REPAIR_PLAN,
    "workflows": WORKFLOWS,
    "activities": ACTIVITIES,
    "workflow_types": WORKFLOW_TYPES,
    "activity_types": ACTIVITY_TYPES,
}


def filled(spark: SparkSession, lake: Lake, *, rows: int, text: str) -> None:
    """Every table with so many rows; each text is `text` and a number of its own, each number is some number."""
    for name, schema in TABLES.items():
        frame = spark.range(rows, numPartitions=2)
        columns = []
        for field in schema.fields:
            kind = field.dataType.simpleString()
            number = F.col("id")
            values: dict[str, Any] = {
                "string": F.concat(F.lit(text), number.cast("string")),
                "boolean": (number % 2) == 0,
                "array<string>": F.array(F.concat(F.lit(text), (number % 10).cast("string"))),
            }
            if field.name in FEW:
                value = F.concat(F.lit(text), (number % FEW[field.name]).cast("string"))
            elif field.name in {"window_us", "time_us"}:
                value = F.lit(START_US) + number * 60_000_000
            elif field.name == "verdict":
                value = F.lit("wrong")
            elif field.name in {"setting", "batch_size"}:
                value = number % 300
            elif field.name in {"task_type", "weight"}:
                value = F.lit(1)
            elif "struct" in kind:
                value = _nested(kind, text)
            else:
                value = values.get(kind, number % 1000 + 1)
            # A cast may not tell an array that it has no nulls, which nobody here asks for.
            columns.append((value if kind == "array<string>" else value.cast(kind)).alias(field.name))
        lake.write(name, frame.select(*columns), "run")


def _nested(kind: str, text: str) -> Any:
    """Nothing, but where the page looks into it: findings of a verdict, and failures of a type."""
    if kind.startswith("array<struct<kind:string"):
        evil = F.lit(text)
        none = F.lit(None)
        return F.array(F.struct(evil, F.lit("wrong"), evil, evil, none, none, none, evil))
    if kind.startswith("array<struct<failure_type"):
        return F.array(F.struct(F.lit(text), F.lit(1)))
    return F.lit(None)


def written(spark: SparkSession, lake: Lake, **options: Any) -> tuple[Summary, str]:
    summary = report.run(JobContext(spark, lake, options=options))
    return summary, Path(summary.findings["report"]).read_text()


def test_a_part_whose_tables_are_not_there_names_the_command_that_fills_it(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    with lake.locked():
        pass
    summary, text = written(spark, lake)
    assert summary.findings["report"] == str(lake.root / "report.html")
    commands = re.findall(r"<code>fairlead pipeline (\w+)</code> fills this part", text)
    assert commands == ["traffic", "fairness", "backtest", "placement", "reconcile", "histories", "ingest"]


def test_the_ends_of_runs_are_all_of_them(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    filled(spark, lake, rows=1, text="order")
    _, page = written(spark, lake)
    ends = ("completed", "failed", "timed out", "canceled", "terminated", "continued as new", "open")
    assert [end for end in ends if f"order0: {end} 1" not in page] == []


def test_nothing_of_the_data_becomes_markup_and_a_browser_runs_none_of_it(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    filled(spark, lake, rows=12, text=EVIL)
    _, text = written(spark, lake)
    # It is in there, as text.
    assert "&lt;script&gt;alert(" in text
    assert "<script" not in text
    assert "<img" not in text
    look = look_at(lake.root / "report.html", tmp_path)
    assert (look.console, look.requests) == ([], [])
    assert "<script" not in look.dom


def test_the_check_by_the_browser_sees_what_it_is_there_to_see(tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text("<img src='http://127.0.0.1:9/x.png'><script>console.error('a complaint')</script>")
    look = look_at(bad, tmp_path)
    assert any("a complaint" in line for line in look.console)
    assert any("127.0.0.1:9/x.png" in url for url in look.requests)


def test_the_page_stays_small_whatever_the_size_of_the_lake(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    filled(spark, lake, rows=10_000, text="a-name-that-goes-on-and-on-" * 20)
    summary, text = written(spark, lake)
    assert summary.findings["bytes"] == len(text.encode()) < PAGE_BYTES_MAX
    # So it was not empty.
    assert text.count("<circle") > 100
    assert text.count("<tr>") > 60


def test_the_page_is_replaced_whole_and_no_draft_is_left(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    with lake.locked():
        pass
    file = tmp_path / "page.html"
    file.write_text("the page before")
    written(spark, lake, report=file)
    assert file.read_text().startswith("<!doctype html>")
    assert [one.name for one in tmp_path.iterdir() if "page" in one.name] == ["page.html"]
    with pytest.raises(report.NoPlaceForReport, match="in a folder that is there"):
        written(spark, lake, report=tmp_path / "none" / "page.html")
    with pytest.raises(report.NoPlaceForReport, match="there is no lake"):
        written(spark, Lake(tmp_path / "nowhere"))


@given(st.text(max_size=50))
def test_text_is_escaped_wherever_it_stands(text: str) -> None:
    made = join([tag("p", text, title=text), text, table([text], [[text]])])
    outside = re.sub(r"</?(p|div|table|thead|tbody|tr|th|td)( (title|class)=\"[^\"<>]*\")?>", "", made)
    assert "<" not in outside
    assert ">" not in outside
    assert '"' not in outside.replace("&quot;", "")


def test_a_long_text_is_cut_and_a_value_is_told_for_people() -> None:
    assert len(shown("x" * 1000)) == TEXT_MAX
    assert [shown(value) for value in (None, True, 1234567, 0.123456, 12345.6)] == [
        "-", "yes", "1,234,567", "0.123", "12,346",
    ]  # fmt: skip
    assert [length(seconds) for seconds in (0.05, 12, 150, 8000, 400_000)] == [
        "0.05 s", "12 s", "2.5 min", "2.2 h", "4.6 d",
    ]  # fmt: skip


def test_what_somebody_must_look_at_comes_first() -> None:
    sections = [
        Section("one", "One", [Finding("all is well", is_fine=True)]),
        Section("two", "Two", [Finding("it burns", is_alarm=True)]),
    ]
    text = page(sections, title="T", subtitle="S")
    assert text.index("it burns") < text.index("all is well") < text.index('id="one"') < text.index('id="two"')


def test_plots_stay_within_their_picture_also_of_one_point_or_none() -> None:
    axis = Axis(5.0, 5.0, "x")
    pictures = [
        lines([Line("a", [(START_US, 0.0)], 0), Line("b", [(START_US + 5, 7.0)], 1)], told="t"),
        scatter([Dot(5.0, 5.0, "one", 0, mark="m")], x=axis, y=axis, told="t", diagonal=True),
        bars([("a", [("p", 0.0)])], told="t", parts=["p"]),
        heat(["r"], ["c"], [[(2.0, "2", "said")]], told="t"),
    ]
    for picture in pictures:
        width, height = re.findall(r'viewBox="0 0 (\d+) (\d+)"', picture)[0]
        for name, bound in (("c?x[12]?", width), ("c?y[12]?", height)):
            for value in re.findall(rf' {name}="([-\d.]+)"', picture):
                assert 0 <= float(value) <= float(bound)
    assert "Nothing was recorded" in lines([], told="t")
