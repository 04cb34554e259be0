"""The time-skipping lock counter, and the calls that stop time from skipping."""

import pytest
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    GetWorkflowExecutionHistoryRequest,
    PollActivityTaskQueueRequest,
    PollNexusTaskQueueRequest,
    QueryWorkflowRequest,
    RespondWorkflowTaskCompletedRequest,
    SignalWorkflowExecutionRequest,
    UpdateWorkflowExecutionRequest,
)

from fairlead.core.partitions import TaskType
from fairlead.history.state.work import WaitingTask, Work
from fairlead.storage.history import RunKey
from fairlead.time_skipping.calls import CLIENT_GRACE_S, NEXUS_POLLER_S_MAX, POLLER_S_MAX, QUEUES_MAX, CallWatch
from fairlead.time_skipping.clock import TIME_NS_MAX, SkippingClock
from fairlead.time_skipping.counter import LockCounter, NotLocked
from fairlead.time_skipping.work import WorkWatch


def test_locks_are_counted_and_an_unlock_without_a_lock_is_rejected() -> None:
    counter = LockCounter()
    counter.lock()
    assert counter.holds == 2
    counter.unlock()
    counter.unlock()
    assert counter.holds == 0
    with pytest.raises(NotLocked, match="the lock counter is 0"):
        counter.unlock()
    assert counter.holds == 0


def test_a_running_activity_holds_time_until_an_unlock_inside_it() -> None:
    counter = LockCounter(0)
    counter.set_activities(1)
    assert counter.holds == 1
    counter.unlock()
    assert counter.holds == 0
    with pytest.raises(NotLocked):
        counter.unlock()
    counter.lock()
    assert counter.holds == 1


def test_an_unlock_of_an_ended_activity_does_not_affect_another_activity() -> None:
    counter = LockCounter(0)
    counter.set_activities(1)
    unlock = counter.begin()
    counter.set_activities(0)
    counter.set_activities(1)
    assert counter.holds == 1
    counter.begin()
    assert counter.holds == 0
    counter.end(unlock)
    assert counter.holds == 0


def test_the_lock_after_an_unlock_of_an_ended_activity_is_not_counted() -> None:
    counter = LockCounter(0)
    counter.set_activities(1)
    counter.unlock()
    counter.set_activities(0)
    counter.lock()
    assert counter.holds == 0
    counter.lock()
    assert counter.holds == 1


def test_the_clock_jumps_only_forward_and_not_beyond_its_maximum() -> None:
    clock = SkippingClock(lambda: 1_000)
    clock.jump_to(5_000)
    assert clock.now_ns() == 5_000
    clock.jump_to(2_000)
    assert clock.now_ns() == 5_000
    clock.jump_to(2**63 - 1)
    assert clock.now_ns() == TIME_NS_MAX


class Seconds:
    """A clock that moves only when a test sets it."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_calls_hold_time_except_those_that_wait_for_workers_or_timers() -> None:
    calls = CallWatch(Seconds())
    waiting_history = GetWorkflowExecutionHistoryRequest(wait_new_event=True)
    for name, request, holding in [
        ("SignalWorkflowExecution", SignalWorkflowExecutionRequest(), 1),
        ("QueryWorkflow", QueryWorkflowRequest(), 1),
        ("RespondWorkflowTaskCompleted", RespondWorkflowTaskCompletedRequest(), 1),
        ("GetWorkflowExecutionHistory", GetWorkflowExecutionHistoryRequest(), 1),
        ("GetWorkflowExecutionHistory", waiting_history, 0),
        ("UpdateWorkflowExecution", UpdateWorkflowExecutionRequest(), 0),
        ("PollActivityTaskQueue", PollActivityTaskQueueRequest(), 0),
    ]:
        with calls.during(name, request):
            assert calls.holding == holding, name
        assert calls.holding == 0


def test_a_clients_call_holds_time_for_a_moment_afterwards_but_a_workers_call_does_not() -> None:
    now = Seconds()
    calls = CallWatch(now)
    with calls.during("RespondWorkflowTaskCompleted", RespondWorkflowTaskCompletedRequest()):
        pass
    assert calls.quiet_in_s() == 0
    with calls.during("SignalWorkflowExecution", SignalWorkflowExecutionRequest()):
        pass
    assert calls.quiet_in_s() == pytest.approx(CLIENT_GRACE_S)
    calls.allow_at_once()
    assert calls.quiet_in_s() == 0


def test_a_worker_counts_as_alive_during_a_poll_and_shortly_afterwards() -> None:
    now = Seconds()
    calls = CallWatch(now)
    assert calls.expires_in_s("default", TaskType.ACTIVITY, ("orders",)) == 0
    poll = PollActivityTaskQueueRequest(namespace="default", task_queue=TaskQueue(name="orders"))
    with calls.during("PollActivityTaskQueue", poll):
        assert calls.expires_in_s("default", TaskType.ACTIVITY, ("orders",)) is None
        assert calls.expires_in_s("default", TaskType.ACTIVITY, ("sticky", "orders")) is None
        assert calls.expires_in_s("default", TaskType.WORKFLOW, ("orders",)) == 0
        assert calls.expires_in_s("other", TaskType.ACTIVITY, ("orders",)) == 0
    assert calls.expires_in_s("default", TaskType.ACTIVITY, ("orders",)) == pytest.approx(POLLER_S_MAX)
    now.now_s += POLLER_S_MAX
    assert calls.expires_in_s("default", TaskType.ACTIVITY, ("orders",)) == 0


def test_any_nexus_poll_counts_for_a_nexus_request() -> None:
    now = Seconds()
    calls = CallWatch(now)
    poll = PollNexusTaskQueueRequest(namespace="handlers", task_queue=TaskQueue(name="nexus"))
    with calls.during("PollNexusTaskQueue", poll):
        assert calls.expires_in_s("", TaskType.NEXUS, ()) is None
    assert calls.expires_in_s("", TaskType.NEXUS, ()) == pytest.approx(NEXUS_POLLER_S_MAX)


def test_the_number_of_kept_task_queues_is_bounded() -> None:
    calls = CallWatch(Seconds())
    for number in range(QUEUES_MAX + 5):
        poll = PollActivityTaskQueueRequest(namespace="default", task_queue=TaskQueue(name=str(number)))
        with calls.during("PollActivityTaskQueue", poll):
            pass
    assert calls.expires_in_s("default", TaskType.ACTIVITY, ("4",)) == 0
    assert calls.expires_in_s("default", TaskType.ACTIVITY, ("5",)) != 0


def test_the_tasks_of_all_runs_are_summed_up_until_the_runs_end() -> None:
    watch = WorkWatch()
    changes: list[int] = []
    watch.on_change = lambda: changes.append(1)
    one, two = RunKey("n", "w", "1"), RunKey("n", "w", "2")
    waiting = WaitingTask("n", TaskType.ACTIVITY, ("orders",))
    watch.report(one, Work(workflow_tasks=1, activities=2, waiting=(waiting, waiting)))
    watch.report(two, Work(activities=1, waiting=(waiting,)))
    watch.report(two, Work(activities=1, waiting=(waiting,)))
    assert (watch.workflow_tasks, watch.activities, watch.waiting[waiting], len(changes)) == (1, 3, 3, 2)
    watch.report(one, Work())
    watch.report(two, Work())
    assert (watch.workflow_tasks, watch.activities, len(watch.waiting)) == (0, 0, 0)
