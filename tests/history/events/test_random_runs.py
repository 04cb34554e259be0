"""Random steps in any order: the history stays consistent, and the state always follows from the history."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from temporalio.api.command.v1 import Command
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import (
    CancelExternalWorkflowExecutionFailedCause,
    EventType,
    SignalExternalWorkflowExecutionFailedCause,
    StartChildWorkflowExecutionFailedCause,
)
from temporalio.api.enums.v1 import WorkflowTaskFailedCause as Cause
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent

from fairlead.api.errors import Exhausted
from fairlead.api.times import SECOND_NS, to_duration
from fairlead.core.errors import FixRequest
from fairlead.history.events import (
    Transaction,
    cancel_activity,
    child_closed,
    child_start_failed,
    child_started,
    complete_activity,
    end_activity_backoff,
    external_cancel_requested,
    external_signaled,
    fail_activity,
    fail_workflow_task,
    fire_timer,
    heartbeat_activity,
    pause_activity,
    request_cancel,
    reset_activity,
    schedule_workflow_task,
    start_activity,
    terminate,
    time_out_activity,
    time_out_run,
    time_out_workflow_task,
    unpause_activity,
)
from fairlead.history.state import RunClosed, TaskKind
from fairlead.history.state.errors import BadRequest
from fairlead.history.state.tasks import (
    ActivityRetry,
    ActivityTimeout,
    UserTimer,
    WorkflowTaskTimeout,
)
from tests.history.scenario import Scenario, activity, command, payloads, timer

pytestmark = pytest.mark.sim
NOT_STARTED = StartChildWorkflowExecutionFailedCause.ValueType(1)
NOT_SIGNALED = SignalExternalWorkflowExecutionFailedCause.ValueType(1)
NOT_CANCELED = CancelExternalWorkflowExecutionFailedCause.ValueType(1)
COMMANDS = ("activity", "timer", "child", "signal", "cancel", "marker", "cancel timer", "cancel work", "eager")
ENDINGS = ("complete", "fail", "continue")


class RandomRun:
    """One run, on which any step may be tried at any time. A step that fails must change nothing."""

    def __init__(self, *, retried: bool) -> None:
        options: dict[str, Any] = {"workflow_run_timeout": to_duration(3600 * SECOND_NS)}
        if retried:
            options["retry_policy"] = {"maximum_attempts": 3, "initial_interval": to_duration(SECOND_NS)}
        self.run = Scenario(**options)
        self.timers: list[Any] = []
        self.ever = 0
        self.signals = 0
        self._collect()

    def _collect(self) -> None:
        kinds = (UserTimer, ActivityTimeout, ActivityRetry, WorkflowTaskTimeout)
        self.timers += [task for task in self.run.tasks if isinstance(task, kinds)]

    def _try(self, act: Callable[[Transaction], Any]) -> Any:
        length = len(self.run.history)
        try:
            result = self.run.step(act)
        except FixRequest:
            assert len(self.run.history) == length
            self.run.check()
            return None
        self._collect()
        return result

    def signal(self, number: int) -> None:
        if not self.run.state.is_open:
            with pytest.raises(RunClosed, match="already completed"):
                self.run.signal()
            return
        length = len(self.run.history)
        try:
            is_new = self.run.signal(request_id=("", "a", "b")[number % 3])
        except Exhausted:
            # A worker has the task after a close that missed a signal.
            assert self.run.state.has_started_task
            assert len(self.run.history) == length
            self.run.check()
            return
        self.signals += is_new
        self._collect()

    def start_task(self, _number: int) -> None:
        state = self.run.state
        if state.workflow_task is not None and not state.has_started_task:
            self.run.start_task()
            self._collect()

    def answer(self, number: int) -> None:
        """Up to three commands, sometimes one that closes the run; sticky or not: all derived from `number`."""
        if not self.run.state.has_started_task:
            return
        kinds = [COMMANDS[number // 9**place % 9] for place in range(number % 4)]
        commands = [wanted for kind in kinds if (wanted := self._command(kind)) is not None]
        ends = number % 23 == 0
        if ends:
            commands.append(self._ending(ENDINGS[number // 23 % 3]))
        options: dict[str, Any] = {
            "force_create_new_workflow_task": number % 5 == 0,
            "return_new_workflow_task": number % 3 == 0,
        }
        if number % 2:
            queue = {"name": "sticky"}
            options["sticky_attributes"] = {"worker_task_queue": queue, "schedule_to_start_timeout": {"seconds": 10}}
        had_buffered = bool(self.run.state.live.buffered)
        length = len(self.run.history)
        try:
            completion = self.run.answer(*commands, **options)
        except BadRequest:
            # Two commands may cancel the same timer. From the second attempt on, the task times out instead of failing.
            assert self.run.state.workflow_task is not None
            assert self.run.state.workflow_task.attempt > 1
            assert len(self.run.history) == length
            self.run.check()
            return
        self._collect()
        if ends and had_buffered and completion.failed is None:
            # A fired event may only vanish for a timer that was canceled before the worker saw it.
            assert any(wanted.HasField("cancel_timer_command_attributes") for wanted in commands)

    def _command(self, kind: str) -> Command | None:
        self.ever += 1
        state = self.run.state
        name = f"{kind}-{self.ever}"
        match kind:
            case "activity" | "eager":
                return activity(
                    name,
                    heartbeat_timeout=to_duration(2 * SECOND_NS),
                    retry_policy={"maximum_attempts": 2, "initial_interval": to_duration(SECOND_NS)},
                    request_eager_execution=kind == "eager",
                )
            case "timer":
                return timer(name, self.ever % 4)
            case "child":
                return command("start_child_workflow_execution", workflow_id=name, workflow_type={"name": "Child"})
            case "signal":
                execution = {"workflow_id": "other"}
                return command("signal_external_workflow_execution", execution=execution, signal_name="s")
            case "cancel":
                return command("request_cancel_external_workflow_execution", workflow_id="other")
            case "marker":
                return command("record_marker", marker_name="m")
            case "cancel timer" if state.timers:
                return command("cancel_timer", timer_id=next(iter(state.timers)))
            case "cancel work" if state.activities:
                return command("request_cancel_activity_task", scheduled_event_id=next(iter(state.activities)))
        return None

    def _ending(self, ending: str) -> Command:
        if ending == "complete":
            return command("complete_workflow_execution", result=payloads("1"))
        if ending == "fail":
            return command("fail_workflow_execution", failure=Failure(message="no"))
        return command("continue_as_new_workflow_execution")

    def fail_task(self, _number: int) -> None:
        def fail(transaction: Transaction) -> None:
            fail_workflow_task(transaction, Cause.WORKFLOW_TASK_FAILED_CAUSE_NON_DETERMINISTIC_ERROR)
            schedule_workflow_task(transaction)

        self._try(fail)

    def deliver_update(self, _number: int) -> None:
        state = self.run.state
        if state.is_open and state.workflow_task is None and state.completed_task_event_id:
            self._try(lambda transaction: schedule_workflow_task(transaction, kind=TaskKind.SPECULATIVE))

    def time_passes(self, number: int) -> None:
        """Run any of the tasks that were ever generated, early or late, and possibly more than once."""
        if not self.timers:
            return
        due = self.timers[number % len(self.timers)]
        if number % 3:
            self.run.now_ns = max(self.run.now_ns, due.fire_at_ns) + number % 3 * SECOND_NS
        if isinstance(due, UserTimer):
            self._try(lambda transaction: fire_timer(transaction, due))
        elif isinstance(due, ActivityTimeout):
            self._try(lambda transaction: time_out_activity(transaction, due))
        elif isinstance(due, ActivityRetry):
            self._try(lambda transaction: end_activity_backoff(transaction, due))
        else:
            self._try(lambda transaction: time_out_workflow_task(transaction, due))

    def act_on_activity(self, number: int) -> None:
        if not self.run.state.activities:
            return
        ids = [*self.run.state.activities]
        at = ids[number // 9 % len(ids)]
        failure = Failure(message="x")
        acts: list[Callable[[Transaction], Any]] = [
            lambda t: start_activity(t, at, request_id="r", identity="worker"),
            lambda t: start_activity(t, at, request_id=f"r{number}", identity="worker"),
            lambda t: complete_activity(t, at, attempt=None, result=None, identity="worker"),
            lambda t: fail_activity(t, at, attempt=None, failure=failure, identity="worker"),
            lambda t: cancel_activity(t, at, attempt=None, details=None, identity="worker"),
            lambda t: heartbeat_activity(t, at, attempt=None, details=payloads("2")),
            lambda t: pause_activity(t, at),
            lambda t: unpause_activity(t, at),
            lambda t: reset_activity(t, at),
        ]
        self._try(acts[number % len(acts)])

    def hear_of_child(self, number: int) -> None:
        if not self.run.state.children:
            return
        ids = [*self.run.state.children]
        at = ids[number // 4 % len(ids)]
        execution = WorkflowExecution(workflow_id="child", run_id="child-run")
        completed = HistoryEvent(event_type=EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED)
        terminated = HistoryEvent(event_type=EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED)
        acts: list[Callable[[Transaction], Any]] = [
            lambda t: child_started(t, at, run_id="child-run"),
            lambda t: child_closed(t, at, execution=execution, close_event=completed),
            lambda t: child_closed(t, at, execution=execution, close_event=terminated),
            lambda t: child_start_failed(t, at, NOT_STARTED),
        ]
        self._try(acts[number % len(acts)])

    def hear_of_external(self, number: int) -> None:
        state = self.run.state
        fails = number % 2 == 0
        signaled, canceled = next(iter(state.external_signals), 0), next(iter(state.external_cancels), 0)
        self._try(lambda t: external_signaled(t, signaled, NOT_SIGNALED if fails else None))
        self._try(lambda t: external_cancel_requested(t, canceled, NOT_CANCELED if fails else None))

    def request_cancel(self, _number: int) -> None:
        self._try(lambda transaction: request_cancel(transaction, request_id="c"))

    def end(self, number: int) -> None:
        if number % 31 == 0:
            self._try(lambda transaction: terminate(transaction, reason="enough", identity="me"))
        elif number % 31 == 1:
            self._try(time_out_run)

    def finish(self) -> None:
        """After the last workflow task, every signal is in the history exactly once."""
        if not self.run.state.is_open:
            return
        if self.run.state.has_started_task:
            self.fail_task(0)
        assert not self.run.state.live.buffered
        assert self.run.types().count("WORKFLOW_EXECUTION_SIGNALED") == self.signals


ACTS = (
    RandomRun.signal,
    RandomRun.start_task,
    RandomRun.answer,
    RandomRun.time_passes,
    RandomRun.act_on_activity,
    RandomRun.act_on_activity,
    RandomRun.hear_of_child,
    RandomRun.hear_of_external,
    RandomRun.start_task,
    RandomRun.request_cancel,
    RandomRun.fail_task,
    RandomRun.deliver_update,
    RandomRun.end,
)


@given(
    retried=st.booleans(),
    steps=st.lists(st.tuples(st.sampled_from(ACTS), st.integers(0, 50_000)), min_size=40, max_size=90),
)
def test_the_state_equals_the_state_rebuilt_from_the_history_after_random_events(
    retried: bool, steps: list[tuple[Callable[[RandomRun, int], None], int]]
) -> None:
    """FL-51: `Scenario.check` compares both states after each step."""
    run = RandomRun(retried=retried)
    # Much is pending from the start, while a worker holds a workflow task: conflicts are likely there.
    run.run.work(
        *(activity(f"first-{number}", heartbeat_timeout=to_duration(SECOND_NS)) for number in range(2)),
        *(timer(f"first-{number}", number) for number in range(2)),
        *(command("start_child_workflow_execution", workflow_id="c", workflow_type={"name": "C"}) for _ in range(2)),
        command("signal_external_workflow_execution", execution={"workflow_id": "other"}, signal_name="s"),
        command("request_cancel_external_workflow_execution", workflow_id="other"),
        force_create_new_workflow_task=True,
        return_new_workflow_task=True,
    )
    run._collect()
    for act, number in steps:
        act(run, number)
    run.finish()
