"""Waiting queries: answered with a workflow task in flight, or by a query task of their own."""

import pytest
from temporalio.api.enums.v1 import QueryResultType
from temporalio.api.errordetails.v1 import QueryFailedFailure
from temporalio.api.failure.v1 import Failure
from temporalio.api.query.v1 import WorkflowQuery, WorkflowQueryResult
from temporalio.api.workflowservice.v1 import RespondQueryTaskCompletedRequest

from fairlead.api.errors import ApiError, Exhausted, InvalidArgument
from fairlead.core.errors import RetryElsewhere
from fairlead.history.shard.queries import BUFFERED_MAX, DIRECT_MAX, QueryRegistry, QueryResult, Unblocked
from tests.history.scenario import payloads

QUERY = WorkflowQuery(query_type="state")
ANSWERED = QueryResultType.QUERY_RESULT_TYPE_ANSWERED
FAILED = QueryResultType.QUERY_RESULT_TYPE_FAILED
ANSWER = payloads('"answer"')


async def test_a_query_is_attached_to_every_workflow_task_until_one_responds() -> None:
    registry = QueryRegistry()
    query = registry.buffer("q", QUERY)
    assert registry.to_attach() == {"q": QUERY}
    registry.on_task_failed(Failure())
    registry.answer({})
    assert registry.to_attach() == {"q": QUERY}
    registry.answer({"q": WorkflowQueryResult(result_type=ANSWERED, answer=ANSWER)})
    assert query.done.result() == QueryResult(ANSWER)
    assert registry.to_attach() == {}
    assert registry.is_idle


async def test_a_failed_query_returns_the_workers_message() -> None:
    registry = QueryRegistry()
    query = registry.buffer("q", QUERY)
    failure = Failure(message="cause")
    registry.answer({"q": WorkflowQueryResult(result_type=FAILED, error_message="no such query", failure=failure)})
    failed = query.done.result()
    assert isinstance(failed, InvalidArgument)
    assert str(failed) == "no such query"
    assert QueryFailedFailure(failure=failure).SerializeToString() in failed.detail


async def test_a_query_buffered_for_a_workflow_task_that_will_not_come_is_unblocked() -> None:
    registry = QueryRegistry()
    waiting, direct = registry.buffer("q", QUERY), registry.ask_directly("d", QUERY)
    registry.unblock()
    assert waiting.done.result() == Unblocked()
    assert not direct.done.done()


async def test_a_direct_query_is_given_to_one_worker_and_to_no_workflow_task() -> None:
    registry = QueryRegistry()
    asked = registry.ask_directly("q", QUERY)
    assert registry.to_attach() == {}
    assert registry.take("q") is asked
    assert registry.take("q") is None
    assert registry.answer_directly("q", RespondQueryTaskCompletedRequest(completed_type=ANSWERED, query_result=ANSWER))
    assert asked.done.result() == QueryResult(ANSWER)
    assert not registry.answer_directly("q", RespondQueryTaskCompletedRequest(completed_type=ANSWERED))


async def test_a_failed_direct_query_returns_the_workers_message() -> None:
    registry = QueryRegistry()
    asked = registry.ask_directly("q", QUERY)
    registry.take("q")
    assert registry.answer_directly("q", RespondQueryTaskCompletedRequest(completed_type=FAILED, error_message="no"))
    failed = asked.done.result()
    assert isinstance(failed, InvalidArgument)
    assert str(failed) == "no"


async def test_another_worker_gets_the_query_and_the_history_if_the_sticky_one_is_silent() -> None:
    registry = QueryRegistry()
    asked = registry.ask_directly("q", QUERY)
    asked.is_sticky = True
    assert registry.take("q") is asked
    registry.offer_again("q")
    again = registry.take("q")
    assert again is asked
    assert not again.is_sticky
    # The first worker still answers.
    assert registry.answer_directly("q", RespondQueryTaskCompletedRequest(completed_type=ANSWERED, query_result=ANSWER))
    assert asked.done.result() == QueryResult(ANSWER)


async def test_a_query_without_a_waiting_caller_is_not_dispatched() -> None:
    registry = QueryRegistry()
    registry.ask_directly("q", QUERY)
    registry.forget("q")
    assert registry.take("q") is None
    assert registry.is_idle
    registry.offer_again("q")
    registry.answer({"q": WorkflowQueryResult(result_type=ANSWERED)})


async def test_responses_of_workflow_tasks_and_of_direct_queries_are_not_mixed_up() -> None:
    registry = QueryRegistry()
    direct, buffered = registry.ask_directly("d", QUERY), registry.buffer("b", QUERY)
    registry.answer({"d": WorkflowQueryResult(result_type=ANSWERED)})
    assert not registry.answer_directly("b", RespondQueryTaskCompletedRequest(completed_type=ANSWERED))
    assert registry.take("b") is None
    assert not direct.done.done()
    assert not buffered.done.done()


async def test_queries_are_bounded() -> None:
    registry = QueryRegistry()
    for number in range(BUFFERED_MAX):
        registry.buffer(f"b{number}", QUERY)
    with pytest.raises(Exhausted, match="consistent query buffer is full"):
        registry.buffer("more", QUERY)
    for number in range(DIRECT_MAX):
        registry.ask_directly(f"d{number}", QUERY)
    with pytest.raises(ApiError):
        registry.ask_directly("more", QUERY)


async def test_a_caller_that_waits_at_a_host_that_loses_the_shard_is_redirected() -> None:
    registry = QueryRegistry()
    query = registry.buffer("q", QUERY)
    registry.abandon()
    assert isinstance(query.done.result(), RetryElsewhere)
    assert registry.is_idle
