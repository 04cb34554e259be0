"""The page's content, its escaping of data, and its size."""

import re
from collections.abc import Iterable
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
from fairlead.pipeline.report.levels import Level
from fairlead.pipeline.report.markup import TEXT_MAX, join, shown, table, tag
from fairlead.pipeline.report.page import Finding, Section, page
from fairlead.pipeline.report.tables import length
from fairlead.pipeline.schemas_backtest import BACKTEST, BACKTEST_SETTINGS, BACKTEST_TIMELINE
from fairlead.pipeline.schemas_fairness import FAIRNESS, FAIRNESS_KEYS
from fairlead.pipeline.schemas_histories import (
    ACTIONS,
    ACTIVITIES,
    ACTIVITY_TYPES,
    FAILURES,
    WAITS,
    WORKFLOW_TYPES,
    WORKFLOWS,
)
from fairlead.pipeline.schemas_placement import PLACEMENT, PLACEMENT_HOSTS, PLACEMENT_MOVES
from fairlead.pipeline.schemas_reconcile import PAIRS, REPAIR_PLAN, VERDICTS
from fairlead.pipeline.schemas_traffic import TRAFFIC_LISTS
from tests.pipeline.browser import look_at

START_US = 1_767_225_600_000_000
EVIL = '<script>alert("x")</script><img src="http://127.0.0.1:9/x.png" onerror="alert(1)">'
LONG = "a-name-that-goes-on-and-on-" * 20
PAGE_BYTES_MAX = 5_000_000
# Numbers of distinct values in columns by which the page groups; other text columns have one value per row.
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
    "waits": WAITS,
    "failures": FAILURES,
    "actions": ACTIONS,
}
# The tables of the section on workflows.
HISTORIES = ("workflows", "activities", "workflow_types", "activity_types")


def filled(spark: SparkSession, lake: Lake, *, rows: int, text: str, tables: Iterable[str] = TABLES) -> None:
    """Fill each table with `rows` rows; each text is `text` with a number, each number is arbitrary."""
    for name in tables:
        schema = TABLES[name]
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
            elif kind == "date":
                value = F.lit("2026-01-31")
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
            # A cast can't mark the elements of an array as non-null, so string arrays are not cast.
            columns.append((value if kind == "array<string>" else value.cast(kind)).alias(field.name))
        lake.write(name, frame.select(*columns), "run")


def _nested(kind: str, text: str) -> Any:
    """Null, except where the page reads nested values: findings of a verdict, and failures of a type."""
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


@pytest.fixture(scope="module")
def big(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Summary, str]:
    """The page of a lake with 10,000 rows in every table, all texts long and full of markup."""
    lake = Lake(tmp_path_factory.mktemp("report") / "lake")
    filled(spark, lake, rows=10_000, text=EVIL + LONG)
    return written(spark, lake)


def test_a_section_without_tables_names_the_command_that_fills_it(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    with lake.locked():
        pass
    summary, text = written(spark, lake)
    assert summary.findings["report"] == str(lake.root / "report.html")
    commands = re.findall(r"<code>fairlead pipeline (\w+)</code> fills this part", text)
    assert commands == ["traffic", "fairness", "backtest", "placement", "reconcile", *["histories"] * 4, "ingest"]


def test_every_status_of_a_run_is_shown(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    filled(spark, lake, rows=1, text="order", tables=HISTORIES)
    _, page = written(spark, lake)
    ends = ("completed", "failed", "timed out", "canceled", "terminated", "continued as new", "open")
    assert [end for end in ends if f"order0: {end} 1" not in page] == []


def test_data_never_becomes_markup_or_script_in_the_page(big: tuple[Summary, str], tmp_path: Path) -> None:
    summary, text = big
    # The page contains the data as text.
    assert "&lt;script&gt;alert(" in text
    assert "<script" not in text
    assert "<img" not in text
    look = look_at(Path(summary.findings["report"]), tmp_path)
    assert (look.console, look.requests) == ([], [])
    assert "<script" not in look.dom


def test_the_browser_check_detects_planted_errors_and_requests(tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text("""
        <img src="http://127.0.0.1:9/x.png">
        <link rel="stylesheet" href="https://styles.example/s.css">
        <iframe src="http://frame.example/f.html"></iframe>
        <script>
          console.error("a complaint");
          fetch("http://fetched.example/f").catch(() => 0);
          new WebSocket("ws://socket.example/w");
          addEventListener("load", () => fetch("http://late.example/l").catch(() => 0));
          throw new Error("thrown");
        </script>
    """)
    look = look_at(bad, tmp_path)
    assert any("a complaint" in line for line in look.console)
    assert any("thrown" in line for line in look.console)
    assert look.requests == [
        "http://127.0.0.1:9/x.png",
        "http://fetched.example/f",
        "http://frame.example/f.html",
        "http://late.example/l",
        "https://styles.example/s.css",
        "ws://socket.example/w",
    ]


def test_requests_of_the_browser_itself_are_not_counted(tmp_path: Path) -> None:
    """Chromium itself requests the time, updates and a dictionary for every page."""
    empty = tmp_path / "empty.html"
    empty.write_text("<p>nothing</p>")
    look = look_at(empty, tmp_path)
    assert (look.console, look.requests) == ([], [])
    assert "<p>nothing</p>" in look.dom


def test_the_size_of_the_page_does_not_depend_on_the_size_of_the_lake(big: tuple[Summary, str]) -> None:
    summary, text = big
    assert summary.findings["bytes"] == len(text.encode()) < PAGE_BYTES_MAX
    # The page was not empty.
    assert text.count("<circle") > 100
    assert text.count("<tr>") > 60


def test_the_page_is_replaced_atomically_and_no_draft_is_left(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    with lake.locked():
        pass
    file = tmp_path / "page.html"
    file.write_text("the page before")
    written(spark, lake, report=file)
    assert file.read_text().startswith("<!doctype html>")
    assert [one.name for one in tmp_path.iterdir() if "page" in one.name] == ["page.html"]
    with pytest.raises(report.NoPlaceForReport, match="in an existing folder"):
        written(spark, lake, report=tmp_path / "none" / "page.html")
    with pytest.raises(report.NoPlaceForReport, match="there is no lake"):
        written(spark, Lake(tmp_path / "nowhere"))


@given(st.text(max_size=50))
def test_text_is_escaped_everywhere(text: str) -> None:
    made = join([tag("p", text, title=text), text, table([text], [[text]])])
    outside = re.sub(r"</?(p|div|table|thead|tbody|tr|th|td)( (title|class)=\"[^\"<>]*\")?>", "", made)
    assert "<" not in outside
    assert ">" not in outside
    assert '"' not in outside.replace("&quot;", "")


def test_long_texts_are_cut_and_values_are_formatted_for_people() -> None:
    assert len(shown("x" * 1000)) == TEXT_MAX
    assert [shown(value) for value in (None, True, 1234567, 0.123456, 12345.6)] == [
        "-", "yes", "1,234,567", "0.123", "12,346",
    ]  # fmt: skip
    assert [length(seconds) for seconds in (0.05, 12, 150, 8000, 400_000)] == [
        "0.05 s", "12 s", "2.5 min", "2.2 h", "4.6 d",
    ]  # fmt: skip


def test_units_stay_with_their_numbers_and_dates_are_not_divided() -> None:
    cells = table(("when", "how long", "what"), [("2026-01-31 12:00:00", "2.5 min", "12 parcels")])
    assert '<td><span class="whole">2026-01-31</span> 12:00:00</td><td class="whole">2.5 min</td>' in cells
    assert "<td>12 parcels</td>" in cells


def test_findings_that_need_attention_come_first() -> None:
    sections = [
        Section("one", "One", [Finding("all is well", Level.GREEN)]),
        Section("two", "Two", [Finding("it burns", Level.RED)]),
    ]
    text = page(sections, title="T", subtitle="S")
    assert text.index("it burns") < text.index("all is well") < text.index('id="one"') < text.index('id="two"')


def test_plots_stay_within_their_frame_even_with_one_point_or_none() -> None:
    axis = Axis(5.0, 5.0, "x")
    pictures = [
        lines([Line("a", [(START_US, 0.0)], 0), Line("b", [(START_US + 5, 7.0)], 1)], caption="t"),
        scatter([Dot(5.0, 5.0, "one", 0, mark="m")], x=axis, y=axis, caption="t", diagonal=True),
        bars([("a", [("p", 0.0)])], caption="t", parts=["p"]),
        heat(["r"], ["c"], [[(2.0, "2", "said")]], caption="t"),
    ]
    for picture in pictures:
        width, height = re.findall(r'viewBox="0 0 (\d+) (\d+)"', picture)[0]
        for name, bound in (("c?x[12]?", width), ("c?y[12]?", height)):
            for value in re.findall(rf' {name}="([-\d.]+)"', picture):
                assert 0 <= float(value) <= float(bound)
    assert lines([], caption="t") == ""
