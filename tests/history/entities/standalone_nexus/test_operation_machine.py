"""The state machine of a standalone Nexus operation, with a clock that the test sets."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import NexusOperationCancellationState as CancelState
from temporalio.api.enums.v1 import TimeoutType
from temporalio.api.failure.v1 import Failure

from fairlead.api.errors import ApiError
from fairlead.api.links import operation_link
from fairlead.api.times import SECOND_NS
from fairlead.history.entities.entity import EntityStep
from fairlead.history.entities.standalone_nexus import machine
from fairlead.history.entities.standalone_nexus.machine import Step
from fairlead.history.entities.standalone_nexus.state import OperationState, Phase
from fairlead.history.entities.standalone_nexus.tasks import AnyTask, Call, CallTimeout, Retry, TimeOut, decode_task
from fairlead.history.state.errors import NotPending
from fairlead.history.state.nexus_calls import CALL_NS_MAX, FAILURE_BYTES_MAX
from fairlead.history.state.nexus_failures import handler_failure

START_NS = 1_700_000_000 * SECOND_NS
TOKEN = "token"  # noqa: S105 - an operation token, not a secret
RESULT = Payload(data=b"done")


@dataclass
class Operation:
    """An operation with its pending tasks and their due times."""

    to_close_s: int = 0
    to_start_s: int = 0
    work_s: int = 0
    now_ns: int = START_NS
    tasks: list[tuple[int, AnyTask]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.state = OperationState(
            operation_id="o",
            run_id="run",
            request_id="request",
            endpoint="there",
            endpoint_id="id",
            service="service",
            operation="operation",
            scheduled_ns=START_NS,
            schedule_to_close_ns=self.to_close_s * SECOND_NS,
            schedule_to_start_ns=self.to_start_s * SECOND_NS,
            start_to_close_ns=self.work_s * SECOND_NS,
        )
        self.do(machine.schedule)

    def do(self, act: Any, *args: Any, **options: Any) -> Step:
        """Take one step and keep its tasks."""
        step: Step = EntityStep(self.state, self.now_ns, uniform=lambda: 0.5)
        act(step, *args, **options)
        self.tasks += [(at_ns or self.now_ns, decode_task(data)) for data, at_ns in step.tasks]
        return step

    def wait(self, seconds: float) -> None:
        """Advance the clock and fire the timers that become due; the test itself answers requests."""
        until_ns = self.now_ns + int(seconds * SECOND_NS)
        while due := [one for one in self.tasks if one[0] <= until_ns and not isinstance(one[1], Call)]:
            first = min(due, key=lambda one: one[0])
            self.tasks.remove(first)
            self.now_ns = max(self.now_ns, first[0])
            match first[1]:
                case CallTimeout() as task:
                    self.do(machine.give_up_call, task)
                case Retry() as task:
                    self.do(machine.retry, task)
                case TimeOut() as task:
                    self.do(machine.time_out, task)
        self.now_ns = until_ns

    def start(self) -> None:
        self.do(machine.start, 1, token=TOKEN, links=[])

    def end(self, **options: Any) -> None:
        given = {"request_id": "request", "token": TOKEN, "started_ns": START_NS, "links": [], "failure": None}
        self.do(machine.end, **{**given, "result": RESULT, **options})

    @property
    def phase(self) -> Phase:
        return self.state.phase

    @property
    def cancel_state(self) -> int:
        assert self.state.cancellation is not None
        return self.state.cancellation.state

    @property
    def calls(self) -> list[tuple[int, bool]]:
        """The attempt number of each request, and whether it requests cancellation."""
        return [(task.attempt, task.is_cancel) for _, task in self.tasks if isinstance(task, Call)]


def failure_of(operation: Operation) -> Failure:
    assert operation.state.failure is not None
    return Failure.FromString(operation.state.failure)


def test_a_request_without_a_response_is_retried_with_a_growing_backoff() -> None:
    operation = Operation()
    operation.wait(CALL_NS_MAX / SECOND_NS)
    assert (operation.phase, operation.state.calls.attempt) == (Phase.BACKING_OFF, 1)
    # The backoffs are 1 s and 2 s, less up to 20% jitter; `uniform` returns 0.5, so each is 10% shorter.
    assert operation.state.calls.next_ns == operation.now_ns + int(0.9 * SECOND_NS)
    operation.wait(0.9)
    assert (operation.phase, operation.calls) == (Phase.SCHEDULED, [(1, False), (2, False)])
    operation.do(machine.call_failed, 2, failure=handler_failure("UNAVAILABLE", "not yet"))
    assert operation.state.calls.next_ns == operation.now_ns + int(1.8 * SECOND_NS)


@pytest.mark.parametrize("attempt", [1, 3])
def test_a_response_to_another_request_is_refused(attempt: int) -> None:
    operation = Operation()
    operation.wait(CALL_NS_MAX / SECOND_NS + 1)
    for act, options in (
        (machine.succeed, {"result": RESULT, "links": []}),
        (machine.start, {"token": "t", "links": []}),
        (machine.fail, {"failure": Failure()}),
        (machine.call_failed, {"failure": handler_failure("INTERNAL", "")}),
        (machine.cancel_answered, {"failure": None}),
    ):
        with pytest.raises(NotPending):
            operation.do(act, attempt, **options)
    assert (operation.phase, operation.state.calls.attempt) == (Phase.SCHEDULED, 2)


def test_a_non_retryable_error_ends_the_operation() -> None:
    operation = Operation()
    operation.do(machine.call_failed, 1, failure=handler_failure("BAD_REQUEST", "no"))
    assert (operation.phase, failure_of(operation).message) == (Phase.FAILED, "no")


def test_the_end_may_be_reported_before_the_response_to_the_request() -> None:
    operation = Operation()
    link = operation_link(namespace="n", operation_id="other", run_id="r")
    operation.end(links=[link])
    assert (operation.phase, operation.state.token) == (Phase.SUCCEEDED, TOKEN)
    assert operation.state.links == (link.SerializeToString(),)
    with pytest.raises(NotPending):
        operation.start()


def test_an_end_is_accepted_once_and_only_for_its_own_request() -> None:
    operation = Operation()
    operation.start()
    with pytest.raises(NotPending):
        operation.end(request_id="another")
    canceled = Failure()
    canceled.canceled_failure_info.SetInParent()
    operation.end(failure=canceled)
    assert operation.phase is Phase.CANCELED
    with pytest.raises(NotPending):
        operation.end()


def test_a_cancellation_waits_until_the_handler_has_started_the_operation() -> None:
    operation = Operation()
    operation.do(machine.request_cancel, request_id="one", identity="me", reason="why")
    assert (operation.cancel_state, operation.calls) == (0, [(1, False)])
    operation.start()
    assert operation.cancel_state == CancelState.NEXUS_OPERATION_CANCELLATION_STATE_SCHEDULED
    assert operation.calls == [(1, False), (1, True)]
    operation.wait(CALL_NS_MAX / SECOND_NS)
    assert operation.cancel_state == CancelState.NEXUS_OPERATION_CANCELLATION_STATE_BACKING_OFF
    operation.wait(1)
    operation.do(machine.cancel_answered, 2, failure=None)
    assert operation.cancel_state == CancelState.NEXUS_OPERATION_CANCELLATION_STATE_SUCCEEDED
    assert operation.phase is Phase.STARTED


def test_a_cancellation_that_the_handler_refuses_for_good_has_failed() -> None:
    operation = Operation()
    operation.start()
    operation.do(machine.request_cancel, request_id="one", identity="me", reason="why")
    operation.do(machine.cancel_answered, 1, failure=handler_failure("NOT_FOUND", "no"))
    assert operation.cancel_state == CancelState.NEXUS_OPERATION_CANCELLATION_STATE_FAILED
    operation.wait(10_000)
    assert operation.calls == [(1, False), (1, True)]


def test_the_same_request_to_cancel_changes_nothing_and_another_one_is_refused() -> None:
    operation = Operation()
    operation.do(machine.request_cancel, request_id="one", identity="me", reason="why")
    assert operation.do(machine.request_cancel, request_id="one", identity="me", reason="why").skip_write
    with pytest.raises(ApiError, match="cancellation already requested with request ID one"):
        operation.do(machine.request_cancel, request_id="two", identity="me", reason="why")


@pytest.mark.parametrize(
    ("to_close_s", "to_start_s", "kind"),
    [
        (3, 0, TimeoutType.TIMEOUT_TYPE_SCHEDULE_TO_CLOSE),
        (0, 3, TimeoutType.TIMEOUT_TYPE_SCHEDULE_TO_START),
    ],
)
def test_an_operation_that_does_not_start_in_time_is_timed_out(to_close_s: int, to_start_s: int, kind: int) -> None:
    operation = Operation(to_close_s, to_start_s)
    operation.wait(2.9)
    assert operation.state.is_open
    operation.wait(0.1)
    assert operation.phase is Phase.TIMED_OUT
    assert failure_of(operation).timeout_failure_info.timeout_type == kind


def test_the_start_ends_the_schedule_to_start_timeout_and_begins_the_start_to_close_timeout() -> None:
    operation = Operation(to_start_s=3, work_s=5)
    operation.wait(2)
    operation.start()
    operation.wait(4.9)
    assert operation.phase is Phase.STARTED
    operation.wait(0.1)
    assert failure_of(operation).timeout_failure_info.timeout_type == TimeoutType.TIMEOUT_TYPE_START_TO_CLOSE


def test_nothing_happens_to_an_operation_that_has_ended() -> None:
    operation = Operation(to_close_s=5)
    operation.do(machine.terminate, request_id="one", identity="me", reason="enough")
    assert operation.do(machine.terminate, request_id="one", identity="me", reason="enough").skip_write
    operation.wait(100)
    assert (operation.phase, operation.state.closed_ns) == (Phase.TERMINATED, START_NS)
    assert failure_of(operation).terminated_failure_info.identity == "me"
    with pytest.raises(ApiError, match="operation already completed"):
        operation.do(machine.request_cancel, request_id="two", identity="me", reason="why")


def test_a_large_failure_of_a_request_is_cut_but_the_operations_final_failure_is_kept() -> None:
    operation = Operation()
    large = handler_failure("UNAVAILABLE", "x" * 10_000)
    operation.do(machine.call_failed, 1, failure=large)
    assert operation.state.calls.failure is not None
    assert len(operation.state.calls.failure) <= FAILURE_BYTES_MAX
    operation.wait(1)
    last = handler_failure("BAD_REQUEST", "x" * 10_000)
    operation.do(machine.call_failed, 2, failure=last)
    assert failure_of(operation) == last
