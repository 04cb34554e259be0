"""The rules of single ticks; test_convergence.py has their effect over time."""

import math
from collections.abc import Collection, Mapping
from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.partitions import PARTITIONS_MAX, DrainReport, PartitionConfig
from fairlead.core.scaling import (
    Action,
    AdaptiveScaler,
    Decision,
    InvalidTime,
    ScalerSettings,
    ScalerState,
    partitions_needed,
)

SETTINGS = ScalerSettings()


class Root:
    """A root that applies every decision of its scaler, with one tick every 15 s."""

    def __init__(self, *, read: int, write: int | None = None, settings: ScalerSettings = SETTINGS) -> None:
        self.config = PartitionConfig(version=1, read=read, write=write or read)
        self.scaler = AdaptiveScaler()
        self.settings = settings
        self.now_s = 0.0

    def tick(
        self, qps: float | Mapping[int, float], *, reports: Collection[DrainReport] = (), after_s: float = 15.0
    ) -> Decision:
        self.now_s += after_s
        rates = qps if isinstance(qps, Mapping) else dict.fromkeys(range(self.config.read), qps / self.config.read)
        decision = self.scaler.tick(self.now_s, self.config, rates, reports, self.settings)
        assert decision.before == self.config
        self.config = decision.after
        return decision

    def drained(self, *partitions: int) -> list[DrainReport]:
        return [DrainReport(number, self.config.version, 0, 0) for number in partitions]


def actions(root: Root, loads: list[float]) -> list[str]:
    return [root.tick(qps).action.value for qps in loads]


def test_both_thresholds_belong_to_the_current_count() -> None:
    """SC-12: up above N·R, down below (N - 1)·R·f."""
    decision = Root(read=4).tick(700)
    assert decision.upscale_threshold_qps == 800
    assert decision.downscale_threshold_qps == 450
    assert decision.action is Action.HOLD


def test_read_and_write_rise_together_after_the_sustained_duration() -> None:
    """SC-9."""
    root = Root(read=2)
    decisions = [root.tick(1500) for _ in range(5)]
    assert [decision.action for decision in decisions] == [Action.HOLD] * 4 + [Action.UPSCALE]
    assert root.config == PartitionConfig(version=2, read=8, write=8)
    assert decisions[-1].above_since_s == 15.0
    assert decisions[-1].at_s == 75.0


def test_a_downscale_lowers_only_write_at_first() -> None:
    """SC-10."""
    root = Root(read=8)
    decisions = [root.tick(500) for _ in range(9)]
    assert [decision.action for decision in decisions] == [Action.HOLD] * 8 + [Action.DOWNSCALE]
    assert root.config == PartitionConfig(version=2, read=8, write=3)


def test_a_downscale_keeps_enough_partitions_for_the_highest_load_of_the_duration() -> None:
    """The last load, 390 QPS, needs 2 partitions, but small noise would exceed them again."""
    root = Root(read=4)
    decisions = [root.tick(qps) for qps in [390.0, 410.0, 380.0, 395.0, 370.0, 399.0, 388.0, 392.0, 390.0]]
    assert decisions[-1].after.write == 3
    assert "390.0 QPS (at most 410.0) are below 450.0 for 120 s" in decisions[-1].reason


def test_a_high_load_before_the_sustained_duration_does_not_count() -> None:
    root = Root(read=8)
    loads = [1_000.0] * 4 + [1_100.0] + [300.0] * 9
    assert [root.tick(qps) for qps in loads][-1].after.write == 2


def test_one_tick_below_the_threshold_restarts_the_sustained_duration() -> None:
    """FL-31."""
    above, not_above = 500.0, 400.0
    assert actions(Root(read=2), [above] * 5)[-1] == "upscale"
    root = Root(read=2)
    assert set(actions(root, [above] * 4 + [not_above] + [above] * 4)) == {"hold"}
    assert root.tick(above).action is Action.UPSCALE


def test_one_tick_above_the_lower_threshold_restarts_the_downscale_duration() -> None:
    below, not_below = 100.0, 450.0
    root = Root(read=4)
    assert set(actions(root, [below] * 8 + [not_below] + [below] * 8)) == {"hold"}
    assert root.tick(below).action is Action.DOWNSCALE


def test_a_change_restarts_both_durations() -> None:
    """FL-31."""
    root = Root(read=1)
    actions(root, [1000.0] * 5)
    assert root.config.write == 5
    assert set(actions(root, [3000.0] * 4)) == {"hold"}
    assert root.tick(3000).action is Action.UPSCALE
    assert set(actions(root, [100.0] * 8)) == {"hold"}
    assert root.tick(100).action is Action.DOWNSCALE


def test_a_change_by_an_operator_restarts_the_durations() -> None:
    root = Root(read=2)
    actions(root, [3000.0] * 4)
    root.config = PartitionConfig(version=2, read=3, write=3)
    assert set(actions(root, [3000.0] * 4)) == {"hold"}
    assert root.tick(3000).after == PartitionConfig(version=3, read=15, write=15)


def test_a_changed_threshold_setting_restarts_the_durations() -> None:
    """FL-31."""
    root = Root(read=2)
    actions(root, [3000.0] * 4)
    root.settings = replace(SETTINGS, upscale_rps=100.0)
    assert set(actions(root, [3000.0] * 4)) == {"hold"}
    assert root.tick(3000).after.write == 30


def test_a_change_that_could_not_be_stored_is_repeated_at_the_next_tick() -> None:
    """FL-25: memory is never ahead of the store."""
    root = Root(read=2)
    stored = root.config
    assert actions(root, [1500.0] * 5)[-1] == "upscale"
    root.config = stored
    decision = root.tick(1500)
    assert decision.action is Action.UPSCALE
    assert decision.after == PartitionConfig(version=2, read=8, write=8)


def test_a_single_partition_is_never_removed() -> None:
    root = Root(read=1)
    assert set(actions(root, [0.0] * 40)) == {"hold"}


def test_a_load_equal_to_a_threshold_changes_nothing() -> None:
    for qps in (600.0, 3 * 200.00000001, 600.0 + 1e-10, 300.0, 300.0 - 1e-10):
        decision = Root(read=3).tick(qps)
        assert decision.above_since_s is None
        assert decision.below_since_s is None
    assert Root(read=3).tick(600.001).above_since_s is not None
    assert Root(read=3).tick(299.999).below_since_s is not None


def test_rounding_errors_do_not_change_the_needed_count() -> None:
    assert partitions_needed(600.0, upscale_rps=200.0) == 3
    assert partitions_needed(3 * 200.00000001, upscale_rps=200.0) == 3
    assert partitions_needed(sum([0.1] * 10), upscale_rps=0.1) == 10
    assert partitions_needed(600.01, upscale_rps=200.0) == 4
    assert partitions_needed(0.0, upscale_rps=200.0) == 0
    assert partitions_needed(1e300, upscale_rps=1e-300) == PARTITIONS_MAX + 1


def test_the_load_is_the_sum_over_all_partitions() -> None:
    """FL-29."""
    even = Root(read=4).tick(dict.fromkeys(range(4), 150.0))
    skewed = Root(read=4).tick({0: 570.0, 1: 10.0, 2: 10.0, 3: 10.0})
    assert even.qps == skewed.qps == 600.0
    assert skewed.above_since_s is None


def test_the_load_of_read_only_partitions_counts() -> None:
    """A partition may get tasks until it acknowledges that it is not writable."""
    decision = Root(read=3, write=1).tick({0: 150.0, 1: 60.0, 2: 0.0})
    assert decision.qps == 210.0
    assert decision.above_since_s is not None


@pytest.mark.parametrize("lost", [{}, {3: math.nan}, {3: -1.0}, {3: math.inf}])
def test_a_load_with_an_unknown_partition_never_counts_as_low(lost: dict[int, float]) -> None:
    """FL-29: an unknown load is not a low load."""
    root = Root(read=4)
    assert set(actions(root, [100.0] * 8)) == {"hold"}
    decision = root.tick({0: 25.0, 1: 25.0, 2: 25.0} | lost)
    assert decision.below_since_s is None
    assert decision.partitions_unknown == (3,)
    assert "1 of 4 read partitions did not report" in decision.reason
    assert set(actions(root, [100.0] * 8)) == {"hold"}
    assert root.tick(100).action is Action.DOWNSCALE


def test_a_load_with_an_unknown_read_only_partition_never_counts_as_low() -> None:
    root = Root(read=5, write=4)
    decision = root.tick({0: 10.0, 1: 10.0, 2: 10.0, 3: 10.0})
    assert decision.partitions_unknown == (4,)
    assert decision.below_since_s is None


def test_a_load_above_the_threshold_counts_even_with_an_unknown_partition() -> None:
    root = Root(read=3)
    decisions = [root.tick({0: 400.0, 1: 450.0}) for _ in range(5)]
    assert decisions[-1].action is Action.UPSCALE
    assert root.config.write == 5
    assert "1 of 3 read partitions did not report" in decisions[-1].reason


def test_a_known_load_below_the_upper_threshold_restarts_the_upscale_duration() -> None:
    root = Root(read=3)
    actions(root, [900.0] * 4)
    assert root.tick({0: 300.0, 2: 300.0}).above_since_s is None
    assert root.tick(900).action is Action.HOLD


def test_the_maximum_bounds_an_upscale() -> None:
    """FL-32."""
    root = Root(read=2, settings=replace(SETTINGS, partitions_max=6))
    decisions = [root.tick(5000) for _ in range(30)]
    assert root.config == PartitionConfig(version=2, read=6, write=6)
    assert "partitions needed at 200 QPS each: 25, but the maximum is 6." in decisions[4].reason
    assert "but write is at its maximum of 6." in decisions[-1].reason


def test_the_minimum_bounds_a_downscale() -> None:
    """FL-32."""
    root = Root(read=8, settings=replace(SETTINGS, partitions_min=3))
    decisions = [root.tick(10) for _ in range(30)]
    assert root.config == PartitionConfig(version=2, read=8, write=3)
    assert "partitions needed at 200 QPS each: 1, but the minimum is 3." in decisions[8].reason
    assert "but write is at its minimum of 3." in decisions[-1].reason


def test_a_raised_minimum_applies_at_the_next_tick() -> None:
    """FL-32."""
    root = Root(read=2)
    root.tick(300)
    root.settings = replace(SETTINGS, partitions_min=5)
    decision = root.tick(300)
    assert decision.action is Action.UPSCALE
    assert decision.after == PartitionConfig(version=2, read=5, write=5)
    assert decision.reason == "Write is at 2, below the minimum of 5, which applies at once."


def test_a_raised_minimum_does_not_limit_a_higher_load() -> None:
    root = Root(read=2)
    actions(root, [3000.0] * 4)
    root.settings = replace(SETTINGS, partitions_min=5)
    assert root.tick(3000).after == PartitionConfig(version=2, read=15, write=15)


def test_a_lowered_maximum_applies_at_the_next_tick_in_two_phases() -> None:
    root = Root(read=8)
    root.settings = replace(SETTINGS, partitions_max=3)
    decision = root.tick(1500)
    assert decision.reason == "Write is at 8, above the maximum of 3, which applies at once."
    assert decision.after == PartitionConfig(version=2, read=8, write=3)
    assert root.tick(1500, reports=root.drained(5, 6, 7)).after == PartitionConfig(version=3, read=5, write=3)
    assert root.tick(1500, reports=root.drained(3, 4)).after == PartitionConfig(version=4, read=3, write=3)


def test_read_is_lowered_as_far_as_partitions_are_drained() -> None:
    """SC-11."""
    root = Root(read=6, write=3)
    assert "Still draining: partitions 3 to 5" in root.tick(450).reason
    late = [DrainReport(4, 1, appends_in_flight=0, stored_tasks=7)]
    decision = root.tick(450, reports=root.drained(3, 5) + late)
    assert decision.action is Action.DRAIN
    assert decision.after == PartitionConfig(version=2, read=5, write=3)
    assert decision.reason == "Drained: partition 5; 1 of 6 read partitions go."
    assert root.tick(450, reports=late).action is Action.HOLD
    # Reports of version 1 don't count in version 2, in which both partitions must drain again.
    assert root.tick(450, reports=[DrainReport(3, 1, 0, 0), DrainReport(4, 1, 0, 0)]).action is Action.HOLD
    decision = root.tick(450, reports=root.drained(3, 4))
    assert decision.after == PartitionConfig(version=3, read=3, write=3)
    assert decision.reason == "Drained: partitions 3 to 4; 2 of 5 read partitions go."


def test_a_partition_without_a_drain_report_stays() -> None:
    root = Root(read=4, write=2)
    assert root.tick(300, reports=root.drained(2)).after.read == 4


def test_a_load_that_rises_during_a_drain_makes_partitions_writable_again() -> None:
    root = Root(read=8, write=2)
    decisions = [root.tick(900) for _ in range(5)]
    assert decisions[-1].action is Action.UPSCALE
    assert root.config == PartitionConfig(version=2, read=8, write=5)
    root.tick(900, reports=root.drained(5, 6, 7))
    assert root.config == PartitionConfig(version=3, read=5, write=5)


def test_draining_does_not_delay_an_upscale() -> None:
    """A removed partition changes no threshold, so the durations are not restarted."""
    root = Root(read=6, write=2)
    for last in (5, 4, 3, 2):
        assert root.tick(900, reports=root.drained(last)).action is Action.DRAIN
    assert root.tick(900).action is Action.UPSCALE


def test_an_upscale_comes_before_draining() -> None:
    root = Root(read=6, write=2)
    actions(root, [900.0] * 4)
    decision = root.tick(900, reports=root.drained(2, 3, 4, 5))
    assert decision.action is Action.UPSCALE
    assert decision.after == PartitionConfig(version=2, read=6, write=5)


def test_a_disabled_scaler_clears_the_durations_and_changes_nothing() -> None:
    """FL-31: switching the scaler off clears the sustained duration."""
    root = Root(read=6, write=2)
    actions(root, [900.0] * 4)
    root.settings = replace(SETTINGS, enabled=False, partitions_min=4)
    decision = root.tick(900, reports=root.drained(2, 3, 4, 5))
    assert decision.action is Action.DISABLED
    assert decision.after is decision.before
    assert decision.qps == 900
    root.settings = SETTINGS
    assert set(actions(root, [900.0] * 4)) == {"hold"}
    assert root.tick(900).action is Action.UPSCALE


def test_a_sustained_duration_of_zero_acts_at_once() -> None:
    root = Root(read=1, settings=replace(SETTINGS, upscale_sustained_s=0.0, downscale_sustained_s=0.0))
    assert root.tick(900).after.write == 5
    assert root.tick(100).after.write == 1


def test_a_clock_that_goes_back_triggers_no_change() -> None:
    root = Root(read=2)
    actions(root, [900.0] * 2)
    for _ in range(50):
        assert root.tick(900, after_s=-1000.0).action is Action.HOLD
    # 15 s were sustained before: 45 s are left on the new clock.
    assert actions(root, [900.0] * 3) == ["hold", "hold", "upscale"]


def test_a_clock_that_stands_still_triggers_no_change() -> None:
    root = Root(read=2)
    root.tick(900)
    for _ in range(50):
        assert root.tick(900, after_s=0.0).action is Action.HOLD


def test_a_clock_that_jumps_forward_counts_as_two_intervals() -> None:
    """The clock was set, or the root was suspended: the load in between is unknown."""
    root = Root(read=2)
    root.tick(900)
    assert root.tick(900, after_s=1e6).action is Action.HOLD
    assert actions(root, [900.0] * 2) == ["hold", "upscale"]


def test_late_ticks_still_trigger_a_change() -> None:
    root = Root(read=2)
    assert [root.tick(900, after_s=200.0).action.value for _ in range(3)] == ["hold", "hold", "upscale"]


@pytest.mark.parametrize("now_s", [math.nan, math.inf, -math.inf])
def test_an_invalid_time_is_rejected(now_s: float) -> None:
    scaler = AdaptiveScaler()
    with pytest.raises(InvalidTime):
        scaler.tick(now_s, PartitionConfig(1, 1, 1), {0: 1.0}, (), SETTINGS)
    assert scaler.state == ScalerState()


def test_every_decision_has_a_reason_with_its_numbers() -> None:
    """FL-33."""
    root = Root(read=4)
    assert root.tick(700).reason == "700.0 QPS are between 450.0 and 800.0: write stays at 4."
    assert root.tick(900).reason == "900.0 QPS are above 800.0 for 0 s of the 60 s that a change takes."
    assert (
        root.tick(400).reason == "400.0 QPS (at most 400.0) are below 450.0 for 0 s of the 120 s that a change takes."
    )
    reasons = [root.tick(1234).reason for _ in range(5)]
    assert reasons[-1] == "1,234.0 QPS are above 800.0 for 60 s; partitions needed at 200 QPS each: 7."
    root.settings = replace(SETTINGS, enabled=False)
    assert root.tick(0).reason == "The scaler is disabled: write stays at 7."


def test_the_reason_for_a_partly_unknown_load_does_not_claim_that_it_is_between_the_thresholds() -> None:
    reason = Root(read=4).tick({0: 10.0}).reason
    assert reason.startswith("10.0 QPS are not above 800.0")


def test_a_decision_is_immutable() -> None:
    decision = Root(read=1).tick(0)
    with pytest.raises(FrozenInstanceError):
        decision.reason = "another"  # type: ignore[misc]


def test_a_scaler_can_continue_from_the_state_of_another() -> None:
    root = Root(read=2)
    actions(root, [900.0] * 4)
    root.scaler = AdaptiveScaler(root.scaler.state)
    assert root.tick(900).action is Action.UPSCALE


rates = st.dictionaries(
    st.integers(0, 14), st.one_of(st.floats(0, 1e4), st.sampled_from([math.nan, math.inf, -1.0, 1e308]))
)
reports = st.lists(
    st.builds(
        DrainReport,
        partition=st.integers(0, 14),
        acknowledged_version=st.integers(0, 12),
        appends_in_flight=st.integers(0, 1),
        stored_tasks=st.sampled_from([0, 0, 1, None]),
    ),
    max_size=12,
)
bounds = st.tuples(st.integers(1, 12), st.integers(1, 12)).map(sorted)


@pytest.mark.sim
@given(st.data())
def test_every_decision_keeps_all_invariants(data: st.DataObject) -> None:
    """SC-1, SC-7, for any rates, reports, settings and times."""
    root = Root(read=data.draw(st.integers(3, 9)), write=data.draw(st.integers(1, 3)))
    for _ in range(data.draw(st.integers(1, 12))):
        partitions_min, partitions_max = data.draw(bounds)
        root.settings = ScalerSettings(
            enabled=data.draw(st.sampled_from([True, True, True, False])),
            upscale_rps=data.draw(st.sampled_from([200.0, 1.0, 1e-300])),
            upscale_sustained_s=data.draw(st.sampled_from([0.0, 30.0])),
            downscale_sustained_s=data.draw(st.sampled_from([0.0, 30.0])),
            partitions_min=partitions_min,
            partitions_max=partitions_max,
        )
        decision = root.tick(data.draw(rates), reports=data.draw(reports), after_s=data.draw(st.floats(-100, 100)))
        before, after = decision.before, decision.after
        assert after.version == before.version + (after != before)
        assert after.read >= after.write >= 1
        assert (decision.action in {Action.HOLD, Action.DISABLED}) == (after == before)
        assert decision.reason.endswith((".", ".)"))
        if decision.action is Action.UPSCALE:
            assert before.write < after.write <= partitions_max
            assert after.read == max(before.read, after.write)
        if decision.action is Action.DOWNSCALE:
            assert partitions_min <= after.write < before.write
            assert after.read == before.read
        if decision.action is Action.DRAIN:
            assert after.write == before.write
            assert after.read < before.read
        if root.settings.enabled:
            assert partitions_min <= after.write <= partitions_max
