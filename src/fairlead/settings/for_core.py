"""The core's plain values, made of the settings in force.

Minimum and maximum that contradict each other are refused where one scope has both. Where two scopes overlap they may
still meet, so here the bound wins: these never fail.
"""

from fairlead.core.balancing import WeightedRules
from fairlead.core.fairness import BufferLimits
from fairlead.core.partitions import PartitionConfig
from fairlead.core.scaling import ScalerSettings
from fairlead.settings import matching
from fairlead.settings.rules import EVERYWHERE, Scope
from fairlead.settings.source import DynamicSettings

# The count of arrivals is of whole halves of the tracker's interval, and so up to this many intervals old.
WINDOWS_TO_COUNT = 1.5


def partition_config(settings: DynamicSettings, scope: Scope) -> PartitionConfig:
    """What a task list has by the settings alone, at version 0; write is never more than read."""
    read = settings.get(matching.NUM_READ_PARTITIONS, scope)
    return PartitionConfig(version=0, read=read, write=min(read, settings.get(matching.NUM_WRITE_PARTITIONS, scope)))


def scaler_settings(settings: DynamicSettings, scope: Scope) -> ScalerSettings:
    """What governs the scaler of a task list; the maximum wins over the minimum.

    A load lasts no shorter than it takes to be counted. Else, just after partitions were added, what the old ones
    received before would be counted beside what the new ones receive, and more would be added. 0 is for at once.
    """
    maximum = settings.get(matching.MAXIMUM_WRITE_PARTITIONS, scope)
    up_s = settings.get(matching.PARTITION_UPSCALE_SUSTAINED_DURATION, scope)
    down_s = settings.get(matching.PARTITION_DOWNSCALE_SUSTAINED_DURATION, scope)
    counted_s = WINDOWS_TO_COUNT * settings.get(matching.QPS_TRACKER_INTERVAL, scope)
    return ScalerSettings(
        enabled=settings.get(matching.ENABLE_ADAPTIVE_SCALER, scope),
        upscale_rps=settings.get(matching.PARTITION_UPSCALE_RPS, scope),
        downscale_factor=settings.get(matching.PARTITION_DOWNSCALE_FACTOR, scope),
        upscale_sustained_s=max(counted_s, up_s) if up_s else 0.0,
        downscale_sustained_s=max(counted_s, down_s) if down_s else 0.0,
        interval_s=settings.get(matching.ADAPTIVE_SCALER_UPDATE_INTERVAL, scope),
        partitions_min=min(maximum, settings.get(matching.MINIMUM_WRITE_PARTITIONS, scope)),
        partitions_max=maximum,
    )


def buffer_limits(settings: DynamicSettings, scope: Scope) -> BufferLimits:
    """How much of a backlog is in memory; a batch that was made small needs no other threshold to reload at."""
    batch_size = settings.get(matching.GET_TASKS_BATCH_SIZE, scope)
    return BufferLimits(
        batch_size=batch_size,
        reload_at=min(batch_size - 1, settings.get(matching.GET_TASKS_RELOAD_AT, scope)),
        parked_max=settings.get(matching.BACKLOG_PARKED_TASKS_MAX, scope),
        evicted_acks_max=settings.get(matching.BACKLOG_EVICTED_ACKS_MAX, scope),
    )


def weighted_rules(settings: DynamicSettings) -> WeightedRules:
    """When a client selects partitions by weight."""
    return WeightedRules(
        tasks_threshold=settings.get(matching.WEIGHTED_BACKLOG_THRESHOLD, EVERYWHERE),
        floor_share=settings.get(matching.WEIGHTED_FLOOR_SHARE, EVERYWHERE),
        half_life_s=settings.get(matching.WEIGHTED_REPORT_HALF_LIFE, EVERYWHERE),
    )
