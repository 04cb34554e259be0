"""The dependencies that the parts of one partition share."""

from dataclasses import dataclass, field
from typing import TypeVar

from fairlead.aio.background import Background
from fairlead.core.partitions import Partition
from fairlead.matching.clock import Clock
from fairlead.matching.forwarding.forwarder import Forwarder
from fairlead.matching.forwarding.peers import Peers
from fairlead.matching.partition.queue import PhysicalQueue
from fairlead.settings import DynamicSettings, Scope, Setting
from fairlead.telemetry import PartitionMetrics

T = TypeVar("T")

# Seconds that a call to another partition may take, beyond the time that the request waits there.
CALL_S_MAX = 2.0
# Seconds without forwarding after another partition was unreachable or had no task.
PAUSE_S = 0.5


@dataclass(slots=True, eq=False)
class Dependencies:
    """The collaborators of one partition. `parent` is None at the root and for a sticky task queue."""

    partition_id: Partition
    parent: Partition | None
    queue: PhysicalQueue
    forwarder: Forwarder
    peers: Peers
    settings: DynamicSettings
    scope: Scope
    clock: Clock
    counts: PartitionMetrics
    background: Background
    is_closing: bool = False
    # When the last poll arrived, by the event loop's clock.
    polled_s: float = field(default=float("-inf"))

    @property
    def number(self) -> int:
        """The number of this partition."""
        return self.partition_id.number

    def get(self, setting: Setting[T]) -> T:
        """Return the value of a setting for this task queue."""
        return self.settings.get(setting, self.scope)

    def sibling(self, number: int) -> Partition:
        """Return another partition of the same task queue."""
        return Partition(self.partition_id.task_queue, number)
