"""Schedules: requests are validated here and handled by the history service; lists are read from the store."""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
from google.protobuf.message import Message
from temporalio.api.common.v1 import SearchAttributes
from temporalio.api.enums.v1 import WorkflowIdReusePolicy
from temporalio.api.schedule.v1 import Schedule, ScheduleListEntry
from temporalio.api.workflow.v1 import NewWorkflowExecutionInfo
from temporalio.api.workflowservice.v1 import (
    CountSchedulesRequest,
    CountSchedulesResponse,
    CreateScheduleRequest,
    DeleteScheduleRequest,
    DescribeScheduleRequest,
    ListScheduleMatchingTimesRequest,
    ListSchedulesRequest,
    ListSchedulesResponse,
    PatchScheduleRequest,
    StartWorkflowExecutionRequest,
    UpdateScheduleRequest,
)

from fairlead.api.entity_namespaces import entity_namespace_id
from fairlead.api.errors import InvalidArgument, NotFound
from fairlead.api.namespaces import Namespace
from fairlead.api.schedules.errors import BadSpec
from fairlead.api.schedules.lists import ARCHETYPE, FOUND_BY, PAUSED, SCHEDULE_ID, TIME_SUFFIX_EXAMPLE, entry_of
from fairlead.api.schedules.spec import canonical
from fairlead.api.search.attributes import problem_of, to_payload
from fairlead.api.search.names import COLUMNS, type_of
from fairlead.api.search.query import Query, parse_query
from fairlead.frontend.gateway.context import Frontend, Handler
from fairlead.frontend.handlers.list_pages import Listed, page_of
from fairlead.frontend.validation.common import check_blob, check_length, check_memo, is_longer
from fairlead.frontend.validation.start import check_start
from fairlead.rpc import Call
from fairlead.settings.dynamic.limits import MAX_ID_LENGTH
from fairlead.storage.visibility import Attribute, Column, VisibilityRow

NOTES_BYTES_MAX: Final = 1000
# Length of the prefix that Temporal's server puts before a schedule's id, to make a workflow id of it.
ID_PREFIX_LENGTH: Final = len("temporal-sys-scheduler:")

_COLUMN_NAMES = {column: name for name, column in COLUMNS.items()}

DIFFERENCES = (
    "Errors about a schedule's id name ScheduleId, not WorkflowId: schedules are not workflows here.",
    "The error for a missing schedule is 'schedule not found' in every method.",
    (
        "A time of day that daylight saving time repeats fires twice in every time zone; in Temporal's server, "
        "only in some."
    ),
    "UpdateSchedule with an outdated conflict token gets FAILED_PRECONDITION; Temporal's server drops it silently.",
    "UpdateSchedule changes the memo if the request has one.",
    "A schedule's policy keep_original_workflow_id is applied.",
    (
        "A schedule's retry policy and the size of its workflows' memo are validated when they are set, not when a "
        "workflow is started with them."
    ),
    "A schedule records the end of a workflow at once: pause on failure does not wait for the next action.",
    "The jitter of a schedule's times differs from Temporal's.",
)


async def create_schedule(frontend: Frontend, request: CreateScheduleRequest, _: Call) -> bytes:
    """Create a schedule."""
    namespace = await frontend.namespaces.find(request.namespace)
    _check_new_id(frontend, request.schedule_id)
    if not request.request_id:
        raise InvalidArgument("RequestId is not set on request.")
    check_length(frontend, request.request_id, "RequestId length exceeds limit.")
    _check_own(frontend, namespace, request)
    _check_schedule(frontend, namespace, request)
    return await _ask(frontend, "CreateSchedule", namespace, request)


async def describe_schedule(frontend: Frontend, request: DescribeScheduleRequest, _: Call) -> bytes:
    """Describe a schedule."""
    namespace = await frontend.namespaces.find(request.namespace)
    _check_id(request.schedule_id)
    return await _ask(frontend, "DescribeSchedule", namespace, request)


async def update_schedule(frontend: Frontend, request: UpdateScheduleRequest, _: Call) -> bytes:
    """Replace a schedule's settings."""
    namespace = await frontend.namespaces.find(request.namespace)
    _check_id(request.schedule_id)
    check_length(frontend, request.request_id, "RequestId length exceeds limit.")
    if not request.schedule.action.HasField("start_workflow"):
        raise InvalidArgument("Only StartWorkflow action is supported for schedules")
    _check_own(frontend, namespace, request)
    _check_schedule(frontend, namespace, request)
    return await _ask(frontend, "UpdateSchedule", namespace, request)


async def patch_schedule(frontend: Frontend, request: PatchScheduleRequest, _: Call) -> bytes:
    """Trigger, backfill, pause or unpause."""
    namespace = await frontend.namespaces.find(request.namespace)
    _check_id(request.schedule_id)
    check_length(frontend, request.request_id, "RequestId length exceeds limit.")
    if not request.HasField("patch"):
        raise InvalidArgument("Patch is not set on request.")
    if any(is_longer(notes, NOTES_BYTES_MAX) for notes in (request.patch.pause, request.patch.unpause)):
        raise InvalidArgument("Schedule notes exceeds limit.")
    return await _ask(frontend, "PatchSchedule", namespace, request)


async def delete_schedule(frontend: Frontend, request: DeleteScheduleRequest, _: Call) -> bytes:
    """Delete a schedule."""
    namespace = await frontend.namespaces.find(request.namespace)
    _check_id(request.schedule_id)
    return await _ask(frontend, "DeleteSchedule", namespace, request)


async def list_matching_times(frontend: Frontend, request: ListScheduleMatchingTimesRequest, _: Call) -> bytes:
    """List the times at which a schedule fires between two times."""
    namespace = await frontend.namespaces.find(request.namespace)
    _check_id(request.schedule_id)
    return await _ask(frontend, "ListScheduleMatchingTimes", namespace, request)


async def list_schedules(frontend: Frontend, request: ListSchedulesRequest, _: Call) -> Message:
    """List a page of the schedules that match a query, latest first unless the query has ORDER BY."""
    namespace = await frontend.namespaces.find(request.namespace)
    query = _query(namespace, request.query, allows_order=True)
    listed = Listed(_rows_of(namespace), request.query, query.where, query.order_by)
    page = await page_of(
        frontend,
        namespace,
        listed,
        page_size=request.maximum_page_size,
        token=request.next_page_token,
        entry=_entry,
    )
    return ListSchedulesResponse(schedules=page.entries, next_page_token=page.next_page_token)


async def count_schedules(frontend: Frontend, request: CountSchedulesRequest, _: Call) -> Message:
    """Count the schedules that match a query."""
    namespace = await frontend.namespaces.find(request.namespace)
    query = _query(namespace, request.query)
    groups = await frontend.store.count_visibility(_rows_of(namespace), query.where)
    return CountSchedulesResponse(count=sum(group.rows for group in groups))


async def _ask(frontend: Frontend, name: str, namespace: Namespace, request: Message) -> bytes:
    schedule_id: str = request.schedule_id  # type: ignore[attr-defined]
    return await frontend.history.call(name, namespace.id, schedule_id, request)


def _rows_of(namespace: Namespace) -> str:
    return entity_namespace_id(namespace.id, ARCHETYPE)


def _check_id(schedule_id: str) -> None:
    if not schedule_id:
        raise InvalidArgument("ScheduleId is not set on request.")
    if "\0" in schedule_id:
        # No store has such an id, and PostgreSQL can't look it up.
        raise NotFound("schedule not found")


def _check_new_id(frontend: Frontend, schedule_id: str) -> None:
    if not schedule_id:
        raise InvalidArgument("ScheduleId is not set on request.")
    limit = frontend.settings.get(MAX_ID_LENGTH) - ID_PREFIX_LENGTH
    if is_longer(schedule_id, limit):
        raise InvalidArgument(f"ScheduleId exceeds maximum allowed length ({len(schedule_id.encode())}/{limit})")
    if "\0" in schedule_id:
        raise InvalidArgument("ScheduleId contains a NUL character: remove it.")


def _check_own(
    frontend: Frontend, namespace: Namespace, request: CreateScheduleRequest | UpdateScheduleRequest
) -> None:
    """Check the memo and the search attributes of the schedule itself, not of its workflows."""
    attributes: SearchAttributes = request.search_attributes
    problem = problem_of(attributes, namespace) if attributes.indexed_fields else None
    if problem is not None:
        raise InvalidArgument(problem)
    check_memo(frontend, namespace, request.memo, request, request.schedule_id)


def _check_schedule(
    frontend: Frontend, namespace: Namespace, request: CreateScheduleRequest | UpdateScheduleRequest
) -> None:
    """Reject an invalid schedule, and convert its spec to structured form."""
    schedule: Schedule = request.schedule
    if schedule.action.HasField("start_workflow"):
        _check_action(frontend, namespace, schedule.action.start_workflow)
    try:
        spec = canonical(schedule.spec)
    except BadSpec as wrong:
        raise InvalidArgument(f"Invalid schedule spec: {wrong}") from None
    schedule.spec.CopyFrom(spec)
    if schedule.state.remaining_actions < 0:
        raise InvalidArgument("RemainingActions is negative.")
    # Check only the size; the limit is that of any payload.
    check_blob(frontend, namespace, schedule, request, request.schedule_id)


def _check_action(frontend: Frontend, namespace: Namespace, action: NewWorkflowExecutionInfo) -> None:
    """Reject a workflow that could never be started; fill in defaults, as a start does."""
    if action.cron_schedule:
        raise InvalidArgument("Scheduled workflow must not contain CronSchedule")
    if action.workflow_id_reuse_policy not in (
        WorkflowIdReusePolicy.WORKFLOW_ID_REUSE_POLICY_UNSPECIFIED,
        WorkflowIdReusePolicy.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE,
    ):
        raise InvalidArgument("Scheduled workflow must not contain WorkflowIDReusePolicy")
    start = StartWorkflowExecutionRequest(
        namespace=namespace.name, workflow_id=action.workflow_id + TIME_SUFFIX_EXAMPLE, request_id="-"
    )
    for field, value in action.ListFields():
        if field.name not in ("workflow_id", "workflow_id_reuse_policy"):
            getattr(start, field.name).CopyFrom(value)
    check_start(frontend, namespace, start)
    if not action.task_queue.kind:
        action.task_queue.kind = start.task_queue.kind or 1  # type: ignore[assignment]


def _query(namespace: Namespace, text: str, *, allows_order: bool = False) -> Query:
    """Parse a query about schedules: by id, by whether they are paused, and by custom search attributes."""
    query = parse_query(text, {**namespace.search_attributes, **FOUND_BY}, allows_order=allows_order)
    for name in _unsearchable(namespace, (query.where, query.group_by)):
        raise InvalidArgument(f'invalid query filter for schedules: cannot filter on "{name}"')
    for name in _unsearchable(namespace, query.order_by):
        raise InvalidArgument(f'invalid query for schedules: cannot order by "{name}"')
    return query


def _unsearchable(namespace: Namespace, node: object) -> Iterator[str]:
    """Names of the fields in a part of a query that schedules don't have."""
    for field in _fields(node):
        name = _COLUMN_NAMES[field] if isinstance(field, Column) else field.name
        if name not in namespace.search_attributes and name not in (SCHEDULE_ID, PAUSED):
            yield name


def _fields(node: object) -> Iterator[Column | Attribute]:
    """All fields in a part of a query."""
    if isinstance(node, Column | Attribute):
        yield node
    elif isinstance(node, tuple | list):
        for part in node:
            yield from _fields(part)
    elif isinstance(node, msgspec.Struct):
        for name in node.__struct_fields__:
            yield from _fields(getattr(node, name))


def _entry(row: VisibilityRow, custom: Mapping[str, int]) -> ScheduleListEntry:
    payloads = {}
    for name, value in row.search_attributes.items():
        number = type_of(name, custom)
        if number is not None and name != PAUSED:
            payloads[name] = to_payload(value, number)
    return entry_of(row, payloads)


METHODS: dict[str, Handler] = {
    "CreateSchedule": create_schedule,
    "DescribeSchedule": describe_schedule,
    "UpdateSchedule": update_schedule,
    "PatchSchedule": patch_schedule,
    "DeleteSchedule": delete_schedule,
    "ListScheduleMatchingTimes": list_matching_times,
    "ListSchedules": list_schedules,
    "CountSchedules": count_schedules,
}
