"""Sizes above a warning limit are logged, at most once an interval for each setting."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from fairlead.api.errors import ApiError
from fairlead.api.limits import LimitedSize
from fairlead.api.size_warnings import EVENT, INTERVAL_S, SizeWarnings
from fairlead.core.errors import FairleadError
from fairlead.settings import DynamicSettings
from tests.history.shard_world import World, command, schedule_activity, signal_request
from tests.virtual_time import on_virtual_time


def checked(warnings: SizeWarnings, size: int, kind: LimitedSize = LimitedSize.BLOB, **fields: Any) -> None:
    named = {"namespace": "default", "workflow_id": "w", "operation": "Signal", **fields}
    warnings.check(kind, size, warn=10, error=20, **named)


def seen(logs: list[Any]) -> list[tuple[Any, ...]]:
    fields = ("setting", "namespace", "workflow_id", "operation", "size", "limit", "not_logged")
    assert all(line["log_level"] == "warning" for line in logs if line["event"] == EVENT)
    return [tuple(line[name] for name in fields) for line in logs if line["event"] == EVENT]


def test_a_size_above_a_limit_is_logged_with_the_limit() -> None:
    with capture_logs() as logs:
        warnings = SizeWarnings(lambda: 0.0)
        checked(warnings, 10)
        checked(warnings, 11)
        checked(warnings, 21)
        checked(warnings, 12, LimitedSize.MEMO)
    assert seen(logs) == [
        ("limit.blobSize.warn", "default", "w", "Signal", 11, 10, 0),
        ("limit.blobSize.error", "default", "w", "Signal", 21, 20, 0),
        ("limit.memoSize.warn", "default", "w", "Signal", 12, 10, 0),
    ]


def test_a_limit_below_its_warning_limit_is_logged_too() -> None:
    with capture_logs() as logs:
        warnings = SizeWarnings(lambda: 0.0)
        warnings.check(
            LimitedSize.BLOB, 15, warn=20, error=10, namespace="default", workflow_id="w", operation="Signal"
        )
    assert [line[0] for line in seen(logs)] == ["limit.blobSize.error"]


def test_a_setting_is_logged_once_an_interval_with_the_number_of_lines_left_out() -> None:
    now_s = 1000.0
    with capture_logs() as logs:
        warnings = SizeWarnings(lambda: now_s)
        for number in range(100):
            checked(warnings, 11, workflow_id=str(number))
        now_s += INTERVAL_S - 0.001
        checked(warnings, 11)
        now_s += 0.001
        checked(warnings, 11, workflow_id="next")
        # A clock that was set back does not silence the log.
        now_s -= 500.0
        checked(warnings, 11, workflow_id="set back")
    assert [(line[2], line[-1]) for line in seen(logs)] == [("0", 0), ("next", 100), ("set back", 0)]


async def world_with(**settings: int) -> World:
    world = World()
    world.settings = DynamicSettings(overrides={key.replace("_", "."): value for key, value in settings.items()})
    return world


@on_virtual_time
async def test_a_long_history_is_logged_when_it_grows_and_when_its_run_ends() -> None:
    world = await world_with(limit_historyCount_warn=3, limit_historyCount_error=10)
    host = await world.start()
    with capture_logs() as logs:
        await host.begin("w")
        await host.signal("w", "first")
        assert seen(logs) == []
        await host.signal("w", "second")
        await host.signal("w", "third")
    assert seen(logs) == [("limit.historyCount.warn", "default", "w", "WorkflowExecutionSignaled", 4, 3, 0)]
    with capture_logs() as logs:
        for _ in range(7):
            try:
                await host.signal("w", "more")
            except FairleadError:
                break
    assert seen(logs) == [("limit.historyCount.error", "default", "w", "WorkflowExecutionSignaled", 11, 10, 0)]
    await world.close()


@on_virtual_time
async def test_a_large_history_is_logged() -> None:
    world = await world_with(limit_historySize_warn=4000)
    host = await world.start()
    large = signal_request("w", "large", "one")
    large.input.payloads.add(data=bytes(5000))
    with capture_logs() as logs:
        await host.begin("w")
        await host.call("SignalWorkflowExecution", "w", large)
        await host.signal("w", "small")
    (line,) = seen(logs)
    assert line[:4] == ("limit.historySize.warn", "default", "w", "WorkflowExecutionSignaled")
    assert 5000 < line[4] < 6000
    assert line[5] == 4000
    await world.close()


@on_virtual_time
async def test_large_payloads_and_memos_in_commands_are_logged() -> None:
    world = await world_with(limit_blobSize_warn=1000)
    host = await world.start()
    await host.begin("w")
    task = await host.poll()
    assert task is not None
    activity = schedule_activity()
    activity.schedule_activity_task_command_attributes.input.payloads.add(data=bytes(1500))
    memo = command("MODIFY_WORKFLOW_PROPERTIES")
    memo.modify_workflow_properties_command_attributes.upserted_memo.fields["key"].data = bytes(3000)
    with capture_logs() as logs:
        await host.respond(task, [activity, memo])
    first, second = seen(logs)
    assert first[:4] == ("limit.blobSize.warn", "default", "w", "ScheduleActivityTask")
    assert (first[4] > 1500, first[5:]) == (True, (1000, 0))
    assert second[:4] == ("limit.memoSize.warn", "default", "w", "ModifyWorkflowProperties")
    assert (second[4] > 3000, second[5:]) == (True, (2048, 0))
    await world.close()


@on_virtual_time
async def test_a_payload_that_ends_its_run_is_logged() -> None:
    world = await world_with(limit_blobSize_error=2000)
    host = await world.start()
    await host.begin("w")
    task = await host.poll()
    assert task is not None
    activity = schedule_activity()
    activity.schedule_activity_task_command_attributes.input.payloads.add(data=bytes(2500))
    with capture_logs() as logs, pytest.raises(ApiError, match="Input exceeds size limit"):
        await host.respond(task, [activity])
    assert [line[:4] for line in seen(logs)] == [("limit.blobSize.error", "default", "w", "ScheduleActivityTask")]
    await world.close()
