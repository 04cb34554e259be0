"""Schedules: what a request must be, then the history service decides; lists come straight from the store."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Final

import msgspec
import xxhash
from google.protobuf.message import Message
from temporalio.api.common.v1 import Memo, SearchAttributes
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

from fairlead.frontend.check_start import check_start
from fairlead.frontend.checks import check_blob, check_length, is_longer
from fairlead.frontend.context import Frontend, Handler
from fairlead.history.namespaces import Namespace
from fairlead.history.refusals import invalid, not_found
from fairlead.history.schedules.actions import TIME_SUFFIX_EXAMPLE
from fairlead.history.schedules.answers import FOUND_BY, PAUSED, SCHEDULE_ID, entry_of
from fairlead.history.schedules.errors import BadSpec
from fairlead.history.schedules.records import ARCHETYPE
from fairlead.history.schedules.spec import canonical
from fairlead.history.search.attributes import problem_of, to_payload
from fairlead.history.search.names import COLUMNS, type_of
from fairlead.history.search.query import Query, parse_query
from fairlead.history.state import DEFAULT_LIMITS
from fairlead.rpc import Call
from fairlead.settings.limits import MAX_ID_LENGTH
from fairlead.storage.history_visibility import (
    INT64_MAX,
    LATEST_FIRST,
    Attribute,
    Column,
    VisibilityRow,
    cursor_of,
)

PAGE_ROWS_MAX: Final = 1000
# A page ends early where what it says is this large: clients take 4 MiB in one message.
PAGE_BYTES_MAX: Final = 3 * 1024 * 1024
TOKEN_BYTES_MAX: Final = 4096
NOTES_BYTES_MAX: Final = 1000
# Temporal's server has the schedule's id behind this prefix, as the id of a workflow.
ID_PREFIX_LENGTH: Final = len("temporal-sys-scheduler:")

_COLUMN_NAMES = {column: name for name, column in COLUMNS.items()}

DIFFERENCES = (
    "What is wrong with a schedule's id is said of ScheduleId, not of WorkflowId: schedules are no workflows here.",
    "A schedule that is not there is 'schedule not found' in every request.",
    "A time of day that daylight saving repeats fires twice in every time zone; in Temporal's server, in some.",
    "UpdateSchedule with an old conflict token is refused with FAILED_PRECONDITION, not dropped silently.",
    "UpdateSchedule changes the memo if the request has one.",
    "A schedule's policy keep_original_workflow_id is followed.",
    "A schedule's retry policy is checked when it is set, not when its workflows can't be started with it.",
    "A schedule knows at once how a workflow ended: pause on failure does not wait for the next action.",
    "The jitter of a schedule's times is another one.",
)


class PageToken(msgspec.Struct, array_like=True, frozen=True):
    """Where a page ended, of what list: another list can't go on there."""

    asked: int
    close_time_ns: int
    start_time_ns: int
    run_id: str


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(PageToken).decode


async def create_schedule(frontend: Frontend, request: CreateScheduleRequest, _: Call) -> bytes:
    """Begin a schedule."""
    namespace = await frontend.namespaces.find(request.namespace)
    _check_new_id(frontend, request.schedule_id)
    if not request.request_id:
        raise invalid("RequestId is not set on request.")
    check_length(frontend, request.request_id, "RequestId length exceeds limit.")
    _check_own(namespace, request)
    _check_schedule(frontend, namespace, request.schedule)
    return await _ask(frontend, "CreateSchedule", namespace, request)


async def describe_schedule(frontend: Frontend, request: DescribeScheduleRequest, _: Call) -> bytes:
    """All about a schedule."""
    namespace = await frontend.namespaces.find(request.namespace)
    _check_id(request.schedule_id)
    return await _ask(frontend, "DescribeSchedule", namespace, request)


async def update_schedule(frontend: Frontend, request: UpdateScheduleRequest, _: Call) -> bytes:
    """Replace what users have set."""
    namespace = await frontend.namespaces.find(request.namespace)
    _check_id(request.schedule_id)
    check_length(frontend, request.request_id, "RequestId length exceeds limit.")
    if not request.schedule.action.HasField("start_workflow"):
        raise invalid("Only StartWorkflow action is supported for schedules")
    _check_own(namespace, request)
    _check_schedule(frontend, namespace, request.schedule)
    return await _ask(frontend, "UpdateSchedule", namespace, request)


async def patch_schedule(frontend: Frontend, request: PatchScheduleRequest, _: Call) -> bytes:
    """Trigger, backfill, pause or go on."""
    namespace = await frontend.namespaces.find(request.namespace)
    _check_id(request.schedule_id)
    check_length(frontend, request.request_id, "RequestId length exceeds limit.")
    if not request.HasField("patch"):
        raise invalid("Patch is not set on request.")
    if any(is_longer(notes, NOTES_BYTES_MAX) for notes in (request.patch.pause, request.patch.unpause)):
        raise invalid("Schedule notes exceeds limit.")
    return await _ask(frontend, "PatchSchedule", namespace, request)


async def delete_schedule(frontend: Frontend, request: DeleteScheduleRequest, _: Call) -> bytes:
    """Delete a schedule."""
    namespace = await frontend.namespaces.find(request.namespace)
    _check_id(request.schedule_id)
    return await _ask(frontend, "DeleteSchedule", namespace, request)


async def list_matching_times(frontend: Frontend, request: ListScheduleMatchingTimesRequest, _: Call) -> bytes:
    """When a schedule fires in a span of time."""
    namespace = await frontend.namespaces.find(request.namespace)
    _check_id(request.schedule_id)
    return await _ask(frontend, "ListScheduleMatchingTimes", namespace, request)


async def list_schedules(frontend: Frontend, request: ListSchedulesRequest, _: Call) -> Message:
    """What a query finds, the latest first."""
    namespace = await frontend.namespaces.find(request.namespace)
    query = _query(namespace, request.query)
    # Without the last bit, so that it is a signed number too.
    asked = xxhash.xxh64_intdigest(f"{namespace.id}\n{request.query}".encode(errors="surrogatepass")) >> 1
    wanted = request.maximum_page_size
    limit = wanted if 0 < wanted <= PAGE_ROWS_MAX else PAGE_ROWS_MAX
    after = _place(request.next_page_token, asked) if request.next_page_token else None
    # One more, to know whether there is another page.
    rows = await frontend.store.list_visibility(_rows_of(namespace), query.where, after=after, limit=limit + 1)
    response = ListSchedulesResponse()
    size = 0
    for row in rows[:limit]:
        entry = _entry(row, namespace)
        size += entry.ByteSize()
        if response.schedules and size > PAGE_BYTES_MAX:
            break
        response.schedules.append(entry)
    shown = len(response.schedules)
    if shown < len(rows):
        response.next_page_token = _encode((asked, *cursor_of(rows[shown - 1], LATEST_FIRST)))
    return response


async def count_schedules(frontend: Frontend, request: CountSchedulesRequest, _: Call) -> Message:
    """How many a query finds."""
    namespace = await frontend.namespaces.find(request.namespace)
    query = _query(namespace, request.query)
    groups = await frontend.store.count_visibility(_rows_of(namespace), query.where)
    return CountSchedulesResponse(count=sum(group.rows for group in groups))


async def _ask(frontend: Frontend, name: str, namespace: Namespace, request: Message) -> bytes:
    schedule_id: str = request.schedule_id  # type: ignore[attr-defined]
    return await frontend.history.call(name, namespace.id, schedule_id, request)


def _rows_of(namespace: Namespace) -> str:
    return f"{namespace.id}#{ARCHETYPE}"


def _check_id(schedule_id: str) -> None:
    if not schedule_id:
        raise invalid("ScheduleId is not set on request.")
    if "\0" in schedule_id:
        # No store has such an id, and not every store can be asked for it.
        raise not_found("schedule not found")


def _check_new_id(frontend: Frontend, schedule_id: str) -> None:
    if not schedule_id:
        raise invalid("ScheduleId is not set on request.")
    limit = frontend.settings.get(MAX_ID_LENGTH) - ID_PREFIX_LENGTH
    if is_longer(schedule_id, limit):
        raise invalid(f"ScheduleId exceeds maximum allowed length ({len(schedule_id.encode())}/{limit})")
    if "\0" in schedule_id:
        raise invalid("ScheduleId has a character of code 0: leave it out.")


def _check_own(namespace: Namespace, request: CreateScheduleRequest | UpdateScheduleRequest) -> None:
    """The memo and the search attributes of the schedule itself, not of its workflows."""
    attributes: SearchAttributes = request.search_attributes
    problem = problem_of(attributes, namespace) if attributes.indexed_fields else None
    if problem is not None:
        raise invalid(problem)
    memo: Memo = request.memo
    if memo.ByteSize() > DEFAULT_LIMITS.memo_size_max:
        raise invalid("Memo size exceeds limit.")


def _check_schedule(frontend: Frontend, namespace: Namespace, schedule: Schedule) -> None:
    """Refuse what no schedule can do, and give the spec its structured form."""
    if schedule.action.HasField("start_workflow"):
        _check_action(frontend, namespace, schedule.action.start_workflow)
    try:
        spec = canonical(schedule.spec)
    except BadSpec as wrong:
        raise invalid(f"Invalid schedule spec: {wrong}") from None
    schedule.spec.CopyFrom(spec)
    if schedule.state.remaining_actions < 0:
        raise invalid("RemainingActions is negative.")
    # Only its size is looked at; the limit is that of any input.
    check_blob(frontend, namespace, schedule)


def _check_action(frontend: Frontend, namespace: Namespace, action: NewWorkflowExecutionInfo) -> None:
    """Refuse a workflow that could never be started; fill in what the request leaves open, as a start does."""
    if action.cron_schedule:
        raise invalid("Scheduled workflow must not contain CronSchedule")
    if action.workflow_id_reuse_policy not in (
        WorkflowIdReusePolicy.WORKFLOW_ID_REUSE_POLICY_UNSPECIFIED,
        WorkflowIdReusePolicy.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE,
    ):
        raise invalid("Scheduled workflow must not contain WorkflowIDReusePolicy")
    start = StartWorkflowExecutionRequest(
        namespace=namespace.name, workflow_id=action.workflow_id + TIME_SUFFIX_EXAMPLE, request_id="-"
    )
    for field, value in action.ListFields():
        if field.name not in ("workflow_id", "workflow_id_reuse_policy"):
            getattr(start, field.name).CopyFrom(value)
    check_start(frontend, namespace, start)
    if not action.task_queue.kind:
        action.task_queue.kind = start.task_queue.kind or 1  # type: ignore[assignment]


def _query(namespace: Namespace, text: str) -> Query:
    """A query about schedules: by their ids, by whether they are paused, and by their users' own attributes."""
    query = parse_query(text, {**namespace.search_attributes, **FOUND_BY})
    for field in _fields(query):
        name = _COLUMN_NAMES[field] if isinstance(field, Column) else field.name
        if name not in namespace.search_attributes and name not in (SCHEDULE_ID, PAUSED):
            raise invalid(f'invalid query filter for schedules: cannot filter on "{name}"')
    return query


def _fields(node: object) -> Iterator[Column | Attribute]:
    """Everything that a query looks at."""
    if isinstance(node, Column | Attribute):
        yield node
    elif isinstance(node, tuple | list):
        for part in node:
            yield from _fields(part)
    elif is_dataclass(node):
        for field in fields(node):
            yield from _fields(getattr(node, field.name))


def _entry(row: VisibilityRow, namespace: Namespace) -> ScheduleListEntry:
    payloads = {}
    for name, value in row.search_attributes.items():
        number = type_of(name, namespace.search_attributes)
        if number is not None and name != PAUSED:
            payloads[name] = to_payload(value, number)
    return entry_of(row, payloads)


def _place(token: bytes, asked: int) -> tuple[int, int, str]:
    """Where the list goes on."""
    try:
        decoded = _decode(token) if len(token) <= TOKEN_BYTES_MAX else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        decoded = None
    if (
        decoded is None
        or decoded.asked != asked
        or "\0" in decoded.run_id
        or max(abs(decoded.close_time_ns), abs(decoded.start_time_ns)) > INT64_MAX
    ):
        raise invalid("Invalid NextPageToken.")
    return decoded.close_time_ns, decoded.start_time_ns, decoded.run_id


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
