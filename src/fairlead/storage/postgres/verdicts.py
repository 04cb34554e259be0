"""The outcome of one write of a batch."""

from typing import NamedTuple


class Done(NamedTuple):
    """A write took effect, with this result."""

    result: int


class Busy(NamedTuple):
    """Another transaction holds a lock that the write needs; the write had no effect."""


class Again(NamedTuple):
    """Another write of the batch was rejected, so no write of the batch had an effect."""


Verdict = Done | Busy | Again | Exception

DONE = Done(0)
BUSY = Busy()
AGAIN = Again()
