"""The overview: what needs attention, workflows by status, task queues that wait, and curves of this host."""

from collections.abc import Iterator
from heapq import nsmallest
from itertools import islice
from typing import Final

import msgspec
from msgspec import Struct
from temporalio.api.workflowservice.v1 import CountWorkflowExecutionsRequest, CountWorkflowExecutionsResponse

from fairlead.console import sampler, text
from fairlead.console.context import Context
from fairlead.console.problems import Problem, problem_of
from fairlead.console.queues import QueueFigures, figures_of, waiting_queues
from fairlead.console.series import Point
from fairlead.console.view import Parameters, View, workflow_method
from fairlead.matching.messages.inspection import LoadedQueue
from fairlead.rpc import RpcStatus

# Rows of the table of task queues, and sentences on what needs attention.
QUEUES_MAX: Final = 10
ATTENTION_MAX: Final = 8
# Seconds for which a task may wait before the queue needs attention.
WAIT_S_MAX: Final = 60.0
# Finds open workflows whose workflow tasks fail or time out again and again; the list of workflows has it as a filter.
PROBLEMS_QUERY: Final = (
    'TemporalReportedProblems IN ("category=WorkflowTaskFailed", "category=WorkflowTaskTimedOut") '
    'AND ExecutionStatus = "Running"'
)


class Attention(Struct, frozen=True):
    """A sentence on what needs attention, with the view that shows more."""

    sentence: str
    view: str
    parameters: dict[str, str]
    kind: str = "warn"


class StatusCount(Struct, frozen=True):
    """Number of workflows with a status."""

    status: str
    count: int


class Curve(Struct, frozen=True):
    """A series of this host, with its last value as text."""

    label: str
    text: str
    points: list[Point]
    # "bytes", or empty for plain numbers.
    unit: str = ""


class WaitingQueue(QueueFigures, frozen=True):
    """A task queue with its backlog of the last hour."""

    points: list[Point]


class Home(Struct, frozen=True, kw_only=True):
    """The data of the overview."""

    attention: list[Attention]
    counts: list[StatusCount]
    queues: list[WaitingQueue]
    curves: list[Curve]
    counts_problem: Problem | None = None
    queues_problem: Problem | None = None
    # Hosts that did not answer: their task queues are absent.
    missing: list[str] = []


async def load(context: Context, asked: Parameters) -> Home:
    """Read the overview of a namespace."""
    counts, counts_problem = await count_by_status(context, asked.namespace)
    reporting = 0
    if any(one.status == "Running" for one in counts):
        found, counts_problem = await count_by_status(context, asked.namespace, PROBLEMS_QUERY)
        reporting = sum(one.count for one in found)
    queues: list[LoadedQueue] = []
    missing: list[str] = []
    queues_problem: Problem | None = None
    try:
        queues, missing = await waiting_queues(context, asked.namespace)
    except RpcStatus as failure:
        queues_problem = problem_of(failure)
    return Home(
        attention=sorted(
            islice(_attention(queues, missing, counts, reporting, asked.namespace), ATTENTION_MAX),
            key=lambda one: one.kind != "bad",
        ),
        counts=counts,
        queues=[
            WaitingQueue(
                **{name: getattr(one, name) for name in QueueFigures.__struct_fields__},
                points=context.points(("queue", one.namespace_id, one.name, one.type, sampler.BACKLOG)),
            )
            for one in map(figures_of, nsmallest(QUEUES_MAX, queues, key=lambda one: (-one.age_s, -one.backlog)))
        ],
        curves=await _curves(context),
        counts_problem=counts_problem,
        queues_problem=queues_problem,
        missing=missing,
    )


async def count_by_status(
    context: Context, namespace: str, query: str = ""
) -> tuple[list[StatusCount], Problem | None]:
    """Number of workflows by status, the most frequent first; or the problem if they could not be counted."""
    asked = CountWorkflowExecutionsRequest(
        namespace=namespace, query=f"({query}) GROUP BY ExecutionStatus" if query else "GROUP BY ExecutionStatus"
    )
    try:
        found = await context.call("CountWorkflowExecutions", asked, CountWorkflowExecutionsResponse)
    except RpcStatus as failure:
        return [], problem_of(failure)
    counts = [StatusCount(str(msgspec.json.decode(group.group_values[0].data)), group.count) for group in found.groups]
    return sorted(counts, key=lambda one: (-one.count, one.status)), None


def _attention(
    queues: list[LoadedQueue], missing: list[str], counts: list[StatusCount], reporting: int, namespace: str
) -> Iterator[Attention]:
    for host in missing:
        sentence = f"Host {host} does not answer: its task queues are missing here."
        yield Attention(sentence, "ring", {"namespace": namespace}, "bad")
    if reporting:
        verb = "reports" if reporting == 1 else "report"
        sentence = f"{text.plural(reporting, 'workflow')} {verb} a problem: workflow tasks fail again and again."
        yield Attention(sentence, "workflows", {"namespace": namespace, "query": PROBLEMS_QUERY}, "bad")
    for queue in map(figures_of, sorted(queues, key=lambda one: -one.backlog)):
        of_version = f", version {queue.version}" if queue.version else ""
        waiting = f"Task queue {queue.name} ({queue.type}{of_version}): {text.plural(queue.backlog, 'task')}"
        parameters = {"namespace": namespace, "name": queue.name, "type": queue.type, "version": queue.version}
        if not queue.polls and not queue.dispatches_per_s:
            yield Attention(f"{waiting} and no worker that polls.", "task-queue", parameters, "bad")
        elif queue.age_s > WAIT_S_MAX:
            sentence = f"{waiting}, the oldest waits for {text.duration(queue.age_s)}."
            yield Attention(sentence, "task-queue", parameters)
    failed = sum(one.count for one in counts if one.status in {"Failed", "TimedOut"})
    if failed:
        query = 'ExecutionStatus IN ("Failed", "TimedOut")'
        verb = "has" if failed == 1 else "have"
        sentence = f"{text.plural(failed, 'workflow')} {verb} failed or timed out."
        yield Attention(sentence, "workflows", {"namespace": namespace, "query": query})


async def _curves(context: Context) -> list[Curve]:
    """Curves of this host; only for viewers with a role in the whole system."""
    if not await context.may(workflow_method("GetClusterInfo")):
        return []
    rates = (
        ("Workflow starts / s", sampler.STARTS, text.number),
        ("Tasks in / s", sampler.ALL_ADDS, text.number),
        ("Tasks out / s", sampler.ALL_DISPATCHES, text.number),
        ("Backlog", sampler.ALL_BACKLOG, text.number),
        ("Waiting polls", sampler.ALL_POLLS, text.number),
        ("CPU, cores", sampler.CPU, text.number),
        ("Memory", sampler.MEMORY, text.size),
    )
    found = []
    for label, name, shown in rates:
        points = context.points(name)
        last = next((point.value for point in reversed(points) if point.value is not None), None)
        found.append(Curve(label, shown(last), points, "bytes" if shown is text.size else ""))
    return found


VIEW: Final = View(
    path="",
    title="Overview",
    nav="Overview",
    key="o",
    parameters=Parameters,
    load=load,
    template="home.html",
)
