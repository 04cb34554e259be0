"""The dependencies that the parts of one partition share."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from structlog.typing import FilteringBoundLogger

from fairlead.aio.background import Background
from fairlead.core.partitions import Partition
from fairlead.matching.clock import Clock
from fairlead.matching.forwarding.forwarder import Forwarder
from fairlead.matching.forwarding.peers import Peers
from fairlead.matching.partition.queue import PhysicalQueue
from fairlead.settings import DynamicSettings, Scope, Setting
from fairlead.telemetry import PartitionMetrics

T = TypeVar("T")

# Makes the log of a partition, with the names of its task queue as fields.
LogOf: TypeAlias = Callable[[Partition], FilteringBoundLogger]

# Seconds that a call to another partition may take in addition to the time for which the request waits there.
CALL_S_MAX = 2.0
# Seconds for which nothing is forwarded after another partition was unreachable or had no task.
PAUSE_S = 0.5


@dataclass(slots=True, eq=False)
class Dependencies:
    """The collaborators of one partition. `parent` is None at the root and for a sticky task queue.

    Most partitions forward nothing, log nothing and have no background work: the parts for this are created at their
    first use.
    """

    partition_id: Partition
    parent: Partition | None
    queue: PhysicalQueue
    peers: Peers
    settings: DynamicSettings
    scope: Scope
    clock: Clock
    counts: PartitionMetrics
    log_of: LogOf
    is_closing: bool = False
    # Time of the last poll, by the event loop's clock.
    polled_s: float = field(default=float("-inf"))
    _background: Background | None = None
    _forwarder: Forwarder | None = None

    @property
    def background(self) -> Background:
        """The background tasks of this partition."""
        if self._background is None:
            self._background = Background(self.log_of(self.partition_id))
        return self._background

    @property
    def forwarder(self) -> Forwarder:
        """The limits on forwarding to the parent."""
        if self._forwarder is None:
            self._forwarder = Forwarder(self.settings, self.scope, clock=self.clock)
        return self._forwarder

    @property
    def forwarded_per_s(self) -> tuple[float, float]:
        """Tasks and polls a second that were offered to the parent lately."""
        return (0.0, 0.0) if self._forwarder is None else self._forwarder.rates_per_s()

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
