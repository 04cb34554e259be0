from fairlead.core.errors import FixRequest, RetryLater

BLOCK_SIZE = 100_000


class BlockExhausted(RetryLater):
    """The task ids of the lease are used up: renew the lease to get the next block."""


class InvalidIds(FixRequest):
    """A range id or a number of task ids is below 1."""


class IdBlock:
    """The block of task ids that a lease may use: range id r has the ids (r-1)*100,000+1 to r*100,000.

    Each lease has its own range id, so no two owners ever use the same task id.
    """

    __slots__ = ("_end", "_next")

    def __init__(self, range_id: int) -> None:
        if range_id < 1:
            raise InvalidIds(f"range id {range_id}: range ids start at 1")
        self._next = (range_id - 1) * BLOCK_SIZE + 1
        self._end = range_id * BLOCK_SIZE + 1

    @property
    def left(self) -> int:
        """Number of free ids."""
        return self._end - self._next

    def take(self, count: int) -> range:
        """Take the next `count` ids, all or none."""
        if count < 1:
            raise InvalidIds(f"{count} task ids wanted: ask for at least 1")
        if count > self.left:
            raise BlockExhausted(f"{count} task ids wanted, {self.left} left in this lease's block: renew the lease")
        first = self._next
        self._next += count
        return range(first, self._next)
