"""The list of workflows: the query language, counts by status, and pages of rows."""

import base64
import binascii
import re
from typing import Final

from msgspec import Struct
from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.api.workflowservice.v1 import ListWorkflowExecutionsRequest, ListWorkflowExecutionsResponse

from fairlead.api.search.grammar import prefix_bytes
from fairlead.console import text
from fairlead.console.context import Context
from fairlead.console.problems import Problem
from fairlead.console.runs import status_name
from fairlead.console.view import Parameters, View, workflow_method
from fairlead.console.views.home import StatusCount, count_by_status
from fairlead.http import HttpFault
from fairlead.rpc import Code, RpcStatus

# Rows of a page: by default, and at most.
ROWS: Final = 50
ROWS_MAX: Final = 500

# A search for a name: anything that has no operator, quote or parenthesis of the query language.
_PLAIN: Final = re.compile(r"[^\s=!<>()\"'`,]+")
_POSITION: Final = re.compile(r"syntax error at position (\d+)")


class Asked(Parameters, frozen=True, kw_only=True):
    """Parameters of the list; `after` is the token of a page."""

    query: str = ""
    after: str = ""
    rows: int = ROWS


class WorkflowRow(Struct, frozen=True, kw_only=True):
    """A run in the list."""

    id: str
    run: str
    type: str
    status: str
    task_queue: str
    started_s: float | None
    closed_s: float | None
    # None while the workflow is open: then the list does not have the number.
    events: int | None


class Workflows(Struct, frozen=True, kw_only=True):
    """A page of the list; `problem` says what is wrong with the query. `searched` is the query of a plain name."""

    query: str
    searched: str = ""
    rows: list[WorkflowRow]
    counts: list[StatusCount]
    next: str = ""
    problem: Problem | None = None


def row_of(info: WorkflowExecutionInfo) -> WorkflowRow:
    """A run in the list."""
    return WorkflowRow(
        id=info.execution.workflow_id,
        run=info.execution.run_id,
        type=info.type.name,
        status=status_name(info.status),
        task_queue=info.task_queue,
        started_s=text.seconds_of(info.start_time),
        closed_s=text.seconds_of(info.close_time),
        events=info.history_length or None,
    )


async def load(context: Context, asked: Asked) -> Workflows:
    """Read a page of the list. An error in the query is part of the page, so that the viewer can correct the query
    there.
    """
    try:
        token = base64.urlsafe_b64decode(asked.after)
    except (binascii.Error, ValueError):
        raise HttpFault(400, "the parameter `after` is not a token of a page: begin with the first page") from None
    searched = _search_for(asked.query)
    query = searched or asked.query
    request = ListWorkflowExecutionsRequest(
        namespace=asked.namespace,
        query=query,
        page_size=min(max(asked.rows, 1), ROWS_MAX),
        next_page_token=token,
    )
    try:
        found = await context.call("ListWorkflowExecutions", request, ListWorkflowExecutionsResponse)
    except RpcStatus as failure:
        if failure.code is not Code.INVALID_ARGUMENT:
            raise
        mended = Problem(400, _about_query(failure.message, asked.query), "Mend the query above, and search again.")
        return Workflows(query=asked.query, rows=[], counts=[], problem=mended)
    counts, problem = await count_by_status(context, asked.namespace, query)
    return Workflows(
        query=asked.query,
        searched=searched,
        rows=[row_of(info) for info in found.executions],
        counts=counts,
        next=base64.urlsafe_b64encode(found.next_page_token).decode(),
        problem=problem,
    )


def _search_for(text: str) -> str:
    """The query for workflows whose id or type begins with a plain name, or whose run id it is; else empty."""
    name = text.strip()
    if not _PLAIN.fullmatch(name):
        return ""
    return f'WorkflowId STARTS_WITH "{name}" OR WorkflowType STARTS_WITH "{name}" OR RunId = "{name}"'


def _about_query(message: str, query: str) -> str:
    """A syntax error whose position counts from the start of the query, without the prefix that the API counts too."""
    text = query.lstrip()
    before = prefix_bytes(text) - (len(query) - len(text))
    return _POSITION.sub(lambda found: f"syntax error at position {int(found[1]) - before}", message)


VIEW: Final = View(
    path="workflows",
    title="Workflows",
    nav="Workflows",
    access=workflow_method("ListWorkflowExecutions"),
    key="w",
    parameters=Asked,
    load=load,
    template="workflows.html",
)
