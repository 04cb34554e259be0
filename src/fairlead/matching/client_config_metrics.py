"""Reports, for the metrics, which partition configurations the pollers and producers of a client use."""

from collections.abc import Iterable
from typing import Protocol

from fairlead.core.balancing import TASK_QUEUES_MAX
from fairlead.core.balancing.recently_used import RecentlyUsed
from fairlead.core.partitions import PartitionConfig, TaskQueueId
from fairlead.telemetry import Component, ConfigGauges


class Configs(Protocol):
    """The partition configurations that a client has cached."""

    def peek(self, task_queue: TaskQueueId) -> PartitionConfig | None:
        """The configuration of a task queue, or None if it is not cached; does not count as a use."""
        ...


class ConfigUsers:
    """Remembers the task queues that a client polled or added tasks to most recently, and reports their configurations.

    It remembers as many task queues as the client's cache of configurations holds. A task queue without a cached
    configuration is not reported.
    """

    def __init__(self, configs: Configs, *, task_queues_max: int = TASK_QUEUES_MAX) -> None:
        self._configs = configs
        self._polled: RecentlyUsed[TaskQueueId, TaskQueueId] = RecentlyUsed(task_queues_max)
        self._produced: RecentlyUsed[TaskQueueId, TaskQueueId] = RecentlyUsed(task_queues_max)

    def note_poll(self, task_queue: TaskQueueId) -> None:
        """Record that a poll of this task queue got a response."""
        if self._polled.get(task_queue) is None:
            self._polled.put(task_queue, task_queue)

    def note_task(self, task_queue: TaskQueueId) -> None:
        """Record that a task was added to this task queue, or offered to its polls."""
        if self._produced.get(task_queue) is None:
            self._produced.put(task_queue, task_queue)

    def gauges(self) -> Iterable[ConfigGauges]:
        """The configurations of these task queues, the most recently used first; does not count as a use."""
        for component, used in ((Component.POLLER, self._polled), (Component.PRODUCER, self._produced)):
            for task_queue in used.newest_first():
                config = self._configs.peek(task_queue)
                if config is not None:
                    yield ConfigGauges(task_queue.namespace_id, task_queue.name, task_queue.type, component, config)
