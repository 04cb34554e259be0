"""The checks that come first on the report's page, the period before, and links into the console; without Spark."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, cast

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from fairlead.pipeline.dictionary import TABLES
from fairlead.pipeline.lake import Lake
from fairlead.pipeline.queries import Queries
from fairlead.pipeline.report.attention import attention
from fairlead.pipeline.report.clusters import clusters
from fairlead.pipeline.report.comparison import comparison
from fairlead.pipeline.report.fairness import fairness
from fairlead.pipeline.report.levels import THRESHOLDS, Level, WrongThreshold, thresholds_of
from fairlead.pipeline.report.links import Console, WrongConsole
from fairlead.pipeline.report.page import Section
from fairlead.pipeline.report.periods import Period, period_of
from fairlead.pipeline.report.tables import Tables
from fairlead.pipeline.report.traffic import traffic
from fairlead.pipeline.report.workflows import workflows

HOUR_US = 3_600_000_000
NOW_US = 1_767_225_600_000_000
CONSOLE = "http://127.0.0.1:8233/console"
QUEUE = {"cluster": "active", "namespace_id": "orders", "task_list": "packing", "task_type": 2}
RUN = {"cluster": "active", "namespace_id": "orders", "workflow_type": "Order"}


class Filled:
    """A lake that has these tables."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def has(self, name: str) -> bool:
        return name in self._names


@contextmanager
def tables_with(**rows: Sequence[Mapping[str, Any]]) -> Iterator[Tables]:
    """Tables with these rows; columns that a row lacks are null."""
    with duckdb.connect(config={"default_null_order": "nulls_first_on_asc_last_on_desc"}) as database:
        for name, given in rows.items():
            schema = to_arrow_schema(TABLES[name].schema)
            plain = [{column: row.get(column) for column in schema.names} for row in given]
            database.register(name, pa.Table.from_pylist(plain, schema=schema))
        lake = cast("Lake", Filled(list(rows)))
        yield Tables(lake, Queries(lake, database), Console.at(CONSOLE), NOW_US)


def window(hours_ago: float, **fields: Any) -> dict[str, Any]:
    flows = {"added": 100, "matched": 100, "matched_at_once": 50, "wait_s_p99": 0.1, "backlog_age_s_max": 0.0}
    return QUEUE | flows | {"window_us": NOW_US - round(hours_ago * HOUR_US)} | fields


def run_of(hours_ago: float, workflow_id: str, status: str = "completed") -> dict[str, Any]:
    at_us = NOW_US - round(hours_ago * HOUR_US)
    return RUN | {"workflow_id": workflow_id, "status": status, "started_us": at_us - 1_000_000, "closed_us": at_us}


def judged(tables: Tables, *thresholds: str) -> tuple[Section, list[list[str]]]:
    """The section, and the texts of its rows: level, check, where, now, before, thresholds."""
    section = attention(tables, period_of(tables), thresholds_of(thresholds))
    rows = re.findall(r"<tr>(<td.*?)</tr>", "".join(section.body))
    return section, [[re.sub("<[^>]+>", "", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)] for row in rows]


def level_of(rows: list[list[str]], check: str) -> str:
    return next(row[0] for row in rows if row[1].startswith(check))


@pytest.mark.parametrize(("wait_s", "level"), [(4.9, "green"), (5.0, "amber"), (60.0, "red")])
def test_the_longest_wait_of_the_last_period_is_judged(wait_s: float, level: str) -> None:
    with tables_with(traffic_lists=[window(2, wait_s_p99=90.0), window(0.5), window(0.1, wait_s_p99=wait_s)]) as tables:
        _, rows = judged(tables)
    waits = next(row for row in rows if row[1].startswith("Wait of 99 %"))
    assert waits[0] == level
    assert waits[2].startswith("packing of orders (activity tasks, active)")
    # The 90 s of two hours ago belong to the period before.
    assert waits[4] == "90 s"


def test_waits_of_sticky_task_queues_and_of_few_tasks_are_not_judged() -> None:
    rows = [window(3), window(0, task_list="__sticky__", wait_s_p99=99.0), window(0, matched=9, wait_s_p99=99.0)]
    with tables_with(traffic_lists=[*rows, window(0.1)]) as tables:
        section, shown = judged(tables)
    assert level_of(shown, "Wait of 99 %") == "green"
    assert section.findings == []


def test_failed_types_come_with_example_workflows_that_link_to_the_console() -> None:
    failed = [run_of(0.1, f"order-{number}", "failed") for number in range(4)]
    earlier = [run_of(1.5, f"old-{number}") for number in range(8)] + [
        run_of(1.5, "old-9", "timed_out"),
        run_of(3, "a"),
    ]
    with tables_with(workflows=[*failed, *(run_of(0.2, f"fine-{number}") for number in range(36)), *earlier]) as tables:
        section, rows = judged(tables)
    row = next(row for row in rows if row[1] == "Failed workflows")
    assert row[0] == "red"
    assert row[3:] == ["10.0%", "11.1%", "1.0% / 10.0%"]
    assert "order-0, order-1, order-2" in row[2]
    assert "4 of 40 that ended" in row[2]
    assert f'href="{CONSOLE}/workflow?namespace=orders&amp;id=order-0"' in "".join(section.body)
    assert [one.level for one in section.findings] == [Level.RED]


def test_two_failures_of_a_rare_type_raise_no_alarm() -> None:
    with tables_with(workflows=[run_of(3, "a"), run_of(0, "b", "failed"), run_of(0, "c", "failed")]) as tables:
        _, rows = judged(tables)
    assert level_of(rows, "Failed workflows") == "green"


def test_starved_keys_and_old_backlogs_and_old_data_are_judged() -> None:
    key = QUEUE | {"fairness_key": "small", "fair": 40.0, "dispatched": 2, "is_starved": True}
    others = QUEUE | {"fairness_key": "large", "fair": 60.0, "dispatched": 98, "is_starved": False}
    at = {"window_us": NOW_US - 25 * HOUR_US}
    with tables_with(
        traffic_lists=[window(25, backlog_age_s_max=61.0, backlog_max=7), window(30)],
        fairness_keys=[key | at, others | at],
        verdicts=[{"verdict": "late"}, *({"verdict": "agreed"} for _ in range(49))],
    ) as tables:
        _, rows = judged(tables)
    found = {row[1]: (row[0], row[3]) for row in rows}
    assert found["Tasks that starved keys missed"] == ("red", "38.0%")
    assert found["Age of the oldest waiting task"] == ("amber", "61 s")
    assert found["Age of the data"] == ("red", "25 h")
    assert found["Runs that are late in a cluster"] == ("amber", "2.0%")
    # The worst comes first.
    assert [row[0] for row in rows] == sorted((row[0] for row in rows), key=["red", "amber", "green"].index)


def test_one_wrong_run_needs_a_person() -> None:
    rows = [window(2), window(0)]
    with tables_with(traffic_lists=rows, verdicts=[{"verdict": "agreed"}, {"verdict": "wrong"}]) as tables:
        section, shown = judged(tables)
    assert next(row for row in shown if row[1] == "Runs that are wrong in a cluster")[0::3] == ["red", "1"]
    assert "Needs attention: 1 red." in section.body[0]
    with tables_with(traffic_lists=rows, verdicts=[{"verdict": "agreed"}]) as tables:
        assert level_of(judged(tables)[1], "Runs that are wrong") == "green"


def test_without_anything_amber_the_page_says_so() -> None:
    with tables_with(traffic_lists=[window(2), window(0)]) as tables:
        section, _ = judged(tables)
    assert "All checks are green" in section.body[0]
    assert section.findings == []


def test_thresholds_can_be_given_and_wrong_ones_are_refused() -> None:
    with tables_with(traffic_lists=[window(2), window(0, wait_s_p99=3.0)]) as tables:
        assert level_of(judged(tables)[1], "Wait") == "green"
        assert level_of(judged(tables, "waits=1,10")[1], "Wait") == "amber"
    assert thresholds_of(()) == THRESHOLDS
    for wrong in ("waits", "waits=1", "waits=5,1", "waits=0,1", "sleep=1,2", "waits=1,inf", "waits=nan,2"):
        with pytest.raises(WrongThreshold, match=re.escape(wrong)):
            thresholds_of([wrong])


@pytest.mark.parametrize(
    ("hours", "length_hours"), [(0.5, 0.25), (2.5, 1.0), (47.0, 1.0), (49.0, 24.0), (15 * 24.0, 7 * 24.0)]
)
def test_the_period_is_the_longest_that_fits_twice(hours: float, length_hours: float) -> None:
    with tables_with(traffic_lists=[window(hours), window(0)]) as tables:
        period = period_of(tables)
        assert period is not None
        assert (period.end_us - period.begin_us) / HOUR_US == pytest.approx(length_hours)
        assert period.end_us == NOW_US + 1
        assert period_of(tables, 1800.0) == Period(NOW_US + 1 - HOUR_US // 2, NOW_US + 1)
    with tables_with(traffic_lists=[]) as tables:
        assert period_of(tables) is None
        assert "Nothing was recorded" in attention(tables, None, THRESHOLDS).body[0]
        assert comparison(tables, None) == []


def test_the_last_window_of_some_seconds_of_traffic_belongs_to_the_last_period() -> None:
    closed_us = NOW_US + 38_000_000
    with tables_with(traffic_lists=[window(0)], workflows=[run_of(0, "a") | {"closed_us": closed_us}]) as tables:
        period = period_of(tables)
        assert period == Period(NOW_US, closed_us + 1)
        assert level_of(judged(tables)[1], "Wait of 99 %") == "green"


def test_task_queues_without_traffic_for_long_do_not_lengthen_the_period() -> None:
    with tables_with(traffic_lists=[window(72), window(30)], workflows=[run_of(0, "a")]) as tables:
        for hours, length_s in ((24, None), (1, 3600.0)):
            assert period_of(tables, length_s) == Period(NOW_US + 1 - hours * HOUR_US, NOW_US + 1)


def test_the_period_is_compared_with_the_one_before() -> None:
    flows = [window(2.5), window(1.5, added=50), window(0.5, added=75, matched_at_once=75), window(0, added=0)]
    with tables_with(traffic_lists=flows, workflows=[run_of(0.1, "a", "failed"), run_of(0.1, "b")]) as tables:
        text = "".join(comparison(tables, period_of(tables)))
    texts = [re.findall(r">([^<]+)<", row) for row in text.split("<tr>")[2:]]
    rows = {name: values for name, *values in texts}
    assert rows["tasks added"] == ["50", "75", "+50%"]
    assert rows["dispatched without a wait"] == ["50.0%", "62.5%", "+12.5 points"]
    assert rows["runs closed"] == ["0", "2", "new"]
    assert rows["of these failed or timed out"] == ["-", "50.0%", "-"]


def test_sticky_task_queues_are_not_shown_before_others() -> None:
    with tables_with(
        traffic_lists=[window(0, task_list="__sticky__", added=10_000, wait_s_p99=9.9), window(0)]
    ) as tables:
        section = traffic(tables)
    text = "".join(section.body)
    assert text.index("packing of orders") < text.index("__sticky__ of orders")
    assert "packing" in section.findings[1].sentence


def test_a_picture_without_a_point_is_left_out_and_one_point_is_visible() -> None:
    with tables_with(traffic_lists=[window(0, wait_s_p99=None, write_qps=2.0, dispatch_qps=1.0)]) as tables:
        text = "".join(traffic(tables).body)
    # Rates have one window, waits have none.
    assert text.count("<figure>") == 1
    assert text.count("<circle") == 2
    assert "<polyline" not in text
    # The only moment of the picture has one label, not one for each end of the axis.
    assert text.count(datetime.fromtimestamp(NOW_US / 1e6, tz=UTC).strftime("%H:%M:%S")) == 1


def test_clusters_without_differences_have_no_pictures() -> None:
    pair = {"left": "east", "right": "west", "events_only_left": 0, "events_only_right": 0, "events_different": 0}
    same: dict[str, Any] = {"verdicts": [{"verdict": "agreed"}], "repair_plan": []}
    with tables_with(**same, pairs=[pair]) as tables:
        assert "No two clusters differ." in "".join(clusters(tables).body)
    with tables_with(**same, pairs=[pair | {"events_different": 2}]) as tables:
        assert "".join(clusters(tables).body).count("<figure>") == 1


def test_the_same_type_in_two_clusters_has_bars_with_the_clusters_names() -> None:
    order = {"workflow_type": "Order", "task_list": "orders", "namespace_id": "shop", "runs": 2, "completed": 2}
    rows = [order | {"cluster": "east"}, order | {"cluster": "west"}, order | {"cluster": "west", "workflow_type": "T"}]
    with tables_with(workflows=[], activities=[], workflow_types=rows, activity_types=[]) as tables:
        text = "".join(workflows(tables).body)
    assert [name for name in ("Order, east", "Order, west", "T") if f">{name}<" not in text] == []


def test_a_key_at_three_times_its_weight_is_fair_where_others_had_nothing_waiting() -> None:
    """Two keys of one weight; one asked for three quarters, the other for one quarter, and both got it."""
    shares = {"weight": 1.0, "weight_share": 0.5, "is_starved": False, "window_us": NOW_US, "backlog_before": 1}
    keys = [
        QUEUE | shares | {"fairness_key": "busy", "added": 100, "dispatched": 75, "fair": 75.0},
        QUEUE | shares | {"fairness_key": "calm", "added": 25, "dispatched": 25, "fair": 25.0},
    ]
    rows = [QUEUE | {"window_us": NOW_US, "keys": 2, "dispatched": 100, "starved_tasks": 0.0, "jain": 1.0}]
    with tables_with(fairness=rows, fairness_keys=keys) as tables:
        text = "".join(fairness(tables).body)
    dots = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)".*?<title>(.*?)</title>', text)
    assert [caption for _, _, caption in dots] == [
        "busy: 75.0% dispatched, 75.0% due; its weight of 1 is 50.0% of all",
        "calm: 25.0% dispatched, 25.0% due; its weight of 1 is 50.0% of all",
    ]
    ((x1, y1, x2, y2),) = re.findall(r'<line x1="([\d.]+)" y1="([\d.]+)" x2="([\d.]+)" y2="([\d.]+)" class="dia', text)
    slope = (float(y2) - float(y1)) / (float(x2) - float(x1))
    for x, y, _ in dots:
        assert float(y) == pytest.approx(float(y1) + slope * (float(x) - float(x1)), abs=0.1)


def test_links_name_the_task_queue_and_its_version_and_escape_everything() -> None:
    console = Console.at(f"{CONSOLE}/")
    row = QUEUE | {"namespace_id": "orders (version app:v1)", "task_list": 'a&b"<'}
    assert console.task_queue(row, "text") == (
        f'<a href="{CONSOLE}/task-queue?namespace=orders&amp;name=a%26b%22%3C&amp;type=activity&amp;version=app%3Av1">'
        "text</a>"
    )
    # The common name of sticky task queues is no task queue.
    assert console.task_queue(QUEUE | {"task_list": "__sticky__"}, "text") == "text"
    assert Console.at(None).workflow("orders", "order-1") == "order-1"
    for wrong in ("javascript:alert(1)", "127.0.0.1:8233", "http://", "http://[", "http://host/?a=b"):
        with pytest.raises(WrongConsole):
            Console.at(wrong)
