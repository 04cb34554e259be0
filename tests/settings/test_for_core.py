from pathlib import Path
from typing import Any

import pytest

from fairlead.core.balancing import WeightedRules
from fairlead.core.fairness import BufferLimits
from fairlead.core.partitions import PartitionConfig
from fairlead.core.scaling import ScalerSettings
from fairlead.settings import (
    SETTINGS,
    DynamicSettings,
    Scope,
    Setting,
    buffer_limits,
    partition_config,
    scaler_settings,
    weighted_rules,
)
from fairlead.settings.kinds import Duration, Float, Int

TASK_LIST = Scope("orders", "checkout")


def test_the_scaler_is_governed_by_the_settings() -> None:
    """Seed 001, 'Configuration'."""
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
    assert scaler_settings(settings, TASK_LIST) == ScalerSettings(
        enabled=True,
        upscale_rps=120.0,
        downscale_factor=0.7,
        upscale_sustained_s=3.0,
        downscale_sustained_s=4.0,
        interval_s=1.0,
        partitions_min=2,
        partitions_max=9,
    )


def test_buffer_and_balancer_are_governed_by_the_settings() -> None:
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
    assert buffer_limits(settings, TASK_LIST) == BufferLimits(50, 5, 7, 8)
    assert weighted_rules(settings) == WeightedRules(10.0, 0.2, 120.0)


@pytest.mark.parametrize(("read", "write", "expected"), [(4, 2, (4, 2)), (2, 4, (2, 2)), (3, 3, (3, 3))])
def test_read_is_never_less_than_write_in_whichever_order_they_are_set(
    read: int, write: int, expected: tuple[int, int]
) -> None:
    """Seed 001, 'How Is the Number of Partitions Manually Configured?': the guardrail, and any order of updates."""
    overrides = {"matching.numTasklistReadPartitions": read, "matching.numTasklistWritePartitions": write}
    config = partition_config(DynamicSettings(overrides=dict(overrides)), TASK_LIST)
    assert config == PartitionConfig(0, *expected)


def test_settings_that_contradict_each_other_only_where_two_scopes_overlap_are_bounded(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(
        """
matching.taskListMinimumWritePartitions: [{value: 60, constraints: {taskQueueName: checkout}}]
matching.taskListMaximumWritePartitions: [{value: 50, constraints: {namespace: orders}}]
"""
    )
    settings = DynamicSettings(file=file)
    scaler = scaler_settings(settings, TASK_LIST)
    assert (scaler.partitions_min, scaler.partitions_max) == (50, 50)


def test_a_small_batch_needs_no_other_threshold_to_reload_at() -> None:
    assert buffer_limits(DynamicSettings(overrides={"matching.getTasksBatchSize": 50}), TASK_LIST).reload_at == 49


BOUNDED = [setting for setting in SETTINGS if isinstance(setting.kind, Int | Float | Duration)]


@pytest.mark.parametrize("setting", BOUNDED, ids=lambda setting: setting.key)
def test_the_core_accepts_every_setting_at_both_of_its_bounds(setting: Setting[Any]) -> None:
    kind: object = setting.kind
    assert isinstance(kind, Int | Float | Duration)
    for bound in (kind.minimum_s, kind.maximum_s) if isinstance(kind, Duration) else (kind.minimum, kind.maximum):
        # Without regard to the settings that it must not exceed: the core must hold all the same.
        settings = DynamicSettings()
        settings._values[setting] = bound
        assert partition_config(settings, TASK_LIST).read >= 1
        assert scaler_settings(settings, TASK_LIST).partitions_max >= 1
        assert buffer_limits(settings, TASK_LIST).batch_size >= 1
        assert weighted_rules(settings).floor_share > 0


def test_a_load_lasts_no_shorter_than_it_takes_to_be_counted() -> None:
    """Else what old partitions received before counts beside what new ones receive, and more are added than needed."""
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
