"""Lists and counts of workflows, straight from the store: what is committed is found at once."""

from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec
import xxhash
from google.protobuf.message import Message
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import WorkflowExecutionStatus
from temporalio.api.filter.v1 import StartTimeFilter
from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.api.workflowservice.v1 import (
    CountWorkflowExecutionsRequest,
    CountWorkflowExecutionsResponse,
    ListArchivedWorkflowExecutionsRequest,
    ListClosedWorkflowExecutionsRequest,
    ListClosedWorkflowExecutionsResponse,
    ListOpenWorkflowExecutionsRequest,
    ListOpenWorkflowExecutionsResponse,
    ListWorkflowExecutionsRequest,
    ListWorkflowExecutionsResponse,
    ScanWorkflowExecutionsRequest,
    ScanWorkflowExecutionsResponse,
)

from fairlead.frontend.context import Frontend, Handler
from fairlead.history.namespaces import Namespace
from fairlead.history.refusals import invalid
from fairlead.history.search.attributes import to_payload
from fairlead.history.search.names import KEYWORD
from fairlead.history.search.query import STATUS_NAMES, parse_query
from fairlead.history.search.rows import info_of
from fairlead.history.state.times import from_timestamp
from fairlead.rpc import Call
from fairlead.storage.history_visibility import (
    INT64_MAX,
    LATEST_FIRST,
    And,
    Between,
    Column,
    Compare,
    Group,
    IsNull,
    Not,
    Operator,
    Predicate,
    VisibilityRow,
    cursor_of,
)

# Temporal's `frontend.visibilityMaxPageSize`; who asks for more, or for no number, gets this many.
PAGE_ROWS_MAX: Final = 1000
# A page ends early where its memos are this large: clients take 4 MiB in one message.
PAGE_BYTES_MAX: Final = 3 * 1024 * 1024
TOKEN_BYTES_MAX: Final = 4096
ARCHIVED_PAGE_ROWS_MAX: Final = 10_000

_RUNNING: Final = WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING

DIFFERENCES = (
    "A list's page token is refused with INVALID_ARGUMENT if it is another query's or namespace's, or not a token.",
    "A list gives a page token only if there is another page; a page may have fewer rows where memos are large.",
    "Times, and strings with double quotes, in search attributes are compared by value, not by how they were written.",
    "Search attributes of type Datetime are listed in UTC, whatever zone they were given in.",
    "In Text search attributes an underscore is part of a word.",
    "HAVING after GROUP BY is refused, not passed over.",
    "A list filter is at most 64 KiB long, has at most 250 conditions and 1000 values after IN.",
)


class PageToken(msgspec.Struct, array_like=True, frozen=True):
    """Where a page ended, of what list: another list can't go on there."""

    asked: int
    close_time_ns: int
    start_time_ns: int
    run_id: str


@dataclass(frozen=True, slots=True)
class _Listed:
    """What is listed, and its digest, by which a page token is known to be of this list."""

    namespace: Namespace
    where: Predicate | None
    asked: int


_AnyPage: TypeAlias = (
    ListWorkflowExecutionsResponse
    | ScanWorkflowExecutionsResponse
    | ListOpenWorkflowExecutionsResponse
    | ListClosedWorkflowExecutionsResponse
)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(PageToken).decode


async def list_workflows(frontend: Frontend, request: ListWorkflowExecutionsRequest, _: Call) -> Message:
    """What a query finds, the open runs first and then the last closed."""
    return await _list_by_query(frontend, request, ListWorkflowExecutionsResponse())


async def scan_workflows(frontend: Frontend, request: ScanWorkflowExecutionsRequest, _: Call) -> Message:
    """The same: the order costs nothing here."""
    return await _list_by_query(frontend, request, ScanWorkflowExecutionsResponse())


async def count_workflows(frontend: Frontend, request: CountWorkflowExecutionsRequest, _: Call) -> Message:
    """How many a query finds, in all and by group."""
    namespace = await frontend.namespaces.find(request.namespace)
    query = parse_query(request.query, namespace.search_attributes)
    groups = await frontend.store.count_visibility(namespace.id, query.where, group_by=query.group_by)
    response = CountWorkflowExecutionsResponse(count=sum(group.rows for group in groups))
    if query.group_by is not None:
        for group in groups:
            response.groups.add(group_values=[_group_value(group)], count=group.rows)
    return response


async def list_open(frontend: Frontend, request: ListOpenWorkflowExecutionsRequest, _: Call) -> Message:
    """The open runs that were started in a time, of one workflow or of one type."""
    namespace = await frontend.namespaces.find(request.namespace)
    parts: list[Predicate] = [IsNull(Column.CLOSE_TIME_NS)]
    if request.HasField("start_time_filter"):
        parts.append(_in_time(Column.START_TIME_NS, request.start_time_filter))
    _add_filter(parts, request)
    return await _list_by_filters(frontend, namespace, parts, request, ListOpenWorkflowExecutionsResponse())


async def list_closed(frontend: Frontend, request: ListClosedWorkflowExecutionsRequest, _: Call) -> Message:
    """The closed runs that were closed in a time, of one workflow, of one type or with one status."""
    namespace = await frontend.namespaces.find(request.namespace)
    parts: list[Predicate] = [Not(IsNull(Column.CLOSE_TIME_NS))]
    if request.HasField("start_time_filter"):
        # By the close, though the filter is named for the start: so it is in Temporal's server.
        parts.append(_in_time(Column.CLOSE_TIME_NS, request.start_time_filter))
    if request.HasField("status_filter"):
        status = request.status_filter.status
        if status in (WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_UNSPECIFIED, _RUNNING):
            raise invalid("StatusFilter must be specified and must be not Running.")
        if status not in STATUS_NAMES:
            raise invalid(f"invalid query: invalid expression: invalid ExecutionStatus value '{status}'")
        parts.append(Compare(Column.STATUS, Operator.EQUAL, int(status)))
    _add_filter(parts, request)
    return await _list_by_filters(frontend, namespace, parts, request, ListClosedWorkflowExecutionsResponse())


async def list_archived(frontend: Frontend, request: ListArchivedWorkflowExecutionsRequest, _: Call) -> Message:
    """Nothing: there is no archive."""
    await frontend.namespaces.find(request.namespace)
    if request.page_size > ARCHIVED_PAGE_ROWS_MAX:
        raise invalid(f"PageSize is larger than allowed {ARCHIVED_PAGE_ROWS_MAX}.")
    raise invalid("Cluster is not configured for visibility archival.")


async def _list_by_query(
    frontend: Frontend,
    request: ListWorkflowExecutionsRequest | ScanWorkflowExecutionsRequest,
    response: ListWorkflowExecutionsResponse | ScanWorkflowExecutionsResponse,
) -> Message:
    namespace = await frontend.namespaces.find(request.namespace)
    where = parse_query(request.query, namespace.search_attributes).where
    listed = _Listed(namespace, where, _digest(namespace, request.query))
    return await _fill(frontend, listed, response, rows_wanted=request.page_size, token=request.next_page_token)


async def _list_by_filters(
    frontend: Frontend,
    namespace: Namespace,
    parts: list[Predicate],
    request: ListOpenWorkflowExecutionsRequest | ListClosedWorkflowExecutionsRequest,
    response: ListOpenWorkflowExecutionsResponse | ListClosedWorkflowExecutionsResponse,
) -> Message:
    where = And(tuple(parts))
    listed = _Listed(namespace, where, _digest(namespace, repr(where)))
    return await _fill(frontend, listed, response, rows_wanted=request.maximum_page_size, token=request.next_page_token)


async def _fill(frontend: Frontend, listed: _Listed, response: _AnyPage, *, rows_wanted: int, token: bytes) -> _AnyPage:
    """Put into an answer the page that follows the token's."""
    namespace = listed.namespace
    limit = rows_wanted if 0 < rows_wanted <= PAGE_ROWS_MAX else PAGE_ROWS_MAX
    after = _place(token, listed.asked) if token else None
    # One more, to know whether there is another page.
    rows = await frontend.store.list_visibility(namespace.id, listed.where, after=after, limit=limit + 1)
    shown = _fitting(rows[:limit], namespace)
    response.executions.extend(shown)
    if len(shown) < len(rows):
        last = cursor_of(rows[len(shown) - 1], LATEST_FIRST)
        response.next_page_token = _encode((listed.asked, *last))
    return response


def _fitting(rows: list[VisibilityRow], namespace: Namespace) -> list[WorkflowExecutionInfo]:
    """As many of the rows as one answer can hold, but one at least."""
    shown: list[WorkflowExecutionInfo] = []
    size = 0
    for row in rows:
        info = info_of(row, namespace.search_attributes)
        size += info.ByteSize()
        if shown and size > PAGE_BYTES_MAX:
            break
        shown.append(info)
    return shown


def _place(token: bytes, asked: int) -> tuple[int, int, str]:
    """Where the list goes on."""
    try:
        decoded = _decode(token) if len(token) <= TOKEN_BYTES_MAX else None
    except msgspec.DecodeError:
        decoded = None
    if decoded is None or decoded.asked != asked or not _is_stored(decoded):
        raise invalid("Invalid NextPageToken.")
    return decoded.close_time_ns, decoded.start_time_ns, decoded.run_id


def _is_stored(token: PageToken) -> bool:
    """Whether a row may have these values: a database refuses others."""
    times_fit = all(abs(time_ns) <= INT64_MAX for time_ns in (token.close_time_ns, token.start_time_ns))
    return times_fit and "\0" not in token.run_id


def _digest(namespace: Namespace, question: str) -> int:
    # Without the last bit, so that it is a signed number too.
    return xxhash.xxh64_intdigest(f"{namespace.id}\n{question}".encode(errors="surrogatepass")) >> 1


def _in_time(column: Column, times: StartTimeFilter) -> Predicate:
    earliest_ns = from_timestamp(times.earliest_time) if times.HasField("earliest_time") else -INT64_MAX
    latest_ns = from_timestamp(times.latest_time) if times.HasField("latest_time") else INT64_MAX
    if earliest_ns > latest_ns:
        raise invalid("EarliestTime in StartTimeFilter should not be larger than LatestTime.")
    return Between(column, max(earliest_ns, -INT64_MAX), min(latest_ns, INT64_MAX))


def _add_filter(
    parts: list[Predicate], request: ListOpenWorkflowExecutionsRequest | ListClosedWorkflowExecutionsRequest
) -> None:
    if request.HasField("execution_filter"):
        # Whatever run it names: Temporal's server finds all runs of the workflow.
        parts.append(Compare(Column.WORKFLOW_ID, Operator.EQUAL, request.execution_filter.workflow_id))
    if request.HasField("type_filter"):
        parts.append(Compare(Column.WORKFLOW_TYPE, Operator.EQUAL, request.type_filter.name))


def _group_value(group: Group) -> Payload:
    """The status that a group has, by its name."""
    assert isinstance(group.value, int)  # noqa: S101 - groups are by status
    return to_payload(STATUS_NAMES.get(group.value, str(group.value)), KEYWORD)


METHODS: dict[str, Handler] = {
    "ListWorkflowExecutions": list_workflows,
    "ScanWorkflowExecutions": scan_workflows,
    "CountWorkflowExecutions": count_workflows,
    "ListOpenWorkflowExecutions": list_open,
    "ListClosedWorkflowExecutions": list_closed,
    "ListArchivedWorkflowExecutions": list_archived,
}
