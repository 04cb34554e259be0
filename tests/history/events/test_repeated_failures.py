"""Repeated failures are retried with a growing backoff, so that one buggy workflow can't keep a server busy."""

import pytest
from temporalio.api.common.v1 import RetryPolicy
from temporalio.api.enums.v1 import WorkflowTaskFailedCause as Cause

from fairlead.api.errors import Exhausted
from fairlead.api.retry import FREE_ATTEMPTS, SPACING_NS_MAX, decide_retry
from fairlead.api.times import SECOND_NS, from_duration, to_duration
from fairlead.history.events import Transaction, end_backoff, fail_workflow_task, schedule_workflow_task
from fairlead.history.state import BadRequest, Limits
from fairlead.history.state.tasks import PushWorkflowTask, WorkflowTaskRetry
from tests.history.scenario import Scenario, command, payloads

UNKNOWN_ENDPOINT = command("schedule_nexus_operation", endpoint="none", service="service", operation="operation")
COMPLETE = command("complete_workflow_execution", result=payloads("1"))
CONTINUE = command("continue_as_new_workflow_execution")


def fail(transaction: Transaction) -> None:
    fail_workflow_task(transaction, Cause.WORKFLOW_TASK_FAILED_CAUSE_WORKFLOW_WORKER_UNHANDLED_FAILURE)
    schedule_workflow_task(transaction, after_failure=True)


def test_a_second_refused_response_leaves_the_workflow_task_started_until_it_times_out() -> None:
    run = Scenario()
    completion = run.work(UNKNOWN_ENDPOINT)
    assert completion.message == 'BadScheduleNexusOperationAttributes: endpoint "none" not found'
    run.start_task()
    with pytest.raises(BadRequest, match=r'^BadScheduleNexusOperationAttributes: endpoint "none" not found$'):
        run.answer(UNKNOWN_ENDPOINT)
    task = run.state.workflow_task
    assert task is not None
    assert (task.attempt, task.is_started) == (2, True)
    assert run.types()[-1] == "WORKFLOW_TASK_FAILED"


def test_a_second_response_that_is_too_large_does_not_end_the_run() -> None:
    run = Scenario(limits=Limits(blob_size_max=10))
    run.work(UNKNOWN_ENDPOINT)
    run.start_task()
    with pytest.raises(BadRequest, match="exceeds size limit"):
        run.answer(command("complete_workflow_execution", result=payloads("12345678901")))
    assert run.state.is_open


def test_a_response_that_misses_a_signal_fails_every_attempt() -> None:
    run = Scenario()
    run.work(UNKNOWN_ENDPOINT)
    run.start_task()
    run.signal()
    completion = run.answer(COMPLETE)
    assert completion.message == "UnhandledCommand"
    task = run.state.workflow_task
    assert task is not None
    assert not task.is_started


def test_a_workflow_that_could_not_close_gets_no_signal_while_its_next_task_runs() -> None:
    run = Scenario()
    run.start_task()
    run.signal()
    assert run.answer(COMPLETE).message == "UnhandledCommand"
    run.signal()
    run.start_task()
    with pytest.raises(Exhausted, match="workflow is closing"):
        run.signal()
    run.answer()
    run.signal()
    run.start_task()
    run.signal()
    assert run.answer(COMPLETE).message == "UnhandledCommand"
    run.start_task()
    run.answer(COMPLETE)
    assert not run.state.is_open


def test_a_worker_that_fails_every_task_at_once_gets_the_next_one_later_and_later() -> None:
    run = Scenario()
    waits_ns = []
    for _ in range(FREE_ATTEMPTS + 20):
        run.start_task()
        run.step(fail)
        retries = [task for task in run.tasks if isinstance(task, WorkflowTaskRetry)]
        pushes = [task for task in run.tasks if isinstance(task, PushWorkflowTask)]
        assert len(retries) + len(pushes) == 1
        waits_ns.append(retries[0].fire_at_ns - run.now_ns if retries else 0)
    assert waits_ns[: FREE_ATTEMPTS - 1] == [0] * (FREE_ATTEMPTS - 1)
    assert waits_ns == sorted(waits_ns)
    assert waits_ns[-1] == 10 * SECOND_NS


def test_retries_without_a_backoff_are_limited_to_one_a_second() -> None:
    policy = RetryPolicy(initial_interval=to_duration(1), maximum_interval=to_duration(1), backoff_coefficient=1)
    waits_ns = [
        decide_retry(policy, attempt=attempt, failure=None, now_ns=0, expires_at_ns=0).backoff_ns or 0
        for attempt in range(1, 40)
    ]
    assert waits_ns[: FREE_ATTEMPTS - 1] == [1] * (FREE_ATTEMPTS - 1)
    assert waits_ns == sorted(waits_ns)
    assert waits_ns[-1] == SPACING_NS_MAX == SECOND_NS
    assert sum(waits_ns[:20]) < 2 * SECOND_NS


def test_a_run_with_a_start_delay_that_continues_as_new_at_once_delays_the_next_run_too() -> None:
    run = Scenario(workflow_start_delay=to_duration(SECOND_NS))
    run.step(end_backoff, after_s=1)
    run.work(CONTINUE)
    assert run.new_run is not None
    started = run.new_run.events[0].workflow_execution_started_event_attributes
    assert 0.9 * SECOND_NS < from_duration(started.first_workflow_task_backoff) <= SECOND_NS
