"""Which host owns a partition, by basic or by spread routing."""

from dataclasses import dataclass

from fairlead.core.partitions import Partition
from fairlead.core.routing.gradual import GradualChange
from fairlead.core.routing.keys import basic_key, check_batch_size, spread_key
from fairlead.core.routing.ring import HashRing


@dataclass(frozen=True, slots=True)
class Router:
    """Finds the owner of every partition; hosts with the same ring and batch size agree without speaking.

    A batch size of 0 is basic routing. A larger one puts the partitions of a batch on different hosts while there are
    enough of them, and spreads them evenly where there are fewer.
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
        """When `partition` changes its routing, in seconds of the wall clock; None if it is not about to.

        Its owner arms a timer for it, to see then whether it still owns the partition.
        """
        change = self.batch_size
        return change.moment(basic_key(partition)) if isinstance(change, GradualChange) else None

    def route(self, partition: Partition, now_s: float) -> str:
        """The host that owns `partition` now."""
        batch_size = self.batch_size
        if isinstance(batch_size, GradualChange):
            # By the partition's own key, so that the members of a batch move one by one.
            batch_size = batch_size.value(basic_key(partition), now_s)
        if batch_size == 0:
            return self.ring.lookup(basic_key(partition))
        key, index = spread_key(partition, batch_size)
        hosts = self.ring.lookup_n(key, index + 1)
        return hosts[index % len(hosts)]
