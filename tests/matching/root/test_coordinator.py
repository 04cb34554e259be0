"""SC-4: the root coordinates scaling: it collects the load, saves the decisions and pushes them."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead.aio.background import BrokenOff
from fairlead.core.partitions import AboveMaximum, NotDrained, PartitionConfig, ReadBelowWrite, WriteNotLowered
from fairlead.core.scaling import Action
from fairlead.matching.messages import ScalerIsOn, UpdateResponse
from fairlead.matching.root.config_push import REFRESHES_BETWEEN_REMINDERS
from fairlead.matching.root.coordinator import RootCoordinator
from fairlead.matching.root.decisions import BY_HAND, CHANGES_KEPT_MAX
from fairlead.matching.root.partition_reports import ASK_S_MAX, ASKS_AT_ONCE_MAX, ASKS_S_MAX
from fairlead.settings import DynamicSettings, Outcome, Plain
from fairlead.storage.tasks import LeaseLost, StoreUnavailable
from tests.matching.root_world import (
    REPAIR_S,
    ROOT,
    SCALER_ON,
    TICK_S,
    World,
    first,
    lost,
    never,
    on_virtual_time,
    run,
    timers,
    unavailable,
    unknown,
)


def at(version: int, read: int, write: int | None = None) -> PartitionConfig:
    return PartitionConfig(version=version, read=read, write=write or read)


class SettingsFile:
    """Settings that a test can change during a run."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "settings.yaml"
        self._file.write_text("{}")
        self.settings = DynamicSettings(file=self._file)

    def set(self, values: dict[str, Plain]) -> None:
        lines = [f"{key}:\n  - value: {str(value).lower()}\n" for key, value in values.items()]
        self._file.write_text("".join(lines) or "{}")
        assert self.settings.reload().outcome is Outcome.LOADED


# Ticks of the scaler


@on_virtual_time
async def test_a_load_above_the_threshold_raises_read_and_write_on_all_partitions() -> None:
    """SC-8, SC-9, SC-5."""
    world = await World.make(settings=SCALER_ON)
    world.load_each(350.0)
    root = world.root()
    decision = await root.tick()
    assert decision.action is Action.UPSCALE
    assert decision.qps == 350.0
    assert root.config == world.stored == at(2, 4)
    assert world.changes == [at(2, 4)]
    await root.repair()
    assert world.versions(4) == [2] * 4
    assert root.explain().acknowledged == {0: 2, 1: 2, 2: 2, 3: 2}
    assert (
        world.counts.partition_upscale_per_tl,
        world.counts.partition_downscale_per_tl,
        world.counts.partition_drained_per_tl,
        world.counts.tasklist_partition_update_failed_per_tl,
    ) == (1, 0, 0, 0)


@on_virtual_time
async def test_the_load_is_the_sum_over_all_partitions() -> None:
    """FL-29: an estimate from the root alone would be blind to skew."""
    world = await World.make(read=3, write=3, settings=SCALER_ON)
    world.members[0].adds_per_s, world.members[2].adds_per_s = 10.0, 480.0
    root = world.root()
    decision = await root.tick()
    assert decision.qps == 490.0
    assert root.config == at(2, 5)


@on_virtual_time
async def test_a_low_load_lowers_write_first_and_read_after_the_partitions_have_drained() -> None:
    """SC-10, SC-11: no backlog is left behind."""
    world = await World.make(read=4, write=4, settings=SCALER_ON)
    world.load_each(30.0)
    world.members[2].tasks = 1
    root = world.root()
    assert (await root.tick()).action is Action.DOWNSCALE
    assert root.config == at(2, 4, 2)
    await root.repair()
    assert (await root.tick()).action is Action.DRAIN
    assert root.config == at(3, 3, 2)
    await root.repair()
    assert (await root.tick()).action is Action.HOLD
    world.members[2].tasks = 0
    assert (await root.tick()).action is Action.DRAIN
    assert root.config == at(4, 2)
    assert (world.counts.partition_downscale_per_tl, world.counts.partition_drained_per_tl) == (1, 2)


@on_virtual_time
async def test_a_partition_that_has_not_acknowledged_the_lower_write_count_stays_a_read_partition() -> None:
    world = await World.make(read=2, write=2, settings=SCALER_ON)
    world.load_each(1.0)
    root = world.root()
    world.before_push = lost
    assert (await root.tick()).action is Action.DOWNSCALE
    for _ in range(5):
        assert (await root.tick()).action is Action.HOLD
    world.before_push = None
    await root.repair()
    assert (await root.tick()).action is Action.DRAIN


@on_virtual_time
async def test_a_partition_with_an_append_in_flight_stays_a_read_partition() -> None:
    """FL-26: an append in flight keeps its partition in the read partitions."""
    world = await World.make(read=2, write=1, settings=SCALER_ON)
    world.members[1].appends_in_flight = 1
    root = world.root()
    assert (await root.tick()).action is Action.HOLD
    world.members[1].appends_in_flight = 0
    assert (await root.tick()).action is Action.DRAIN


@on_virtual_time
async def test_a_tick_asks_all_read_partitions_and_counts_the_stored_tasks_of_those_outside_write() -> None:
    world = await World.make(read=4, write=2, settings=SCALER_ON)
    world.members[3].tasks = 5
    root = world.root()
    await root.tick()
    assert sorted(world.asked) == [(0, False), (1, False), (2, True), (3, True)]


@on_virtual_time
async def test_a_partition_that_does_not_respond_blocks_downscaling_but_not_upscaling() -> None:
    world = await World.make(read=3, write=3, settings=SCALER_ON)
    root = world.root()
    world.members[1].is_up = False
    decision = await root.tick()
    assert decision.partitions_unknown == (1,)
    assert decision.action is Action.HOLD
    # The load of the other partitions is a lower bound, which may already be above the threshold.
    world.members[2].adds_per_s = 420.0
    assert (await root.tick()).action is Action.UPSCALE


@on_virtual_time
async def test_a_hanging_partition_delays_a_tick_by_one_timeout_only() -> None:
    world = await World.make(read=200, write=200, settings=SCALER_ON | {"matching.taskListMaximumWritePartitions": 200})

    async def hang(number: int) -> None:
        if number == 7:
            await never()

    world.before_ask = hang
    root = world.root()
    began_s = asyncio.get_running_loop().time()
    decision = await root.tick()
    assert decision.partitions_unknown == (7,)
    assert asyncio.get_running_loop().time() - began_s == pytest.approx(ASK_S_MAX)


@on_virtual_time
async def test_a_tick_is_bounded_in_time_and_concurrency_even_if_thousands_of_partitions_hang() -> None:
    world = await World.make(read=5000, write=5000, settings=SCALER_ON)
    under_way, most = set[int](), 0

    async def hang(number: int) -> None:
        nonlocal most
        under_way.add(number)
        most = max(most, len(under_way))
        try:
            if number:
                await never()
        finally:
            under_way.discard(number)

    world.before_ask = hang
    root = world.root()
    began_s = asyncio.get_running_loop().time()
    decision = await root.tick()
    assert len(decision.partitions_unknown) == 4999
    assert asyncio.get_running_loop().time() - began_s == pytest.approx(ASKS_S_MAX)
    assert most == ASKS_AT_ONCE_MAX
    await asyncio.sleep(0)
    assert not under_way


@on_virtual_time
async def test_a_tick_pushes_the_configuration_to_partitions_that_report_an_old_version() -> None:
    world = await World.make(read=3, write=3, version=5, settings=SCALER_ON)
    world.load_each(80.0)
    root = world.root()
    await root.repair()
    world.members[1].config = at(4, 3)
    assert (await root.tick()).action is Action.HOLD
    await asyncio.sleep(0.01)
    assert world.versions(3) == [5] * 3


def test_a_setting_takes_effect_at_the_next_tick_and_switching_off_resets_the_scaler(tmp_path: Path) -> None:
    """FL-31: switching the scaler off clears the sustained duration."""

    async def scenario() -> None:
        file = SettingsFile(tmp_path)
        world = await World.make(settings=file.settings)
        world.load_each(350.0)
        root = world.root()
        assert (await root.tick()).action is Action.DISABLED
        assert world.asked == []
        on: dict[str, Plain] = SCALER_ON | {"matching.partitionUpscaleSustainedDuration": "20s"}
        file.set(on)
        assert (await root.tick()).above_since_s is not None
        await asyncio.sleep(TICK_S)
        file.set({})
        assert (await root.tick()).action is Action.DISABLED
        file.set(on)
        await asyncio.sleep(TICK_S)
        # If the time before the switch counted, the upscale would be due now.
        assert (await root.tick()).action is Action.HOLD
        file.set(SCALER_ON)
        assert (await root.tick()).action is Action.UPSCALE

    run(scenario())


def test_a_scaler_that_is_switched_off_during_a_tick_changes_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        file = SettingsFile(tmp_path)
        file.set(SCALER_ON)
        world = await World.make(settings=file.settings)
        world.load_each(350.0)

        async def switch_off(number: int) -> None:
            file.set({})

        world.before_ask = switch_off
        root = world.root()
        assert (await root.tick()).action is Action.DISABLED
        assert root.config == at(1, 1)

    run(scenario())


# Failures of the store


@on_virtual_time
async def test_a_configuration_that_could_not_be_stored_is_not_used_or_pushed_and_is_retried() -> None:
    """FL-25: memory is never ahead of the store."""
    world = await World.make(settings=SCALER_ON)
    world.load_each(350.0)
    world.trouble.before_it["save_config"] = [unavailable]
    root = world.root()
    decision = await root.tick()
    assert (decision.action, decision.after) == (Action.HOLD, at(1, 1))
    assert "the store is away" in decision.reason
    assert root.config == world.stored == at(1, 1)
    assert (world.changes, world.sent) == ([], [])
    assert (world.counts.tasklist_partition_update_failed_per_tl, world.counts.partition_upscale_per_tl) == (1, 0)
    assert root.decisions.latest == decision
    assert (await root.tick()).action is Action.UPSCALE
    assert root.config == world.stored == at(2, 4)
    # The failure was certain, so the root doesn't read the row back.
    assert world.trouble.calls == ["save_config", "save_config"]


@on_virtual_time
async def test_a_save_of_unknown_outcome_that_took_effect_is_used() -> None:
    world = await World.make(settings=SCALER_ON)
    world.load_each(350.0)
    world.trouble.after_it["save_config"] = [unknown]
    root = world.root()
    assert (await root.tick()).action is Action.UPSCALE
    assert root.config == world.stored == at(2, 4)
    assert world.changes == [at(2, 4)]
    await root.repair()
    assert world.versions(4) == [2] * 4
    assert (world.counts.partition_upscale_per_tl, world.counts.tasklist_partition_update_failed_per_tl) == (1, 0)


@on_virtual_time
async def test_a_save_of_unknown_outcome_that_took_no_effect_is_not_used() -> None:
    world = await World.make(settings=SCALER_ON)
    world.load_each(350.0)
    world.trouble.before_it["save_config"] = [unknown]
    root = world.root()
    decision = await root.tick()
    assert decision.action is Action.HOLD
    assert root.config == world.stored == at(1, 1)
    assert (world.changes, world.counts.tasklist_partition_update_failed_per_tl) == ([], 1)
    # The version may be used again with other counts, because no partition has seen it.
    world.load_each(550.0)
    await root.tick()
    assert root.config == world.stored == at(2, 6)


@on_virtual_time
async def test_a_late_save_is_fenced_before_the_row_is_read_back() -> None:
    world = await World.make()
    gate = asyncio.Event()

    async def late() -> Callable[[], object]:
        return gate.wait

    world.trouble.before_it["save_config"] = [late]
    root = world.root()
    with pytest.raises(StoreUnavailable, match="was not saved"):
        await root.update(read=4, write=4, force=False)
    await root.update(read=2, write=2, force=False)
    gate.set()
    await asyncio.sleep(1.0)
    assert root.config == world.stored == at(2, 2)


@on_virtual_time
async def test_no_decision_is_made_until_the_row_has_been_read_back() -> None:
    world = await World.make(settings=SCALER_ON)
    world.load_each(350.0)
    world.trouble.after_it["save_config"] = [unknown]
    world.trouble.before_it["load_config"] = [unavailable] * 10
    root = world.root()
    ticks = [asyncio.create_task(root.tick()) for _ in range(3)]
    await asyncio.sleep(2.0)
    assert world.trouble.calls.count("save_config") == 1
    assert 4 <= world.trouble.calls.count("load_config") < 10
    assert root.config == at(1, 1)
    await asyncio.sleep(60.0)
    decisions = await asyncio.gather(*ticks)
    assert [decision.before for decision in decisions] == [at(1, 1), at(2, 4), at(2, 4)]
    assert root.config == world.stored == at(2, 4)


@on_virtual_time
async def test_the_next_tick_reads_the_row_back_after_an_unexpected_error_in_a_save() -> None:
    world = await World.make()

    async def bug() -> None:
        raise ZeroDivisionError

    world.trouble.after_it["save_config"] = [bug]
    root = world.root()
    with pytest.raises(ZeroDivisionError):
        await root.update(read=4, write=4, force=False)
    assert root.config == at(1, 1)
    assert world.violations
    world.violations.clear()
    assert (await root.tick()).before == at(2, 4)
    assert world.changes == [at(2, 4)]


@on_virtual_time
async def test_a_lost_lease_stops_ticks_updates_and_pushes() -> None:
    world = await World.make(settings=SCALER_ON)
    world.load_each(350.0)
    root = world.root()
    root.start()
    await world.store.take_lease(ROOT)
    decision = await root.tick()
    assert decision.after == at(1, 1)
    assert world.changes == []
    with pytest.raises(BrokenOff):
        await root.tick()
    with pytest.raises(BrokenOff):
        await root.update(read=2, write=2, force=True)
    await root.repair()
    asked = len(world.asked)
    await asyncio.sleep(3600.0)
    assert (world.sent, len(world.asked)) == ([], asked)
    assert world.trouble.calls.count("save_config") == 1
    root.start()
    await asyncio.sleep(3600.0)
    assert len(world.asked) == asked
    await root.close()


@on_virtual_time
async def test_an_update_fails_with_lease_lost_if_the_lease_is_lost() -> None:
    world = await World.make()
    root = world.root()
    await world.store.take_lease(ROOT)
    with pytest.raises(LeaseLost):
        await root.update(read=2, write=2, force=False)
    assert world.counts.tasklist_partition_update_failed_per_tl == 1


@on_virtual_time
async def test_a_lease_lost_while_the_outcome_of_a_save_is_unknown_stops_the_root() -> None:
    world = await World.make(settings=SCALER_ON)
    world.load_each(350.0)

    async def taken() -> None:
        await world.store.take_lease(ROOT)
        await unknown()

    world.trouble.before_it["save_config"] = [taken]
    root = world.root()
    assert (await root.tick()).after == at(1, 1)
    with pytest.raises(BrokenOff):
        await root.tick()


# Close


@on_virtual_time
async def test_close_returns_during_a_hanging_save_and_a_late_result_is_not_used() -> None:
    world = await World.make(settings=SCALER_ON)
    world.load_each(350.0)
    gate = asyncio.Event()
    world.trouble.before_it["save_config"] = [gate.wait]
    root = world.root()
    ticks = [asyncio.create_task(root.tick()) for _ in range(2)]
    await asyncio.sleep(1.0)
    began_s = asyncio.get_running_loop().time()
    await root.close()
    assert asyncio.get_running_loop().time() == began_s
    for result in await asyncio.gather(*ticks, return_exceptions=True):
        assert isinstance(result, BrokenOff)
    world.trouble.before_it.clear()
    gate.set()
    await asyncio.sleep(100.0)
    assert (world.changes, world.sent) == ([], [])
    await root.close()


@pytest.mark.parametrize("is_apart", [False, True])
@pytest.mark.parametrize("error", [LeaseLost("taken"), StoreUnavailable("away")])
@pytest.mark.parametrize("operation", ["save_config", "load_config"])
def test_the_failure_handler_of_a_store_call_may_close_the_root_and_wait(
    is_apart: bool, error: Exception, operation: str
) -> None:
    """FL-25: the store's failure handler may close the root and wait, although the root waits for the store."""

    async def scenario() -> None:
        world = await World.make(settings=SCALER_ON)
        world.load_each(350.0)
        root = world.root()
        finished: list[str] = []

        async def unload() -> None:
            await root.close()
            await asyncio.sleep(0.01)
            finished.append("unloaded")

        async def fail() -> None:
            if is_apart:
                await asyncio.create_task(unload())
            else:
                await unload()
            raise error

        if operation == "load_config":
            world.trouble.before_it["save_config"] = [unknown]
        world.trouble.before_it[operation] = [*world.trouble.before_it.get(operation, []), fail]
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(BrokenOff):
            await root.tick()
        await asyncio.sleep(0.02)
        assert finished == ["unloaded"]
        assert asyncio.get_running_loop().time() - began_s < 0.1
        assert (world.changes, world.sent) == ([], [])

    run(scenario())


@on_virtual_time
async def test_closing_the_root_from_within_a_call_lets_that_call_finish_and_starts_no_other() -> None:
    world = await World.make(read=200, write=1, settings=SCALER_ON)
    root = world.root()
    finished: list[int] = []

    async def unload(number: int) -> None:
        if number == 0:
            await root.close()
            await asyncio.sleep(0.01)
            finished.append(number)

    world.before_ask = unload
    with pytest.raises(BrokenOff):
        await root.tick()
    await asyncio.sleep(1.0)
    assert finished == [0]
    assert len(world.asked) < 200


@on_virtual_time
async def test_closing_the_root_from_within_a_push_does_not_wait_for_that_push() -> None:
    world = await World.make(read=3, write=1)
    root = world.root()
    finished: list[int] = []

    async def unload(number: int, config: PartitionConfig) -> None:
        await root.close()
        await asyncio.sleep(0.01)
        finished.append(number)

    world.before_push = first(1, unload)
    await root.repair()
    assert finished == [1]
    assert not root._pushes._workers


@on_virtual_time
async def test_close_cancels_running_pushes_and_calls() -> None:
    world = await World.make(read=3, write=3, settings=SCALER_ON)
    root = world.root()

    async def hang(number: int, config: PartitionConfig) -> None:
        await never()

    async def silence(number: int) -> None:
        await never()

    world.before_push, world.before_ask = hang, silence
    root.start()
    tick = asyncio.create_task(root.tick())
    await asyncio.sleep(0.1)
    assert len(world.asked) == 3
    assert world.under_way == 2
    await root.close()
    assert (world.under_way, timers()) == (0, 0)
    assert isinstance((await asyncio.gather(tick, return_exceptions=True))[0], BrokenOff)
    assert asyncio.all_tasks() == {asyncio.current_task()}


@on_virtual_time
async def test_close_waits_at_most_one_second_for_a_push_that_ignores_cancellation() -> None:
    world = await World.make(read=2, write=1)
    root = world.root()

    async def stubborn(number: int, config: PartitionConfig) -> None:
        try:
            await never()
        finally:
            await asyncio.sleep(50.0)

    world.before_push = stubborn
    root.start()
    await asyncio.sleep(0.1)
    began_s = asyncio.get_running_loop().time()
    await root.close()
    assert asyncio.get_running_loop().time() - began_s == pytest.approx(1.0)


@on_virtual_time
async def test_close_cancels_the_retries_of_pushes() -> None:
    world = await World.make(read=3, write=1)
    root = world.root()
    world.before_push = lost
    root.start()
    await asyncio.sleep(1.0)
    assert timers() == 3
    await root.close()
    assert timers() == 0


# Updates by an operator


@on_virtual_time
async def test_an_update_by_an_operator_is_stored_used_and_pushed() -> None:
    """SC-2: an operator's increase takes one step."""
    world = await World.make()
    root = world.root()
    assert await root.update(read=4, write=3, force=False) == UpdateResponse(at(1, 1), at(2, 4, 3))
    assert root.config == world.stored == at(2, 4, 3)
    await root.repair()
    assert world.versions(4) == [2] * 4
    assert [(change.action, change.after) for change in root.explain().changes] == [(BY_HAND, at(2, 4, 3))]


@pytest.mark.parametrize("force", [False, True])
def test_an_update_is_rejected_while_the_scaler_is_on(force: bool) -> None:
    async def scenario() -> None:
        world = await World.make(read=3, write=1, settings=SCALER_ON)
        root = world.root()
        with pytest.raises(ScalerIsOn, match=r"'orders'.*matching\.enableAdaptiveScaler"):
            await root.update(read=1, write=1, force=force)
        assert world.stored == at(1, 3, 1)
        assert (world.asked, world.trouble.calls) == ([], [])

    run(scenario())


def test_an_update_is_rejected_if_the_scaler_is_switched_on_during_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        file = SettingsFile(tmp_path)
        world = await World.make(read=2, write=1, settings=file.settings)

        async def switch_on(number: int) -> None:
            file.set(SCALER_ON)

        world.before_ask = switch_on
        root = world.root()
        with pytest.raises(ScalerIsOn):
            await root.update(read=1, write=1, force=False)
        assert world.stored == at(1, 2, 1)

    run(scenario())


@on_virtual_time
async def test_a_decrease_lowers_write_first_and_read_needs_drained_partitions() -> None:
    """SC-3: the three steps of a decrease."""
    world = await World.make(read=4, write=4)
    root = world.root()
    with pytest.raises(WriteNotLowered):
        await root.update(read=2, write=2, force=False)
    assert world.trouble.calls == []
    await root.update(read=4, write=2, force=False)
    world.members[2].tasks = 3
    await root.repair()
    with pytest.raises(NotDrained):
        await root.update(read=2, write=2, force=False)
    # The root asks only the partitions that would be removed.
    assert sorted(world.asked) == [(2, True), (3, True)]
    world.asked.clear()
    assert await root.update(read=3, write=2, force=False) == UpdateResponse(at(2, 4, 2), at(3, 3, 2))
    assert world.asked == [(3, True)]
    world.members[2].tasks = 0
    await root.repair()
    await root.update(read=2, write=2, force=False)
    assert root.config == world.stored == at(4, 2)


@on_virtual_time
async def test_a_rejected_decrease_pushes_the_configuration_to_outdated_partitions() -> None:
    world = await World.make(read=2, write=2)
    root = world.root()
    await root.update(read=2, write=1, force=False)
    world.before_push = None
    await root.repair()
    world.members[1].config = at(1, 2)
    with pytest.raises(NotDrained):
        await root.update(read=1, write=1, force=False)
    await asyncio.sleep(0.01)
    await root.update(read=1, write=1, force=False)
    assert root.config == at(3, 1)


@on_virtual_time
async def test_only_the_operator_lowers_read_while_the_scaler_is_off() -> None:
    world = await World.make(read=4, write=4)
    root = world.root()
    root.start()
    await root.update(read=4, write=1, force=False)
    await asyncio.sleep(3600.0)
    assert (await root.tick()).action is Action.DISABLED
    assert root.config == world.stored == at(2, 4, 1)
    assert world.asked == []
    await root.close()


@on_virtual_time
async def test_a_forced_update_skips_the_drain_check() -> None:
    world = await World.make(read=4, write=3)
    world.members[3].tasks = 9
    root = world.root()
    assert (await root.update(read=2, write=2, force=True)).after == at(2, 2)
    assert world.asked == []
    assert "without the check" in root.explain().changes[-1].reason
    await root.repair()
    # The removed partitions got the push too.
    assert world.versions(4) == [2] * 4
    with pytest.raises(ReadBelowWrite):
        await root.update(read=1, write=2, force=True)
    with pytest.raises(AboveMaximum):
        await root.update(read=10_001, write=2, force=True)
    assert world.stored == at(2, 2)


@on_virtual_time
async def test_an_update_to_the_current_counts_writes_nothing() -> None:
    world = await World.make(read=2, write=2)
    root = world.root()
    assert await root.update(read=2, write=2, force=False) == UpdateResponse(at(1, 2), at(1, 2))
    assert world.trouble.calls == []
    assert root.explain().changes == []


@on_virtual_time
async def test_an_update_that_could_not_be_stored_fails_and_changes_nothing() -> None:
    world = await World.make()
    root = world.root()
    world.trouble.before_it["save_config"] = [unavailable]
    with pytest.raises(StoreUnavailable):
        await root.update(read=2, write=2, force=False)
    assert root.config == world.stored == at(1, 1)
    assert world.counts.tasklist_partition_update_failed_per_tl == 1
    assert root.explain().changes == []


@on_virtual_time
async def test_concurrent_updates_are_applied_one_after_the_other() -> None:
    world = await World.make()
    root = world.root()
    world.trouble.before_it["save_config"] = [lambda: asyncio.sleep(1.0)] * 5
    answers = await asyncio.gather(*(root.update(read=n, write=n, force=False) for n in range(2, 7)))
    assert [answer.before for answer in answers] == [at(1, 1), at(2, 2), at(3, 3), at(4, 4), at(5, 5)]
    assert root.config == world.stored == at(6, 6)


@on_virtual_time
async def test_an_update_is_completed_even_if_its_caller_was_cancelled() -> None:
    """Contract of the store: a caller that is cancelled during a write doesn't know whether the write took effect."""
    world = await World.make()
    root = world.root()
    world.trouble.after_it["save_config"] = [lambda: asyncio.sleep(1.0)]
    caller = asyncio.create_task(root.update(read=3, write=3, force=False))
    await asyncio.sleep(0.5)
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    assert caller.cancelled()
    assert root.config == at(1, 1)
    await asyncio.sleep(1.0)
    assert root.config == world.stored == at(2, 3)
    assert world.versions(3) == [2] * 3


# History of decisions


@on_virtual_time
async def test_explain_returns_the_last_decision_the_changes_and_the_acknowledged_versions() -> None:
    world = await World.make(settings=SCALER_ON)
    root = world.root()
    explained = root.explain()
    assert (explained.enabled, explained.latest, explained.changes) == (True, None, [])
    assert explained.acknowledged == {0: 1}
    world.load_each(350.0)
    world.before_push = lost
    await root.tick()
    assert world.versions(4) == [2] * 4
    world.load_each(90.0)
    hold = await root.tick()
    explained = root.explain()
    assert explained.config == at(2, 4)
    assert explained.latest is not None
    assert (explained.latest.action, explained.latest.reason) == ("hold", hold.reason)
    assert (explained.latest.upscale_threshold_qps, explained.latest.downscale_threshold_qps) == (400.0, 225.0)
    assert [change.action for change in explained.changes] == ["upscale"]
    # The new partitions have loaded the stored row, and reported its version when the root asked them.
    assert explained.acknowledged == {0: 2, 1: 2, 2: 2, 3: 2}


@on_virtual_time
async def test_the_number_of_kept_changes_is_bounded() -> None:
    world = await World.make()
    root = world.root()
    for turn in range(CHANGES_KEPT_MAX + 10):
        await root.update(read=2 - turn % 2, write=2 - turn % 2, force=True)
    changes = root.explain().changes
    assert len(changes) == CHANGES_KEPT_MAX
    assert changes[-1].after == root.config


# Timers


@on_virtual_time
async def test_a_task_queue_of_one_partition_without_a_scaler_does_no_work() -> None:
    world = await World.make()
    root = world.root()
    root.start()
    await asyncio.sleep(86_400.0)
    assert (world.asked, world.sent, world.trouble.calls, world.logged) == ([], [], [], [])
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert timers() == 1
    await root.close()
    assert timers() == 0


@on_virtual_time
async def test_a_new_root_pushes_its_configuration_to_all_partitions_at_once() -> None:
    world = await World.make(read=3, write=3, version=4)
    for number in (1, 2):
        world.members[number].config = at(3, 3, 1)
    root = world.root()
    root.start()
    await asyncio.sleep(0.01)
    assert world.versions(3) == [4] * 3
    await root.close()


@on_virtual_time
async def test_an_outdated_partition_is_repaired_without_another_change() -> None:
    """FL-20: a lost push is repaired without another change."""
    world = await World.make(read=3, write=3)
    root = world.root()
    root.start()
    await root.update(read=3, write=1, force=False)
    await asyncio.sleep(1.0)
    world.members[2].config = at(1, 3)
    await asyncio.sleep(REPAIR_S * REFRESHES_BETWEEN_REMINDERS)
    assert world.versions(3) == [2] * 3
    await root.close()


@on_virtual_time
async def test_a_root_that_was_alone_starts_repairs_when_partitions_are_added() -> None:
    world = await World.make(settings={"matching.adaptiveScalerUpdateInterval": "1h"})
    root = world.root()
    root.start()
    await asyncio.sleep(60.0)
    await root.update(read=3, write=3, force=False)
    await asyncio.sleep(1.0)
    assert timers() == 1
    world.members[1].config = world.members[2].config = at(1, 1)
    await asyncio.sleep(REPAIR_S * REFRESHES_BETWEEN_REMINDERS)
    assert world.versions(3) == [2] * 3
    assert timers() == 1
    await root.close()


@on_virtual_time
async def test_the_scaler_ticks_at_its_interval() -> None:
    world = await World.make(settings=SCALER_ON)
    world.load_each(50.0)
    root = world.root()
    root.start()
    await asyncio.sleep(TICK_S - 0.1)
    assert world.asked == []
    await asyncio.sleep(10 * TICK_S)
    assert world.asked == [(0, False)] * 10
    world.load_each(350.0)
    await asyncio.sleep(TICK_S)
    assert root.config == at(2, 4)
    assert world.versions(4) == [2] * 4
    await root.close()


def test_the_scaler_is_started_and_reset_when_its_setting_changes_at_run_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        file = SettingsFile(tmp_path)
        world = await World.make(settings=file.settings)
        world.load_each(350.0)
        root = world.root()
        root.start()
        await asyncio.sleep(10.1 * TICK_S)
        assert world.asked == []
        file.set(SCALER_ON | {"matching.partitionUpscaleSustainedDuration": "1h"})
        await asyncio.sleep(TICK_S)
        assert root.decisions.latest is not None
        assert root.decisions.latest.above_since_s is not None
        file.set({})
        await asyncio.sleep(TICK_S)
        assert root.decisions.latest.action is Action.DISABLED
        assert len(world.asked) == 1
        disabled = root.decisions.latest
        await asyncio.sleep(10 * TICK_S)
        assert root.decisions.latest is disabled
        await root.close()

    run(scenario())


@on_virtual_time
async def test_a_hanging_save_blocks_no_repairs_and_starts_no_further_ticks() -> None:
    world = await World.make(read=2, write=2, settings=SCALER_ON)
    world.load_each(350.0)
    world.trouble.before_it["save_config"] = [never]
    root = world.root()
    root.start()
    await asyncio.sleep(TICK_S + 1.0)
    world.members[1].config = at(0, 1)
    await asyncio.sleep(REPAIR_S * REFRESHES_BETWEEN_REMINDERS)
    assert world.versions(2) == [1, 1]
    # One task for the tick, and one for its store call.
    assert len(asyncio.all_tasks()) == 1 + 2
    await root.close()


@on_virtual_time
async def test_a_repair_that_takes_longer_than_its_interval_is_not_started_twice() -> None:
    world = await World.make(read=2000, write=1)
    root = world.root()

    async def hang(number: int, config: PartitionConfig) -> None:
        await never()

    world.before_push = hang
    root.start()
    await asyncio.sleep(3.5 * REPAIR_S)
    repairs = [task for task in asyncio.all_tasks() if "RootCoordinator.repair" in repr(task.get_coro())]
    assert len(repairs) == 1
    await root.close()


async def test_the_scaler_on_the_real_clock_scales_up_and_down_and_drains() -> None:
    """SC-9, SC-10, SC-11."""
    world = await World.make(
        settings=SCALER_ON
        | {"matching.adaptiveScalerUpdateInterval": "10ms", "matching.partitionConfigCheckInterval": "10ms"}
    )
    root = world.root()
    root.start()
    world.load_each(350.0)
    await _until(lambda: root.config == at(2, 4))
    world.before_push = first(20, lost)
    world.load_each(1.0)
    await _until(lambda: root.config.read == 1 and root._pushes.is_quiet)
    assert world.changes[:2] == [at(2, 4), at(3, 4, 1)]
    # Partitions drain one by one, so read may fall in several steps; write stays at 1.
    assert {change.write for change in world.changes[1:]} == {1}
    assert world.versions(4)[0] == root.config.version
    await root.close()
    assert world.violations == []
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def _until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 30.0
    while not is_so():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.005)


async def test_a_root_that_was_never_started_can_be_closed() -> None:
    world = await World.make()
    root: RootCoordinator = world.root()
    await root.close()
    await root.close()
    root.start()
    assert root._timer.handle is None
