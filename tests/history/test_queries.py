"""Queries that wait: with the workflow task that is on its way, or for a worker of their own."""

import pytest
from temporalio.api.enums.v1 import QueryResultType
from temporalio.api.errordetails.v1 import QueryFailedFailure
from temporalio.api.failure.v1 import Failure
from temporalio.api.query.v1 import WorkflowQuery, WorkflowQueryResult
from temporalio.api.workflowservice.v1 import RespondQueryTaskCompletedRequest

from fairlead.core.errors import RetryElsewhere
from fairlead.history.queries import BUFFERED_MAX, DIRECT_MAX, Answered, QueryRegistry, Unblocked
from fairlead.history.refusals import Refused
from fairlead.rpc import Code
from tests.history.scenario import payloads

QUERY = WorkflowQuery(query_type="state")
ANSWERED = QueryResultType.QUERY_RESULT_TYPE_ANSWERED
FAILED = QueryResultType.QUERY_RESULT_TYPE_FAILED
ANSWER = payloads('"answer"')


async def test_a_query_goes_with_every_workflow_task_until_one_answers_it() -> None:
    registry = QueryRegistry()
    query = registry.buffer("q", QUERY)
    assert registry.to_attach() == {"q": QUERY}
    registry.on_task_failed(Failure())
    registry.answer({})
    assert registry.to_attach() == {"q": QUERY}
    registry.answer({"q": WorkflowQueryResult(result_type=ANSWERED, answer=ANSWER)})
    assert query.done.result() == Answered(ANSWER)
    assert registry.to_attach() == {}
    assert registry.is_idle


async def test_a_failed_query_is_refused_with_what_the_worker_says() -> None:
    registry = QueryRegistry()
    query = registry.buffer("q", QUERY)
    failure = Failure(message="cause")
    registry.answer({"q": WorkflowQueryResult(result_type=FAILED, error_message="no such query", failure=failure)})
    refused = query.done.result()
    assert isinstance(refused, Refused)
    assert (str(refused), refused.code) == ("no such query", Code.INVALID_ARGUMENT)
    assert QueryFailedFailure(failure=failure).SerializeToString() in refused.detail


async def test_what_waited_for_a_workflow_task_in_vain_is_unblocked() -> None:
    registry = QueryRegistry()
    waiting, direct = registry.buffer("q", QUERY), registry.ask_directly("d", QUERY)
    registry.unblock()
    assert waiting.done.result() == Unblocked()
    assert not direct.done.done()


async def test_a_query_of_its_own_is_given_to_one_worker_and_not_to_workflow_tasks() -> None:
    registry = QueryRegistry()
    asked = registry.ask_directly("q", QUERY)
    assert registry.to_attach() == {}
    assert registry.take("q") is asked
    assert registry.take("q") is None
    assert registry.answer_directly("q", RespondQueryTaskCompletedRequest(completed_type=ANSWERED, query_result=ANSWER))
    assert asked.done.result() == Answered(ANSWER)
    assert not registry.answer_directly("q", RespondQueryTaskCompletedRequest(completed_type=ANSWERED))


async def test_a_worker_that_fails_a_query_of_its_own_says_why() -> None:
    registry = QueryRegistry()
    asked = registry.ask_directly("q", QUERY)
    registry.take("q")
    assert registry.answer_directly("q", RespondQueryTaskCompletedRequest(completed_type=FAILED, error_message="no"))
    refused = asked.done.result()
    assert isinstance(refused, Refused)
    assert (str(refused), refused.code) == ("no", Code.INVALID_ARGUMENT)


async def test_when_the_worker_with_the_run_in_its_cache_is_silent_another_is_asked_and_gets_the_history() -> None:
    registry = QueryRegistry()
    asked = registry.ask_directly("q", QUERY)
    asked.is_sticky = True
    assert registry.take("q") is asked
    registry.offer_again("q")
    again = registry.take("q")
    assert again is asked
    assert not again.is_sticky
    # The first one answers after all.
    assert registry.answer_directly("q", RespondQueryTaskCompletedRequest(completed_type=ANSWERED, query_result=ANSWER))
    assert asked.done.result() == Answered(ANSWER)


async def test_a_query_that_nobody_waits_for_is_given_to_nobody() -> None:
    registry = QueryRegistry()
    registry.ask_directly("q", QUERY)
    registry.forget("q")
    assert registry.take("q") is None
    assert registry.is_idle
    registry.offer_again("q")
    registry.answer({"q": WorkflowQueryResult(result_type=ANSWERED)})


async def test_the_answer_of_a_workflow_task_is_not_for_a_query_of_its_own_nor_the_other_way_round() -> None:
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
    with pytest.raises(Refused, match="consistent query buffer is full") as refused:
        registry.buffer("more", QUERY)
    assert refused.value.code == Code.RESOURCE_EXHAUSTED
    for number in range(DIRECT_MAX):
        registry.ask_directly(f"d{number}", QUERY)
    with pytest.raises(Refused):
        registry.ask_directly("more", QUERY)


async def test_who_waits_at_a_host_that_loses_the_run_is_sent_to_the_next() -> None:
    registry = QueryRegistry()
    query = registry.buffer("q", QUERY)
    registry.abandon()
    assert isinstance(query.done.result(), RetryElsewhere)
    assert registry.is_idle
