"""Nexus operations as the workflow that called them sees them."""

from functools import partial

import pytest
from temporalio.api.command.v1 import Command
from temporalio.api.common.v1 import Link, Payload
from temporalio.api.enums.v1 import NexusOperationCancellationState as CancelState
from temporalio.api.enums.v1 import PendingNexusOperationState, TimeoutType
from temporalio.api.enums.v1 import WorkflowTaskFailedCause as Cause
from temporalio.api.failure.v1 import CanceledFailureInfo, Failure

from fairlead.api.times import SECOND_NS, from_duration, to_duration
from fairlead.history.commands import Completion
from fairlead.history.events import Transaction
from fairlead.history.events.write_nexus import (
    call_failed,
    cancel_answered,
    end_call_backoff,
    give_up_call,
    is_called,
    operation_completed,
    operation_ended,
    operation_failed,
    operation_started,
    time_out_operation,
)
from fairlead.history.nexus.describe import pending_operations
from fairlead.history.state import NotPending
from fairlead.history.state.nexus_calls import CALL_NS_MAX
from fairlead.history.state.nexus_failures import handler_failure
from fairlead.history.state.tasks import CallNexus, NexusCallTimeout, NexusRetry, NexusTimeout
from tests.history.scenario import Scenario, command

AT = 5
RESULT = Payload(data=b"1")
BEGUN = "token"
CANCELED = Failure(message="no", canceled_failure_info=CanceledFailureInfo())
UNAVAILABLE = handler_failure("UNAVAILABLE", "not now")


def operation(**attributes: object) -> Command:
    given: dict[str, object] = {"endpoint": "desk", "service": "service", "operation": "operation"} | attributes
    return command("schedule_nexus_operation", **given)


def cancel(event_id: int = AT) -> Command:
    return command("request_cancel_nexus_operation", scheduled_event_id=event_id)


def scheduled(**attributes: object) -> Scenario:
    run = Scenario()
    run.work(operation(**attributes))
    return run


def begin(run: Scenario, *, attempt: int = 1) -> None:
    run.step(lambda t: operation_started(t, AT, token=BEGUN, links=[], attempt=attempt))


def fail_call(run: Scenario, attempt: int, failure: Failure = UNAVAILABLE) -> None:
    run.step(lambda t: call_failed(t, AT, failure=failure, attempt=attempt))


def end(run: Scenario, failure: Failure | None = None, request_id: str = "") -> None:
    request_id = request_id or run.state.nexus_operations[AT].request_id

    def step(transaction: Transaction) -> None:
        operation_ended(
            transaction,
            AT,
            request_id=request_id,
            token=BEGUN,
            started_ns=run.now_ns,
            link=Link(),
            result=RESULT,
            failure=failure,
        )

    run.step(step)


def started(**attributes: object) -> Scenario:
    run = scheduled(**attributes)
    begin(run)
    run.work()
    return run


def rejected(wanted: Command, *before: Command) -> Completion:
    return Scenario().work(*before, wanted)


def test_a_scheduled_operation_is_called_and_has_a_timeout() -> None:
    run = scheduled()
    assert run.types(AT - 1) == ["NEXUS_OPERATION_SCHEDULED"]
    attributes = run.history[-1].nexus_operation_scheduled_event_attributes
    assert (attributes.endpoint_id, bool(attributes.request_id)) == ("endpoint-id", True)
    assert run.task(CallNexus) == CallNexus(0, AT, 1, is_cancel=False)
    assert run.task(NexusCallTimeout).fire_at_ns == run.now_ns + CALL_NS_MAX


def test_a_result_ends_the_operation_and_wakes_the_workflow() -> None:
    run = scheduled()
    run.step(lambda t: operation_completed(t, AT, result=RESULT, links=[], attempt=1))
    assert run.types(AT) == ["NEXUS_OPERATION_COMPLETED", "WORKFLOW_TASK_SCHEDULED"]
    assert not run.state.nexus_operations
    with pytest.raises(NotPending, match="Nexus task not found or already expired"):
        run.step(lambda t: operation_completed(t, AT, result=RESULT, links=[], attempt=1))


@pytest.mark.parametrize(
    ("cause", "event"),
    [
        (Failure(message="no"), "NEXUS_OPERATION_FAILED"),
        (CANCELED, "NEXUS_OPERATION_CANCELED"),
    ],
)
def test_the_handlers_response_decides_the_state_of_the_operation(cause: Failure, event: str) -> None:
    run = scheduled()
    run.step(lambda t: operation_failed(t, AT, cause=cause, attempt=1))
    assert run.types(AT) == [event, "WORKFLOW_TASK_SCHEDULED"]


def test_a_failed_request_is_retried_with_a_growing_backoff() -> None:
    run = scheduled()
    waits = []
    for attempt in range(1, 15):
        fail_call(run, attempt)
        due = run.task(NexusRetry)
        waits.append((due.fire_at_ns - run.now_ns) / SECOND_NS)
        assert not is_called(run.state, AT, attempt + 1, is_cancel=False)
        assert run.step(partial(end_call_backoff, due=due))
        assert run.task(CallNexus) == CallNexus(0, AT, attempt + 1, is_cancel=False)
        assert is_called(run.state, AT, attempt + 1, is_cancel=False)
    assert waits[:4] == [1, 2, 4, 8]
    assert waits[-1] == 3600
    assert run.types(AT) == []


def test_a_request_with_a_non_retryable_error_is_not_retried() -> None:
    run = scheduled()
    fail_call(run, 1, handler_failure("BAD_REQUEST", "no"))
    assert run.types(AT) == ["NEXUS_OPERATION_FAILED", "WORKFLOW_TASK_SCHEDULED"]
    failed = run.history[AT].nexus_operation_failed_event_attributes.failure
    assert failed.cause.nexus_handler_failure_info.type == "BAD_REQUEST"
    assert failed.nexus_operation_execution_failure_info.scheduled_event_id == AT


def test_a_response_to_an_earlier_request_has_no_effect() -> None:
    run = scheduled()
    fail_call(run, 1)
    for attempt in (1, 2):
        # The second attempt has not been made yet.
        with pytest.raises(NotPending):
            run.step(partial(operation_completed, scheduled_event_id=AT, result=RESULT, links=[], attempt=attempt))


def test_a_request_without_a_response_times_out_once() -> None:
    run = scheduled()
    due = run.task(NexusCallTimeout)
    assert run.step(lambda t: give_up_call(t, due), after_s=8)
    assert run.state.live.nexus[AT].start.ended == 1
    assert not run.step(lambda t: give_up_call(t, due))


def test_a_request_with_a_response_does_not_time_out() -> None:
    run = scheduled()
    due = run.task(NexusCallTimeout)
    begin(run)
    assert not run.step(lambda t: give_up_call(t, due))


def test_an_asynchronous_operation_is_completed_by_its_request_id() -> None:
    run = started()
    with pytest.raises(NotPending):
        end(run, request_id="another")
    end(run)
    assert run.types()[-2:] == ["NEXUS_OPERATION_COMPLETED", "WORKFLOW_TASK_SCHEDULED"]


def test_a_completion_before_the_start_writes_both_events() -> None:
    run = scheduled()
    end(run, Failure(message="no"))
    assert run.types(AT) == ["NEXUS_OPERATION_STARTED", "NEXUS_OPERATION_FAILED", "WORKFLOW_TASK_SCHEDULED"]
    with pytest.raises(NotPending):
        begin(run)


def test_a_start_and_a_completion_during_a_workflow_task_are_buffered_in_order() -> None:
    run = scheduled()
    run.signal()
    run.start_task()
    begin(run)
    end(run)
    assert run.types()[-1] == "WORKFLOW_TASK_STARTED"
    assert list(pending_operations(run.state)) == []
    run.answer()
    assert run.types()[-4:] == [
        "WORKFLOW_TASK_COMPLETED",
        "NEXUS_OPERATION_STARTED",
        "NEXUS_OPERATION_COMPLETED",
        "WORKFLOW_TASK_SCHEDULED",
    ]


@pytest.mark.parametrize(
    ("timeout", "kind"),
    [
        ("schedule_to_close_timeout", TimeoutType.TIMEOUT_TYPE_SCHEDULE_TO_CLOSE),
        ("schedule_to_start_timeout", TimeoutType.TIMEOUT_TYPE_SCHEDULE_TO_START),
    ],
)
def test_an_operation_times_out(timeout: str, kind: TimeoutType.ValueType) -> None:
    run = scheduled(**{timeout: to_duration(3 * SECOND_NS)})
    due = run.task(NexusTimeout)
    assert due.fire_at_ns == run.now_ns + 3 * SECOND_NS
    assert run.step(lambda t: time_out_operation(t, due))
    failed = run.history[AT].nexus_operation_timed_out_event_attributes.failure
    assert failed.cause.timeout_failure_info.timeout_type == kind
    assert not run.step(lambda t: time_out_operation(t, due))


def test_a_started_operation_can_only_exceed_its_start_to_close_timeout() -> None:
    run = scheduled(
        schedule_to_start_timeout=to_duration(3 * SECOND_NS), start_to_close_timeout=to_duration(5 * SECOND_NS)
    )
    to_start = run.task(NexusTimeout)
    begin(run)
    to_close = run.task(NexusTimeout)
    assert not run.step(lambda t: time_out_operation(t, to_start))
    assert to_close.fire_at_ns == run.now_ns - SECOND_NS // 1000 + 5 * SECOND_NS
    assert run.step(lambda t: time_out_operation(t, to_close))


def test_no_timeout_of_an_operation_exceeds_the_runs_or_its_schedule_to_close_timeout() -> None:
    run = Scenario(workflow_run_timeout=to_duration(100 * SECOND_NS))
    run.work(
        operation(),
        operation(
            schedule_to_close_timeout=to_duration(20 * SECOND_NS), start_to_close_timeout=to_duration(90 * SECOND_NS)
        ),
    )
    first, second = (event.nexus_operation_scheduled_event_attributes for event in run.history[-2:])
    assert from_duration(first.schedule_to_close_timeout) == 100 * SECOND_NS
    assert not first.HasField("start_to_close_timeout")
    assert from_duration(second.start_to_close_timeout) == 20 * SECOND_NS


def test_a_handler_gets_a_cancel_request_for_a_started_operation() -> None:
    run = started()
    run.signal()
    run.work(cancel())
    assert run.task(CallNexus) == CallNexus(0, AT, 1, is_cancel=True)
    run.step(lambda t: cancel_answered(t, AT, failure=None, attempt=1))
    assert "NEXUS_OPERATION_CANCEL_REQUEST_COMPLETED" in run.types()
    assert run.state.live.nexus[AT].cancel_state == CancelState.NEXUS_OPERATION_CANCELLATION_STATE_SUCCEEDED
    with pytest.raises(NotPending):
        run.step(lambda t: cancel_answered(t, AT, failure=None, attempt=1))


def test_a_cancel_request_waits_until_the_operation_has_started() -> None:
    run = scheduled()
    run.signal()
    run.work(cancel())
    assert not [task for task in run.tasks if isinstance(task, CallNexus)]
    begin(run)
    assert run.task(CallNexus) == CallNexus(0, AT, 1, is_cancel=True)


def test_a_cancel_request_is_retried_or_fails() -> None:
    run = started()
    run.signal()
    run.work(cancel())
    run.step(lambda t: cancel_answered(t, AT, failure=UNAVAILABLE, attempt=1))
    due = run.task(NexusRetry)
    assert due.is_cancel
    assert run.step(lambda t: end_call_backoff(t, due))
    run.step(lambda t: cancel_answered(t, AT, failure=handler_failure("NOT_FOUND", "gone"), attempt=2))
    assert "NEXUS_OPERATION_CANCEL_REQUEST_FAILED" in run.types()
    assert run.state.nexus_operations


def test_a_pending_operation_shows_its_attempts_and_last_failure() -> None:
    run = scheduled()
    fail_call(run, 1)
    (info,) = pending_operations(run.state)
    assert info.state == PendingNexusOperationState.PENDING_NEXUS_OPERATION_STATE_BACKING_OFF
    assert (info.attempt, info.last_attempt_failure.message) == (1, "not now")
    begin_again = run.task(NexusRetry)
    run.step(lambda t: end_call_backoff(t, begin_again))
    begin(run, attempt=2)
    (info,) = pending_operations(run.state)
    assert info.state == PendingNexusOperationState.PENDING_NEXUS_OPERATION_STATE_STARTED
    assert (info.attempt, info.operation_token, info.HasField("last_attempt_failure")) == (2, "token", False)


BAD = Cause.WORKFLOW_TASK_FAILED_CAUSE_BAD_SCHEDULE_NEXUS_OPERATION_ATTRIBUTES
BAD_CANCEL = Cause.WORKFLOW_TASK_FAILED_CAUSE_BAD_REQUEST_CANCEL_NEXUS_OPERATION_ATTRIBUTES


@pytest.mark.parametrize(
    ("wanted", "cause", "message"),
    [
        (operation(endpoint="other"), BAD, 'endpoint "other" not found'),
        (operation(service="s" * 1001), BAD, "Service exceeds length limit of 1000"),
        (operation(schedule_to_close_timeout={"seconds": -1}), BAD, "ScheduleToCloseTimeout is invalid: negative"),
        (operation(nexus_header={"Request-Timeout": "1s"}), BAD, 'disallowed header key: "request-timeout"'),
        (operation(nexus_header={"a": "x" * 8192}), BAD, "NexusHeader exceeds size limit"),
        (cancel(77), BAD_CANCEL, "non-existing or already completed operation with scheduled event ID of 77"),
    ],
)
def test_a_bad_command_fails_the_workflow_task(wanted: Command, cause: Cause.ValueType, message: str) -> None:
    completion = rejected(wanted)
    assert completion.failed is not None
    assert completion.failed.cause == cause
    assert message in completion.message


def test_the_number_of_pending_operations_is_bounded() -> None:
    completion = rejected(operation(), *[operation()] * 30)
    assert completion.message == (
        "PendingNexusOperationsLimitExceeded: workflow has reached the pending nexus operation limit of 30 for this "
        "namespace"
    )


def test_an_operation_is_canceled_only_once() -> None:
    completion = rejected(cancel(), operation(), cancel())
    assert "cancelation was already requested for an operation with scheduled event ID 5" in completion.message
