"""Limits of one partition's backlog."""

from dataclasses import dataclass

from fairlead.core.fairness import BufferLimits
from fairlead.core.fairness.deletes import ACKED_MIN
from fairlead.core.fairness.deletes import INTERVAL_S as DELETE_INTERVAL_S
from fairlead.core.fairness.passes import KEYS_MAX


@dataclass(frozen=True, slots=True)
class BacklogLimits:
    """Limits of the appends, deletes and reads of one partition, and the intervals of its periodic work."""

    appends_waiting_max: int = 2000
    batch_tasks_max: int = 100
    writes_max: int = 4
    # Started tasks are deleted as soon as there are `delete_at_tasks` of them, and otherwise every `delete_interval_s`,
    # in batches of at most `delete_batch_tasks`.
    delete_at_tasks: int = ACKED_MIN
    delete_interval_s: float = DELETE_INTERVAL_S
    delete_batch_tasks: int = 1000
    keys_counted_max: int = KEYS_MAX
    save_interval_s: float = 60.0
    close_timeout_s: float = 5.0
    read_backoff_s_min: float = 0.05
    read_backoff_s_max: float = 10.0
    buffer: BufferLimits = BufferLimits()  # noqa: RUF009 - frozen
