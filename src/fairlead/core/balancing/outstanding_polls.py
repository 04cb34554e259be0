"""Counts of a client's waiting polls, and the choice of the partition with the fewest."""

from collections.abc import Callable

from fairlead.core.balancing.recently_used import RecentlyUsed
from fairlead.core.partitions import TaskQueueId


class PollCounts:
    """The number of polls that wait at each partition of one task queue; begin and end of a poll take constant time.

    Partitions with the same count share a bucket. A poll that begins or ends moves its partition to the next bucket;
    the last partition of the old bucket takes its place there. `fewest` is the smallest count.
    """

    __slots__ = ("_buckets", "_counts", "_positions", "_removed", "fewest", "partitions")

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self._counts = [0] * partitions
        # Polls that still wait at removed partitions; these partitions may be added again.
        self._removed: dict[int, int] = {}
        self._buckets: list[list[int]] = []
        self._positions: list[int] = []
        self.fewest = 0
        self._fill_buckets()

    def outstanding(self, partition: int) -> int:
        """Return the number of polls that wait at `partition`, which may have been removed."""
        return self._counts[partition] if partition < self.partitions else self._removed.get(partition, 0)

    def resize(self, partitions: int) -> None:
        """Change the number of partitions, and keep the counts of polls that still wait."""
        counts, removed = self._counts, self._removed
        removed.update((partition, counts[partition]) for partition in range(partitions, self.partitions))
        added = range(self.partitions, partitions)
        self.partitions = partitions
        self._counts = counts[:partitions] + [removed.pop(partition, 0) for partition in added]
        self._removed = {partition: count for partition, count in removed.items() if count}
        self._fill_buckets()

    def take(self, drawn: float) -> int:
        """Choose a partition with the fewest polls and count a poll there; `drawn` (0 to 1) decides ties."""
        bucket = self._buckets[self.fewest]
        partition = bucket[int(drawn * len(bucket))]
        self.add(partition)
        return partition

    def add(self, partition: int) -> None:
        """Count a poll at `partition`, which must not be a removed partition."""
        count = self._counts[partition]
        bucket = self._buckets[count]
        self._move(partition, bucket, count + 1)
        if count == self.fewest and not bucket:
            self.fewest = count + 1

    def give_back(self, partition: int) -> None:
        """Uncount a poll at `partition`, which has ended."""
        if partition >= self.partitions:
            self._removed[partition] -= 1
            if not self._removed[partition]:
                del self._removed[partition]
            return
        buckets = self._buckets
        count = self._counts[partition]
        self._move(partition, buckets[count], count - 1)
        if count == self.fewest:
            self.fewest = count - 1
        # Remove empty buckets at the end: 100,000 simultaneous polls would leave 100,000 of them.
        while not buckets[-1]:
            buckets.pop()

    def _move(self, partition: int, bucket: list[int], count: int) -> None:
        """Move `partition` from `bucket` to the bucket of `count`; the old bucket's last partition takes its place."""
        positions, buckets = self._positions, self._buckets
        last = bucket.pop()
        if last != partition:
            position = positions[partition]
            bucket[position] = last
            positions[last] = position
        if count == len(buckets):
            buckets.append([])
        target = buckets[count]
        positions[partition] = len(target)
        target.append(partition)
        self._counts[partition] = count

    def _fill_buckets(self) -> None:
        self._buckets = [[] for _ in range(max(self._counts) + 1)]
        self._positions = [0] * len(self._counts)
        for partition, count in enumerate(self._counts):
            self._positions[partition] = len(self._buckets[count])
            self._buckets[count].append(partition)
        self.fewest = min(self._counts)


class OutstandingPolls:
    """Keeps the poll counts of recently polled task queues, and chooses the partition with the fewest polls.

    A task queue's counts may be evicted while its polls wait, and created anew later. Each poll is uncounted in the
    object that counted it, even if that object was evicted.
    """

    __slots__ = ("_counts", "_random")

    def __init__(self, *, random: Callable[[], float], task_queues_max: int) -> None:
        self._random = random
        self._counts: RecentlyUsed[TaskQueueId, PollCounts] = RecentlyUsed(task_queues_max)

    def pick(self, task_queue: TaskQueueId, partitions: int) -> tuple[int, PollCounts]:
        """Choose one of `partitions`; return it and the counts in which its poll is counted."""
        counts = self.counts(task_queue, partitions)
        return counts.take(self._random()), counts

    def counts(self, task_queue: TaskQueueId, partitions: int) -> PollCounts:
        """Return the counts of a task queue that has this number of partitions now."""
        counts = self._counts.get(task_queue)
        if counts is None:
            counts = PollCounts(partitions)
            self._counts.put(task_queue, counts)
        elif counts.partitions != partitions:
            counts.resize(partitions)
        return counts
