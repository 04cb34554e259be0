"""The partition configuration and the dispatch rules that one partition uses."""

from fairlead.core.partitions import INITIAL_CONFIG, Partition, PartitionConfig
from fairlead.journal import PartitionJournal
from fairlead.matching.clock import Clock
from fairlead.matching.messages import DispatchRules, StaleConfig, Versions
from fairlead.matching.partition.limits import DispatchLimits
from fairlead.matching.partition.queue import PhysicalQueue
from fairlead.matching.root.state import decode_rules
from fairlead.storage.tasks import QueueId, TaskStore
from fairlead.telemetry import PartitionMetrics


class ConfigManager:
    """Holds the configuration and the rules in use, and applies them to the physical queue."""

    __slots__ = ("_clock", "_counts", "_journal", "_partition_id", "_queue", "_store", "config", "limits")

    def __init__(
        self,
        partition_id: Partition,
        *,
        store: TaskStore,
        queue: PhysicalQueue,
        limits: DispatchLimits,
        clock: Clock,
        counts: PartitionMetrics,
        journal: PartitionJournal | None,
    ) -> None:
        self._partition_id = partition_id
        self._store = store
        self._queue = queue
        self._clock = clock
        self._counts = counts
        self._journal = journal
        self.limits = limits
        self.config = INITIAL_CONFIG

    def begin(self, config: PartitionConfig, rules: DispatchRules) -> None:
        """Use the stored configuration and rules when a root is loaded."""
        self._record(config)
        self.config = config
        self._use_rules(rules)

    def use(self, config: PartitionConfig, rules: DispatchRules) -> None:
        """Use a configuration and rules that the root has just put into force."""
        if rules != self.limits.rules:
            self._use_rules(rules)
        self._use_config(config)

    def push(self, config: PartitionConfig, rules: DispatchRules) -> Versions:
        """Use the configuration and the rules if they are newer; return the versions in use afterwards."""
        if rules.version > self.limits.rules.version:
            self._use_rules(rules)
        if config.version > self.config.version:
            self._use_config(config)
        return Versions(self.config.version, self.limits.rules.version)

    async def reload(self) -> None:
        """Use the configuration and the rules that the root has stored, if they are newer."""
        root = queue_id(Partition(self._partition_id.task_queue, 0))
        stored = await self._store.load_config(root)
        if stored is not None:
            # Load the rules second, so that they are not older than the configuration.
            self.push(stored, decode_rules(await self._store.load_rules(root)))

    def stale(self, what: str) -> StaleConfig:
        """Return the error for a request that needs the partition to be `what` (readable or writable)."""
        self._counts.stale_configs += 1
        config = self.config
        return StaleConfig(
            f"partition {self._partition_id.number} of {self._partition_id.task_queue.name!r} is not {what} at version "
            f"{config.version}, which has {config.read} read and {config.write} write partitions: choose again",
            config,
        )

    def limit_rates(self) -> None:
        """Apply this partition's share of the task queue's rate limits."""
        rate_per_s, key_rate_per_s = self.limits.of_each(self.config.read)
        self._queue.dispatcher.change_rates(rate_per_s=rate_per_s, key_rate_per_s=key_rate_per_s)

    def _record(self, config: PartitionConfig) -> None:
        if self._journal is not None and config != self.config:
            self._journal.config(self._clock(), config)

    def _use_config(self, config: PartitionConfig) -> None:
        self._record(config)
        self.config = config
        self.limit_rates()

    def _use_rules(self, rules: DispatchRules) -> None:
        self.limits.rules = rules
        self._queue.override_weights(self.limits.weights())
        self.limit_rates()


def queue_id(partition: Partition) -> QueueId:
    """Return the id under which the store keeps a partition."""
    namespace_id, _, task_type = partition.task_queue
    return QueueId(namespace_id, partition.name, task_type)
