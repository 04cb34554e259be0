"""The keys under which partitions are looked up on the ring."""

from typing import NamedTuple

from fairlead.core.errors import FixRequest
from fairlead.core.partitions import Partition

# A lookup finds as many distinct hosts as the batch has partitions. The last of them are the longest to find, so that
# large batches are slow: with 64 on as many hosts a lookup walks past about 300 points.
BATCH_SIZE_MAX = 64


class InvalidBatchSize(FixRequest):
    """A batch size for spread routing is negative or too large."""


class SpreadKey(NamedTuple):
    """The key that all partitions of a batch share, and which host after it is this partition's."""

    key: str
    host_index: int


def check_batch_size(batch_size: int) -> int:
    """Return `batch_size` if partitions can be routed by it; raise `InvalidBatchSize` if not."""
    if not 0 <= batch_size <= BATCH_SIZE_MAX:
        raise InvalidBatchSize(
            f"spread routing batch size {batch_size} is outside 0 to {BATCH_SIZE_MAX}: choose 0 for basic routing"
        )
    return batch_size


def basic_key(partition: Partition) -> str:
    """The key of the partition alone: every partition is placed independently of its siblings."""
    task_list = partition.task_list
    return f"{task_list.namespace_id}:{partition.name}:{task_list.type:d}"


def spread_key(partition: Partition, batch_size: int) -> SpreadKey:
    """The key of the partition's batch, which places its members on different hosts.

    Batch 0 omits its number. Its key is the root's basic key, so the root stays where it is under any batch size.
    """
    namespace_id, name, task_type = partition.task_list
    batch, index = divmod(partition.number, batch_size)
    return SpreadKey(
        key=f"{namespace_id}:{name}:{batch}:{task_type:d}" if batch else f"{namespace_id}:{name}:{task_type:d}",
        host_index=index,
    )
