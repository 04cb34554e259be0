"""Validation of search attributes that clients set. The error messages equal those of the reference server."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from temporalio.api.common.v1 import Payload, SearchAttributes

from fairlead.api.namespaces import Namespace
from fairlead.api.search.attributes import problem_of, to_payload, to_value
from fairlead.api.search.names import BOOL, DATETIME, DOUBLE, INT, KEYWORD, KEYWORD_LIST, TEXT, TYPE_NAMES
from fairlead.storage.history import SearchValue, Text
from fairlead.storage.visibility import INT64_MAX
from tests.api.search.world import CUSTOM

NAMESPACE = Namespace(id="id", name="default", retention_ns=1, search_attributes=CUSTOM)


def payload(value: object) -> Payload:
    return Payload(metadata={"encoding": b"json/plain"}, data=json.dumps(value).encode())


def problem(**values: object) -> str | None:
    fields = {name: value if isinstance(value, Payload) else payload(value) for name, value in values.items()}
    return problem_of(SearchAttributes(indexed_fields=fields), NAMESPACE)


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("CustomKeyword", 5, "5"),
        ("CustomKeyword", True, "true"),
        ("CustomKeyword", ["a", "b"], "[a b]"),
        ("CustomKeyword", {"a": 1}, "map[a:1]"),
        ("CustomInt", "1", "1"),
        ("CustomInt", 1.5, "1.5"),
        ("CustomInt", 1.0, "1"),
        ("CustomInt", True, "true"),
        ("CustomInt", [1, 2], "[1 2]"),
        ("CustomInt", 2**63, "9.223372036854776e+18"),
        ("CustomDouble", "1.5", "1.5"),
        ("CustomBool", 1, "1"),
        ("CustomBool", "true", "true"),
        ("CustomTime", "2024-01-01", "2024-01-01"),
        ("CustomTime", 5, "5"),
        ("CustomList", "a", "a"),
        ("CustomList", [1], "[1]"),
        ("CustomList", ["a", 1], "[a 1]"),
        ("CustomText", 5, "5"),
        ("CustomText", ["a", "b"], "[a b]"),
        ("CustomInt", Payload(metadata={"encoding": b"binary/plain"}, data=b"5"), "[53]"),
        ("CustomInt", Payload(data=b"5"), 'value from <data:"5">'),
        (
            "CustomKeyword",
            Payload(metadata={"encoding": b"json/plain"}, data=b"{"),
            'value from <metadata:{key:"encoding"  value:"json/plain"}  data:"{">',
        ),
    ],
)
def test_a_value_of_another_type_is_rejected_and_shown(name: str, value: object, shown: str) -> None:
    assert problem(**{name: value}) == (
        f"invalid value for search attribute {name} of type {TYPE_NAMES[CUSTOM[name]]}: {shown}"
    )


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("CustomKeyword", "", ""),
        ("CustomKeyword", ["a"], "a"),
        ("CustomKeyword", None, None),
        ("CustomKeyword", [], None),
        ("CustomInt", [1], 1),
        ("CustomDouble", 1, 1.0),
        ("CustomBool", [True], True),
        ("CustomTime", "2024-01-01T00:00:00.000000001+02:00", 1_704_060_000_000_000_001),
        ("CustomTime", ["1970-01-01T00:00:00Z"], 0),
        ("CustomList", ["a", "a"], ("a", "a")),
        ("CustomText", ["a"], Text("a")),
        ("CustomInt", Payload(metadata={"encoding": b"binary/null"}), None),
        # The type in the client's metadata is ignored.
        ("CustomKeyword", Payload(metadata={"encoding": b"json/plain", "type": b"Int"}, data=b'"x"'), "x"),
    ],
)
def test_a_value_of_the_right_type_or_a_list_of_one_such_value_is_accepted(
    name: str, value: object, kept: SearchValue | None
) -> None:
    assert problem(**{name: value}) is None
    found = to_value(value if isinstance(value, Payload) else payload(value), CUSTOM[name])
    assert found == kept
    assert type(found) is type(kept)


def test_only_attributes_of_the_namespace_can_be_set_and_system_attributes_cannot() -> None:
    assert problem(Nope="x") == "Namespace default has no mapping defined for search attribute Nope"
    # The error names the unknown attribute first.
    assert problem(CustomInt="x", Nope="x") == "Namespace default has no mapping defined for search attribute Nope"
    for name in ("WorkflowId", "ExecutionStatus", "TemporalWorkerDeployment", "TemporalExternalPayloadCount"):
        assert problem(**{name: "x"}) == f"{name} attribute can't be set in SearchAttributes"
    assert problem(BuildIds=["x"], BatcherUser="x", TemporalScheduledById="x", TemporalSchedulePaused=True) is None


def test_the_sizes_of_search_attributes_are_bounded() -> None:
    assert problem(CustomKeyword="x" * 2046) is None
    assert problem(CustomKeyword="x" * 2047) == (
        "search attribute CustomKeyword value size 2049 exceeds size limit 2048"
    )
    many = {f"K{number}": KEYWORD for number in range(101)}
    namespace = Namespace(id="id", name="default", retention_ns=1, search_attributes=many)
    attributes = SearchAttributes(indexed_fields={name: payload("x") for name in many})
    assert problem_of(attributes, namespace) == "number of search attributes 101 exceeds limit 100"
    del attributes.indexed_fields["K0"]
    assert problem_of(attributes, namespace) is None
    for number in range(1, 21):
        attributes.indexed_fields[f"K{number}"].CopyFrom(payload("x" * 2040))
    assert problem_of(attributes, namespace) == (
        f"total size of search attributes {attributes.ByteSize()} exceeds size limit 40960"
    )


def test_values_that_cannot_be_stored_are_rejected() -> None:
    assert problem(CustomKeyword="a\0b") is not None
    assert problem(CustomList=["a\0b"]) is not None
    assert problem(CustomKeyword=Payload(metadata={"encoding": b"json/plain"}, data=b'"\xff"')) is not None
    assert problem(CustomKeyword=Payload(metadata={"encoding": b"json/plain"}, data=b'"\\ud800"')) is not None
    assert problem(CustomInt=-(2**63)) is not None
    assert problem(CustomDouble=Payload(metadata={"encoding": b"json/plain"}, data=b"1" + b"0" * 400)) is not None


TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
VALUES = st.one_of(
    st.tuples(st.just(KEYWORD), TEXTS),
    st.tuples(st.just(TEXT), TEXTS.map(Text)),
    st.tuples(st.just(INT), st.integers(-INT64_MAX, INT64_MAX)),
    st.tuples(st.just(DOUBLE), st.floats(allow_nan=False, allow_infinity=False)),
    st.tuples(st.just(BOOL), st.booleans()),
    st.tuples(st.just(DATETIME), st.integers(-INT64_MAX, INT64_MAX)),
    st.tuples(st.just(KEYWORD_LIST), st.lists(TEXTS, min_size=1).map(tuple)),
)


@given(VALUES)
def test_a_value_survives_the_round_trip_through_its_payload(typed: tuple[int, SearchValue]) -> None:
    number, value = typed
    written = to_payload(value, number)
    assert written.metadata["type"].decode() == TYPE_NAMES[number]
    found = to_value(written, number)
    assert found == value
    assert type(found) is type(value)


def test_payloads_are_encoded_as_by_the_reference_server() -> None:
    assert to_payload(2.0, DOUBLE).data == b"2"
    assert to_payload(1_704_067_200_500_000_000, DATETIME).data == b'"2024-01-01T00:00:00.5Z"'
    assert to_payload(("b", "c"), KEYWORD_LIST) == Payload(
        metadata={"encoding": b"json/plain", "type": b"KeywordList"}, data=b'["b","c"]'
    )
