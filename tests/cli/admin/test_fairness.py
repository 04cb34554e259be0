"""`fairlead admin fairness top`: the keys of all partitions together, against what is fair."""

import json

import pytest

from fairlead.cli.admin.cluster import Described
from fairlead.cli.admin.fairness import top_report
from fairlead.cli.report import Told, as_json
from fairlead.matching.messages import KeyInfo
from tests.cli.admin.answers import CONFIG, described
from tests.cli.admin.conftest import CHECKOUT, NAMED, PARTITIONS, Admin


async def test_top_shows_the_keys_with_the_most_tasks(admin: Admin) -> None:
    await admin.fill(tasks=60, keys=3)
    await admin.drain(tasks=12)
    told = await admin.ask("fairness", "top", *NAMED)
    keys = {row["key"]: row for row in told["keys"]}
    # A weight that is read back from a backlog is right to a thousandth: there it is a whole stride.
    assert [keys[f"key-{number}"]["weight"] for number in range(3)] == pytest.approx([1.0, 2.0, 3.0], rel=0.002)
    assert sum(row["dispatched"] for row in keys.values()) == 12
    # A task that a partition is just offering to the root is not among those that wait: one of each, at most.
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
        # Its weight is that of the partition that has most of it.
        ("a", 1.0, 503, 30, 0.3, 0.25),
        ("b", 2.0, 90, 60, 0.6, 0.5),
        (Told("(none)", ""), 1.0, 1, 0, 0.0, 0.25),
        # It has nothing waiting, and so is owed nothing now.
        ("gone", 9.0, 0, 10, 0.1, None),
    ]


def test_a_limit_cuts_the_table_and_changes_no_share() -> None:
    every, few = (top_report(CHECKOUT, Described(CONFIG, ANSWERS, {}), limit=limit) for limit in (20, 2))
    assert few.tables[0].rows == every.tables[0].rows[:2]
    assert few.summary == every.summary
    assert few.tables[0].note == "The first 2 of 4 keys."


def test_programs_get_the_empty_key_as_it_is_and_null_for_what_is_not_there() -> None:
    rows = json.loads(as_json(top_report(CHECKOUT, Described(CONFIG, ANSWERS, {}), limit=20)))["keys"]
    assert [row["key"] for row in rows] == ["a", "b", "", "gone"]
    assert rows[-1]["fair_share"] is None


def test_without_any_key_nothing_is_divided() -> None:
    report = top_report(CHECKOUT, Described(CONFIG, [described(0)], {}), limit=20)
    assert report.summary.startswith("0 keys; 0 tasks waiting")
    assert report.tables[0].rows == []


def test_one_key_is_one_key() -> None:
    answers = [described(0, keys=[KeyInfo("a", 1.0, 1, 0, 0.0, 1)])]
    assert top_report(CHECKOUT, Described(CONFIG, answers, {}), limit=20).summary.startswith("1 key; 1 task waiting")
