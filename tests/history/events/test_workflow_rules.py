"""Queries and predicates of workflow rules."""

import pytest

from fairlead.api.errors import ApiError
from fairlead.history.events.workflow_rules import UnreadableRule, matches

FACTS: dict[str, str | int | None] = {
    "ActivityType": "charge",
    "Attempts": 3,
    "BackoffInterval": None,
    "StartedTime": 1_600_000_000_000_000_000,
}


@pytest.mark.parametrize(
    ("predicate", "is_matched"),
    [
        ("ActivityType = 'charge'", True),
        ("ActivityType != 'charge'", False),
        ("ActivityType STARTS_WITH 'ch'", True),
        ("ActivityType NOT STARTS_WITH 'ch'", False),
        ("Attempts = 3 AND Attempts > 2 AND Attempts >= 3", True),
        ("Attempts != 3 OR Attempts < 3 OR Attempts <= 2", False),
        ("(Attempts = 2 OR Attempts = 3) AND ActivityType = 'charge'", True),
        ("StartedTime > '2020-01-01T00:00:00Z'", True),
        ("StartedTime BETWEEN '2020-01-01T00:00:00Z' AND '2021-01-01T00:00:00Z'", True),
        ("StartedTime NOT BETWEEN '2020-01-01T00:00:00Z' AND '2021-01-01T00:00:00Z'", False),
        # The first attempt has no backoff.
        ("BackoffInterval >= 0", False),
        # An unknown field is no error if the evaluation stops before it.
        ("Attempts = 3 OR Unknown = 1", True),
        ("Attempts = 2 AND Unknown = 1", False),
    ],
)
def test_a_predicate_is_true_or_false_of_an_activity(predicate: str, is_matched: bool) -> None:
    assert matches(predicate, FACTS) is is_matched


@pytest.mark.parametrize(
    "predicate",
    [
        "",
        "  ",
        "Unknown = 1",
        "activitytype = 'charge'",
        "ActivityType",
        "ActivityType > 'a'",
        "ActivityType = 3",
        "Attempts = 'three'",
        "Attempts = 1.5",
        "Attempts STARTS_WITH '3'",
        "Attempts BETWEEN 1 AND 5",
        "StartedTime > 'yesterday'",
        "StartedTime > 5",
        "NOT Attempts = 3",
        "ActivityType IN ('charge')",
        "ActivityType IS NULL",
        "Attempts = 3 GROUP BY Attempts",
        "((",
    ],
)
def test_a_predicate_that_rules_do_not_have_is_refused(predicate: str) -> None:
    with pytest.raises((UnreadableRule, ApiError)):
        matches(predicate, FACTS)
