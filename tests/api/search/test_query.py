"""List filters: every recorded query gets the reference server's response, or is in the table of differences."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.api.errors import ApiError, InvalidArgument
from fairlead.api.search import grammar
from fairlead.api.search.grammar import KEPT_CHARACTERS_MAX, QUERY_BYTES_MAX, TOKENS_MAX
from fairlead.api.search.query import Query, parse_query
from fairlead.api.search.statuses import STATUS_NAMES
from fairlead.api.search.syntax import NESTING_MAX
from fairlead.storage.history import (
    And,
    Attribute,
    Column,
    Compare,
    HistoryStore,
    In,
    IsNull,
    Not,
    Operator,
    Or,
    StartsWith,
)
from fairlead.storage.predicates import IN_VALUES_MAX, PREDICATE_DEPTH_MAX
from tests.api.search.world import CUSTOM, NAMESPACE_ID, RECORDED, ROWS, save

CASES = json.loads(RECORDED.read_text())
SYNTAX = "invalid query: malformed SQL query: syntax error at position"

# Queries whose response differs from that of the reference server, with ours.
DIFFERENT: dict[str, list[str] | str] = {
    # The reference server never finds strings with double quotes, and compares times as text.
    'CustomKeyword = "it\'s \\"q\\" a_b%"': ["it's"],
    "CustomKeyword = 'it''s \"q\" a_b%'": ["it's"],
    "CustomTime = '2024-01-01T00:00:00Z'": ["w-1"],
    "CustomTime = 1704067200000000000": ["w-1"],
    "CustomTime = '2024-06-01T10:00:00.500Z'": ["w-2"],
    "CustomTime IN ('2024-01-01T00:00:00Z')": ["w-1"],
    "CustomTime > '2024-01-01T00:00:00Z'": ["w-2"],
    "CustomTime > 1704067200000000000": ["w-2"],
    # The reference server ignores the sign and the fraction.
    "ExecutionDuration > '-00:00:01'": ["it's", "w-4", "w-3"],
    "ExecutionDuration > '00:00:00.5'": ["it's", "w-3"],
    # For us, an underscore is part of a word.
    "CustomText = 'brave_new'": [],
    # Both servers reject these; ours reports a syntax error.
    "CustomInt IN (SELECT 1)": f"{SYNTAX} 48 near 'select'",
    "EXISTS (SELECT 1)": f"{SYNTAX} 34 near 'exists'",
    "WorkflowId = CAST('w-1' AS CHAR)": f"{SYNTAX} 45 near 'cast'",
    "CASE WHEN 1 THEN 1 END": f"{SYNTAX} 32 near 'case'",
    "é = 'x'": f"{SYNTAX} 30 near 'é'",
    "WorkflowId = é": f"{SYNTAX} 43 near 'é'",
    "WorkflowId = :v": f"{SYNTAX} 42 near ':'",
    "WorkflowId = ?": f"{SYNTAX} 42 near '?'",
    "WorkflowId = b'01'": f"{SYNTAX} 46 near '01'",
    "WorkflowId = x'01'": f"{SYNTAX} 46 near '01'",
    "CustomInt = 1a": f"{SYNTAX} 42 near 'a'",
    "(CustomInt, CustomKeyword) = (1, 2)": f"{SYNTAX} 39",
    "CustomInt = 1 IS NULL": f"{SYNTAX} 44 near 'is'",
    # The reference server accepts only one blank.
    "group  by ExecutionStatus": ["child", "w-2", "w-1", "it's", "w-4", "w-3"],
    # The reference server ignores it.
    "GROUP BY ExecutionStatus HAVING 1": "invalid query: operation is not supported: 'HAVING' clause",
}


def asked(query: str) -> Query | ApiError:
    try:
        return parse_query(query, CUSTOM)
    except ApiError as error:
        return error


async def listed(store: HistoryStore, query: str) -> list[str] | str:
    understood = asked(query)
    if isinstance(understood, ApiError):
        assert isinstance(understood, InvalidArgument)
        return str(understood)
    return [row.workflow_id for row in await store.list_visibility(NAMESPACE_ID, understood.where, limit=100)]


async def test_every_query_gets_the_result_or_error_of_the_reference_server(
    store: HistoryStore,
) -> None:
    await save(store, *ROWS)
    cases = [case for case in CASES if "query" in case]
    answers = {case["query"]: await listed(store, case["query"]) for case in cases}
    recorded = {case["query"]: case.get("found", case.get("message")) for case in cases}
    assert answers == {query: DIFFERENT.get(query, answer) for query, answer in recorded.items()}
    assert {case["code"] for case in cases if "code" in case} == {"INVALID_ARGUMENT"}


async def test_every_count_equals_that_of_the_reference_server_in_each_group(store: HistoryStore) -> None:
    await save(store, *ROWS)
    for case in CASES:
        if "count" not in case:
            continue
        if "message" in case or case["count"] in DIFFERENT:
            with pytest.raises(ApiError) as raised:
                parse_query(case["count"], CUSTOM)
            assert str(raised.value) == DIFFERENT.get(case["count"], case.get("message"))
            continue
        query = parse_query(case["count"], CUSTOM)
        groups = await store.count_visibility(NAMESPACE_ID, query.where, group_by=query.group_by)
        assert sum(group.rows for group in groups) == case["rows"], case
        named = {STATUS_NAMES[int(group.value)]: group.rows for group in groups if isinstance(group.value, int)}
        assert named == {json.loads(name): rows for name, rows in case["groups"]}, case


def test_every_listed_difference_is_real() -> None:
    recorded = {case.get("query", case.get("count")): case.get("found", case.get("message")) for case in CASES}
    assert [query for query, ours in DIFFERENT.items() if recorded[query] == ours] == []


def test_the_recorded_queries_cover_the_language() -> None:
    assert len(CASES) > 400
    assert sum("message" in case for case in CASES) > 150
    assert sum("found" in case for case in CASES) > 150


def test_a_query_is_parsed_to_its_predicate() -> None:
    where = parse_query(
        "WorkflowType = 'A' and (not ExecutionStatus in ('Running', 8) OR `Custom Key` STARTS_WITH 'b`''c')"
        " AND CloseTime is not null AND StartTime >= '1970-01-01T00:00:01.000000002+00:01'",
        {"Custom Key": 2},
    ).where
    assert where == And(
        (
            Compare(Column.WORKFLOW_TYPE, Operator.EQUAL, "A"),
            Or((Not(In(Column.STATUS, (1, 8))), StartsWith(Attribute("Custom Key"), "b`'c"))),
            Not(IsNull(Column.CLOSE_TIME_NS)),
            Compare(Column.START_TIME_NS, Operator.AT_LEAST, -59 * 10**9 + 2),
        )
    )
    assert parse_query("", {}) == parse_query(" \n", {}) == Query()
    assert parse_query("GROUP BY ExecutionStatus", {}) == Query(None, Column.STATUS)


def test_escapes_in_strings_are_decoded() -> None:
    where = parse_query(r"""WorkflowId = 'a\'b''c\"d\\\n\q' AND RunId = "a""b'\t" """, {}).where
    assert where == And(
        (
            Compare(Column.WORKFLOW_ID, Operator.EQUAL, "a'b'c\"d\\\nq"),
            Compare(Column.RUN_ID, Operator.EQUAL, "a\"b'\t"),
        )
    )


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("CustomInt = 1" + " " * QUERY_BYTES_MAX + "AND CustomInt = 2", "longer than"),
        ("CustomInt IN (" + "1," * TOKENS_MAX + "1)", "more than 5000 tokens"),
        ("(" * (NESTING_MAX + 1) + "CustomInt = 1" + ")" * (NESTING_MAX + 1), "max nesting level reached"),
        ("NOT " * (NESTING_MAX + 1) + "CustomInt = 1", "max nesting level reached"),
        ("CustomInt = " + "- " * (NESTING_MAX + 1) + "CustomInt", "max nesting level reached"),
        (" OR ".join(["CustomInt = 1"] * 251), "more than 250 conditions"),
        ("CustomInt IN (" + ",".join(["1"] * (IN_VALUES_MAX + 1)) + ")", "give 1 to 1000"),
        (
            "".join(f"CustomInt = 1 {'AND' if level % 2 else 'OR'} (" for level in range(PREDICATE_DEPTH_MAX + 2))
            + "CustomInt = 1"
            + ")" * (PREDICATE_DEPTH_MAX + 2),
            "nested",
        ),
        ("WorkflowId = 'a\\0b'", "NUL"),
    ],
)
def test_a_query_above_a_bound_is_rejected(query: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message) as raised:
        parse_query(query, CUSTOM)
    assert str(raised.value).startswith("invalid query: ")


def test_the_maximum_nesting_is_accepted() -> None:
    deep = "(" * (NESTING_MAX - 1) + "CustomInt = 1" + ")" * (NESTING_MAX - 1)
    assert parse_query(deep, CUSTOM).where == Compare(Attribute("CustomInt"), Operator.EQUAL, 1)


def test_a_short_query_is_cached_and_validated_for_each_namespace() -> None:
    grammar._kept.cache_clear()
    for _ in range(3):
        parse_query("CustomInt = 1", CUSTOM)
    assert grammar._kept.cache_info()[:2] == (2, 1)
    with pytest.raises(ApiError, match="invalid search attribute: CustomInt"):
        parse_query("CustomInt = 1", {})
    parse_query("CustomInt = 1" + " " * KEPT_CHARACTERS_MAX + "OR CustomInt = 2", CUSTOM)
    assert grammar._kept.cache_info()[:2] == (3, 1)


WORDS = [
    *("WorkflowId", "CustomInt", "CustomText", "CustomList", "CustomBool", "StartTime", "ExecutionStatus", "Nope"),
    *("=", "!=", "<", "<=>", "IN", "NOT", "IS", "NULL", "BETWEEN", "AND", "OR", "STARTS_WITH", "LIKE", "GROUP BY"),
    *("ORDER BY", "LIMIT", "(", ")", ",", "-", "!", "+", "'a'", '"b"', "''", "1", "1.5", "1e400", "0x1", "true", ";"),
    *("'", '"', "`", "``", "\\", "--", "/*", "*/", "#", "f(", "ExecutionDuration", "'1s'", "é", "\0", "."),
]


@given(st.one_of(st.text(max_size=40), st.lists(st.sampled_from(WORDS), max_size=25).map(" ".join)))
def test_any_text_is_parsed_or_rejected(query: str) -> None:
    understood = asked(query)
    assert isinstance(understood, Query) or str(understood).startswith("invalid query: ")
