"""Plain values for `core`, computed from the settings in force.

Loading rejects a minimum above its maximum within one scope. Overlapping scopes can still combine into such a pair;
then the bounding setting wins, so these functions never fail.
"""

from fairlead.core.balancing import WeightedRules
from fairlead.core.fairness import BufferLimits
from fairlead.core.partitions import PartitionCounts
from fairlead.core.scaling import ScalerSettings
from fairlead.settings.dynamic import matching
from fairlead.settings.dynamic.rules import EVERYWHERE, Scope
from fairlead.settings.dynamic.source import DynamicSettings

# Tracker intervals that one count of arrivals covers at most: the tracker counts in half intervals.
WINDOWS_TO_COUNT = 1.5


def partition_counts(settings: DynamicSettings, scope: Scope) -> PartitionCounts:
    """The partition counts in the settings; write is lowered to read if it is higher."""
    read = settings.get(matching.NUM_READ_PARTITIONS, scope)
    return PartitionCounts(read, min(read, settings.get(matching.NUM_WRITE_PARTITIONS, scope)))


def scaler_settings(settings: DynamicSettings, scope: Scope) -> ScalerSettings:
    """Settings of a task queue's scaler; the maximum wins over the minimum.

    A sustained duration is at least the time that a count covers. If it were shorter, the load just after partitions
    were added would still include tasks that the old partitions got before, and the scaler would add too many
    partitions. 0 means: decide at once.
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
    """Limits of the backlog in memory; `reload_at` is kept below the batch size."""
    batch_size = settings.get(matching.GET_TASKS_BATCH_SIZE, scope)
    return BufferLimits(
        batch_size=batch_size,
        reload_at=min(batch_size - 1, settings.get(matching.GET_TASKS_RELOAD_AT, scope)),
        parked_max=settings.get(matching.BACKLOG_PARKED_TASKS_MAX, scope),
        evicted_acks_max=settings.get(matching.BACKLOG_EVICTED_ACKS_MAX, scope),
    )


def weighted_rules(settings: DynamicSettings) -> WeightedRules:
    """Rules by which a client selects partitions by weight."""
    return WeightedRules(
        tasks_threshold=settings.get(matching.WEIGHTED_BACKLOG_THRESHOLD, EVERYWHERE),
        floor_share=settings.get(matching.WEIGHTED_FLOOR_SHARE, EVERYWHERE),
        half_life_s=settings.get(matching.WEIGHTED_REPORT_HALF_LIFE, EVERYWHERE),
    )
