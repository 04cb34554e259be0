from fairlead.core.errors import FixRequest, RetryLater

BLOCK_SIZE = 100_000


class BlockExhausted(RetryLater):
    """The ids that came with the lease are used up: renew it, which brings the next block."""


class InvalidIds(FixRequest):
    """A lease below the first, or less than one id, was asked for."""


class IdBlock:
    """The task ids that a lease brings with it: lease r has (r-1)*100,000+1 to r*100,000.

    Every lease has another range id, so no id is ever given twice, by whichever owner.
    """

    def __init__(self, range_id: int) -> None:
        if range_id < 1:
            raise InvalidIds(f"range id {range_id}: leases are counted from 1")
        self._next = (range_id - 1) * BLOCK_SIZE + 1
        self._end = range_id * BLOCK_SIZE + 1

    @property
    def left(self) -> int:
        """How many ids are still free."""
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
