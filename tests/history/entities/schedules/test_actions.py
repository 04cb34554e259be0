from temporalio.api.common.v1 import Payload, Payloads, WorkflowType
from temporalio.api.enums.v1 import EventType, WorkflowExecutionStatus
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import (
    HistoryEvent,
    WorkflowExecutionCompletedEventAttributes,
    WorkflowExecutionContinuedAsNewEventAttributes,
    WorkflowExecutionFailedEventAttributes,
    WorkflowExecutionTerminatedEventAttributes,
    WorkflowExecutionTimedOutEventAttributes,
)
from temporalio.api.schedule.v1 import Schedule, ScheduleAction
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflow.v1 import NewWorkflowExecutionInfo
from temporalio.api.workflowservice.v1 import StartWorkflowExecutionRequest

from fairlead.api.times import SECOND_NS
from fairlead.history.entities.schedules.actions import Watch, start_request
from fairlead.history.entities.schedules.close_notification import closed_by, watch_of
from fairlead.history.entities.schedules.machine import filled_in
from fairlead.history.entities.schedules.state import ScheduleRecord, Start

NOMINAL_NS = 1_714_528_800 * SECOND_NS
RESULT = Payloads(payloads=[Payload(data=b"5")])
FAILURE = Failure(message="f")
WATCH = Watch("s", "run", 3)
DONE = int(WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_COMPLETED)


def request_of(record: ScheduleRecord, *, overlaps: bool = False) -> StartWorkflowExecutionRequest:
    start = Start(3, NOMINAL_NS, NOMINAL_NS + 5, 0, is_manual=False, overlaps=overlaps)
    return start_request(record, start, namespace="default", schedule_id="s", run_id="run")


def a_record() -> ScheduleRecord:
    action = NewWorkflowExecutionInfo(
        workflow_id="w", workflow_type=WorkflowType(name="T"), task_queue=TaskQueue(name="q"), input=RESULT
    )
    action.priority.priority_key = 2
    action.user_metadata.summary.data = b"x"
    schedule = filled_in(Schedule(action=ScheduleAction(start_workflow=action)))
    record = ScheduleRecord(schedule.SerializeToString(), b"", b"", created_ns=0)
    record.last_result, record.last_failure = RESULT.SerializeToString(), FAILURE.SerializeToString()
    return record


def test_the_same_action_gives_the_same_request() -> None:
    request = request_of(a_record())
    assert request == request_of(a_record())
    assert request.workflow_id == "w-2024-05-01T02:00:00Z"
    assert request.request_id == "run-3"
    assert (request.input, request.priority.priority_key, request.user_metadata.summary.data) == (RESULT, 2, b"x")


def test_an_overlapping_action_gets_no_last_result() -> None:
    request = request_of(a_record())
    assert (request.last_completion_result, request.continued_failure) == (RESULT, FAILURE)
    request = request_of(a_record(), overlaps=True)
    assert not request.HasField("last_completion_result")
    assert not request.HasField("continued_failure")


def test_the_start_request_carries_the_id_of_its_schedule() -> None:
    (callback,) = request_of(a_record()).completion_callbacks
    assert watch_of(callback.internal.data) == WATCH
    assert watch_of(b"somebody else's") is None


def test_the_end_of_a_workflow_is_reported_with_its_result_or_failure() -> None:
    completed = HistoryEvent(
        event_type=EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED,
        workflow_execution_completed_event_attributes=WorkflowExecutionCompletedEventAttributes(result=RESULT),
    )
    closed = closed_by(WATCH, completed)
    assert closed is not None
    assert (closed.number, closed.status, closed.result) == (3, DONE, RESULT.SerializeToString())
    failed = HistoryEvent(
        event_type=EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED,
        workflow_execution_failed_event_attributes=WorkflowExecutionFailedEventAttributes(failure=FAILURE),
    )
    closed = closed_by(WATCH, failed)
    assert closed is not None
    assert closed.failure == FAILURE.SerializeToString()
    terminated = HistoryEvent(
        event_type=EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED,
        workflow_execution_terminated_event_attributes=WorkflowExecutionTerminatedEventAttributes(),
    )
    closed = closed_by(WATCH, terminated)
    assert closed is not None
    assert (closed.result, closed.failure) == (b"", b"")


def test_a_run_with_a_successor_is_not_reported_as_ended() -> None:
    for event in (
        HistoryEvent(
            event_type=EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW,
            workflow_execution_continued_as_new_event_attributes=WorkflowExecutionContinuedAsNewEventAttributes(),
        ),
        HistoryEvent(
            event_type=EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED,
            workflow_execution_completed_event_attributes=WorkflowExecutionCompletedEventAttributes(
                new_execution_run_id="n"
            ),
        ),
        HistoryEvent(
            event_type=EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED,
            workflow_execution_failed_event_attributes=WorkflowExecutionFailedEventAttributes(new_execution_run_id="n"),
        ),
        HistoryEvent(
            event_type=EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT,
            workflow_execution_timed_out_event_attributes=WorkflowExecutionTimedOutEventAttributes(
                new_execution_run_id="n"
            ),
        ),
    ):
        assert closed_by(WATCH, event) is None
