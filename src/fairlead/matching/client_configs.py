"""The partition configurations that a client has cached."""

from functools import lru_cache

from fairlead.core.balancing import TASK_QUEUES_MAX
from fairlead.core.balancing.recently_used import RecentlyUsed
from fairlead.core.namespaces import QualifiedNamespaceId
from fairlead.core.partitions import PartitionConfig, TaskQueueId
from fairlead.settings import Scope


def new_scope(task_queue: TaskQueueId) -> Scope:
    """Make the scope of a task queue's settings."""
    # The task queues of one worker version use the settings of the unversioned task queue.
    return Scope(QualifiedNamespaceId.parse(task_queue.namespace_id).namespace_id, task_queue.name, task_queue.type)


@lru_cache(maxsize=TASK_QUEUES_MAX)
def scope_of(task_queue: TaskQueueId) -> Scope:
    """Return the scope of a task queue's settings; cached, since each request needs it."""
    return new_scope(task_queue)


class PartitionConfigs:
    """Caches the newest known configuration of each task queue; an older configuration never replaces it.

    The cache holds the `task_queues_max` most recently used task queues. For other task queues a caller asks the root,
    whose response carries the configuration.
    """

    def __init__(self, *, task_queues_max: int = TASK_QUEUES_MAX) -> None:
        self._known: RecentlyUsed[TaskQueueId, PartitionConfig] = RecentlyUsed(task_queues_max)

    def find(self, task_queue: TaskQueueId) -> PartitionConfig | None:
        """Return the configuration to choose a partition by; None if it is not cached: then call the root."""
        return self._known.get(task_queue)

    def peek(self, task_queue: TaskQueueId) -> PartitionConfig | None:
        """The cached configuration, or None; does not count as a use."""
        return self._known.peek(task_queue)

    def accept(self, task_queue: TaskQueueId, config: PartitionConfig) -> None:
        """Cache the configuration of a response if it is newer: responses may be late, repeated and out of order.

        A different configuration with the same version is a contradiction. The partitions detect it; here it is
        ignored, since an error would discard a good response.
        """
        known = self._known.get(task_queue)
        if config.version > (known.version if known is not None else 0):
            self._known.put(task_queue, config)

    def adopt(self, task_queue: TaskQueueId, config: PartitionConfig) -> PartitionConfig | None:
        """Cache the configuration of a `StaleConfig` error unless it is older; return the cached one.

        A configuration of the same version replaces the cached one as well: a request based on the cached one was
        rejected.
        """
        known = self._known.get(task_queue)
        if known is None or config.version >= known.version:
            self._known.put(task_queue, config)
        return self.find(task_queue)
