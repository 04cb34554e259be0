"""Invalid commands fail their workflow task, with Temporal's cause and message, and change nothing."""

import re
from typing import Any

import pytest
from temporalio.api.command.v1 import Command
from temporalio.api.enums.v1 import ContinueAsNewInitiator, EventType
from temporalio.api.enums.v1 import WorkflowTaskFailedCause as Cause

from fairlead.api.times import SECOND_NS, from_duration, to_duration
from fairlead.history.commands.completion import CLOSING_COMMANDS, HANDLERS
from fairlead.history.state import BadRequest, Limits
from fairlead.history.state.tasks import CancelExternal, CloseRun, SignalExternal, StartChild, UpsertVisibility
from tests.history.scenario import RUN_ID, Scenario, activity, command, payloads, timer

NEGATIVE = to_duration(-SECOND_NS)
LONG = "x" * 1001
COMPLETE = command("complete_workflow_execution")
CHILD = "start_child_workflow_execution"
SIGNAL = "signal_external_workflow_execution"
CANCEL = "request_cancel_external_workflow_execution"


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (activity(""), "BadScheduleActivityAttributes: activityId is not set"),
        (activity(LONG), "BadScheduleActivityAttributes: activityId exceeds length limit. Length=1001 Limit=1000"),
        (
            activity("a", start_to_close_timeout=None),
            (
                "BadScheduleActivityAttributes: "
                "a valid StartToCloseTimeout or ScheduleToCloseTimeout must be set on the "
                "activity. ActivityId=a ActivityType=work"
            ),
        ),
        (
            activity("a", heartbeat_timeout=NEGATIVE),
            "BadScheduleActivityAttributes: invalid HeartbeatTimeout: negative duration",
        ),
        (
            activity("a", retry_policy={"backoff_coefficient": 0.5}),
            "BadScheduleActivityAttributes: BackoffCoefficient cannot be less than 1 on retry policy.",
        ),
        (
            activity("a", priority={"fairness_key": "k" * 65}),
            "BadScheduleActivityAttributes: invalid priorities: fairness key length exceeds limit of 64 bytes",
        ),
        (
            activity("a", task_queue={"name": "/_sys/a/1"}),
            "BadScheduleActivityAttributes: task queue name cannot start with reserved prefix /_sys/",
        ),
        (
            command("request_cancel_external_workflow_execution", namespace="unknown", workflow_id="w"),
            "BadRequestCancelExternalWorkflowExecutionAttributes: Namespace unknown is not found.",
        ),
        (
            command("start_timer", start_to_fire_timeout=to_duration(1)),
            "BadStartTimerAttributes: TimerId is not set on StartTimerCommand.",
        ),
        (
            command("start_timer", timer_id="{t}", start_to_fire_timeout=NEGATIVE),
            (
                "BadStartTimerAttributes: "
                "An invalid StartToFireTimeout is set on StartTimerCommand: negative duration. "
                "TimerId={t}"
            ),
        ),
        (
            command("cancel_timer", timer_id="none"),
            (
                "BadCancelTimerAttributes: invalid history builder state for action: "
                "add-timer-canceled-event: TimerID: none"
            ),
        ),
        (
            command("request_cancel_activity_task"),
            "BadRequestCancelActivityAttributes: ScheduledEventId is not set on RequestCancelActivityTaskCommand.",
        ),
        (command("record_marker"), "BadRecordMarkerAttributes: MarkerName is not set on RecordMarkerCommand."),
        (
            command("upsert_workflow_search_attributes"),
            "BadSearchAttributes: SearchAttributes is not set on UpsertWorkflowSearchAttributesCommand.",
        ),
        (
            command("modify_workflow_properties"),
            "BadModifyWorkflowPropertiesAttributes: UpsertedMemo is not set on ModifyWorkflowPropertiesCommand.",
        ),
        (
            command("fail_workflow_execution"),
            "BadFailWorkflowExecutionAttributes: Failure is not set on FailWorkflowExecutionCommand.",
        ),
        (
            command(CHILD, workflow_type={"name": "C"}),
            (
                "BadStartChildExecutionAttributes: Required field WorkflowId is not set on "
                "StartChildWorkflowExecutionCommand. WorkflowType=C Namespace=default"
            ),
        ),
        (
            command(CHILD, workflow_id="c", workflow_type={"name": "C"}, cron_schedule="61 * * * *"),
            (
                "BadStartChildExecutionAttributes: invalid CronSchedule on StartChildWorkflowExecutionCommand: invalid "
                "CronSchedule, 61 is not within 0 and 59, or its step is not above zero. WorkflowId=c WorkflowType=C "
                "Namespace=default"
            ),
        ),
        (
            command(CHILD, workflow_id="c", workflow_type={"name": "C"}, namespace="other"),
            "BadStartChildExecutionAttributes: cross namespace commands are not allowed",
        ),
        (
            command(SIGNAL, execution={"workflow_id": "o"}),
            (
                "BadSignalWorkflowExecutionAttributes: "
                "SignalName is not set on SignalExternalWorkflowExecutionCommand. "
                "WorkflowId=o Namespace= RunId="
            ),
        ),
        (
            command(SIGNAL, execution={"workflow_id": "o", "run_id": "no uuid"}, signal_name="s"),
            (
                "BadSignalWorkflowExecutionAttributes: Invalid RunId set on SignalExternalWorkflowExecutionCommand. "
                "WorkflowId=o Namespace= RunId=no uuid SignalName=s"
            ),
        ),
        (
            command(CANCEL),
            (
                "BadRequestCancelExternalWorkflowExecutionAttributes: WorkflowId is not set on "
                "RequestCancelExternalWorkflowExecutionCommand. Namespace= RunId="
            ),
        ),
        (
            command("continue_as_new_workflow_execution", workflow_run_timeout=NEGATIVE),
            (
                "BadContinueAsNewAttributes: "
                "Invalid WorkflowRunTimeout on ContinueAsNewWorkflowExecutionCommand: negative "
                "duration."
            ),
        ),
    ],
)
def test_a_bad_command_fails_the_task_and_undoes_the_commands_before_it(wanted: Command, message: str) -> None:
    run = Scenario()
    completion = run.work(activity("before"), timer("before", 1), wanted)
    assert completion.failed is not None
    assert completion.message == message
    assert run.types(3) == ["WORKFLOW_TASK_FAILED"]
    failed = run.history[3].workflow_task_failed_event_attributes
    assert failed.failure.message == message
    assert failed.cause == completion.failed.cause
    assert failed.identity == "worker"
    assert not run.state.activities
    assert not run.state.timers
    task = run.state.workflow_task
    assert task is not None
    assert task.attempt == 2


@pytest.mark.parametrize("kind", list(HANDLERS))
def test_a_command_without_its_attributes_fails_the_task(kind: Any) -> None:
    run = Scenario()
    completion = run.work(Command(command_type=kind))
    assert completion.failed is not None
    assert re.search(r"Attributes is not set on|: empty \w+Attributes$", completion.message)


@pytest.mark.parametrize(
    ("wanted", "cause"),
    [
        (activity("a"), Cause.WORKFLOW_TASK_FAILED_CAUSE_SCHEDULE_ACTIVITY_DUPLICATE_ID),
        (timer("t", 1), Cause.WORKFLOW_TASK_FAILED_CAUSE_START_TIMER_DUPLICATE_ID),
    ],
)
def test_an_id_is_pending_once(wanted: Command, cause: Cause.ValueType) -> None:
    completion = Scenario().work(wanted, wanted)
    assert completion.failed is not None
    assert completion.failed.cause == cause


@pytest.mark.parametrize(
    ("wanted", "limits", "cause"),
    [
        (
            activity("b"),
            Limits(pending_activities_max=1),
            Cause.WORKFLOW_TASK_FAILED_CAUSE_PENDING_ACTIVITIES_LIMIT_EXCEEDED,
        ),
        (
            command(CHILD, workflow_id="d", workflow_type={"name": "C"}),
            Limits(pending_children_max=1),
            Cause.WORKFLOW_TASK_FAILED_CAUSE_PENDING_CHILD_WORKFLOWS_LIMIT_EXCEEDED,
        ),
        (
            command(SIGNAL, execution={"workflow_id": "o"}, signal_name="s"),
            Limits(pending_signals_max=1),
            Cause.WORKFLOW_TASK_FAILED_CAUSE_PENDING_SIGNALS_LIMIT_EXCEEDED,
        ),
        (
            command(CANCEL, workflow_id="o"),
            Limits(pending_cancels_max=1),
            Cause.WORKFLOW_TASK_FAILED_CAUSE_PENDING_REQUEST_CANCEL_LIMIT_EXCEEDED,
        ),
    ],
)
def test_the_number_of_pending_items_is_bounded(wanted: Command, limits: Limits, cause: Cause.ValueType) -> None:
    run = Scenario(limits=limits)
    run.work(
        activity("a"),
        command(CHILD, workflow_id="c", workflow_type={"name": "C"}),
        command(SIGNAL, execution={"workflow_id": "o"}, signal_name="s"),
        command(CANCEL, workflow_id="o"),
    )
    assert {type(task) for task in run.tasks} >= {StartChild, SignalExternal, CancelExternal}
    run.signal()
    completion = run.work(wanted)
    assert completion.failed is not None
    assert completion.failed.cause == cause
    assert "has reached the per-workflow limit of 1" in completion.message


def test_a_command_that_is_too_large_ends_the_run() -> None:
    run = Scenario(limits=Limits(blob_size_max=10))
    completion = run.work(activity("a", input=payloads("x" * 20)))
    assert completion.failed is not None
    assert run.types(3) == ["WORKFLOW_TASK_FAILED", "WORKFLOW_EXECUTION_TERMINATED"]
    reason = run.history[-1].workflow_execution_terminated_event_attributes.reason
    assert reason == ("BadScheduleActivityAttributes: ScheduleActivityTaskCommandAttributes.Input exceeds size limit.")


def test_nothing_follows_the_command_that_ends_the_run() -> None:
    run = Scenario()
    run.start_task()
    with pytest.raises(BadRequest, match="CompleteWorkflowExecution must be the last command"):
        run.answer(COMPLETE, activity("a"))
    assert run.state.has_started_task


@pytest.mark.parametrize(("kind", "name"), [(0, "Unspecified"), (99, "99")])
def test_an_unknown_command_is_refused_by_its_name(kind: Any, name: str) -> None:
    run = Scenario()
    run.start_task()
    with pytest.raises(BadRequest, match=f"unknown command type: {name}"):
        run.answer(Command(command_type=kind))


def test_a_child_that_is_started_and_canceled_in_one_workflow_task_is_not_started() -> None:
    child = command(CHILD, workflow_id="c", workflow_type={"name": "C"})
    completion = Scenario().work(child, command(CANCEL, workflow_id="c"))
    assert "Start and RequestCancel for child workflow is not allowed in same workflow task" in completion.message


def test_a_closing_run_applies_the_parent_close_policy_to_its_children() -> None:
    run = Scenario()
    run.work(
        *(
            command(CHILD, workflow_id=f"c{policy}", workflow_type={"name": "C"}, parent_close_policy=policy)
            for policy in (0, 2, 3)
        )
    )
    run.signal()
    run.work(COMPLETE)
    closing = run.task(CloseRun)
    # Terminate is the default policy; the child with the abandon policy is not in the list.
    assert [(child.workflow_id, child.policy) for child in closing.children] == [("c0", 1), ("c3", 3)]
    assert not closing.notifies_parent


def test_a_close_without_parent_children_and_schedule_leaves_no_task_to_report_it() -> None:
    run, watched = Scenario(), Scenario()
    watched.state.live.watchers = [b"a schedule"]
    for one in (run, watched):
        one.work(COMPLETE)
    assert not any(isinstance(task, CloseRun) for task in run.tasks)
    assert any(isinstance(task, CloseRun) for task in watched.tasks)


def test_continue_as_new_inherits_the_options_that_the_command_leaves_open() -> None:
    run = Scenario(
        workflow_execution_timeout=to_duration(3600 * SECOND_NS), workflow_task_timeout=to_duration(7 * SECOND_NS)
    )
    run.work(command("continue_as_new_workflow_execution", input=payloads("2")))
    assert run.new_run is not None
    event = run.new_run.events[0]
    assert event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED
    started = event.workflow_execution_started_event_attributes
    assert started.workflow_type.name == "Test"
    assert started.task_queue.name == "queue"
    assert started.input == payloads("2")
    assert started.continued_execution_run_id == started.first_execution_run_id == RUN_ID
    assert started.initiator == ContinueAsNewInitiator.CONTINUE_AS_NEW_INITIATOR_WORKFLOW
    assert from_duration(started.workflow_task_timeout) == 7 * SECOND_NS
    assert from_duration(started.workflow_run_timeout) == 3600 * SECOND_NS
    first = run.history[0].workflow_execution_started_event_attributes
    assert started.workflow_execution_expiration_time == first.workflow_execution_expiration_time
    # Two runs of a chain start at least one second apart.
    assert from_duration(started.first_workflow_task_backoff) == SECOND_NS - (run.now_ns - run.state.started.started_ns)
    assert run.state.new_run_id == run.new_run.state.identity.run_id
    assert not any(isinstance(task, CloseRun) for task in run.tasks)


def test_memo_and_search_attributes_are_merged_and_null_removes_a_key() -> None:
    run = Scenario(memo={"fields": {"kept": payloads("1").payloads[0], "gone": payloads("1").payloads[0]}})
    null = {"metadata": {"encoding": b"binary/null"}}
    run.work(
        command(
            "modify_workflow_properties", upserted_memo={"fields": {"gone": null, "new": payloads("2").payloads[0]}}
        ),
        command(
            "upsert_workflow_search_attributes",
            search_attributes={"indexed_fields": {"Color": payloads('"blue"').payloads[0]}},
        ),
    )
    assert sorted(run.state.memo) == ["kept", "new"]
    assert sorted(run.state.search_attributes) == ["Color"]
    assert [type(task) for task in run.tasks if isinstance(task, UpsertVisibility)] == [UpsertVisibility]


def test_every_closing_command_has_a_handler() -> None:
    assert set(HANDLERS) >= CLOSING_COMMANDS
