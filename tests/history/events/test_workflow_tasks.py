"""Workflow tasks: normal ones, speculative ones that leave events only if they succeed, and buffered events."""

import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from temporalio.api.enums.v1 import WorkflowTaskFailedCause as Cause
from temporalio.api.protocol.v1 import Message
from temporalio.api.update.v1 import Acceptance, Input, Meta, Outcome, Rejection, Request, Response
from temporalio.api.workflowservice.v1 import RespondWorkflowTaskCompletedRequest

from fairlead.api.times import SECOND_NS, from_duration
from fairlead.history.commands import (
    CommandDependencies,
    UpdateAccepted,
    UpdateCompleted,
    UpdateRejected,
    complete_workflow_task,
)
from fairlead.history.events import (
    Transaction,
    fail_workflow_task,
    fire_timer,
    schedule_workflow_task,
    start_workflow_task,
    time_out_workflow_task,
)
from fairlead.history.shard.visibility_rows import row_of
from fairlead.history.state import Limits, NotPending, RunClosed, TaskKind
from fairlead.history.state.tasks import PushWorkflowTask, TaskTimeout, UpsertVisibility, UserTimer, WorkflowTaskTimeout
from tests.history.scenario import Scenario, activity, command, payloads, timer

COMPLETE = command("complete_workflow_execution", result=payloads("1"))


def fail(transaction: Transaction) -> None:
    fail_workflow_task(transaction, Cause.WORKFLOW_TASK_FAILED_CAUSE_WORKFLOW_WORKER_UNHANDLED_FAILURE)
    schedule_workflow_task(transaction)


def body(message: Acceptance | Rejection | Response) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(message)
    return packed


def test_a_task_is_started_once() -> None:
    """FL-2."""
    run = Scenario()
    run.step(lambda t: start_workflow_task(t, 2, request_id="one", identity="a"))
    run.step(lambda t: start_workflow_task(t, 2, request_id="one", identity="a"))
    assert run.types() == ["WORKFLOW_EXECUTION_STARTED", "WORKFLOW_TASK_SCHEDULED", "WORKFLOW_TASK_STARTED"]
    with pytest.raises(NotPending, match="already started"):
        run.step(lambda t: start_workflow_task(t, 2, request_id="two", identity="b"))
    with pytest.raises(NotPending, match="not found"):
        run.step(lambda t: start_workflow_task(t, 9, request_id="two", identity="b"))


def test_a_response_to_another_attempt_is_refused() -> None:
    run = Scenario()
    for _ in range(2):
        run.start_task()
        run.step(fail)
    run.start_task()
    task = run.state.workflow_task
    assert task is not None
    assert task.attempt == 3

    def answer_second(transaction: Transaction) -> None:
        complete_workflow_task(
            transaction,
            RespondWorkflowTaskCompletedRequest(),
            CommandDependencies("default", lambda _name: None),
            scheduled_event_id=task.scheduled_event_id,
            attempt=2,
        )

    with pytest.raises(NotPending, match="not found"):
        run.step(answer_second)


def test_only_the_first_failure_in_a_row_is_written() -> None:
    run = Scenario()
    for _ in range(4):
        run.start_task()
        run.step(fail)
    assert run.types(3) == ["WORKFLOW_TASK_FAILED"]
    task = run.state.workflow_task
    assert task is not None
    assert (task.kind, task.attempt) == (TaskKind.TRANSIENT, 5)
    # Ten seconds, plus the backoff of the fifth attempt without jitter.
    assert task.timeout_ns == (10 + 8) * SECOND_NS
    run.work(COMPLETE)
    assert run.types(4) == [
        "WORKFLOW_TASK_SCHEDULED",
        "WORKFLOW_TASK_STARTED",
        "WORKFLOW_TASK_COMPLETED",
        "WORKFLOW_EXECUTION_COMPLETED",
    ]
    assert run.history[4].workflow_task_scheduled_event_attributes.attempt == 5


def test_a_run_whose_tasks_keep_failing_is_found_by_its_problem_until_one_is_completed() -> None:
    run = Scenario()
    for number in range(1, 8):
        run.start_task()
        run.step(fail)
        shown = any(isinstance(task, UpsertVisibility) for task in run.tasks)
        assert (bool(run.state.live.reported_problems), shown) == (number >= 5, number == 5)
    assert row_of(run.state, custom={}).search_attributes["TemporalReportedProblems"] == (
        "category=WorkflowTaskFailed",
        "cause=WorkflowTaskFailedCauseWorkflowWorkerUnhandledFailure",
    )
    run.work()
    assert any(isinstance(task, UpsertVisibility) for task in run.tasks)
    assert "TemporalReportedProblems" not in row_of(run.state, custom={}).search_attributes


def test_a_success_resets_the_attempt_number() -> None:
    run = Scenario()
    run.start_task()
    run.step(fail)
    completion = run.work(force_create_new_workflow_task=True)
    assert completion.new_task is not None
    assert (completion.new_task.kind, completion.new_task.attempt) == (TaskKind.NORMAL, 1)


def test_a_transient_task_that_events_overtook_is_written_as_a_first_attempt() -> None:
    run = Scenario()
    run.start_task()
    run.step(fail)
    run.signal()
    assert run.types(4) == ["WORKFLOW_EXECUTION_SIGNALED"]
    run.start_task()
    assert run.types(5) == ["WORKFLOW_TASK_SCHEDULED", "WORKFLOW_TASK_STARTED"]
    assert run.history[5].workflow_task_scheduled_event_attributes.attempt == 1
    assert run.state.live.unwritten_task is None


def test_events_during_a_started_workflow_task_are_buffered_until_its_end() -> None:
    run = Scenario()
    run.work(timer("t", 1))
    run.signal("wakes")
    run.start_task()
    length = len(run.history)
    run.signal("first")
    run.step(lambda t: fire_timer(t, UserTimer(0, 0, "t", 5)))
    run.signal("second")
    assert len(run.history) == length
    assert len(run.state.live.buffered) == 3
    run.answer(activity("a"))
    assert run.types(length) == [
        "WORKFLOW_TASK_COMPLETED",
        "ACTIVITY_TASK_SCHEDULED",
        "WORKFLOW_EXECUTION_SIGNALED",
        "TIMER_FIRED",
        "WORKFLOW_EXECUTION_SIGNALED",
        "WORKFLOW_TASK_SCHEDULED",
    ]


def test_a_run_does_not_close_over_events_that_its_worker_has_not_seen() -> None:
    """FL-52."""
    run = Scenario()
    run.start_task()
    run.signal()
    completion = run.answer(activity("a"), COMPLETE)
    assert completion.failed is not None
    assert completion.message == "UnhandledCommand"
    assert run.types(3) == ["WORKFLOW_TASK_FAILED", "WORKFLOW_EXECUTION_SIGNALED", "WORKFLOW_TASK_SCHEDULED"]
    assert not run.state.activities
    run.work(COMPLETE)
    assert not run.state.is_open


def test_a_timer_that_fired_unseen_and_is_canceled_has_never_fired() -> None:
    run = Scenario()
    run.work(timer("t", 1))
    run.signal()
    run.start_task()
    run.step(lambda t: fire_timer(t, UserTimer(0, 0, "t", 5)))
    completion = run.answer(command("cancel_timer", timer_id="t"), COMPLETE)
    assert completion.failed is None
    assert run.types(8) == ["WORKFLOW_TASK_COMPLETED", "TIMER_CANCELED", "WORKFLOW_EXECUTION_COMPLETED"]


def test_timers_that_are_due_together_fire_together_and_each_once() -> None:
    run = Scenario()
    run.work(timer("late", 2), timer("early", 1), timer("later", 60))
    run.signal()
    run.start_task()
    due = UserTimer(0, 0, "late", 5)
    assert run.step(lambda t: fire_timer(t, due), after_s=2)
    assert not run.step(lambda t: fire_timer(t, due))
    assert not run.step(lambda t: fire_timer(t, UserTimer(0, 0, "early", 6)))
    run.answer()
    fired = [event.timer_fired_event_attributes.timer_id for event in run.history[11:13]]
    assert run.types(10) == ["WORKFLOW_TASK_COMPLETED", "TIMER_FIRED", "TIMER_FIRED", "WORKFLOW_TASK_SCHEDULED"]
    assert fired == ["early", "late"]
    assert set(run.state.timers) == {"later"}


def test_a_worker_loses_its_task_if_too_many_events_are_buffered() -> None:
    run = Scenario(limits=Limits(buffered_events_max=3))
    run.start_task()
    for number in range(3):
        run.signal(f"{number}")
    assert run.types(3) == []
    run.signal("3")
    assert run.types(3) == ["WORKFLOW_TASK_FAILED", *["WORKFLOW_EXECUTION_SIGNALED"] * 4]
    assert run.state.workflow_task is not None
    assert run.state.workflow_task.attempt == 2
    cause = run.history[3].workflow_task_failed_event_attributes.cause
    assert cause == Cause.WORKFLOW_TASK_FAILED_CAUSE_FORCE_CLOSE_COMMAND


def test_a_sticky_task_without_a_poller_moves_to_the_normal_queue_as_the_same_attempt() -> None:
    run = Scenario()
    sticky = {"worker_task_queue": {"name": "mine"}, "schedule_to_start_timeout": {"seconds": 10}}
    run.work(sticky_attributes=sticky)
    run.signal()
    push = run.task(PushWorkflowTask)
    assert (push.task_queue, push.sticky) == ("mine", True)
    due = run.task(WorkflowTaskTimeout)
    assert due.kind is TaskTimeout.SCHEDULE_TO_START
    assert due.fire_at_ns == run.now_ns + 10 * SECOND_NS
    assert run.step(lambda t: time_out_workflow_task(t, due))
    assert run.types(6) == ["WORKFLOW_TASK_TIMED_OUT", "WORKFLOW_TASK_SCHEDULED"]
    assert run.task(PushWorkflowTask).task_queue == "queue"
    assert run.history[-1].workflow_task_scheduled_event_attributes.attempt == 1
    assert not run.step(lambda t: time_out_workflow_task(t, due))


def test_a_started_workflow_task_that_times_out_is_retried() -> None:
    run = Scenario()
    run.start_task()
    due = run.task(WorkflowTaskTimeout)
    run.step(lambda t: time_out_workflow_task(t, due))
    assert run.types(3) == ["WORKFLOW_TASK_TIMED_OUT"]
    assert run.state.live.unwritten_task is not None
    run.start_task()
    again = run.task(WorkflowTaskTimeout)
    assert again.attempt == 2
    assert not run.step(lambda t: time_out_workflow_task(t, due))
    run.step(lambda t: time_out_workflow_task(t, again))
    assert run.types(4) == []


def test_a_worker_can_get_the_next_workflow_task_in_the_response() -> None:
    run = Scenario()
    run.start_task()
    run.signal()
    completion = run.answer(return_new_workflow_task=True)
    assert completion.new_task is not None
    assert completion.new_task.is_started
    assert run.types(5) == ["WORKFLOW_TASK_SCHEDULED", "WORKFLOW_TASK_STARTED"]
    assert not [task for task in run.tasks if isinstance(task, PushWorkflowTask)]


def test_a_rejected_update_leaves_no_trace() -> None:
    """FL-53."""
    run = Scenario()
    run.work(timer("t", 100))
    length = len(run.history)
    run.step(lambda t: schedule_workflow_task(t, kind=TaskKind.SPECULATIVE))
    assert run.task(WorkflowTaskTimeout).in_memory
    run.start_task()
    length = len(run.history)
    message = Message(id="m", protocol_instance_id="u", body=body(Rejection()))
    # The timer's event follows the last completed task, so the events of this task must be written.
    run.answer(messages=[message])
    assert run.types(length) == ["WORKFLOW_TASK_SCHEDULED", "WORKFLOW_TASK_STARTED", "WORKFLOW_TASK_COMPLETED"]
    run.step(lambda t: schedule_workflow_task(t, kind=TaskKind.SPECULATIVE))
    run.start_task()
    length = len(run.history)
    completion = run.answer(messages=[message])
    assert completion.left_no_trace
    assert [type(news) for news in completion.update_news] == [UpdateRejected]
    assert len(run.history) == length
    assert run.state.workflow_task is None


def test_a_signal_turns_a_speculative_workflow_task_into_a_normal_one() -> None:
    run = Scenario()
    run.work()
    run.step(lambda t: schedule_workflow_task(t, kind=TaskKind.SPECULATIVE))
    run.signal()
    assert run.types(4) == ["WORKFLOW_EXECUTION_SIGNALED", "WORKFLOW_TASK_SCHEDULED"]
    assert run.task(PushWorkflowTask).scheduled_event_id == 6


def test_an_update_takes_effect_at_the_position_of_its_messages_among_the_commands() -> None:
    run = Scenario()
    request = Request(meta=Meta(update_id="u"), input=Input(name="add"))
    acceptance = Message(id="1", protocol_instance_id="u", body=body(Acceptance(accepted_request=request)))
    outcome = Outcome(success=payloads("3"))
    response = Message(id="2", protocol_instance_id="u", body=body(Response(meta=request.meta, outcome=outcome)))
    completion = run.work(
        command("protocol_message", message_id="1"),
        timer("t", 1),
        command("protocol_message", message_id="2"),
        messages=[acceptance, response],
    )
    assert run.types(4) == [
        "WORKFLOW_EXECUTION_UPDATE_ACCEPTED",
        "TIMER_STARTED",
        "WORKFLOW_EXECUTION_UPDATE_COMPLETED",
    ]
    assert completion.update_news == (UpdateAccepted("u", 5), UpdateCompleted("u", 7, outcome))
    record = run.state.updates["u"]
    assert (record.accepted_event_id, record.completed_event_id) == (5, 7)


def test_a_command_for_a_message_that_is_not_there_fails_the_task() -> None:
    run = Scenario()
    completion = run.work(timer("t", 1), command("protocol_message", message_id="9"))
    assert completion.message == (
        "BadUpdateWorkflowExecutionMessage: ProtocolMessageCommand referenced absent message ID 9"
    )
    assert not run.state.timers


def test_continuing_as_new_is_suggested_when_the_history_is_long() -> None:
    run = Scenario(limits=Limits(history_count_suggest=2))
    run.start_task()
    started = run.history[-1].workflow_task_started_event_attributes
    assert started.suggest_continue_as_new
    assert started.history_size_bytes == len(run.batches[0])


def test_a_closed_run_has_no_task_to_start() -> None:
    run = Scenario()
    run.work(COMPLETE)
    with pytest.raises(RunClosed):
        run.step(lambda t: start_workflow_task(t, 2, request_id="late", identity="a"))
    assert from_duration(run.history[1].workflow_task_scheduled_event_attributes.start_to_close_timeout)
