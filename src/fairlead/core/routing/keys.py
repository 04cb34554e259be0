"""The keys for looking up partitions on the ring."""

from typing import NamedTuple

from fairlead.core.errors import FixRequest
from fairlead.core.partitions import Partition

# Number of partitions in a batch. A lookup finds as many distinct hosts as the batch has partitions, and finding the
# last of them is slow: with 64 partitions on 64 hosts a lookup visits about 300 points.
BATCH_SIZE_MAX = 64


class InvalidBatchSize(FixRequest):
    """A batch size for spread routing is negative or too large."""


class SpreadKey(NamedTuple):
    """The key that all partitions of a batch share, and the index of this partition's host clockwise of the key."""

    key: str
    host_index: int


def check_batch_size(batch_size: int) -> int:
    """Return `batch_size` if it is valid; raise `InvalidBatchSize` if not."""
    if not 0 <= batch_size <= BATCH_SIZE_MAX:
        raise InvalidBatchSize(
            f"spread routing batch size {batch_size} is outside 0 to {BATCH_SIZE_MAX}: choose 0 for basic routing"
        )
    return batch_size


def basic_key(partition: Partition) -> str:
    """Return the key of the partition alone: basic routing places each partition independently."""
    task_queue = partition.task_queue
    return f"{task_queue.namespace_id}:{partition.name}:{task_queue.type:d}"


def spread_key(partition: Partition, batch_size: int) -> SpreadKey:
    """Return the key of the partition's batch; spread routing places the partitions of a batch on different hosts.

    Batch 0 omits its number. Its key is the root's basic key, so the root has the same owner with any batch size.
    """
    namespace_id, name, task_type = partition.task_queue
    batch, index = divmod(partition.number, batch_size)
    return SpreadKey(
        key=f"{namespace_id}:{name}:{batch}:{task_type:d}" if batch else f"{namespace_id}:{name}:{task_type:d}",
        host_index=index,
    )
