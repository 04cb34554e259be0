"""Where the polls of this client wait, and selection of the partition at which the fewest do."""

from collections.abc import Callable

from fairlead.core.balancing.recently_used import RecentlyUsed
from fairlead.core.partitions import TaskList


class PollCounts:
    """How many polls wait at each partition of one task list; every poll that begins or ends is one step.

    Partitions with the same count share a bucket. A poll that begins or ends moves its partition to the next bucket,
    by swapping it with the bucket's last, so that no step looks at more than one partition. `fewest` is the smallest
    of the counts.
    """

    __slots__ = ("_buckets", "_counts", "_places", "_removed", "fewest", "partitions")

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self._counts = [0] * partitions
        # Polls that still wait at partitions which the task list no longer has: it may have them again.
        self._removed: dict[int, int] = {}
        self._buckets: list[list[int]] = []
        self._places: list[int] = []
        self.fewest = 0
        self._fill_buckets()

    def outstanding(self, partition: int) -> int:
        """How many polls wait at `partition`, which may have been removed meanwhile."""
        return self._counts[partition] if partition < self.partitions else self._removed.get(partition, 0)

    def resize(self, partitions: int) -> None:
        """Follow a change of the number of partitions, and keep the count of every poll that still waits."""
        counts, removed = self._counts, self._removed
        removed.update((partition, counts[partition]) for partition in range(partitions, self.partitions))
        added = range(self.partitions, partitions)
        self.partitions = partitions
        self._counts = counts[:partitions] + [removed.pop(partition, 0) for partition in added]
        self._removed = {partition: count for partition, count in removed.items() if count}
        self._fill_buckets()

    def take(self, drawn: float) -> int:
        """A partition with the fewest polls, which now has one more; `drawn` from 0 to 1 decides between equals."""
        bucket = self._buckets[self.fewest]
        partition = bucket[int(drawn * len(bucket))]
        self.add(partition)
        return partition

    def add(self, partition: int) -> None:
        """One poll more waits at `partition`, which the task list must have."""
        count = self._counts[partition]
        bucket = self._buckets[count]
        self._move(partition, bucket, count + 1)
        if count == self.fewest and not bucket:
            self.fewest = count + 1

    def give_back(self, partition: int) -> None:
        """One poll at `partition` has ended."""
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
        # A hundred thousand polls at once must not leave as many empty buckets behind.
        while not buckets[-1]:
            buckets.pop()

    def _move(self, partition: int, bucket: list[int], count: int) -> None:
        """Move `partition` from `bucket` to that of `count`; the bucket's last takes its place."""
        places, buckets = self._places, self._buckets
        last = bucket.pop()
        if last != partition:
            place = places[partition]
            bucket[place] = last
            places[last] = place
        if count == len(buckets):
            buckets.append([])
        target = buckets[count]
        places[partition] = len(target)
        target.append(partition)
        self._counts[partition] = count

    def _fill_buckets(self) -> None:
        self._buckets = [[] for _ in range(max(self._counts) + 1)]
        self._places = [0] * len(self._counts)
        for partition, count in enumerate(self._counts):
            self._places[partition] = len(self._buckets[count])
            self._buckets[count].append(partition)
        self.fewest = min(self._counts)


class OutstandingPolls:
    """Keeps the counts of the task lists that were polled last, and finds the partition with the fewest polls.

    A poll outlives the memory of its task list: it is given back to the counts that it was taken from, never to those
    of a successor that has not counted it.
    """

    __slots__ = ("_counts", "_random")

    def __init__(self, *, random: Callable[[], float], task_lists_max: int) -> None:
        self._random = random
        self._counts: RecentlyUsed[TaskList, PollCounts] = RecentlyUsed(task_lists_max)

    def pick(self, task_list: TaskList, partitions: int) -> tuple[int, PollCounts]:
        """One of `partitions`, and the counts to give it back to."""
        counts = self.counts(task_list, partitions)
        return counts.take(self._random()), counts

    def counts(self, task_list: TaskList, partitions: int) -> PollCounts:
        """The counts of a task list that has this number of partitions now."""
        counts = self._counts.get(task_list)
        if counts is None:
            counts = PollCounts(partitions)
            self._counts.put(task_list, counts)
        elif counts.partitions != partitions:
            counts.resize(partitions)
        return counts
