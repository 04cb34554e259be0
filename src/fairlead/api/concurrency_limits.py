"""The limits on running activities, from a task queue's settings."""

from fairlead.core.concurrency import SlotLimits
from fairlead.core.partitions import TaskType
from fairlead.settings import DynamicSettings, Scope
from fairlead.settings.dynamic import matching

# Number of task queues whose limits are cached. If it is exceeded, the cache is cleared.
TASK_QUEUES_MAX = 10_000


class ConcurrencyLimits:
    """Limits by namespace id and task queue; cleared when the settings change."""

    def __init__(self, settings: DynamicSettings) -> None:
        self._settings = settings
        self._revision = settings.revision
        self._limits: dict[tuple[str, str], SlotLimits] = {}

    def of(self, namespace_id: str, task_queue: str) -> SlotLimits:
        """The limits of a task queue's activities, for all worker versions together."""
        if self._revision != self._settings.revision or len(self._limits) >= TASK_QUEUES_MAX:
            self._revision = self._settings.revision
            self._limits.clear()
        key = (namespace_id, task_queue)
        found = self._limits.get(key)
        if found is None:
            get, scope = self._settings.get, Scope(namespace_id, task_queue, TaskType.ACTIVITY)
            found = self._limits[key] = SlotLimits(
                get(matching.FAIRNESS_KEY_CONCURRENCY, scope), get(matching.TASK_QUEUE_CONCURRENCY, scope)
            )
        return found
