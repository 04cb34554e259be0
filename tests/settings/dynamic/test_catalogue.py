"""The names and defaults of the dynamic settings."""

import pytest

from fairlead.core.balancing import Strategy, WeightedRules
from fairlead.core.fairness import BufferLimits
from fairlead.core.partitions import INITIAL_CONFIG
from fairlead.core.scaling import ScalerSettings
from fairlead.settings import (
    EVERYWHERE,
    SETTINGS,
    ConflictingDeclarations,
    DynamicSettings,
    InvalidValue,
    Reach,
    Registry,
    Setting,
    UnknownSetting,
    buffer_limits,
    partition_counts,
    scaler_settings,
    weighted_rules,
)
from fairlead.settings.dynamic import matching, membership
from fairlead.settings.dynamic.kinds import Int

# The settings that docs/design/task-queues.md, adaptive-scaler.md and matching-client.md name.
TASK_QUEUE_KEYS = (
    "matching.numTasklistReadPartitions",
    "matching.numTasklistWritePartitions",
    "matching.enableGetNumberOfPartitionsFromCache",
    "matching.forwarderMaxChildrenPerNode",
    "matching.forwarderMaxOutstandingPolls",
    "matching.forwarderMaxOutstandingTasks",
    "matching.forwarderMaxRatePerSecond",
)
SCALER_KEYS = (
    "matching.enableAdaptiveScaler",
    "matching.partitionUpscaleSustainedDuration",
    "matching.partitionDownscaleSustainedDuration",
    "matching.adaptiveScalerUpdateInterval",
    "matching.partitionUpscaleRPS",
    "matching.partitionDownscaleFactor",
)
CLIENT_KEYS = (
    "matching.numTaskqueueWritePartitions",
    "matching.numTaskqueueReadPartitions",
    "matching.spreadRoutingBatchSize",
)


@pytest.mark.parametrize("key", TASK_QUEUE_KEYS + SCALER_KEYS + CLIENT_KEYS)
def test_every_setting_in_the_design_pages_exists_with_that_name(key: str) -> None:
    """TQ-5, TQ-6, TQ-7, TQ-8, SC-13, MC-3, MC-11."""
    assert key in SETTINGS.find(key).spellings


@pytest.mark.parametrize(
    ("key", "default"),
    [
        ("matching.numTasklistReadPartitions", 1),
        ("matching.numTasklistWritePartitions", 1),
        ("matching.taskListMinimumWritePartitions", 1),
        ("matching.enableAdaptiveScaler", False),
        ("matching.partitionUpscaleRPS", 200.0),
        ("matching.partitionDownscaleFactor", 0.75),
        ("matching.partitionUpscaleSustainedDuration", 60.0),
        ("matching.partitionDownscaleSustainedDuration", 120.0),
        ("matching.adaptiveScalerUpdateInterval", 15.0),
        ("matching.qpsTrackerInterval", 10.0),
        ("matching.forwarderMaxChildrenPerNode", 20),
        ("matching.forwarderMaxOutstandingPolls", 1),
        ("matching.forwarderMaxOutstandingTasks", 1),
        ("matching.forwarderMaxRatePerSecond", 10.0),
        ("matching.localTaskWaitTime", 0.01),
        ("matching.localPollWaitTime", 0.01),
        ("matching.longPollExpirationInterval", 60.0),
        ("matching.maxTaskQueueIdleTime", 300.0),
        ("matching.membershipUnloadDelay", 0.5),
        ("matching.getTasksBatchSize", 1000),
        ("matching.getTasksReloadAt", 100),
        ("matching.maxTaskBatchSize", 100),
        ("matching.maxTaskDeleteBatchSize", 100),
        ("matching.taskDeleteInterval", 15.0),
        ("matching.updateAckInterval", 60.0),
        ("matching.maxFairnessKeyWeightOverrides", 1000),
        ("matching.overrideTaskListRps", 0.0),
        ("matching.spreadRoutingBatchSize", 0),
        ("system.tasklistLoadBalancerStrategy", Strategy.WEIGHTED),
        ("limit.blobSize.error", 2 * 1024 * 1024),
        ("limit.maxIDLength", 1000),
    ],
)
def test_the_defaults_follow_the_design_pages(key: str, default: object) -> None:
    """FL-71."""
    assert SETTINGS.find(key).default == default


@pytest.mark.parametrize(
    ("key", "default"),
    [
        ("matching.enableGetNumberOfPartitionsFromCache", True),
        ("matching.outstandingTaskAppendsThreshold", 2000),
        ("matching.fairnessCounterKeysMax", 100_000),
    ],
)
def test_a_default_that_deviates_from_cadence_or_temporal_has_a_reason(key: str, default: object) -> None:
    setting = SETTINGS.find(key)
    assert setting.default == default
    assert "Cadence" in setting.deviation or "Temporal" in setting.deviation


def test_a_key_is_found_in_any_case_and_spelling() -> None:
    for key in ("MATCHING.NUMTASKLISTREADPARTITIONS", "matching.numTaskQueueReadPartitions"):
        assert SETTINGS.find(key) is matching.NUM_READ_PARTITIONS
    assert SETTINGS.find("matching.maxTasklistIdleTime") is matching.MAX_TASK_QUEUE_IDLE_TIME


def test_the_error_for_an_unknown_key_suggests_the_nearest_spelling() -> None:
    with pytest.raises(UnknownSetting, match=r"did you mean matching\.numTaskqueueReadPartitions\?"):
        SETTINGS.find("matching.numTaskqueueReadPartition")
    with pytest.raises(UnknownSetting, match="`fairlead config list` shows all"):
        SETTINGS.find("zzz")
    with pytest.raises(UnknownSetting) as raised:
        SETTINGS.find("m" * 1_000_000)
    assert len(str(raised.value)) < 200


def test_two_settings_with_the_same_key_are_rejected() -> None:
    def setting(key: str, *aliases: str) -> Setting[int]:
        return Setting(key=key, aliases=aliases, kind=Int(0, 9), default=0, reach=Reach.GLOBAL, about="")

    with pytest.raises(ConflictingDeclarations, match="was declared as b and as a"):
        Registry([setting("a", "c"), setting("b", "C")])


def test_a_default_out_of_bounds_is_rejected() -> None:
    with pytest.raises(InvalidValue, match="out of bounds"):
        Setting(key="a", kind=Int(0, 9), default=10, reach=Reach.GLOBAL, about="")


def test_every_setting_has_one_line_of_documentation() -> None:
    settings = list(SETTINGS)
    assert len(settings) > 40
    for setting in settings:
        assert setting.about.endswith(".")
        assert "\n" not in setting.about
        assert len(setting.about) <= 120


def test_the_default_settings_give_the_defaults_of_the_core() -> None:
    settings = DynamicSettings()
    assert scaler_settings(settings, EVERYWHERE) == ScalerSettings(enabled=False)
    assert buffer_limits(settings, EVERYWHERE) == BufferLimits()
    assert weighted_rules(settings) == WeightedRules()
    assert partition_counts(settings, EVERYWHERE) == INITIAL_CONFIG.counts


def test_the_default_expiry_is_at_least_three_heartbeats() -> None:
    assert membership.HEARTBEAT_INTERVAL.default * 3 <= membership.MEMBER_EXPIRY.default
