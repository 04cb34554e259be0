from pathlib import Path
from typing import Any

import pytest

from fairlead.core.balancing import WeightedRules
from fairlead.core.fairness import BufferLimits
from fairlead.core.partitions import PartitionCounts
from fairlead.core.scaling import ScalerSettings
from fairlead.settings import (
    SETTINGS,
    DynamicSettings,
    Scope,
    Setting,
    buffer_limits,
    partition_counts,
    scaler_settings,
    weighted_rules,
)
from fairlead.settings.dynamic.kinds import Duration, Float, Int

TASK_QUEUE = Scope("orders", "checkout")


def test_the_scaler_settings_come_from_the_dynamic_settings() -> None:
    """SC-13."""
    settings = DynamicSettings(
        overrides={
            "matching.enableAdaptiveScaler": True,
            "matching.partitionUpscaleRPS": 120,
            "matching.partitionDownscaleFactor": 0.7,
            "matching.qpsTrackerInterval": "2s",
            "matching.partitionUpscaleSustainedDuration": "3s",
            "matching.partitionDownscaleSustainedDuration": "4s",
            "matching.adaptiveScalerUpdateInterval": "1s",
            "matching.taskListMinimumWritePartitions": 2,
            "matching.taskListMaximumWritePartitions": 9,
        }
    )
    assert scaler_settings(settings, TASK_QUEUE) == ScalerSettings(
        enabled=True,
        upscale_rps=120.0,
        downscale_factor=0.7,
        upscale_sustained_s=3.0,
        downscale_sustained_s=4.0,
        interval_s=1.0,
        partitions_min=2,
        partitions_max=9,
    )


def test_the_buffer_limits_and_weighted_rules_come_from_the_dynamic_settings() -> None:
    settings = DynamicSettings(
        overrides={
            "matching.getTasksBatchSize": 50,
            "matching.getTasksReloadAt": 5,
            "matching.backlogParkedTasksMax": 7,
            "matching.backlogEvictedAcksMax": 8,
            "matching.weightedBacklogThreshold": 10,
            "matching.weightedFloorShare": 0.2,
            "matching.weightedReportHalfLife": "2m",
        }
    )
    assert buffer_limits(settings, TASK_QUEUE) == BufferLimits(50, 5, 7, 8)
    assert weighted_rules(settings) == WeightedRules(10.0, 0.2, 120.0)


def test_the_floor_of_weighted_selection_can_be_switched_off(tmp_path: Path) -> None:
    """TQ-13: without a floor, P_i is exactly the share of the load."""
    file = tmp_path / "settings.yaml"
    file.write_text("matching.weightedFloorShare: [{value: 0}]")
    assert weighted_rules(DynamicSettings(file=file)).floor_share == 0.0


@pytest.mark.parametrize(("read", "write", "expected"), [(4, 2, (4, 2)), (2, 4, (2, 2)), (3, 3, (3, 3))])
def test_read_is_never_less_than_write_in_any_order_of_the_settings(
    read: int, write: int, expected: tuple[int, int]
) -> None:
    """SC-1, SC-2."""
    overrides = {"matching.numTasklistReadPartitions": read, "matching.numTasklistWritePartitions": write}
    counts = partition_counts(DynamicSettings(overrides=dict(overrides)), TASK_QUEUE)
    assert counts == PartitionCounts(*expected)


def test_a_minimum_above_the_maximum_in_overlapping_scopes_is_lowered(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(
        """
matching.taskListMinimumWritePartitions: [{value: 60, constraints: {taskQueueName: checkout}}]
matching.taskListMaximumWritePartitions: [{value: 50, constraints: {namespace: orders}}]
"""
    )
    settings = DynamicSettings(file=file)
    scaler = scaler_settings(settings, TASK_QUEUE)
    assert (scaler.partitions_min, scaler.partitions_max) == (50, 50)


def test_a_small_batch_size_lowers_the_reload_threshold() -> None:
    assert buffer_limits(DynamicSettings(overrides={"matching.getTasksBatchSize": 50}), TASK_QUEUE).reload_at == 49


BOUNDED = [setting for setting in SETTINGS if isinstance(setting.kind, Int | Float | Duration)]


@pytest.mark.parametrize("setting", BOUNDED, ids=lambda setting: setting.key)
def test_the_core_accepts_every_setting_at_both_of_its_bounds(setting: Setting[Any]) -> None:
    kind: object = setting.kind
    assert isinstance(kind, Int | Float | Duration)
    for bound in (kind.minimum_s, kind.maximum_s) if isinstance(kind, Duration) else (kind.minimum, kind.maximum):
        # Skip the check against other settings: the core must accept the value anyway.
        settings = DynamicSettings()
        settings._values[setting] = bound
        assert partition_counts(settings, TASK_QUEUE).read >= 1
        assert scaler_settings(settings, TASK_QUEUE).partitions_max >= 1
        assert buffer_limits(settings, TASK_QUEUE).batch_size >= 1
        assert 0 <= weighted_rules(settings).floor_share <= 1


def test_a_sustained_duration_is_at_least_as_long_as_the_rate_window_unless_it_is_zero() -> None:
    """Otherwise the load before a change counts at old and at new partitions, and too many partitions are added."""
    settings = DynamicSettings(
        overrides={
            "matching.qpsTrackerInterval": "10s",
            "matching.partitionUpscaleSustainedDuration": "5s",
            "matching.partitionDownscaleSustainedDuration": "60s",
        }
    )
    scaler = scaler_settings(settings, Scope())
    assert (scaler.upscale_sustained_s, scaler.downscale_sustained_s) == (15.0, 60.0)
    at_once = DynamicSettings(overrides={"matching.partitionUpscaleSustainedDuration": "0s"})
    assert scaler_settings(at_once, Scope()).upscale_sustained_s == 0.0
