"""A worker can't hold a run for ever by responding with empty workflow tasks."""

from fairlead.api.times import SECOND_NS
from tests.history.scenario import Scenario, timer

LIMIT_NS = 1800 * SECOND_NS


def test_a_worker_keeps_a_run_for_half_an_hour_at_most() -> None:
    run = Scenario()
    assert run.work(force_create_new_workflow_task=True).new_task is not None
    run.now_ns += LIMIT_NS - SECOND_NS
    assert not run.work(force_create_new_workflow_task=True).outlived
    run.now_ns += 2 * SECOND_NS
    completion = run.work(force_create_new_workflow_task=True)
    assert completion.outlived
    assert run.history[-1].workflow_task_timed_out_event_attributes.timeout_type == 1
    assert run.state.workflow_task is not None
    assert not run.work(force_create_new_workflow_task=True).outlived


def test_a_response_with_commands_is_accepted_however_late() -> None:
    run = Scenario()
    run.work(force_create_new_workflow_task=True)
    run.now_ns += 2 * LIMIT_NS
    assert not run.work(timer("t", 1), force_create_new_workflow_task=True).outlived
