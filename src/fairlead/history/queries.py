"""Queries of a run that wait for an answer: with a workflow task, or on their own.

A query leaves no trace. While a workflow task is on its way, a query goes with it, so that its answer holds all that
happened before it was asked; else a worker is asked for nothing but the answer.
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

from fairlead.core.errors import FairleadError, RetryElsewhere
from fairlead.history.refusals import Refused, exhausted, refused
from fairlead.rpc import Code

# That wait for a workflow task of one run.
BUFFERED_MAX = 100
# That workers are asked for on their own, of one run.
DIRECT_MAX = 1_000

_ANSWERED = QueryResultType.QUERY_RESULT_TYPE_ANSWERED


class QueryMoved(RetryElsewhere):
    """Another host has the run now: the same query again is asked there."""


class _Place(IntEnum):
    BUFFERED = 1  # Waits for a workflow task, or has gone with one.
    DIRECT = 2  # Waits for a worker of its own.
    TAKEN = 3  # A worker was asked.


class Answered(NamedTuple):
    """What a worker has answered."""

    result: Payloads


class Unblocked(NamedTuple):
    """No workflow task is on its way any more: the query may be asked on its own."""


class Query:
    """One query. `done` is set once: to the answer, to `Unblocked`, or to the refusal.

    `is_sticky`: the worker that is asked has the run in its cache.
    """

    __slots__ = ("done", "is_sticky", "place", "query", "query_id")

    def __init__(self, query_id: str, query: WorkflowQuery, place: _Place) -> None:
        self.query_id = query_id
        self.query = query
        self.place = place
        self.is_sticky = False
        self.done: asyncio.Future[Answered | Unblocked | FairleadError] = asyncio.get_running_loop().create_future()

    def set(self, end: Answered | Unblocked | FairleadError) -> None:
        """Tell the one who asked, if it has not been told."""
        if not self.done.done():
            self.done.set_result(end)


class QueryRegistry:
    """The queries of one run. To be used with the lock of its workflow id."""

    __slots__ = ("_queries",)

    def __init__(self) -> None:
        self._queries: dict[str, Query] = {}

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits."""
        return not self._queries

    def buffer(self, query_id: str, query: WorkflowQuery) -> Query:
        """Let a query wait for the workflow task that is on its way."""
        self._check(_Place.BUFFERED, limit=BUFFERED_MAX)
        return self._keep(Query(query_id, query, _Place.BUFFERED))

    def ask_directly(self, query_id: str, query: WorkflowQuery) -> Query:
        """Let a query wait for a worker of its own."""
        self._check(_Place.DIRECT, limit=DIRECT_MAX)
        return self._keep(Query(query_id, query, _Place.DIRECT))

    def forget(self, query_id: str) -> None:
        """Nobody waits for it any more."""
        self._queries.pop(query_id, None)

    def to_attach(self) -> dict[str, WorkflowQuery]:
        """The queries that go with a workflow task, by their ids."""
        return {query.query_id: query.query for query in self._buffered()}

    def answer(self, results: Mapping[str, WorkflowQueryResult]) -> None:
        """Take the answers that came with that of a workflow task. What it does not answer goes with the next."""
        for query_id, result in results.items():
            query = self._queries.get(query_id)
            if query is not None and query.place is _Place.BUFFERED:
                query.set(_end_of(result))
                self.forget(query_id)

    def on_task_failed(self, _failure: Failure | None = None) -> None:
        """The workflow task failed: its queries go with the next attempt."""

    def unblock(self) -> None:
        """No workflow task is on its way: what waited for one is asked on its own."""
        for query in self._buffered():
            query.set(Unblocked())
            self.forget(query.query_id)

    def take(self, query_id: str) -> Query | None:
        """The query for the worker that is asked; None if it is answered, given up, or another worker has it."""
        query = self._queries.get(query_id)
        if query is None or query.place is not _Place.DIRECT:
            return None
        query.place = _Place.TAKEN
        return query

    def offer_again(self, query_id: str) -> None:
        """The worker that was to answer did not: another may be asked. If it does after all, that is as good."""
        query = self._queries.get(query_id)
        if query is not None:
            query.place = _Place.DIRECT
            query.is_sticky = False

    def answer_directly(self, query_id: str, answer: RespondQueryTaskCompletedRequest) -> bool:
        """Take the answer of a worker that was asked; false if nobody waits for it any more."""
        query = self._queries.get(query_id)
        if query is None or query.place is _Place.BUFFERED:
            return False
        if answer.completed_type == _ANSWERED:
            query.set(Answered(answer.query_result))
        else:
            query.set(_failed(answer.error_message, answer.failure if answer.HasField("failure") else None))
        self.forget(query_id)
        return True

    def abandon(self) -> None:
        """The run is another host's."""
        for query in self._queries.values():
            query.set(QueryMoved(f"query {query.query_id} waits at another host now: ask again"))
        self._queries.clear()

    def _buffered(self) -> list[Query]:
        return [query for query in self._queries.values() if query.place is _Place.BUFFERED]

    def _check(self, place: _Place, *, limit: int) -> None:
        if (
            sum((query.place is _Place.BUFFERED) is (place is _Place.BUFFERED) for query in self._queries.values())
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


def _end_of(result: WorkflowQueryResult) -> Answered | FairleadError:
    if result.result_type == _ANSWERED:
        return Answered(result.answer)
    return _failed(result.error_message, result.failure if result.HasField("failure") else None)


def _failed(message: str, failure: Failure | None) -> Refused:
    return refused(Code.INVALID_ARGUMENT, message, QueryFailedFailure(failure=failure))
