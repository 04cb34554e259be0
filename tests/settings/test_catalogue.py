"""Which settings there are, under which names, and with which defaults."""

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
    matching,
    membership,
    partition_config,
    scaler_settings,
    weighted_rules,
)
from fairlead.settings.kinds import Int

SEED_000 = (
    "matching.numTasklistReadPartitions",
    "matching.numTasklistWritePartitions",
    "matching.enableGetNumberOfPartitionsFromCache",
    "matching.forwarderMaxChildrenPerNode",
    "matching.forwarderMaxOutstandingPolls",
    "matching.forwarderMaxOutstandingTasks",
    "matching.forwarderMaxRatePerSecond",
)
SEED_001 = (
    "matching.enableAdaptiveScaler",
    "matching.partitionUpscaleSustainedDuration",
    "matching.partitionDownscaleSustainedDuration",
    "matching.adaptiveScalerUpdateInterval",
    "matching.partitionUpscaleRPS",
    "matching.partitionDownscaleFactor",
)
SEED_002 = (
    "matching.numTaskqueueWritePartitions",
    "matching.numTaskqueueReadPartitions",
    "matching.spreadRoutingBatchSize",
)


@pytest.mark.parametrize("key", SEED_000 + SEED_001 + SEED_002)
def test_every_setting_that_a_document_names_exists_under_that_name(key: str) -> None:
    """Seed 000, 'Configuration'; seed 001, 'Configuration'; seed 002, 'Partition Selection' and 'Spread Routing'."""
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
def test_the_defaults_are_those_of_the_documents(key: str, default: object) -> None:
    """Facts, Cadence matching §1 to §3; facts, Temporal matching §1 to §5; facts, limits."""
    assert SETTINGS.find(key).default == default


@pytest.mark.parametrize(
    ("key", "default"),
    [
        ("matching.enableGetNumberOfPartitionsFromCache", True),
        ("matching.outstandingTaskAppendsThreshold", 2000),
        ("matching.fairnessCounterKeysMax", 100_000),
    ],
)
def test_a_default_that_is_not_the_documents_says_why(key: str, default: object) -> None:
    setting = SETTINGS.find(key)
    assert setting.default == default
    assert "Cadence" in setting.deviation or "Temporal" in setting.deviation


def test_keys_are_found_in_any_case_and_by_any_spelling() -> None:
    for key in ("MATCHING.NUMTASKLISTREADPARTITIONS", "matching.numTaskQueueReadPartitions"):
        assert SETTINGS.find(key) is matching.NUM_READ_PARTITIONS
    assert SETTINGS.find("matching.maxTasklistIdleTime") is matching.MAX_TASK_QUEUE_IDLE_TIME


def test_an_unknown_key_gets_the_nearest_known_one_in_the_spelling_that_is_nearest() -> None:
    with pytest.raises(UnknownSetting, match=r"did you mean matching\.numTaskqueueReadPartitions\?"):
        SETTINGS.find("matching.numTaskqueueReadPartition")
    with pytest.raises(UnknownSetting, match="`fairlead config list` shows all"):
        SETTINGS.find("zzz")
    with pytest.raises(UnknownSetting) as refused:
        SETTINGS.find("m" * 1_000_000)
    assert len(str(refused.value)) < 200


def test_two_settings_of_one_key_are_refused() -> None:
    def setting(key: str, *aliases: str) -> Setting[int]:
        return Setting(key=key, aliases=aliases, kind=Int(0, 9), default=0, reach=Reach.GLOBAL, about="")

    with pytest.raises(ConflictingDeclarations, match="was declared as b and as a"):
        Registry([setting("a", "c"), setting("b", "C")])


def test_a_default_out_of_its_own_bounds_is_refused() -> None:
    with pytest.raises(InvalidValue, match="out of bounds"):
        Setting(key="a", kind=Int(0, 9), default=10, reach=Reach.GLOBAL, about="")


def test_every_setting_has_one_line_of_documentation() -> None:
    settings = list(SETTINGS)
    assert len(settings) > 40
    for setting in settings:
        assert setting.about.endswith(".")
        assert "\n" not in setting.about
        assert len(setting.about) <= 120


def test_the_defaults_make_the_cores_own_defaults() -> None:
    settings = DynamicSettings()
    assert scaler_settings(settings, EVERYWHERE) == ScalerSettings(enabled=False)
    assert buffer_limits(settings, EVERYWHERE) == BufferLimits()
    assert weighted_rules(settings) == WeightedRules()
    assert partition_config(settings, EVERYWHERE) == INITIAL_CONFIG


def test_three_heartbeats_fit_into_the_expiry() -> None:
    assert membership.HEARTBEAT_INTERVAL.default * 3 <= membership.MEMBER_EXPIRY.default
