"""Lists and counts of workflows, read from the store: committed changes are visible at once."""

from collections.abc import Sequence
from typing import Final, TypeAlias

from google.protobuf.message import Message
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import WorkflowExecutionStatus
from temporalio.api.filter.v1 import StartTimeFilter
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

from fairlead.api.errors import InvalidArgument
from fairlead.api.namespaces import Namespace
from fairlead.api.search.attributes import to_payload
from fairlead.api.search.list_entries import info_of
from fairlead.api.search.names import KEYWORD
from fairlead.api.search.query import parse_query
from fairlead.api.search.statuses import STATUS_NAMES
from fairlead.api.times import from_timestamp
from fairlead.frontend.gateway.context import Frontend, Handler
from fairlead.frontend.handlers.list_pages import Listed, page_of
from fairlead.rpc import Call
from fairlead.storage.predicates import And, Between, Compare, IsNull, Not, Operator, Predicate
from fairlead.storage.visibility import INT64_MAX, Column, Group

ARCHIVED_PAGE_ROWS_MAX: Final = 10_000

_RUNNING: Final = WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING

DIFFERENCES = (
    "A page token of another query or namespace, or an invalid one, gets INVALID_ARGUMENT.",
    "A list returns a page token only if there is another page. A page may have fewer rows if memos are large.",
    "Search attributes that are times, or strings with double quotes, are compared by value, not by their notation.",
    "Search attributes of type Datetime are listed in UTC, even if they were set in another time zone.",
    "In Text search attributes an underscore is part of a word.",
    "HAVING after GROUP BY is rejected; Temporal's server ignores it.",
    (
        "Lists of workflows, schedules, standalone activities and standalone Nexus operations support ORDER BY "
        "with up to 5 fields, on every store; Temporal's server rejects it on SQL databases. Rows without a value "
        "come last. Page tokens stay valid while rows change."
    ),
    "A list filter is at most 64 KiB long, has at most 250 conditions and 1000 values after IN.",
)


_AnyPage: TypeAlias = (
    ListWorkflowExecutionsResponse
    | ScanWorkflowExecutionsResponse
    | ListOpenWorkflowExecutionsResponse
    | ListClosedWorkflowExecutionsResponse
)


async def list_workflows(frontend: Frontend, request: ListWorkflowExecutionsRequest, _: Call) -> Message:
    """List the runs that match a query: open runs first, then closed ones, latest first."""
    return await _list_by_query(frontend, request, ListWorkflowExecutionsResponse())


async def scan_workflows(frontend: Frontend, request: ScanWorkflowExecutionsRequest, _: Call) -> Message:
    """List runs in the order of `list_workflows`, which costs nothing here."""
    return await _list_by_query(frontend, request, ScanWorkflowExecutionsResponse())


async def count_workflows(frontend: Frontend, request: CountWorkflowExecutionsRequest, _: Call) -> Message:
    """Count the runs that match a query, in total and by group."""
    namespace = await frontend.namespaces.find(request.namespace)
    query = parse_query(request.query, namespace.search_attributes)
    groups = await frontend.store.count_visibility(namespace.id, query.where, group_by=query.group_by)
    response = CountWorkflowExecutionsResponse(count=sum(group.rows for group in groups))
    if query.group_by is not None:
        for group in _by_value(groups):
            response.groups.add(group_values=[_group_value(group)], count=group.rows)
    return response


async def list_open(frontend: Frontend, request: ListOpenWorkflowExecutionsRequest, _: Call) -> Message:
    """List the open runs that started between two times, of one workflow or of one type."""
    namespace = await frontend.namespaces.find(request.namespace)
    parts: list[Predicate] = [IsNull(Column.CLOSE_TIME_NS)]
    if request.HasField("start_time_filter"):
        parts.append(_in_time(Column.START_TIME_NS, request.start_time_filter))
    _add_filter(parts, request)
    return await _list_by_filters(frontend, namespace, parts, request, ListOpenWorkflowExecutionsResponse())


async def list_closed(frontend: Frontend, request: ListClosedWorkflowExecutionsRequest, _: Call) -> Message:
    """List the runs that closed between two times, of one workflow, of one type or with one status."""
    namespace = await frontend.namespaces.find(request.namespace)
    parts: list[Predicate] = [Not(IsNull(Column.CLOSE_TIME_NS))]
    if request.HasField("start_time_filter"):
        # As in Temporal's server, the start time filter applies to the close time.
        parts.append(_in_time(Column.CLOSE_TIME_NS, request.start_time_filter))
    if request.HasField("status_filter"):
        status = request.status_filter.status
        if status in (WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_UNSPECIFIED, _RUNNING):
            raise InvalidArgument("StatusFilter must be specified and must be not Running.")
        if status not in STATUS_NAMES:
            raise InvalidArgument(f"invalid query: invalid expression: invalid ExecutionStatus value '{status}'")
        parts.append(Compare(Column.STATUS, Operator.EQUAL, int(status)))
    _add_filter(parts, request)
    return await _list_by_filters(frontend, namespace, parts, request, ListClosedWorkflowExecutionsResponse())


async def list_archived(frontend: Frontend, request: ListArchivedWorkflowExecutionsRequest, _: Call) -> Message:
    """Always an error: there is no archive."""
    await frontend.namespaces.find(request.namespace)
    if request.page_size > ARCHIVED_PAGE_ROWS_MAX:
        raise InvalidArgument(f"PageSize is larger than allowed {ARCHIVED_PAGE_ROWS_MAX}.")
    raise InvalidArgument("Cluster is not configured for visibility archival.")


async def _list_by_query(
    frontend: Frontend,
    request: ListWorkflowExecutionsRequest | ScanWorkflowExecutionsRequest,
    response: ListWorkflowExecutionsResponse | ScanWorkflowExecutionsResponse,
) -> Message:
    namespace = await frontend.namespaces.find(request.namespace)
    query = parse_query(request.query, namespace.search_attributes, allows_order=True)
    listed = Listed(namespace.id, request.query, query.where, query.order_by)
    return await _fill(
        frontend, namespace, listed, response, rows_wanted=request.page_size, token=request.next_page_token
    )


async def _list_by_filters(
    frontend: Frontend,
    namespace: Namespace,
    parts: list[Predicate],
    request: ListOpenWorkflowExecutionsRequest | ListClosedWorkflowExecutionsRequest,
    response: ListOpenWorkflowExecutionsResponse | ListClosedWorkflowExecutionsResponse,
) -> Message:
    where = And(tuple(parts))
    listed = Listed(namespace.id, repr(where), where)
    return await _fill(
        frontend, namespace, listed, response, rows_wanted=request.maximum_page_size, token=request.next_page_token
    )


async def _fill(
    frontend: Frontend, namespace: Namespace, listed: Listed, response: _AnyPage, *, rows_wanted: int, token: bytes
) -> _AnyPage:
    """Fill a response with the page after a token."""
    page = await page_of(frontend, namespace, listed, page_size=rows_wanted, token=token, entry=info_of)
    response.executions.extend(page.entries)
    response.next_page_token = page.next_page_token
    return response


def _in_time(column: Column, times: StartTimeFilter) -> Predicate:
    earliest_ns = from_timestamp(times.earliest_time) if times.HasField("earliest_time") else -INT64_MAX
    latest_ns = from_timestamp(times.latest_time) if times.HasField("latest_time") else INT64_MAX
    if earliest_ns > latest_ns:
        raise InvalidArgument("EarliestTime in StartTimeFilter should not be larger than LatestTime.")
    return Between(column, max(earliest_ns, -INT64_MAX), min(latest_ns, INT64_MAX))


def _add_filter(
    parts: list[Predicate], request: ListOpenWorkflowExecutionsRequest | ListClosedWorkflowExecutionsRequest
) -> None:
    if request.HasField("execution_filter"):
        # As in Temporal's server, the run id of the filter is ignored.
        parts.append(Compare(Column.WORKFLOW_ID, Operator.EQUAL, request.execution_filter.workflow_id))
    if request.HasField("type_filter"):
        parts.append(Compare(Column.WORKFLOW_TYPE, Operator.EQUAL, request.type_filter.name))


def _by_value(groups: Sequence[Group]) -> list[Group]:
    """Sort groups as Temporal's server does, by the number of the status."""
    return sorted(groups, key=lambda group: group.value if isinstance(group.value, int) else -1)


def _group_value(group: Group) -> Payload:
    """The name of the group's status, as a payload."""
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
