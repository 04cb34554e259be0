"""Reset runs: the events that they share, the work that is repeated, and requests that are rejected."""

from collections.abc import Sequence

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType, ResetReapplyExcludeType, UpdateAdmittedEventOrigin
from temporalio.api.enums.v1 import WorkflowTaskFailedCause as Cause
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.protocol.v1 import Message
from temporalio.api.update.v1 import Acceptance, Meta, Request

from fairlead.api.times import SECOND_NS, to_duration
from fairlead.history.events import (
    Transaction,
    child_closed,
    child_started,
    fail_workflow_task,
    rebuild,
    request_cancel,
    schedule_workflow_task,
)
from fairlead.history.events.write_reset import begin_reset, finish_reset, reapply, terminate_for_reset
from fairlead.history.state import BadRequest, RunIdentity, without_live
from fairlead.history.state.requests import request_id_of
from fairlead.history.state.tasks import (
    CloseRun,
    ExecutionTimeout,
    PushActivityTask,
    PushWorkflowTask,
    RunTimeout,
    StartChild,
    UpsertVisibility,
    UserTimer,
    WorkflowTaskTimeout,
)
from tests.history.scenario import RUN_ID, Scenario, activity, command, timer

NEW_RUN_ID = "00000000-0000-4000-8000-00000000ffff"
CHILD = command("start_child_workflow_execution", workflow_id="c", workflow_type={"name": "C"})
SIGNAL = ResetReapplyExcludeType.RESET_REAPPLY_EXCLUDE_TYPE_SIGNAL
UPDATE = ResetReapplyExcludeType.RESET_REAPPLY_EXCLUDE_TYPE_UPDATE


def begun(run: Scenario, finish_event_id: int) -> Transaction:
    """The first step of the new run, in which the workflow task has failed."""
    identity = RunIdentity("namespace-id", "workflow", NEW_RUN_ID, RUN_ID, "new-branch")
    state = rebuild(identity, run.history[: finish_event_id - 1])
    transaction = Transaction(state, now_ns=run.now_ns + SECOND_NS, version=run.version, new_id=lambda: "id")
    begin_reset(transaction, base_run_id=RUN_ID, reason="why")
    return transaction


def reset(
    run: Scenario, finish_event_id: int, *, excluded: Sequence[ResetReapplyExcludeType.ValueType] = ()
) -> Transaction:
    """The whole reset. As for every run, its state follows from its events alone."""
    transaction = begun(run, finish_event_id)
    reapply(transaction, run.history[finish_event_id - 1 :], excluded=excluded, is_base=True)
    finish_reset(transaction)
    history = [*run.history[: transaction.events[0].event_id - 1], *transaction.events]
    assert [event.event_id for event in history] == list(range(1, len(history) + 1))
    assert without_live(rebuild(transaction.state.identity, history)) == without_live(transaction.state)
    return transaction


def types(events: Sequence[HistoryEvent]) -> list[str]:
    return [EventType.Name(event.event_type).removeprefix("EVENT_TYPE_") for event in events]


def accept_update(run: Scenario, update_id: str) -> None:
    """Let the workflow task accept an update."""
    message = Message(id="m", protocol_instance_id=update_id)
    message.body.Pack(Acceptance(accepted_request=Request(meta=Meta(update_id=update_id))))
    run.work(command("protocol_message", message_id="m"), messages=[message])


def test_a_reset_fails_the_workflow_task_at_its_point_and_schedules_another() -> None:
    run = Scenario()
    run.work(timer("t", 60))
    new = reset(run, 4)
    assert types(new.events) == ["WORKFLOW_TASK_FAILED", "WORKFLOW_TASK_SCHEDULED"]
    failed = new.events[0].workflow_task_failed_event_attributes
    assert (failed.scheduled_event_id, failed.started_event_id) == (2, 3)
    assert failed.cause == Cause.WORKFLOW_TASK_FAILED_CAUSE_RESET_WORKFLOW
    assert (failed.base_run_id, failed.new_run_id, failed.identity) == (RUN_ID, NEW_RUN_ID, "history-service")
    assert failed.failure.message == "why"
    assert failed.failure.HasField("reset_workflow_failure_info")
    assert new.events[1].workflow_task_scheduled_event_attributes.attempt == 1
    assert not new.state.timers
    kinds = [type(task) for task in new.tasks]
    assert kinds.count(PushWorkflowTask) == 1
    assert UpsertVisibility in kinds
    assert WorkflowTaskTimeout not in kinds


def test_a_task_that_no_worker_had_yet_is_started_to_fail() -> None:
    run = Scenario()
    run.work()
    new = reset(run, 3)
    assert types(new.events) == ["WORKFLOW_TASK_STARTED", "WORKFLOW_TASK_FAILED", "WORKFLOW_TASK_SCHEDULED"]
    started = new.events[0].workflow_task_started_event_attributes
    assert (started.identity, started.request_id) == ("history-service", "emptyUuid")


def test_a_transient_attempt_is_written_before_it_fails() -> None:
    run = Scenario()
    run.start_task()
    run.step(lambda t: fail_workflow_task(t, Cause.WORKFLOW_TASK_FAILED_CAUSE_UNSPECIFIED, failure=Failure()))
    run.step(schedule_workflow_task)
    run.work()
    new = reset(run, 5)
    assert types(new.events) == [
        "WORKFLOW_TASK_SCHEDULED",
        "WORKFLOW_TASK_STARTED",
        "WORKFLOW_TASK_FAILED",
        "WORKFLOW_TASK_SCHEDULED",
    ]


def test_a_run_without_a_workflow_task_can_not_be_reset() -> None:
    run = Scenario()
    run.work(timer("t", 60))
    with pytest.raises(BadRequest, match=r"\[WorkflowTaskScheduled \+1, WorkflowTaskStarted \+ 1\]: 6"):
        begun(run, 6)


def test_signals_are_reapplied_with_their_request_ids_and_cancel_requests_are_not() -> None:
    run = Scenario()
    run.work()
    run.signal("first", request_id="one")
    run.work()
    run.step(lambda t: request_cancel(t, request_id="c"))
    run.signal("second", request_id="two")
    new = reset(run, 4)
    assert types(new.events)[1:] == ["WORKFLOW_EXECUTION_SIGNALED"] * 2 + ["WORKFLOW_TASK_SCHEDULED"]
    signals = [event.workflow_execution_signaled_event_attributes for event in new.events[1:3]]
    assert [(each.signal_name, each.request_id) for each in signals] == [("first", "one"), ("second", "two")]
    assert not new.state.cancel_requested
    assert set(new.state.live.request_ids) == {"one", "two"}
    assert types(reset(run, 4, excluded=[SIGNAL]).events) == ["WORKFLOW_TASK_FAILED", "WORKFLOW_TASK_SCHEDULED"]


def test_accepted_updates_are_admitted_again_unless_they_were_accepted_before_the_point() -> None:
    run = Scenario()
    accept_update(run, "before")
    run.signal()
    accept_update(run, "after")
    assert types(run.history[5:9]) == [
        "WORKFLOW_EXECUTION_SIGNALED",
        "WORKFLOW_TASK_SCHEDULED",
        "WORKFLOW_TASK_STARTED",
        "WORKFLOW_TASK_COMPLETED",
    ]
    new = reset(run, 9)
    (admitted,) = [
        event for event in new.events if event.HasField("workflow_execution_update_admitted_event_attributes")
    ]
    attributes = admitted.workflow_execution_update_admitted_event_attributes
    assert attributes.request.meta.update_id == "after"
    assert attributes.origin == UpdateAdmittedEventOrigin.UPDATE_ADMITTED_EVENT_ORIGIN_REAPPLY
    assert set(new.state.updates) == {"before", "after"}
    assert set(reset(run, 9, excluded=[UPDATE]).state.updates) == {"before"}


def test_an_update_that_was_admitted_again_is_admitted_a_third_time_by_its_first_event_only() -> None:
    run = Scenario()
    run.work()
    accept = Scenario()
    accept_update(accept, "u")
    once = begun(run, 4)
    reapply(once, [*accept.history, *accept.history], excluded=(), is_base=False)
    assert types(once.events)[1:] == ["WORKFLOW_EXECUTION_UPDATE_ADMITTED"]


def test_the_result_of_a_pending_child_is_reapplied_from_the_base_run_only() -> None:
    run = Scenario()
    run.work(CHILD, timer("t", 60))
    run.signal()
    run.start_task()
    finish_event_id = run.state.next_event_id
    run.answer()
    run.step(lambda t: child_started(t, 5, run_id="child-run"))
    closed = HistoryEvent(event_type=EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED)
    execution = WorkflowExecution(workflow_id="c", run_id="child-run")
    run.start_task()
    run.step(lambda t: child_closed(t, 5, execution=execution, close_event=closed))
    run.answer()
    new = reset(run, finish_event_id)
    assert types(new.events)[1:] == [
        "CHILD_WORKFLOW_EXECUTION_STARTED",
        "CHILD_WORKFLOW_EXECUTION_COMPLETED",
        "WORKFLOW_TASK_SCHEDULED",
    ]
    completed = new.events[2].child_workflow_execution_completed_event_attributes
    assert completed.started_event_id == new.events[1].event_id
    assert not new.state.children
    other = begun(run, finish_event_id)
    reapply(other, run.history[finish_event_id - 1 :], excluded=(), is_base=False)
    assert 5 in other.state.children


def test_a_child_that_has_not_started_is_started_with_the_base_runs_request_id() -> None:
    run = Scenario()
    run.work(CHILD)
    run.signal()
    run.start_task()
    new = reset(run, run.state.next_event_id)
    (task,) = [task for task in new.tasks if isinstance(task, StartChild)]
    assert (task.initiated_event_id, task.request_id) == (5, request_id_of(run.state, run.state.children[5]))


def test_pending_activities_and_timers_run_again() -> None:
    run = Scenario()
    run.work(activity("a"), timer("t", 60))
    run.signal()
    run.start_task()
    new = reset(run, run.state.next_event_id)
    (push,) = [task for task in new.tasks if isinstance(task, PushActivityTask)]
    (due,) = [task for task in new.tasks if isinstance(task, UserTimer)]
    assert (push.scheduled_event_id, push.attempt) == (5, 1)
    assert (due.timer_id, due.fire_at_ns) == ("t", run.state.timers["t"].fire_at_ns)
    assert new.state.live.activities[5].attempt == 1


def test_a_reset_run_has_its_full_timeouts_again() -> None:
    run = Scenario(
        workflow_run_timeout=to_duration(30 * SECOND_NS), workflow_execution_timeout=to_duration(100 * SECOND_NS)
    )
    run.work()
    run.now_ns += 20 * SECOND_NS
    new = reset(run, 4)
    (run_timeout,) = [task for task in new.tasks if isinstance(task, RunTimeout)]
    (execution_timeout,) = [task for task in new.tasks if isinstance(task, ExecutionTimeout)]
    assert run_timeout.fire_at_ns == new.now_ns + 30 * SECOND_NS
    assert execution_timeout.fire_at_ns == new.now_ns + 100 * SECOND_NS
    assert execution_timeout.first_run_id == RUN_ID


def test_the_base_run_is_terminated_without_notifying_its_parent_or_children() -> None:
    run = Scenario()
    run.work(CHILD)
    run.step(lambda t: child_started(t, 5, run_id="child-run"))
    run.start_task()
    run.signal("buffered")
    run.step(lambda t: terminate_for_reset(t, reason="why"))
    assert run.types(-3) == ["WORKFLOW_TASK_FAILED", "WORKFLOW_EXECUTION_SIGNALED", "WORKFLOW_EXECUTION_TERMINATED"]
    terminated = run.history[-1].workflow_execution_terminated_event_attributes
    assert (terminated.reason, terminated.identity) == ("why", "history-resetter")
    assert not any(isinstance(task, CloseRun) for task in run.tasks)
