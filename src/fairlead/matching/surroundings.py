"""What the parts of a node share: who it is, what it may, and whom it can ask."""

from dataclasses import dataclass, field
from typing import TypeVar

from fairlead.core.partitions import Partition
from fairlead.matching.background import Background
from fairlead.matching.backlog import Clock
from fairlead.matching.forwarder import Forwarder
from fairlead.matching.partition import Partition as LocalPartition
from fairlead.matching.peers import Peers
from fairlead.settings import DynamicSettings, Scope, Setting
from fairlead.telemetry import PartitionMetrics

T = TypeVar("T")

# A call to another partition has so long to be answered, beyond what it may wait there.
CALL_S_MAX = 2.0
# After another partition could not be reached, or had nothing, it is left alone for so long.
PAUSE_S = 0.5


@dataclass(slots=True, eq=False)
class Surroundings:
    """One partition among the others of its task list. `parent` is None at the root and for a sticky task list."""

    partition_id: Partition
    parent: Partition | None
    local: LocalPartition
    forwarder: Forwarder
    peers: Peers
    settings: DynamicSettings
    scope: Scope
    clock: Clock
    counts: PartitionMetrics
    background: Background
    is_closing: bool = False
    # When the last poll came here, by the time of the event loop.
    polled_s: float = field(default=float("-inf"))

    @property
    def number(self) -> int:
        """Which partition of its task list it is."""
        return self.partition_id.number

    def get(self, setting: Setting[T]) -> T:
        """What is in force for this task list."""
        return self.settings.get(setting, self.scope)

    def sibling(self, number: int) -> Partition:
        """Another partition of the same task list."""
        return Partition(self.partition_id.task_list, number)
