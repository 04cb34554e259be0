"""What a client knows of the number of partitions of its task lists."""

from functools import lru_cache

from fairlead.core.balancing import TASK_LISTS_MAX
from fairlead.core.balancing.recently_used import RecentlyUsed
from fairlead.core.partitions import PartitionConfig, TaskList
from fairlead.settings import DynamicSettings, Scope, partition_config
from fairlead.settings.matching import ENABLE_GET_NUMBER_OF_PARTITIONS_FROM_CACHE


@lru_cache(maxsize=TASK_LISTS_MAX)
def scope_of(task_list: TaskList) -> Scope:
    """Where the settings of a task list are asked for; remembered, since every request asks."""
    # The lists of one version of a task list's workers go by the settings of the task list.
    return Scope(task_list.namespace_id.partition("#")[0], task_list.name, task_list.type)


class PartitionConfigs:
    """Remembers the newest configuration that was heard of each task list, and never goes back to an older one.

    Of the task lists beyond `task_lists_max` that were used longest ago nothing is remembered: whoever knows nothing
    asks the root, and hears of it with the answer. Where the settings say that the database is not asked, they are
    the configuration, at version 0, and what the partitions say waits until that changes.
    """

    def __init__(self, settings: DynamicSettings, *, task_lists_max: int = TASK_LISTS_MAX) -> None:
        self._settings = settings
        self._known: RecentlyUsed[TaskList, PartitionConfig] = RecentlyUsed(task_lists_max)

    def find(self, task_list: TaskList) -> PartitionConfig | None:
        """What to choose a partition by; None if nothing is known, so that only the root can be asked."""
        scope = scope_of(task_list)
        if self._settings.get(ENABLE_GET_NUMBER_OF_PARTITIONS_FROM_CACHE, scope):
            return self._known.get(task_list)
        return partition_config(self._settings, scope)

    def accept(self, task_list: TaskList, config: PartitionConfig) -> None:
        """Take over what came with an answer, if it is newer: answers may be late, repeated and out of order.

        Another configuration of the same version contradicts the first. That is for the partitions to find out: here
        it must not turn an answer that is right in itself into a failure.
        """
        known = self._known.get(task_list)
        if config.version > (known.version if known is not None else 0):
            self._known.put(task_list, config)

    def adopt(self, task_list: TaskList, config: PartitionConfig) -> PartitionConfig | None:
        """Take over what came with a refusal, unless it is older; then `find`.

        The same version counts as well: a request that went by it was refused, so what is known of it is wrong.
        """
        known = self._known.get(task_list)
        if known is None or config.version >= known.version:
            self._known.put(task_list, config)
        return self.find(task_list)
