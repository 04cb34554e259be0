"""The limits of a partition, made of the settings in force."""

import math

from fairlead.matching.backlog import BacklogLimits
from fairlead.settings import DynamicSettings, Scope, buffer_limits, matching


def backlog_limits(settings: DynamicSettings, scope: Scope) -> BacklogLimits:
    """How much a partition of this task list has under way at once."""
    return BacklogLimits(
        appends_waiting_max=settings.get(matching.OUTSTANDING_TASK_APPENDS_THRESHOLD, scope),
        batch_tasks_max=settings.get(matching.MAX_TASK_BATCH_SIZE, scope),
        save_interval_s=settings.get(matching.UPDATE_ACK_INTERVAL, scope),
        buffer=buffer_limits(settings, scope),
    )


def no_limit_if_zero(rate_per_s: float) -> float:
    """A rate as the settings give it, where 0 stands for no limit."""
    return rate_per_s or math.inf
