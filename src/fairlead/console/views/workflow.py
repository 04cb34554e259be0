"""One workflow: summary, pending work, timeline, events, input and result, relations, actions."""

import base64
import binascii
import math
from typing import Final

from msgspec import Struct
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.query.v1 import WorkflowQuery
from temporalio.api.workflowservice.v1 import (
    DescribeWorkflowExecutionResponse,
    GetWorkflowExecutionHistoryRequest,
    GetWorkflowExecutionHistoryResponse,
    QueryWorkflowRequest,
    QueryWorkflowResponse,
)

from fairlead.console import text
from fairlead.console.context import Context
from fairlead.console.diagnosis import diagnose
from fairlead.console.events import ShownEvent, attributes, shown_event
from fairlead.console.findings import Finding
from fairlead.console.payloads import ShownPayload, all_shown, named, parsed
from fairlead.console.pending import ShownActivity, Waiting, pending_activities, waiting
from fairlead.console.problems import Problem, problem_of
from fairlead.console.runs import RUNNING, describe, read_events, read_last_events, status_name
from fairlead.console.stuck import collect
from fairlead.console.timeline import Span, pending_timers, shown_spans, timeline
from fairlead.console.timescale import Timescale, timescale
from fairlead.console.view import Parameters, View
from fairlead.console.views.workflow_actions import ACTIONS
from fairlead.core.errors import FairleadError
from fairlead.http import HttpFault, Response
from fairlead.rpc import RpcStatus
from fairlead.settings import Scope
from fairlead.settings.dynamic.limits import WORKFLOW_PAUSE_ENABLED
from fairlead.ui.history_file import history_file

# Events of a page of the table.
EVENTS: Final = 100
# Pending activities that are examined for the sentence on why the run waits; the page of the diagnosis examines more.
ACTIVITIES_EXAMINED: Final = 5
# Newest events of a longer run, from which the timeline is drawn, too.
NEWEST_EVENTS: Final = 500


class Asked(Parameters, frozen=True, kw_only=True):
    """Parameters of one workflow; without `run`, its latest run. `ask` is the type of a query, `with_` its argument."""

    id: str = ""
    run: str = ""
    order: str = "newest"
    after: str = ""
    ask: str = ""
    argument: str = ""


class Relation(Struct, frozen=True):
    """A workflow that this one belongs to, or that it started."""

    kind: str
    id: str
    run: str
    type: str = ""


class Asking(Struct, frozen=True):
    """A query of the viewer and its result, or the problem with it."""

    type: str
    result: list[ShownPayload]
    problem: Problem | None = None


class Workflow(Struct, frozen=True, kw_only=True):
    """The data of one run."""

    id: str
    run: str
    type: str
    status: str
    task_queue: str
    started_s: float | None
    closed_s: float | None
    expires_s: float | None
    events_total: int
    size_bytes: int
    version: str
    pause_reason: str
    paused_s: float | None
    cancel_requested: bool
    can_pause: bool
    memo: dict[str, ShownPayload]
    search_attributes: dict[str, ShownPayload]
    relations: list[Relation]
    activities: list[ShownActivity]
    workflow_task: str
    workflow_task_s: float | None
    workflow_task_attempt: int
    waiting: list[Waiting]
    input: list[ShownPayload]
    result: list[ShownPayload]
    failure: str
    spans: list[Span]
    spans_total: int
    # Ranges of event ids from which the timeline is drawn; the events between them are left out.
    drawn: list[tuple[int, int]]
    events: list[ShownEvent]
    next: str
    # Scale of the timeline until the end of the run; for an open run, until a time shortly after now that changes in
    # steps, so that the picture of an idle run stays the same.
    scale: Timescale
    asking: Asking | None = None
    # The reason why an open run waits; None if it could not be read.
    reason: Finding | None = None

    @property
    def is_open(self) -> bool:
        """Whether the run is not closed."""
        return self.status in RUNNING


async def load(context: Context, asked: Asked) -> Workflow:
    """Read one run."""
    if not asked.id:
        raise HttpFault(400, "the address names no workflow: add id=...")
    described = await describe(context, asked.namespace, asked.id, asked.run)
    info = described.workflow_execution_info
    execution = info.execution
    first = await read_events(context, asked.namespace, execution)
    newest = await _newest_events(context, asked.namespace, execution, first, info.history_length)
    drawn = [*first, *newest]
    activities = pending_activities(described)
    spans = timeline(drawn, activities)
    started_s = text.seconds_of(info.start_time) or 0.0
    ranges = _ranges(drawn)
    # A timer that began before a gap may have ended in it.
    timers = pending_timers(newest if len(ranges) > 1 else drawn)
    shown, token = await _page_of_events(context, asked, execution)
    closing = await _last_event(context, asked.namespace, execution) if info.close_time.seconds else None
    started = attributes(first[0]) if first else None
    more = described.workflow_extended_info
    pending = described.pending_workflow_task
    closed = None if closing is None else attributes(closing)
    is_paused = more.HasField("pause_info")
    return Workflow(
        id=execution.workflow_id,
        run=execution.run_id,
        type=info.type.name,
        status=status_name(info.status),
        task_queue=described.execution_config.task_queue.name,
        started_s=text.seconds_of(info.start_time),
        closed_s=text.seconds_of(info.close_time),
        expires_s=_future(more.run_expiration_time.seconds),
        events_total=info.history_length,
        size_bytes=info.history_size_bytes,
        version=info.versioning_info.version,
        pause_reason=(more.pause_info.reason or "paused") if is_paused else "",
        paused_s=text.seconds_of(more.pause_info.paused_time) if is_paused else None,
        cancel_requested=more.cancel_requested,
        can_pause=await _can_pause(context, asked.namespace),
        memo=named(info.memo.fields),
        search_attributes=named(info.search_attributes.indexed_fields),
        relations=_relations(described, drawn, closing),
        activities=activities,
        workflow_task={0: "", 2: "started"}.get(pending.state, "scheduled"),
        workflow_task_s=text.seconds_of(pending.scheduled_time),
        workflow_task_attempt=pending.attempt,
        waiting=waiting(described, timers),
        input=[] if started is None else all_shown(started.input),
        result=all_shown(closed.result) if closed is not None and "result" in closed.DESCRIPTOR.fields_by_name else [],
        failure=closed.failure.message if closed is not None and hasattr(closed, "failure") else "",
        spans=shown_spans(spans),
        spans_total=len(spans),
        drawn=ranges,
        events=shown,
        next=token,
        scale=timescale(spans, started_s, text.seconds_of(info.close_time) or _drawn_until_s(started_s, context.now_s)),
        asking=await _ask(context, asked, execution) if asked.ask else None,
        reason=await _reason(context, asked.namespace, described) if not info.close_time.seconds else None,
    )


async def _reason(context: Context, namespace: str, described: DescribeWorkflowExecutionResponse) -> Finding | None:
    """The most important reason why an open run waits."""
    try:
        facts = await collect(context, namespace, described, activities_max=ACTIVITIES_EXAMINED)
    except (RpcStatus, FairleadError):
        return None
    return diagnose(facts)[0]


async def _newest_events(
    context: Context, namespace: str, execution: WorkflowExecution, first: list[HistoryEvent], total: int
) -> list[HistoryEvent]:
    """The newest events of a long run, in their order, without those that were read already."""
    if not first or total <= len(first):
        return []
    found, _ = await read_last_events(context, namespace, execution, NEWEST_EVENTS)
    return [event for event in reversed(found) if event.event_id > first[-1].event_id]


def _ranges(events: list[HistoryEvent]) -> list[tuple[int, int]]:
    """The ids of the events as ranges without gaps, as (first, last)."""
    found: list[tuple[int, int]] = []
    for event in events:
        if found and event.event_id == found[-1][1] + 1:
            found[-1] = (found[-1][0], event.event_id)
        else:
            found.append((event.event_id, event.event_id))
    return found


async def _page_of_events(context: Context, asked: Asked, execution: WorkflowExecution) -> tuple[list[ShownEvent], str]:
    try:
        token = base64.urlsafe_b64decode(asked.after)
    except (binascii.Error, ValueError):
        raise HttpFault(400, "the parameter `after` is not a token of a page: begin with the first page") from None
    if asked.order != "oldest":
        events, after = await read_last_events(context, asked.namespace, execution, EVENTS, token)
    else:
        request = GetWorkflowExecutionHistoryRequest(
            namespace=asked.namespace, execution=execution, maximum_page_size=EVENTS, next_page_token=token
        )
        answer = await context.call("GetWorkflowExecutionHistory", request, GetWorkflowExecutionHistoryResponse)
        events, after = [*answer.history.events], answer.next_page_token
    return [shown_event(event) for event in events], base64.urlsafe_b64encode(after).decode()


async def _last_event(context: Context, namespace: str, execution: WorkflowExecution) -> HistoryEvent | None:
    events, _ = await read_last_events(context, namespace, execution, 1)
    return events[0] if events else None


async def _ask(context: Context, asked: Asked, execution: WorkflowExecution) -> Asking:
    try:
        request = QueryWorkflowRequest(
            namespace=asked.namespace,
            execution=execution,
            query=WorkflowQuery(query_type=asked.ask, query_args=parsed(asked.argument)),
        )
        answer = await context.call("QueryWorkflow", request, QueryWorkflowResponse)
    except (RpcStatus, HttpFault) as failure:
        return Asking(asked.ask, [], problem_of(failure))
    return Asking(asked.ask, all_shown(answer.query_result))


async def _can_pause(context: Context, namespace: str) -> bool:
    """Whether workflows of the namespace can be paused, which a setting allows."""
    return context.backend.settings.get(WORKFLOW_PAUSE_ENABLED, Scope(await context.namespace_id(namespace)))


def _drawn_until_s(started_s: float, now_s: float) -> float:
    """A time shortly after now, rounded up in steps of 1 to 10 % of the run's length."""
    past_s = max(now_s - started_s, 1.0)
    step_s = 10.0 ** math.floor(math.log10(past_s)) / 10
    return started_s + math.ceil(past_s / step_s) * step_s


def _future(seconds: int) -> float | None:
    """The time in seconds; None for the year 1, which servers send for never."""
    return float(seconds) if seconds > 0 else None


def _relations(
    described: DescribeWorkflowExecutionResponse, events: list[HistoryEvent], closing: HistoryEvent | None
) -> list[Relation]:
    info = described.workflow_execution_info
    execution = info.execution
    found: list[Relation] = []
    if info.parent_execution.workflow_id:
        found.append(Relation("parent", info.parent_execution.workflow_id, info.parent_execution.run_id))
    root = info.root_execution
    is_own = root.workflow_id in {"", execution.workflow_id, info.parent_execution.workflow_id}
    if not is_own:
        found.append(Relation("root", root.workflow_id, root.run_id))
    if info.first_run_id and info.first_run_id != execution.run_id:
        found.append(Relation("first run", execution.workflow_id, info.first_run_id))
    started = attributes(events[0]) if events else None
    if started is not None and started.continued_execution_run_id:
        found.append(Relation("previous run", execution.workflow_id, started.continued_execution_run_id))
    if closing is not None:
        after = getattr(attributes(closing), "new_execution_run_id", "")
        if after:
            found.append(Relation("next run", execution.workflow_id, after))
    if described.workflow_extended_info.reset_run_id:
        run = described.workflow_extended_info.reset_run_id
        found.append(Relation("reset to", execution.workflow_id, run))
    for event in events:
        if event.event_type == EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_STARTED:
            child = event.child_workflow_execution_started_event_attributes
            other = child.workflow_execution
            found.append(Relation("child", other.workflow_id, other.run_id, child.workflow_type.name))
    return found


async def _history(context: Context) -> Response:
    """All events of a run as a JSON array. The first call fails before the response begins, so that it is an error."""
    given = dict(context.request.parameters)
    namespace = given.get("namespace") or Parameters().namespace
    described = await describe(context, namespace, given.get("id", ""), given.get("run", ""))
    execution = described.workflow_execution_info.execution
    events = history_file(
        context.api, context.request, namespace=namespace, workflow_id=execution.workflow_id, run_id=execution.run_id
    )
    return Response(200, events, "application/json")


VIEW: Final = View(
    path="workflow",
    title="Workflow",
    parameters=Asked,
    load=load,
    template="workflow.html",
    actions=ACTIONS,
    documents={"history.json": _history},
)
