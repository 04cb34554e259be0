"""The forecast of the next change, compared with what the scaler does."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.partitions import PartitionConfig
from fairlead.core.scaling import AdaptiveScaler, ScalerSettings, ScalerState
from fairlead.core.scaling.forecast import forecast

SETTINGS = ScalerSettings(upscale_rps=100.0, upscale_sustained_s=60.0, downscale_sustained_s=120.0, interval_s=15.0)


def rates(config: PartitionConfig, qps: float) -> dict[int, float]:
    return dict.fromkeys(range(config.read), qps / config.read)


def test_a_load_between_the_thresholds_changes_nothing() -> None:
    config = PartitionConfig(1, 2, 2)
    assert forecast(50.0, ScalerState(), config, rates(config, 150.0), SETTINGS).change is None


def test_a_load_above_the_threshold_adds_partitions_after_the_sustained_duration() -> None:
    config = PartitionConfig(1, 1, 1)
    found = forecast(50.0, ScalerState(), config, rates(config, 350.0), SETTINGS)
    assert found.change is not None
    assert (found.at_s, found.change.after.write) == (110.0, 4)


def test_a_write_count_below_the_minimum_changes_at_the_next_tick() -> None:
    config = PartitionConfig(1, 1, 1)
    settings = replace(SETTINGS, partitions_min=3)
    found = forecast(50.0, ScalerState(ticked_s=40.0), config, rates(config, 0.0), settings)
    assert found.change is not None
    assert (found.at_s, found.change.after.write) == (55.0, 3)


def test_at_the_maximum_a_high_load_changes_nothing() -> None:
    config = PartitionConfig(1, 2, 2)
    settings = replace(SETTINGS, partitions_max=2)
    assert forecast(0.0, ScalerState(), config, rates(config, 900.0), settings).change is None


@given(
    qps=st.floats(0.0, 1_000.0),
    before=st.floats(0.0, 1_000.0),
    write=st.integers(1, 8),
    ticks=st.integers(0, 6),
    interval_s=st.sampled_from([1.0, 7.0, 15.0, 200.0]),
)
def test_the_forecast_is_what_the_scaler_does_under_a_constant_load(
    qps: float, before: float, write: int, ticks: int, interval_s: float
) -> None:
    config, settings = PartitionConfig(1, write, write), replace(SETTINGS, interval_s=interval_s)
    scaler = AdaptiveScaler()
    now_s = 0.0
    for _ in range(ticks):
        now_s += interval_s
        if (decision := scaler.tick(now_s, config, rates(config, before), (), settings)).after != config:
            return
    found = forecast(now_s, scaler.state, config, rates(config, qps), settings)
    first_s = now_s if scaler.state.ticked_s is None else now_s + interval_s
    for tick in range(200):
        decision = scaler.tick(first_s + tick * interval_s, config, rates(config, qps), (), settings)
        if decision.after != config:
            assert found.change is not None
            assert found.change.after == decision.after
            assert found.at_s == pytest.approx(decision.at_s)
            return
    assert found.change is None
