"""Visibility queries on every store: predicates, order, pages, counts; all stores return the same rows."""

import random
from collections import Counter
from functools import partial
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlead.storage.commit import Commit
from fairlead.storage.history import (
    LATEST_FIRST,
    And,
    Attribute,
    BadSearch,
    Between,
    Column,
    Compare,
    Contains,
    Cursor,
    Field,
    Group,
    HasWord,
    HistoryStore,
    In,
    IsNull,
    Not,
    Operator,
    Or,
    Order,
    Predicate,
    SearchValue,
    StartsWith,
    Text,
    VisibilityDelete,
    VisibilityRow,
    cursor_of,
    words_of,
)
from fairlead.storage.predicates import PREDICATE_DEPTH_MAX, PREDICATE_NODES_MAX
from fairlead.storage.visibility import ATTRIBUTES_MAX, Kind
from fairlead.storage.visibility_order import Sort, SortKey, sort_cursor_of
from tests.storage.history.writes import COMPLETED, NAMESPACE, RUNNING, SHARD, row

A, B = Attribute("A"), Attribute("B é.$[0]'")
NUMBERS = [column for column in Column if column.endswith(("_ns", "_bytes", "length", "count", "status"))]


async def save(store: HistoryStore, *rows: VisibilityRow | VisibilityDelete) -> None:
    lease = await store.take_shard(SHARD)
    await store.commit(SHARD, lease.range_id, Commit(visibility=rows))


async def found(store: HistoryStore, where: Predicate | None = None) -> set[str]:
    rows = await store.list_visibility(NAMESPACE, where, limit=1000)
    assert await store.count_visibility(NAMESPACE, where) == [Group(None, len(rows))]
    return {one.run_id for one in rows}


async def test_a_row_can_be_written_read_changed_and_deleted(store: HistoryStore) -> None:
    full = VisibilityRow(
        NAMESPACE,
        "run-1",
        "wörkflow",
        "Type",
        COMPLETED,
        1,
        2,
        "queue",
        3,
        4,
        5,
        6,
        7,
        "p",
        "pr",
        "r",
        "rr",
        b"\0m",
        {},
    )
    attributes: dict[str, SearchValue] = {
        "keyword": "ä \"quoted\" \\ 'x'",
        "int": 2**63 - 1,
        "double": 2.0,
        "large": 1e22,
        "small": -1.5e-9,
        "true": True,
        "false": False,
        "list": ("a", "", "b"),
        "none of it": (),
        "text": Text("Hello, World: hello"),
    }
    await save(store, full, row("run-2"))
    await save(store, full._replace(search_attributes=attributes, close_time_ns=None))
    one, two = await store.list_visibility(NAMESPACE, order=Order((Column.CLOSE_TIME_NS,), descending=False), limit=9)
    assert one == full._replace(search_attributes=attributes, close_time_ns=None)
    types = {name: type(value) for name, value in one.search_attributes.items()}
    assert types == {name: type(value) for name, value in attributes.items()}
    assert two == row("run-2")
    await save(store, VisibilityDelete(NAMESPACE, "run-1"), VisibilityDelete(NAMESPACE, "nobody"))
    assert await found(store) == {"run-2"}


async def test_a_query_returns_rows_of_its_own_namespace_only(store: HistoryStore) -> None:
    await save(store, row("run-1"), row("run-1", namespace_id="other"), row("run-2", namespace_id="other"))
    assert await found(store) == {"run-1"}
    assert await found(store, Not(Compare(Column.RUN_ID, Operator.EQUAL, "x"))) == {"run-1"}
    assert await store.count_visibility("other") == [Group(None, 2)]
    assert await store.count_visibility("nobody") == [Group(None, 0)]


async def test_a_missing_value_satisfies_neither_a_condition_nor_its_negation(store: HistoryStore) -> None:
    await save(store, row("a", search_attributes={"A": "x"}), row("b", search_attributes={"A": "y"}), row("none"))
    is_x = Compare(A, Operator.EQUAL, "x")
    assert await found(store, is_x) == {"a"}
    assert await found(store, Not(is_x)) == {"b"}
    assert await found(store, Compare(A, Operator.UNEQUAL, "x")) == {"b"}
    assert await found(store, Not(Not(is_x))) == {"a"}
    assert await found(store, IsNull(A)) == {"none"}
    assert await found(store, Not(IsNull(A))) == {"a", "b"}
    # True for every possible value of the missing attribute.
    assert await found(store, Not(And((is_x, IsNull(A), Compare(Column.STATUS, Operator.EQUAL, 5))))) == {
        "a",
        "b",
        "none",
    }
    # A value of another type counts as missing.
    assert await found(store, Not(Compare(A, Operator.EQUAL, 1))) == set()
    assert await found(store, Compare(Column.STATUS, Operator.UNEQUAL, "1")) == set()


async def test_keyword_lists_are_found_by_element_and_texts_by_word(store: HistoryStore) -> None:
    await save(
        store,
        row("ab", search_attributes={"A": ("a", "b")}),
        row("bc", search_attributes={"A": ("b", "c")}),
        row("empty", search_attributes={"A": ()}),
        row("scalar", search_attributes={"A": "b"}),
        row("text", search_attributes={"A": Text("B or not B? É!")}),
        row("none"),
    )
    assert await found(store, Contains(A, "b")) == {"ab", "bc"}
    assert await found(store, Not(Contains(A, "b"))) == {"empty"}
    assert await found(store, Or((Contains(A, "a"), Contains(A, "c")))) == {"ab", "bc"}
    assert await found(store, Compare(A, Operator.EQUAL, "b")) == {"scalar"}
    assert words_of("B or not B? É!") == ["b", "or", "not", "é"]
    assert await found(store, HasWord(A, "é")) == {"text"}
    assert await found(store, Not(HasWord(A, "or"))) == set()
    assert await found(store, Not(HasWord(A, "nor"))) == {"text"}
    assert await found(store, IsNull(A)) == {"none"}


async def test_common_conditions_find_the_expected_rows(store: HistoryStore) -> None:
    await save(
        store,
        row("open", workflow_id="order-1", start_time_ns=10),
        row("done", workflow_id="order-2", start_time_ns=20, close_time_ns=30, status=COMPLETED),
        row("child", workflow_id="pay-1", start_time_ns=30, parent_workflow_id="order-1", workflow_type="Pay"),
    )
    assert await found(store, Compare(Column.STATUS, Operator.EQUAL, RUNNING)) == {"open", "child"}
    assert await found(store, IsNull(Column.CLOSE_TIME_NS)) == {"open", "child"}
    assert await found(store, StartsWith(Column.WORKFLOW_ID, "order-")) == {"open", "done"}
    assert await found(store, Not(StartsWith(Column.WORKFLOW_ID, "order-"))) == {"child"}
    assert await found(store, In(Column.WORKFLOW_TYPE, ("Pay", "Ship"))) == {"child"}
    assert await found(store, Between(Column.START_TIME_NS, 10, 20)) == {"open", "done"}
    assert await found(store, Compare(Column.PARENT_WORKFLOW_ID, Operator.EQUAL, "order-1")) == {"child"}
    assert await found(store, Compare(Column.CLOSE_TIME_NS, Operator.LESS, 31)) == {"done"}
    assert await found(store, And(())) == {"open", "done", "child"}
    assert await found(store, Or(())) == set()


async def test_a_list_has_the_open_runs_first_then_the_closed_ones_newest_first(store: HistoryStore) -> None:
    await save(
        store,
        row("closed early", start_time_ns=5, close_time_ns=10),
        row("closed late", start_time_ns=1, close_time_ns=20),
        row("open, started early", start_time_ns=2),
        row("open, started late", start_time_ns=8),
    )
    listed = await store.list_visibility(NAMESPACE, limit=10)
    assert [one.run_id for one in listed] == [
        "open, started late",
        "open, started early",
        "closed late",
        "closed early",
    ]


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(
    "columns",
    [
        LATEST_FIRST.columns,
        (Column.START_TIME_NS,),
        (Column.WORKFLOW_ID,),
        (Column.STATUS, Column.HISTORY_LENGTH),
        (Column.HISTORY_SIZE_BYTES, Column.WORKFLOW_ID, Column.EXECUTION_TIME_NS),
    ],
)
async def test_the_pages_of_a_list_hold_every_row_once_in_order(
    store: HistoryStore, columns: tuple[Column, ...], *, descending: bool
) -> None:
    chance = random.Random(7)
    rows = [
        row(
            f"run-{number}",
            workflow_id=chance.choice(["a", "b", "é", "Z"]),
            start_time_ns=chance.randrange(4),
            status=chance.randrange(1, 3),
            **{name: chance.choice([None, 1, 2]) for name in ("close_time_ns", "history_length", "history_size_bytes")},
        )
        for number in range(40)
    ]
    await save(store, *rows)
    order = Order(columns, descending=descending)
    where = Compare(Column.STATUS, Operator.EQUAL, 1)
    listed: list[VisibilityRow] = []
    after: Cursor | None = None
    while page := await store.list_visibility(NAMESPACE, where, order=order, after=after, limit=7):
        listed += page
        after = cursor_of(page[-1], order)
    expected = [one for one in rows if one.status == 1]
    assert listed == sorted(expected, key=lambda one: cursor_of(one, order), reverse=descending)


def random_rows(chance: random.Random, count: int) -> list[VisibilityRow]:
    """Rows with few distinct values; some values are missing or of another kind."""
    values: list[SearchValue | None] = [None, "a", "Z", "é", 1, 2, 1.5, True, False, ("a",), Text("a")]
    return [
        row(
            f"run-{number}",
            workflow_id=chance.choice(["a", "b", "é", "Z"]),
            start_time_ns=chance.randrange(4),
            close_time_ns=chance.choice([None, 1, 2]),
            search_attributes={name: value for name in ("A", B.name) if (value := chance.choice(values)) is not None},
        )
        for number in range(count)
    ]


@pytest.mark.parametrize(
    "keys",
    [
        (SortKey(Column.CLOSE_TIME_NS, Kind.NUMBER),),
        (SortKey(Column.CLOSE_TIME_NS, Kind.NUMBER, descending=True), SortKey(Column.WORKFLOW_ID, Kind.TEXT)),
        (SortKey(A, Kind.TEXT, descending=True), SortKey(B, Kind.NUMBER)),
        (SortKey(B, Kind.TRUTH), SortKey(A, Kind.NUMBER, descending=True), SortKey(Column.STATUS, Kind.NUMBER)),
        (SortKey(Column.RUN_ID, Kind.TEXT, descending=True),),
    ],
)
async def test_the_pages_of_a_list_ordered_by_any_fields_hold_every_row_once(
    store: HistoryStore, keys: tuple[SortKey, ...]
) -> None:
    rows = random_rows(random.Random(11), 60)
    await save(store, *rows)
    sort = Sort(keys)
    listed: list[VisibilityRow] = []
    after: Cursor | None = None
    while page := await store.list_visibility(NAMESPACE, None, order=sort, after=after, limit=7):
        listed += page
        after = sort_cursor_of(page[-1], sort)
    assert [one.run_id for one in listed] == [one.run_id for one in by_python(rows, sort)]


def sort_value(one: VisibilityRow, *, sort: Sort, number: int) -> Any:
    return sort_cursor_of(one, sort)[number]


def by_python(rows: list[VisibilityRow], sort: Sort) -> list[VisibilityRow]:
    """Sort the rows with Python's stable sort, from the last key to the first."""
    ordered = sorted(rows, key=lambda one: one.run_id)
    for number, key in reversed(list(enumerate(sort.keys))):
        with_value = [one for one in ordered if sort_cursor_of(one, sort)[number] is not None]
        without = [one for one in ordered if sort_cursor_of(one, sort)[number] is None]
        with_value.sort(key=partial(sort_value, sort=sort, number=number), reverse=key.descending)
        ordered = with_value + without
    return ordered


async def test_changes_between_pages_neither_hide_nor_repeat_other_rows(store: HistoryStore) -> None:
    rows = [row(f"run-{number:02}", start_time_ns=number // 3, workflow_id="w") for number in range(30)]
    await save(store, *rows)
    sort = Sort((SortKey(Column.START_TIME_NS, Kind.NUMBER, descending=True),))
    listed: list[str] = []
    after: Cursor | None = None
    moved = {"run-29", "run-00", "new-1", "new-2"}
    while page := await store.list_visibility(NAMESPACE, None, order=sort, after=after, limit=4):
        listed += [one.run_id for one in page]
        after = sort_cursor_of(page[-1], sort)
        if len(listed) == 8:
            # A listed row moves to the end and an unlisted one to the front; two rows are added and one is deleted.
            await save(
                store,
                rows[29]._replace(start_time_ns=-1),
                rows[0]._replace(start_time_ns=99),
                row("new-1", start_time_ns=50),
                row("new-2", start_time_ns=2),
                VisibilityDelete(NAMESPACE, str(after[-1])),
            )
    unchanged = [one for one in listed if one not in moved]
    assert sorted(unchanged) == sorted({one.run_id for one in rows} - moved)
    assert listed.count("new-2") == 1
    assert "new-1" not in listed


@pytest.mark.parametrize("field", [Column.STATUS, Column.WORKFLOW_TYPE, Column.CLOSE_TIME_NS, A])
async def test_rows_are_counted_by_group(store: HistoryStore, field: Field) -> None:
    values: list[SearchValue | None] = ["x", "x", "x", 2, 2, ("a", "b"), None, None, None, None]
    rows = [
        row(
            f"run-{number}",
            status=1 + number // 6,
            workflow_type="Order" if number < 7 else "Pay",
            close_time_ns=[None, 5, 5][number % 3],
            search_attributes={} if value is None else {"A": value},
        )
        for number, value in enumerate(values)
    ]
    await save(store, *rows, row("left out", status=9))
    where = Compare(Column.STATUS, Operator.LESS, 9)
    name = field if isinstance(field, Column) else ""
    expected = Counter(getattr(one, name) if name else one.search_attributes.get("A") for one in rows)
    groups = await store.count_visibility(NAMESPACE, where, group_by=field)
    assert {group.value: group.rows for group in groups} == expected
    assert [group.rows for group in groups] == sorted(expected.values(), reverse=True)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Compare(A, Operator.EQUAL, float("nan")),
        lambda: Compare(A, Operator.EQUAL, 2**63),
        lambda: Compare(A, Operator.EQUAL, "a\0"),
        lambda: Compare(A, Operator.EQUAL, "\ud800"),
        lambda: Compare(A, Operator.EQUAL, None),  # type: ignore[arg-type]
        lambda: Compare(Attribute('a"'), Operator.EQUAL, 1),
        lambda: Compare(Attribute(""), Operator.EQUAL, 1),
        lambda: IsNull(Attribute("a\\b")),
        lambda: In(A, ()),
        lambda: In(A, (1, "a")),
        lambda: In(A, tuple(range(1001))),
        lambda: Between(A, 1, "b"),
        lambda: Order(()),
        lambda: Order((Column.RUN_ID,)),
        lambda: Order((Column.STATUS,) * 4),
        lambda: Sort(()),
        lambda: Sort((SortKey(A, Kind.TEXT),) * 6),
    ],
)
def test_a_value_that_no_store_can_search_for_is_refused(wrong: object) -> None:
    assert callable(wrong)
    with pytest.raises(BadSearch):
        wrong()


async def test_the_largest_allowed_predicate_works_and_a_larger_one_is_refused(store: HistoryStore) -> None:
    leaf = Compare(A, Operator.EQUAL, 1)
    wide = Or((leaf,) * (PREDICATE_NODES_MAX - 1))
    await save(store, row(search_attributes={"A": 1}))
    assert await found(store, wide) == {"run-1"}
    # The grammar builds such a nesting from a long chain of conditions.
    chain: Predicate = leaf
    wrapped: Predicate = leaf
    for _ in range(PREDICATE_NODES_MAX // 2 - 1):
        chain = And((chain, leaf))
        wrapped = Not(Not(wrapped))
    assert await found(store, chain) == {"run-1"}
    assert await found(store, wrapped) == {"run-1"}
    deep: Predicate = Not(leaf)
    for number in range(PREDICATE_DEPTH_MAX):
        deep = And((leaf, deep)) if number % 2 else Or((leaf, deep))
    assert await found(store, deep) == {"run-1"}
    with pytest.raises(BadSearch, match="nested 21 deep, the limit is 20"):
        await store.list_visibility(NAMESPACE, Or((leaf, deep)), limit=1)
    with pytest.raises(BadSearch, match="more than 250 conditions"):
        await store.list_visibility(NAMESPACE, And((wide, leaf)), limit=1)
    with pytest.raises(BadSearch):
        await save(store, row(search_attributes=dict.fromkeys(map(str, range(ATTRIBUTES_MAX + 1)), 1)))


# --- random predicates over random rows

WORDS = ["", "a", "b", "ab", "B", "é", "z'", "%", '"', "\\", "10"]
texts = st.sampled_from(WORDS)
numbers = st.sampled_from([-(2**40), -1, 0, 1, 2, 10, 2**62]) | st.sampled_from([-0.5, 0.0, 1.0, 1.5, 10.0])
scalars = texts | numbers | st.booleans()
values = scalars | st.lists(texts, max_size=3).map(tuple) | texts.map(Text) | st.just(Text("a b ab"))
fields: st.SearchStrategy[Field] = st.sampled_from([A, B, *Column])
attributes = st.sampled_from([A, B])


@st.composite
def one_kind(draw: st.DrawFn, size_max: int) -> tuple[str | float | bool, ...]:
    kind = draw(st.sampled_from([texts, numbers, st.booleans()]))
    size = draw(st.integers(1, size_max))
    return tuple(draw(st.lists(kind, min_size=size, max_size=size)))


leaves: st.SearchStrategy[Predicate] = st.one_of(
    st.builds(Compare, fields, st.sampled_from(Operator), scalars),
    st.builds(In, fields, one_kind(3)),
    st.builds(lambda field, ends: Between(field, ends[0], ends[-1]), fields, one_kind(2)),
    st.builds(StartsWith, fields, texts),
    st.builds(Contains, attributes, texts),
    st.builds(HasWord, attributes, texts),
    st.builds(IsNull, fields),
)
predicates = st.recursive(
    leaves,
    lambda parts: st.one_of(
        st.builds(Not, parts),
        st.builds(And, st.lists(parts, max_size=3).map(tuple)),
        st.builds(Or, st.lists(parts, max_size=3).map(tuple)),
    ),
    max_leaves=6,
)
maybe_number = st.none() | st.sampled_from([0, 1, 2, 10])
maybe_text = st.none() | texts
rows_of_runs = st.lists(
    st.builds(
        VisibilityRow,
        namespace_id=st.just(NAMESPACE),
        run_id=st.sampled_from(["a", "b", "ab", "é"]),
        workflow_id=texts,
        workflow_type=texts,
        status=st.sampled_from([1, 2, 10]),
        start_time_ns=st.sampled_from([0, 1, 2]),
        execution_time_ns=st.sampled_from([0, 1, 2]),
        task_queue=texts,
        close_time_ns=maybe_number,
        execution_duration_ns=maybe_number,
        history_length=maybe_number,
        history_size_bytes=maybe_number,
        state_transition_count=maybe_number,
        parent_workflow_id=maybe_text,
        parent_run_id=maybe_text,
        root_workflow_id=maybe_text,
        root_run_id=maybe_text,
        search_attributes=st.dictionaries(st.sampled_from([A.name, B.name]), values),
    ),
    max_size=4,
    unique_by=lambda one: one.run_id,
)
orders = st.builds(
    Order,
    st.lists(st.sampled_from([*NUMBERS, Column.WORKFLOW_ID]), min_size=1, max_size=3).map(tuple),
    descending=st.booleans(),
)
namespaces = count()


@pytest.mark.sim
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(rows=rows_of_runs, wheres=st.lists(predicates, min_size=1, max_size=6), order=orders, group_by=fields)
async def test_random_predicates_find_the_same_rows_on_all_stores(
    all_stores: list[HistoryStore],
    rows: list[VisibilityRow],
    wheres: list[Predicate],
    order: Order,
    group_by: Field,
) -> None:
    namespace_id = f"namespace {next(namespaces)}"
    rows = [one._replace(namespace_id=namespace_id) for one in rows]
    for store in all_stores:
        await save(store, *rows)
    for where in wheres:
        expected, *others = [
            await store.list_visibility(namespace_id, where, order=order, limit=10) for store in all_stores
        ]
        assert others == [expected] * 2
        groups, *other_groups = [
            {group.value: group.rows for group in groups}
            for groups in [await store.count_visibility(namespace_id, where, group_by=group_by) for store in all_stores]
        ]
        assert other_groups == [groups] * 2
