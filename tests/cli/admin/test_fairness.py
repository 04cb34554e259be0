"""`fairlead admin fairness`: the keys of all partitions together, with shares and running activities."""

import json

import pytest

from fairlead.cli.admin.cluster import Described
from fairlead.cli.admin.fairness import running_report, top_report
from fairlead.history.messages.slots import RunningResponse
from fairlead.matching.messages import KeyInfo
from fairlead.report import DualCell, as_json
from tests.cli.admin.conftest import CHECKOUT, NAMED, PARTITIONS, Admin
from tests.cli.admin.responses import CONFIG, described


async def test_top_shows_the_keys_with_the_most_tasks(admin: Admin) -> None:
    await admin.fill(tasks=60, keys=3)
    await admin.drain(tasks=12)
    reported = await admin.ask("fairness", "top", *NAMED)
    keys = {row["key"]: row for row in reported["keys"]}
    # A weight read from a backlog is exact to a thousandth: it is stored as a whole stride.
    assert [keys[f"key-{number}"]["weight"] for number in range(3)] == pytest.approx([1.0, 2.0, 3.0], rel=0.002)
    assert sum(row["dispatched"] for row in keys.values()) == 12
    # A task that a partition is just forwarding to the root is not counted as waiting: at most one per partition.
    assert 48 - (PARTITIONS - 1) <= sum(row["waiting"] for row in keys.values()) <= 48
    assert sum(row["share"] for row in keys.values()) == pytest.approx(1.0)
    assert keys["key-2"]["fair_share"] == pytest.approx(0.5, rel=0.002)
    limited = await admin.run("fairness", "top", *NAMED, "--limit", "1")
    assert "The first 1 of 3 keys." in limited.out


ANSWERS = [
    described(0, keys=[KeyInfo("a", 1.0, 5, 10, 0.5, 500), KeyInfo("", 1.0, 1, 0, 0.0, 1)]),
    described(
        1, keys=[KeyInfo("b", 2.0, 9, 60, 0.1, 90), KeyInfo("a", 4.0, 3, 20, 2.5, 3), KeyInfo("gone", 9.0, 0, 10, 0.0)]
    ),
]


def test_a_key_counts_over_all_partitions() -> None:
    report = top_report(CHECKOUT, Described(CONFIG, ANSWERS, {}), limit=20)
    assert report.summary == (
        "4 keys; 594 tasks waiting, 18 of them loaded; 100 dispatched since the partitions were loaded"
    )
    assert report.tables[0].rows == [
        # The key's weight is that of the partition with most of its tasks.
        ("a", 1.0, 503, 30, 0.3, 0.25),
        ("b", 2.0, 90, 60, 0.6, 0.5),
        (DualCell("(none)", ""), 1.0, 1, 0, 0.0, 0.25),
        # The key has no waiting tasks, so its fair share is zero.
        ("gone", 9.0, 0, 10, 0.1, None),
    ]


def test_the_limit_shortens_the_table_and_changes_no_share() -> None:
    every, few = (top_report(CHECKOUT, Described(CONFIG, ANSWERS, {}), limit=limit) for limit in (20, 2))
    assert few.tables[0].rows == every.tables[0].rows[:2]
    assert few.summary == every.summary
    assert few.tables[0].note == "The first 2 of 4 keys."


def test_the_json_output_has_the_empty_key_as_it_is_and_null_for_missing_values() -> None:
    rows = json.loads(as_json(top_report(CHECKOUT, Described(CONFIG, ANSWERS, {}), limit=20)))["keys"]
    assert [row["key"] for row in rows] == ["a", "b", "", "gone"]
    assert rows[-1]["fair_share"] is None


def test_a_task_queue_without_keys_is_shown_without_a_division_by_zero() -> None:
    report = top_report(CHECKOUT, Described(CONFIG, [described(0)], {}), limit=20)
    assert report.summary.startswith("0 keys; 0 tasks waiting")
    assert report.tables[0].rows == []


def test_the_output_uses_the_singular_for_one_key() -> None:
    answers = [described(0, keys=[KeyInfo("a", 1.0, 1, 0, 0.0, 1)])]
    assert top_report(CHECKOUT, Described(CONFIG, answers, {}), limit=20).summary.startswith("1 key; 1 task waiting")


def test_running_activities_are_shown_with_their_limits() -> None:
    answer = RunningResponse({"": 1, "a": 3, "b": 3}, key_max=3, queue_max=10)
    report = running_report(CHECKOUT, answer, limit=2)
    assert report.summary == "7 of 10 running, of 3 keys"
    assert report.tables[0].rows == [("a", 3, 3), ("b", 3, 3)]
    assert report.tables[0].note == "The first 2 of 3 keys."
    alone = running_report(CHECKOUT, RunningResponse({"": 1}, key_max=0, queue_max=10), limit=2)
    assert alone.tables[0].rows == [(DualCell("(none)", ""), 1, None)]


def test_a_task_queue_without_limits_says_that_nothing_is_counted() -> None:
    report = running_report(CHECKOUT, RunningResponse({}, key_max=0, queue_max=0), limit=2)
    assert report.summary == "the task queue has no limit on running activities: none is counted"
