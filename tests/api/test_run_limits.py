"""The limits of runs follow the settings of their namespace, and a history ends at its limit."""

from pathlib import Path

from fairlead.api.run_limits import RunLimits
from fairlead.api.times import SECOND_NS
from fairlead.core.errors import FairleadError
from fairlead.history.state import DEFAULT_LIMITS, Limits
from fairlead.settings import DynamicSettings, Outcome
from fairlead.storage.history import RunKey
from tests.history.scenario import Scenario, command, payloads, timer
from tests.history.shard_world import NAMESPACE, World, signal_request
from tests.virtual_time import on_virtual_time

MEBIBYTE = 1024 * 1024


def test_without_settings_the_limits_are_the_defaults() -> None:
    assert RunLimits(DynamicSettings()).of("namespace-id") == DEFAULT_LIMITS


def test_a_namespace_has_its_own_limits_until_the_settings_file_changes(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(
        "limit.numPendingActivities.error: [{value: 7, constraints: {namespace: orders}}]\n"
        "history.defaultWorkflowTaskTimeout: [{value: 3s}]\n"
    )
    settings = DynamicSettings(file=file)
    limits = RunLimits(settings)
    assert limits.of("orders").pending_activities_max == 7
    assert limits.of("other").pending_activities_max == DEFAULT_LIMITS.pending_activities_max
    assert limits.of("other").workflow_task_timeout_default_ns == 3 * SECOND_NS
    assert limits.of("orders") is limits.of("orders")

    file.write_text("limit.numPendingActivities.error: [{value: 8}]\n")
    assert settings.reload().outcome is Outcome.LOADED
    assert limits.of("orders").pending_activities_max == 8
    assert limits.of("other").workflow_task_timeout_default_ns == DEFAULT_LIMITS.workflow_task_timeout_default_ns


def test_a_step_with_more_events_than_a_history_may_have_is_in_excess() -> None:
    run = Scenario(limits=Limits(history_count_max=6))
    found = []

    def add_timers(count: int) -> None:
        run.work(*(timer(f"{number}-{count}", 60) for number in range(count)))

    add_timers(2)
    run.step(lambda transaction: found.append(transaction.excess))
    run.signal()
    run.step(lambda transaction: found.append(transaction.excess))
    assert found == ["", "Workflow history count exceeds limit."]


def test_a_closed_run_is_never_in_excess() -> None:
    run = Scenario(limits=Limits(history_size_max=1))
    found = []
    run.step(lambda transaction: found.append(transaction.excess))
    run.work(command("complete_workflow_execution", result=payloads("1")))
    run.step(lambda transaction: found.append(transaction.excess))
    assert found == ["Workflow history size exceeds limit.", ""]


@on_virtual_time
async def test_a_history_limit_above_the_default_is_followed() -> None:
    world = World()
    world.settings = DynamicSettings(overrides={"limit.historySize.error": 60 * MEBIBYTE})
    host = await world.start()
    run_id = await host.begin("w")
    large = signal_request("w", "large")
    large.input.payloads.add(data=bytes(2 * MEBIBYTE - 200))
    errors = []
    for number in range(33):
        large.request_id = f"request-{number}"
        try:
            await host.call("SignalWorkflowExecution", "w", large)
        except FairleadError as error:
            errors.append((number, str(error)))
    state = world.run_row(0, RunKey(NAMESPACE.id, "w", run_id))
    assert state is not None
    assert not state.is_open
    # 31 signals of almost 2 MiB exceed 60 MiB; signal 31 closes the run, and signal 32 finds it closed.
    assert [number for number, _ in errors] == [31, 32]
    assert errors[0][1] == "Workflow history size exceeds limit."
    assert state.live.history_size_bytes > 60 * MEBIBYTE
    await world.close()
