"""`fairlead admin fairness top`: the keys of all partitions together, against what is fair."""

import pytest

from fairlead.cli.admin.cluster import Described
from fairlead.cli.admin.fairness import top_report
from fairlead.matching.messages import KeyInfo
from tests.cli.admin.answers import CONFIG, described
from tests.cli.admin.conftest import CHECKOUT, NAMED, Admin


async def test_top_shows_the_keys_with_the_most_tasks(admin: Admin) -> None:
    await admin.fill(tasks=60, keys=3)
    await admin.drain(tasks=12)
    told = await admin.ask("fairness", "top", *NAMED)
    keys = {row["fairness_key"]: row for row in told["keys"]}
    assert {name: row["weight"] for name, row in keys.items()} == {"key-0": 1.0, "key-1": 2.0, "key-2": 3.0}
    assert sum(row["dispatched"] for row in keys.values()) == 12
    assert sum(row["loaded"] for row in keys.values()) <= 48
    assert sum(row["share"] for row in keys.values()) == pytest.approx(1.0)
    assert keys["key-2"]["fair_share"] == pytest.approx(0.5)
    limited = await admin.run("fairness", "top", *NAMED, "--limit", "1")
    assert "The first 1 of 3." in limited.out


def test_a_key_counts_over_all_partitions() -> None:
    answers = [
        described(0, keys=[KeyInfo("a", 1.0, 5, 10, 0.5), KeyInfo("", 1.0, 1, 0, 0.0)]),
        described(1, keys=[KeyInfo("a", 1.0, 3, 20, 2.5), KeyInfo("b", 2.0, 9, 70, 0.1)]),
    ]
    report = top_report(CHECKOUT, Described(CONFIG, answers, {}), limit=20)
    assert report.summary == "3 keys; 18 tasks loaded, 100 dispatched"
    assert report.tables[0].rows == [
        ("b", 2.0, 9, 70, 0.7, 0.5, 0.1),
        ("a", 1.0, 8, 30, 0.3, 0.25, 2.5),
        ("(none)", 1.0, 1, 0, 0.0, 0.25, 0.0),
    ]


def test_without_any_key_nothing_is_divided() -> None:
    report = top_report(CHECKOUT, Described(CONFIG, [described(0)], {}), limit=20)
    assert report.summary == "0 keys; 0 tasks loaded, 0 dispatched"
    assert report.tables[0].rows == []
