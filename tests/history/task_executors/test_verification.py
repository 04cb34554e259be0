"""A task is executed only if its event is on the current branch, at its version, and its object is still pending."""

from typing import Any

import pytest

from fairlead.core.versions import VersionHistory
from fairlead.history.state import (
    PendingActivity,
    PendingChild,
    PendingTimer,
    RunIdentity,
    RunState,
    TaskKind,
    WorkflowTask,
)
from fairlead.history.state import tasks as kinds
from fairlead.history.state.pending import PendingExternal, PendingNexusOperation
from fairlead.history.state.tasks import ActivityTimeoutKind, TaskTimeout
from fairlead.history.task_executors.verification import is_meant

EVENT_ID = 4
VERSION = 2


def _state() -> RunState:
    """A state in which everything is pending since event 4 of version 2."""
    state = RunState(RunIdentity("namespace", "workflow", "run", "tree", "branch"))
    state.versions = VersionHistory.from_pairs([(3, 1), (6, VERSION)])
    state.next_event_id = 7
    external = PendingExternal(
        EVENT_ID, VERSION, "", "", "", "", "", child_workflow_only=False, workflow_task_completed_event_id=3
    )
    state.task = WorkflowTask(TaskKind.NORMAL, VERSION, EVENT_ID, 1, 0, 0, "queue", sticky=False)
    state.activities[EVENT_ID] = PendingActivity(EVENT_ID, VERSION, 0, "a", "a", "queue", 0, 0, 0, 0, None, b"", 3)
    state.timers["timer"] = PendingTimer("timer", EVENT_ID, VERSION, 0)
    state.children[EVENT_ID] = PendingChild(EVENT_ID, VERSION, "", "", "", "", 1)
    state.external_signals[EVENT_ID] = state.external_cancels[EVENT_ID] = external
    state.nexus_operations[EVENT_ID] = PendingNexusOperation(EVENT_ID, VERSION, "", "", "", "", 0, 0)
    return state


def _tasks(version: int, event_id: int = EVENT_ID) -> list[Any]:
    return [
        kinds.PushWorkflowTask(version, event_id, 1, "queue", sticky=False),
        kinds.WorkflowTaskTimeout(version, 0, event_id, 1, TaskTimeout.START_TO_CLOSE),
        kinds.PushActivityTask(version, event_id, 1, 0, "queue"),
        kinds.ActivityTimeout(version, 0, event_id, ActivityTimeoutKind.HEARTBEAT, 1, 0),
        kinds.ActivityRetry(version, 0, event_id, 1, 0),
        kinds.UserTimer(version, 0, "timer", event_id),
        kinds.StartChild(version, event_id, "request"),
        kinds.SignalExternal(version, event_id, "request"),
        kinds.CancelExternal(version, event_id, "request"),
        kinds.CallNexus(version, event_id, 1, is_cancel=False),
        kinds.NexusTimeout(version, 0, event_id, 1),
    ]


@pytest.mark.parametrize("task", _tasks(VERSION), ids=lambda task: type(task).__name__)
def test_a_task_of_a_pending_entity_is_executed(task: Any) -> None:
    assert is_meant(_state(), task)


@pytest.mark.parametrize(
    "task", [*_tasks(1), *_tasks(12), *_tasks(VERSION, 5), *_tasks(VERSION, 9)], ids=lambda task: type(task).__name__
)
def test_a_task_of_another_branch_or_of_no_entity_is_not_executed(task: Any) -> None:
    assert not is_meant(_state(), task)


@pytest.mark.parametrize("task", [*_tasks(VERSION), kinds.RunTimeout(VERSION, 0)], ids=lambda task: type(task).__name__)
def test_a_zombie_has_no_tasks(task: Any) -> None:
    state = _state()
    state.live.is_zombie = True
    assert not is_meant(state, task)


def test_an_unwritten_workflow_task_is_verified_by_its_reserved_event_ids() -> None:
    state = _state()
    state.task, state.live.unwritten_task = None, state.task
    assert is_meant(state, _tasks(VERSION)[0])
    assert not is_meant(state, _tasks(1)[0])
    assert not is_meant(state, _tasks(VERSION, 5)[0])


def test_the_close_of_a_run_is_reported_only_by_the_task_of_that_close() -> None:
    state = _state()
    state.status, state.close_event_id = 2, 6
    assert is_meant(state, kinds.CloseRun(VERSION, 6, notifies_parent=True, children=()))
    assert is_meant(state, kinds.DeliverCallback(VERSION, 0, 6))
    assert not is_meant(state, kinds.CloseRun(1, 6, notifies_parent=True, children=()))
    assert not is_meant(state, kinds.CloseRun(VERSION, 5, notifies_parent=True, children=()))
