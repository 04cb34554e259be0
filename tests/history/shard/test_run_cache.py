"""A run as a whole: its start, signals and cancellation, its end, and the run that continues it."""

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import (
    ContinueAsNewInitiator,
    EventType,
    RetryState,
    StartChildWorkflowExecutionFailedCause,
)
from temporalio.api.enums.v1 import WorkflowTaskFailedCause as Cause
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent

from fairlead.api.limits import REQUEST_IDS_MAX
from fairlead.api.times import SECOND_NS, from_duration, to_duration
from fairlead.history.events import (
    Transaction,
    child_closed,
    child_start_failed,
    child_started,
    end_backoff,
    external_signaled,
    needs_start_event,
    request_cancel,
    terminate,
    time_out_run,
)
from fairlead.history.events.write_workflow_tasks import wake
from fairlead.history.state import Limits, NotPending, RunClosed, TooManySignals
from fairlead.history.state.errors import StartEventNeeded
from fairlead.history.state.tasks import DeleteAfterRetention, ExecutionTimeout, RunTimeout, WorkflowBackoff
from tests.history.scenario import Scenario, command, payloads

COMPLETE = command("complete_workflow_execution", result=payloads('"done"'))
FAIL = command("fail_workflow_execution", failure=Failure(message="no"))
CHILD = command("start_child_workflow_execution", workflow_id="c", workflow_type={"name": "C"})


def test_the_timeouts_are_counted_from_the_first_workflow_task() -> None:
    run = Scenario(
        workflow_execution_timeout=to_duration(100 * SECOND_NS),
        workflow_run_timeout=to_duration(30 * SECOND_NS),
        workflow_start_delay=to_duration(5 * SECOND_NS),
    )
    assert run.task(RunTimeout).fire_at_ns == run.now_ns + 35 * SECOND_NS
    assert run.task(WorkflowBackoff).fire_at_ns == run.now_ns + 5 * SECOND_NS
    expiry_ns = run.task(ExecutionTimeout).fire_at_ns
    assert 0 <= run.now_ns + 105 * SECOND_NS - expiry_ns < 1_000_000
    assert run.types() == ["WORKFLOW_EXECUTION_STARTED"]


def test_a_signal_does_not_end_a_start_delay_but_a_cancellation_does() -> None:
    """Same as the reference server: recordings start_delay_signaled and start_delay_canceled."""
    run = Scenario(workflow_start_delay=to_duration(5 * SECOND_NS))
    run.signal()
    assert run.types(1) == ["WORKFLOW_EXECUTION_SIGNALED"]
    assert run.step(lambda t: request_cancel(t, request_id="c"))
    assert run.types(2) == ["WORKFLOW_EXECUTION_CANCEL_REQUESTED", "WORKFLOW_TASK_SCHEDULED"]
    assert not run.step(end_backoff)


def test_a_request_takes_effect_once() -> None:
    run = Scenario()
    assert run.signal(request_id="same")
    assert not run.signal(request_id="same")
    assert run.signal(request_id="")
    assert run.signal(request_id="")
    assert run.step(lambda t: request_cancel(t, request_id="c"))
    assert not run.step(lambda t: request_cancel(t, request_id="d"))
    assert run.state.signal_count == 3


def test_a_buffered_request_takes_effect_once() -> None:
    run = Scenario()
    run.start_task()
    assert run.signal(request_id="same")
    assert not run.signal(request_id="same")
    assert run.step(lambda t: request_cancel(t, request_id="c"))
    assert not run.step(lambda t: request_cancel(t, request_id="d"))
    assert len(run.state.live.buffered) == 2


def test_the_oldest_request_ids_are_forgotten() -> None:
    run = Scenario(limits=Limits(signals_max=REQUEST_IDS_MAX + 1))
    run.state.live.request_ids = {f"{number}": None for number in range(REQUEST_IDS_MAX)}
    run.signal(request_id="new")
    assert len(run.state.live.request_ids) == REQUEST_IDS_MAX
    assert "0" not in run.state.live.request_ids
    assert "new" in run.state.live.request_ids


def test_the_number_of_signals_of_a_run_is_bounded() -> None:
    run = Scenario(limits=Limits(signals_max=2))
    run.signal()
    run.signal()
    with pytest.raises(TooManySignals, match="limit for signal events"):
        run.signal()


def test_a_termination_flushes_buffered_events_and_fails_the_started_workflow_task() -> None:
    run = Scenario()
    run.start_task()
    run.signal()
    run.step(lambda t: terminate(t, reason="enough", identity="me"))
    assert run.types(3) == ["WORKFLOW_TASK_FAILED", "WORKFLOW_EXECUTION_SIGNALED", "WORKFLOW_EXECUTION_TERMINATED"]
    failed = run.history[3].workflow_task_failed_event_attributes
    assert failed.cause == Cause.WORKFLOW_TASK_FAILED_CAUSE_FORCE_CLOSE_COMMAND
    assert failed.identity == "history-service"
    assert run.task(DeleteAfterRetention).fire_at_ns == run.now_ns
    with pytest.raises(RunClosed, match="workflow execution already completed"):
        run.step(lambda t: terminate(t, reason="again", identity="me"))


def test_a_failed_run_is_retried_by_its_policy() -> None:
    run = Scenario(retry_policy={"initial_interval": {"seconds": 3}, "backoff_coefficient": 2, "maximum_attempts": 2})
    assert needs_start_event(run.state)
    run.work(FAIL)
    assert run.history[-1].workflow_execution_failed_event_attributes.retry_state == RetryState.RETRY_STATE_IN_PROGRESS
    assert run.new_run is not None
    started = run.new_run.events[0].workflow_execution_started_event_attributes
    assert started.attempt == 2
    assert started.initiator == ContinueAsNewInitiator.CONTINUE_AS_NEW_INITIATOR_RETRY
    assert started.continued_failure.message == "no"
    assert from_duration(started.first_workflow_task_backoff) == 3 * SECOND_NS


def test_a_cron_run_is_followed_by_the_next_with_its_result() -> None:
    run = Scenario(cron_schedule="@every 10s")
    run.step(end_backoff, after_s=10)
    run.work(COMPLETE)
    assert run.new_run is not None
    started = run.new_run.events[0].workflow_execution_started_event_attributes
    assert started.last_completion_result == payloads('"done"')
    assert started.initiator == ContinueAsNewInitiator.CONTINUE_AS_NEW_INITIATOR_CRON_SCHEDULE
    assert started.attempt == 1
    assert from_duration(started.first_workflow_task_backoff) == 10 * SECOND_NS


def test_continuing_a_run_needs_its_first_event() -> None:
    run = Scenario(retry_policy={"maximum_attempts": 2})
    run.start_task()

    def without_start(transaction: Transaction) -> None:
        transaction.start_event = None
        time_out_run(transaction)

    with pytest.raises(StartEventNeeded, match="load its first event"):
        run.step(without_start)
    run.check()
    run.step(time_out_run)
    assert run.new_run is not None


def test_a_run_past_the_execution_timeout_is_not_retried() -> None:
    run = Scenario(workflow_execution_timeout=to_duration(SECOND_NS), retry_policy={"maximum_attempts": 5})
    run.step(time_out_run, after_s=2)
    assert run.types(2) == ["WORKFLOW_EXECUTION_TIMED_OUT"]
    assert run.history[-1].workflow_execution_timed_out_event_attributes.retry_state == RetryState.RETRY_STATE_TIMEOUT
    assert run.new_run is None


def test_a_parent_gets_the_start_and_the_end_of_a_child_once_and_in_order() -> None:
    run = Scenario()
    run.work(CHILD)
    close = HistoryEvent(event_type=EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED)
    close.workflow_execution_completed_event_attributes.result.CopyFrom(payloads("7"))
    execution = WorkflowExecution(workflow_id="c", run_id="child-run")
    with pytest.raises(NotPending, match="not known to have started"):
        run.step(lambda t: child_closed(t, 5, execution=execution, close_event=close))
    run.signal()
    run.start_task()
    assert run.step(lambda t: child_started(t, 5, run_id="child-run"))
    assert not run.step(lambda t: child_started(t, 5, run_id="child-run"))
    run.step(lambda t: child_closed(t, 5, execution=execution, close_event=close))
    with pytest.raises(NotPending):
        run.step(lambda t: child_closed(t, 5, execution=execution, close_event=close))
    run.answer()
    assert run.types(9) == [
        "CHILD_WORKFLOW_EXECUTION_STARTED",
        "CHILD_WORKFLOW_EXECUTION_COMPLETED",
        "WORKFLOW_TASK_SCHEDULED",
    ]
    completed = run.history[10].child_workflow_execution_completed_event_attributes
    assert (completed.initiated_event_id, completed.started_event_id) == (5, 10)
    assert completed.result == payloads("7")
    assert not run.state.children


def test_a_child_that_can_not_start_is_removed_and_its_sibling_stays() -> None:
    run = Scenario()
    run.work(CHILD, CHILD)
    cause = StartChildWorkflowExecutionFailedCause.START_CHILD_WORKFLOW_EXECUTION_FAILED_CAUSE_WORKFLOW_ALREADY_EXISTS
    run.step(lambda t: child_start_failed(t, 5, cause))
    assert run.types(6) == ["START_CHILD_WORKFLOW_EXECUTION_FAILED", "WORKFLOW_TASK_SCHEDULED"]
    assert set(run.state.children) == {6}
    with pytest.raises(NotPending):
        run.step(lambda t: child_started(t, 5, run_id="late"))


def test_an_external_result_is_recorded_once() -> None:
    run = Scenario()
    run.work(command("signal_external_workflow_execution", execution={"workflow_id": "o"}, signal_name="s"))
    run.step(lambda t: external_signaled(t, 5))
    with pytest.raises(NotPending):
        run.step(lambda t: external_signaled(t, 5))


def test_events_are_written_at_the_namespaces_version_and_numbered_in_order() -> None:
    """NDC-4."""
    run = Scenario()
    run.start_task()
    run.signal()
    run.version = 12
    run.answer()
    assert [event.version for event in run.history] == [0, 0, 0, 12, 12, 12]
    assert run.state.versions is not None
    assert run.state.versions.to_pairs() == ((3, 0), (6, 12))
    transaction = Transaction(run.state, now_ns=run.now_ns, version=12, new_id=lambda: "id")
    terminate(transaction, reason="", identity="")
    transaction.finish(first_task_id=100)
    assert [event.task_id for event in transaction.events] == [100]


def test_attempts_are_counted_for_one_version_only() -> None:
    """NDC-4: a workflow task of another version belongs to another cluster; attempts start again at 1."""
    run = Scenario()
    run.start_task()
    run.signal()
    run.step(wake)
    run.version = 12
    run.answer()
    task = run.state.workflow_task
    assert task is not None
    assert (task.version, task.attempt) == (12, 1)
