"""Queries of a run that wait for a worker's result, either with a workflow task or with a query task.

Queries are not stored. While a workflow task is pending, queries are attached to it, so that their results reflect all
earlier events. Otherwise a query gets a query task of its own.
"""

import asyncio
from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

from temporalio.api.common.v1 import Payloads
from temporalio.api.enums.v1 import QueryResultType, ResourceExhaustedCause
from temporalio.api.errordetails.v1 import QueryFailedFailure
from temporalio.api.failure.v1 import Failure
from temporalio.api.query.v1 import WorkflowQuery, WorkflowQueryResult
from temporalio.api.workflowservice.v1 import RespondQueryTaskCompletedRequest

from fairlead.api.error_details import exhausted, packed
from fairlead.api.errors import InvalidArgument
from fairlead.core.errors import FairleadError, RetryElsewhere

# Maximum number of queries of one run that wait for a workflow task or are attached to one.
BUFFERED_MAX = 100
# Maximum number of query tasks of one run.
DIRECT_MAX = 1_000

_ANSWERED = QueryResultType.QUERY_RESULT_TYPE_ANSWERED


class QueryMoved(RetryElsewhere):
    """Another host owns the run now: send the query again."""


class _Phase(IntEnum):
    BUFFERED = 1  # The query waits for a workflow task, or is attached to one.
    DIRECT = 2  # The query waits for a worker to take its query task.
    TAKEN = 3  # A worker has taken the query task.


class QueryResult(NamedTuple):
    """A worker's result."""

    result: Payloads


class Unblocked(NamedTuple):
    """No workflow task is pending any more: the query must become a query task."""


class Query:
    """One query. `done` gets the result, `Unblocked`, or an error.

    `is_sticky` is true if its query task went to the sticky worker, which has the run in its cache.
    """

    __slots__ = ("done", "is_sticky", "phase", "query", "query_id")

    def __init__(self, query_id: str, query: WorkflowQuery, phase: _Phase) -> None:
        self.query_id = query_id
        self.query = query
        self.phase = phase
        self.is_sticky = False
        self.done: asyncio.Future[QueryResult | Unblocked | FairleadError] = asyncio.get_running_loop().create_future()

    def set(self, end: QueryResult | Unblocked | FairleadError) -> None:
        """Finish the query, unless it is finished already."""
        if not self.done.done():
            self.done.set_result(end)


class QueryRegistry:
    """The queries of one run. Callers must hold the lock of its workflow id."""

    __slots__ = ("_queries",)

    def __init__(self) -> None:
        self._queries: dict[str, Query] = {}

    @property
    def is_idle(self) -> bool:
        """Whether no query waits."""
        return not self._queries

    def buffer(self, query_id: str, query: WorkflowQuery) -> Query:
        """Add a query that waits for the pending workflow task."""
        self._check(_Phase.BUFFERED, limit=BUFFERED_MAX)
        return self._keep(Query(query_id, query, _Phase.BUFFERED))

    def ask_directly(self, query_id: str, query: WorkflowQuery) -> Query:
        """Add a query that waits for a worker to take its query task."""
        self._check(_Phase.DIRECT, limit=DIRECT_MAX)
        return self._keep(Query(query_id, query, _Phase.DIRECT))

    def forget(self, query_id: str) -> None:
        """Remove a query for which no caller waits."""
        self._queries.pop(query_id, None)

    def to_attach(self) -> dict[str, WorkflowQuery]:
        """The queries to attach to a workflow task, by their ids."""
        return {query.query_id: query.query for query in self._buffered()}

    def answer(self, results: Mapping[str, WorkflowQueryResult]) -> None:
        """Process the query results of a completed workflow task.

        Queries without a result are attached to the next task.
        """
        for query_id, result in results.items():
            query = self._queries.get(query_id)
            if query is not None and query.phase is _Phase.BUFFERED:
                query.set(_end_of(result))
                self.forget(query_id)

    def on_task_failed(self, _failure: Failure | None = None) -> None:
        """Do nothing: the queries of a failed workflow task are attached to the next attempt."""

    def unblock(self) -> None:
        """Make the queries that wait for a workflow task into query tasks, because no workflow task is pending."""
        for query in self._buffered():
            query.set(Unblocked())
            self.forget(query.query_id)

    def take(self, query_id: str) -> Query | None:
        """Take the query for a worker; None if the query is finished or abandoned, or another worker has it."""
        query = self._queries.get(query_id)
        if query is None or query.phase is not _Phase.DIRECT:
            return None
        query.phase = _Phase.TAKEN
        return query

    def offer_again(self, query_id: str) -> None:
        """Let another worker take the query, because the first did not respond.

        A late response of the first is accepted.
        """
        query = self._queries.get(query_id)
        if query is not None:
            query.phase = _Phase.DIRECT
            query.is_sticky = False

    def answer_directly(self, query_id: str, answer: RespondQueryTaskCompletedRequest) -> bool:
        """Process a worker's response to a query task; return False if no caller waits for it."""
        query = self._queries.get(query_id)
        if query is None or query.phase is _Phase.BUFFERED:
            return False
        if answer.completed_type == _ANSWERED:
            query.set(QueryResult(answer.query_result))
        else:
            query.set(_failed(answer.error_message, answer.failure if answer.HasField("failure") else None))
        self.forget(query_id)
        return True

    def abandon(self) -> None:
        """Fail all queries, because another host owns the run."""
        for query in self._queries.values():
            query.set(QueryMoved(f"another host owns the run of query {query.query_id} now: send it again"))
        self._queries.clear()

    def _buffered(self) -> list[Query]:
        return [query for query in self._queries.values() if query.phase is _Phase.BUFFERED]

    def _check(self, phase: _Phase, *, limit: int) -> None:
        if (
            sum((query.phase is _Phase.BUFFERED) is (phase is _Phase.BUFFERED) for query in self._queries.values())
            >= limit
        ):
            raise exhausted(
                "consistent query buffer is full, this may be caused by too many queries and workflow not able to "
                "process query fast enough",
                ResourceExhaustedCause.RESOURCE_EXHAUSTED_CAUSE_BUSY_WORKFLOW,
            )

    def _keep(self, query: Query) -> Query:
        self._queries[query.query_id] = query
        return query


def _end_of(result: WorkflowQueryResult) -> QueryResult | FairleadError:
    if result.result_type == _ANSWERED:
        return QueryResult(result.answer)
    return _failed(result.error_message, result.failure if result.HasField("failure") else None)


def _failed(message: str, failure: Failure | None) -> InvalidArgument:
    return InvalidArgument(message, packed(QueryFailedFailure(failure=failure)))
