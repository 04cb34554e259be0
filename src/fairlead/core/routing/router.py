"""Finds the owner of a partition, by basic or by spread routing."""

from dataclasses import dataclass

from fairlead.core.partitions import Partition
from fairlead.core.routing.gradual import GradualChange
from fairlead.core.routing.keys import basic_key, check_batch_size, spread_key
from fairlead.core.routing.ring import HashRing


@dataclass(frozen=True, slots=True)
class Router:
    """Finds the owner of every partition; hosts with the same ring and batch size agree without communication.

    Batch size 0 means basic routing. A larger batch size puts the partitions of a batch on different hosts if there are
    enough hosts, and else spreads them evenly.
    """

    ring: HashRing
    batch_size: int | GradualChange[int]

    def __post_init__(self) -> None:
        sizes = (
            (self.batch_size.old, self.batch_size.new)
            if isinstance(self.batch_size, GradualChange)
            else (self.batch_size,)
        )
        for size in sizes:
            check_batch_size(size)

    def moment(self, partition: Partition) -> float | None:
        """Return when the routing of `partition` changes, in seconds of the wall clock; None if no change is going on.

        Its owner sets a timer for it, to check then whether it still owns the partition.
        """
        change = self.batch_size
        return change.moment(basic_key(partition)) if isinstance(change, GradualChange) else None

    def route(self, partition: Partition, now_s: float) -> str:
        """Return the host that owns `partition` now."""
        batch_size = self.batch_size
        if isinstance(batch_size, GradualChange):
            # Use the partition's own key, so that the partitions of a batch move one by one.
            batch_size = batch_size.value(basic_key(partition), now_s)
        if batch_size == 0:
            return self.ring.lookup(basic_key(partition))
        key, index = spread_key(partition, batch_size)
        hosts = self.ring.lookup_n(key, index + 1)
        return hosts[index % len(hosts)]
