"""Lists and counts as clients request them; the expected responses were recorded from the reference server."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import temporalio.api.workflowservice.v1 as api
from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.common.v1 import Memo, Payload
from temporalio.api.filter.v1 import StartTimeFilter, StatusFilter, WorkflowExecutionFilter, WorkflowTypeFilter

from fairlead.api.errors import InvalidArgument, NotFound
from fairlead.api.namespaces import Namespace, Namespaces
from fairlead.frontend.gateway.context import Frontend
from fairlead.frontend.handlers.list_pages import PAGE_BYTES_MAX
from fairlead.frontend.handlers.visibility import METHODS
from fairlead.settings import DynamicSettings
from fairlead.settings.dynamic.limits import VISIBILITY_MAX_PAGE_SIZE
from fairlead.storage.history import HistoryStore, VisibilityRow
from fairlead.storage.memory.history import MemoryHistory
from fairlead.storage.sqlite import SqliteStore
from tests.api.search.world import CUSTOM, NAMESPACE_ID, ROWS, SECOND_NS, run, save

OTHER_ID = "22222222-2222-2222-2222-222222222222"
ALL = ["child", "w-2", "w-1", "it's", "w-4", "w-3"]
OPEN, CLOSED = ALL[:3], ALL[3:]


async def frontend_over(store: HistoryStore) -> Frontend:
    nobody: Any = None
    namespaces = Namespaces(store, clock=lambda: 0.0)
    await namespaces.create(Namespace(id=NAMESPACE_ID, name="default", retention_ns=1, search_attributes=CUSTOM))
    await namespaces.create(Namespace(id=OTHER_ID, name="other", retention_ns=1))
    return Frontend(namespaces, nobody, nobody, nobody, store, DynamicSettings(), clock=lambda: 0.0)


@pytest.fixture(params=["memory", "sqlite"])
async def frontend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Frontend]:
    """A frontend with the runs of `world` in the namespace `default`."""
    if request.param == "memory":
        memory = MemoryHistory()
        await save(memory, *ROWS)
        yield await frontend_over(memory)
        await memory.close()
        return
    sqlite = await SqliteStore.open(tmp_path / "history.db")
    await save(sqlite.history, *ROWS)
    yield await frontend_over(sqlite.history)
    await sqlite.close()


async def call(frontend: Frontend, method: str, **fields: object) -> Any:
    nobody: Any = None
    request = getattr(api, f"{method}Request")(**{"namespace": "default", **fields})
    return await METHODS[method](frontend, request, nobody)


async def found(frontend: Frontend, method: str, **fields: object) -> list[str]:
    answer = await call(frontend, method, **fields)
    return [one.execution.workflow_id for one in answer.executions]


async def error_of(frontend: Frontend, method: str, **fields: object) -> str:
    with pytest.raises(InvalidArgument) as raised:
        await call(frontend, method, **fields)
    return str(raised.value)


@pytest.mark.parametrize("method", ["ListWorkflowExecutions", "ScanWorkflowExecutions"])
async def test_open_runs_are_listed_first_then_closed_runs_newest_first(frontend: Frontend, method: str) -> None:
    assert await found(frontend, method) == ALL
    assert await found(frontend, method, query="WorkflowType = 'Alpha'") == ["w-1", "w-3"]
    assert await found(frontend, method, namespace="other") == []
    assert await error_of(frontend, method, query="Nope = 1") == "invalid query: invalid search attribute: Nope"
    # Another namespace's attributes can't be used in a query.
    assert await error_of(frontend, method, query="CustomInt = 1", namespace="other") == (
        "invalid query: invalid search attribute: CustomInt"
    )
    assert await error_of(frontend, method, namespace="") == "Namespace is empty."
    with pytest.raises(NotFound, match=r"Namespace nope is not found\."):
        await call(frontend, method, namespace="nope")


@pytest.mark.parametrize(
    ("method", "size_field", "runs"),
    [
        ("ListWorkflowExecutions", "page_size", ALL),
        ("ScanWorkflowExecutions", "page_size", ALL),
        ("ListOpenWorkflowExecutions", "maximum_page_size", OPEN),
        ("ListClosedWorkflowExecutions", "maximum_page_size", CLOSED),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 6, 1001, 0, -1])
async def test_the_pages_hold_each_run_of_the_list_once(
    frontend: Frontend, method: str, size_field: str, runs: list[str], size: int
) -> None:
    listed: list[str] = []
    token, pages = b"", 0
    while token or not pages:
        answer = await call(frontend, method, next_page_token=token, **{size_field: size})
        listed += [one.execution.workflow_id for one in answer.executions]
        token, pages = answer.next_page_token, pages + 1
    assert listed == runs
    # No page is empty: a token is returned only if there are more runs.
    assert pages == (-(-len(runs) // size) if 0 < size <= VISIBILITY_MAX_PAGE_SIZE.default else 1)


async def test_a_page_token_is_valid_for_its_own_list_only(frontend: Frontend) -> None:
    query = "WorkflowId != 'x'"
    token = (await call(frontend, "ListWorkflowExecutions", query=query, page_size=2)).next_page_token
    assert await found(frontend, "ListWorkflowExecutions", query=query, next_page_token=token) == ALL[2:]
    for fields in ({"query": ""}, {"query": "WorkflowId != 'y'"}, {"query": "", "namespace": "other"}):
        message = await error_of(frontend, "ListWorkflowExecutions", next_page_token=token, **fields)
        assert message == "Invalid NextPageToken."
    opened = (await call(frontend, "ListOpenWorkflowExecutions", maximum_page_size=1)).next_page_token
    assert await error_of(frontend, "ListClosedWorkflowExecutions", next_page_token=opened) == "Invalid NextPageToken."
    asked = msgspec.msgpack.decode(token)[0]
    wrong = [
        (asked, 1),
        (asked, "1", 1, "r"),
        (asked, 2**64 - 1, 1, "r"),
        (asked, 1, 1, "\0"),
        (asked, 1, 1, "r" * 9999),
    ]
    for junk in (b"junk", b"\x90", token[:-1], token + b"x", *map(msgspec.msgpack.encode, wrong)):
        message = await error_of(frontend, "ListWorkflowExecutions", query=query, next_page_token=junk)
        assert message == "Invalid NextPageToken.", junk


@pytest.mark.parametrize("method", ["ListWorkflowExecutions", "ScanWorkflowExecutions"])
@pytest.mark.parametrize(
    ("query", "runs"),
    [
        ("ORDER BY WorkflowId", sorted(ALL)),
        ("ORDER BY WorkflowId DESC", sorted(ALL, reverse=True)),
        ("WorkflowType = 'Alpha' order by WorkflowId desc", ["w-3", "w-1"]),
    ],
)
async def test_runs_are_listed_in_the_requested_order(
    frontend: Frontend, method: str, query: str, runs: list[str]
) -> None:
    listed: list[str] = []
    token = b""
    while token or not listed:
        answer = await call(frontend, method, query=query, next_page_token=token, page_size=2)
        listed += [one.execution.workflow_id for one in answer.executions]
        token = answer.next_page_token
    assert listed == runs


async def test_runs_without_a_value_come_last_in_every_order(frontend: Frontend) -> None:
    for direction in ("", " DESC"):
        listed = await found(frontend, "ListWorkflowExecutions", query=f"ORDER BY CloseTime{direction}, StartTime")
        assert set(listed[:3]) == set(CLOSED)
        assert set(listed[3:]) == set(OPEN)


async def test_an_unknown_order_is_refused(frontend: Frontend) -> None:
    method = "ListWorkflowExecutions"
    assert await error_of(frontend, method, query="ORDER BY Nope") == "invalid query: invalid search attribute: Nope"
    assert await error_of(frontend, method, query="ORDER BY CustomText") == (
        "invalid query: invalid expression: unable to sort by field of Text type, use field of type Keyword"
    )
    assert await error_of(frontend, method, query=f"ORDER BY {', '.join(['RunId'] * 6)}") == (
        "invalid query: invalid expression: can't order by 6 fields: give 1 to 5"
    )
    assert await error_of(frontend, "CountWorkflowExecutions", query="ORDER BY RunId") == (
        "invalid query: operation is not supported: 'ORDER BY' clause"
    )


async def test_a_page_token_is_refused_if_it_was_changed_or_is_used_with_another_order(frontend: Frontend) -> None:
    method, query = "ListWorkflowExecutions", "ORDER BY WorkflowId, CustomInt"
    token = (await call(frontend, method, query=query, page_size=2)).next_page_token
    plain = (await call(frontend, method, page_size=2)).next_page_token
    asked, values, run_id = msgspec.msgpack.decode(token)
    bad = [
        plain,
        b"x",
        *map(
            msgspec.msgpack.encode,
            [
                [asked + 1, values, run_id],
                [asked, values[:1], run_id],
                [asked, [1, 1], run_id],
                [asked, ["a\0", 1], run_id],
                [asked, ["a", 2**63], run_id],
                [asked, ["a", float("inf")], run_id],
                [asked, ["a", True], run_id],
                [asked, values, "\0"],
            ],
        ),
    ]
    for one in bad:
        assert await error_of(frontend, method, query=query, next_page_token=one) == "Invalid NextPageToken."
    assert await error_of(frontend, method, next_page_token=token) == "Invalid NextPageToken."


async def test_a_page_of_large_runs_ends_before_its_row_limit() -> None:
    store = MemoryHistory()
    memo = Memo(fields={"k": Payload(data=bytes(PAGE_BYTES_MAX // 2))}).SerializeToString()
    rows = [run(f"w-{number}", "Large", "q", -number, memo=memo) for number in range(4)]
    await save(store, *rows)
    frontend = await frontend_over(store)
    first = await call(frontend, "ListWorkflowExecutions")
    assert [one.execution.workflow_id for one in first.executions] == ["w-0"]
    assert first.ByteSize() < PAGE_BYTES_MAX
    assert await found(frontend, "ListWorkflowExecutions", next_page_token=first.next_page_token) == ["w-1"]


async def test_a_page_never_has_more_rows_than_the_limit() -> None:
    store = MemoryHistory()
    rows: list[VisibilityRow] = [
        run(f"w-{number}", "Many", "q", number) for number in range(VISIBILITY_MAX_PAGE_SIZE.default + 1)
    ]
    for start in range(0, len(rows), 100):
        await save(store, *rows[start : start + 100])
    frontend = await frontend_over(store)
    first = await call(frontend, "ListWorkflowExecutions", page_size=5000)
    assert len(first.executions) == VISIBILITY_MAX_PAGE_SIZE.default
    assert await found(frontend, "ListWorkflowExecutions", next_page_token=first.next_page_token) == ["w-0"]


async def test_runs_are_counted_by_status_on_request(frontend: Frontend) -> None:
    assert (await call(frontend, "CountWorkflowExecutions")) == api.CountWorkflowExecutionsResponse(count=6)
    answer = await call(frontend, "CountWorkflowExecutions", query="CustomInt > 0 GROUP BY ExecutionStatus")
    assert answer.count == 3
    groups = [([json.loads(value.data) for value in group.group_values], group.count) for group in answer.groups]
    assert groups == [(["Running"], 2), (["Failed"], 1)]
    assert dict(answer.groups[0].group_values[0].metadata) == {"encoding": b"json/plain", "type": b"Keyword"}
    nothing = await call(frontend, "CountWorkflowExecutions", query="GROUP BY ExecutionStatus", namespace="other")
    assert nothing == api.CountWorkflowExecutionsResponse()
    assert await error_of(frontend, "CountWorkflowExecutions", query="GROUP BY WorkflowType") == (
        "invalid query: operation is not supported: "
        "'GROUP BY' clause is not supported for search attribute WorkflowType"
    )


def between(earliest_ns: int | None, latest_ns: int | None) -> StartTimeFilter:
    times = StartTimeFilter()
    if earliest_ns is not None:
        times.earliest_time.FromNanoseconds(earliest_ns)
    if latest_ns is not None:
        times.latest_time.FromNanoseconds(latest_ns)
    return times


async def test_open_runs_can_be_filtered_by_start_time_id_and_type(frontend: Frontend) -> None:
    method = "ListOpenWorkflowExecutions"
    start_ns = ROWS[0].start_time_ns
    assert await found(frontend, method) == OPEN
    assert await found(frontend, method, start_time_filter=between(None, None)) == OPEN
    assert await found(frontend, method, start_time_filter=between(start_ns, start_ns)) == ["w-1"]
    assert await found(frontend, method, start_time_filter=between(start_ns + 1, None)) == ["child", "w-2"]
    assert await found(frontend, method, start_time_filter=between(None, start_ns - 1)) == []
    ever = StartTimeFilter(earliest_time=Timestamp(seconds=-62135596800), latest_time=Timestamp(seconds=253402300799))
    assert await found(frontend, method, start_time_filter=ever) == OPEN
    assert await error_of(frontend, method, start_time_filter=between(5, 4)) == (
        "EarliestTime in StartTimeFilter should not be larger than LatestTime."
    )
    by_id = WorkflowExecutionFilter(workflow_id="w-1", run_id="another")
    assert await found(frontend, method, execution_filter=by_id) == ["w-1"]
    assert await found(frontend, method, execution_filter=WorkflowExecutionFilter()) == []
    assert await found(frontend, method, type_filter=WorkflowTypeFilter(name="Alpha")) == ["w-1"]
    assert await found(frontend, method, type_filter=WorkflowTypeFilter()) == []


async def test_closed_runs_can_be_filtered_by_close_time_id_type_and_status(frontend: Frontend) -> None:
    method = "ListClosedWorkflowExecutions"
    close_ns = ROWS[2].close_time_ns
    assert close_ns is not None
    assert await found(frontend, method) == CLOSED
    assert await found(frontend, method, start_time_filter=between(close_ns, close_ns)) == ["w-3"]
    assert await found(frontend, method, start_time_filter=between(None, close_ns - SECOND_NS)) == []
    by_id = WorkflowExecutionFilter(workflow_id="w-3")
    assert await found(frontend, method, execution_filter=by_id) == ["w-3"]
    assert await found(frontend, method, type_filter=WorkflowTypeFilter(name="Alpha")) == ["w-3"]
    assert await found(frontend, method, status_filter=StatusFilter(status=3)) == ["it's"]  # type: ignore[arg-type]
    assert await found(frontend, method, status_filter=StatusFilter(status=4)) == []  # type: ignore[arg-type]
    for status in (0, 1):
        message = await error_of(frontend, method, status_filter=StatusFilter(status=status))  # type: ignore[arg-type]
        assert message == "StatusFilter must be specified and must be not Running."
    message = await error_of(frontend, method, status_filter=StatusFilter(status=77))  # type: ignore[arg-type]
    assert message == "invalid query: invalid expression: invalid ExecutionStatus value '77'"


async def test_listing_archived_runs_is_refused(frontend: Frontend) -> None:
    method = "ListArchivedWorkflowExecutions"
    assert await error_of(frontend, method) == "Cluster is not configured for visibility archival."
    assert await error_of(frontend, method, page_size=10_001) == "PageSize is larger than allowed 10000."
    assert await error_of(frontend, method, namespace="") == "Namespace is empty."
