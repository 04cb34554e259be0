"""New run ids: UUIDs of version 7, which sort by their creation time."""

import os
from collections.abc import Callable

from fairlead.api.times import MILLISECOND_NS

_VERSION = 7
# Variant of RFC 9562: the upper two bits of the ninth byte.
_VARIANT = 0b10
_RANDOM_BITS = 62
# Number of low bits to drop, so that the rest of the millisecond fits into 12 bits: 1,000,000 ns >> 8 is below 4096.
_NS_BITS_DROPPED = 8
# Number of random numbers that are read from the system at a time.
_NUMBERS_AT_ONCE = 512


def uuid7(now_ns: int, random: int) -> str:
    """The UUID for a time; `random` holds 62 random bits."""
    milliseconds, rest_ns = divmod(now_ns, MILLISECOND_NS)
    head = (milliseconds & ((1 << 48) - 1)) << 16 | _VERSION << 12 | rest_ns >> _NS_BITS_DROPPED
    digits = f"{head << 64 | _VARIANT << _RANDOM_BITS | random & ((1 << _RANDOM_BITS) - 1):032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


class _RandomNumbers:
    """Unpredictable numbers of 64 bits.

    Reads many at a time: Python may switch to another thread at each system call.
    """

    def __init__(self) -> None:
        self._left: list[int] = []
        # A forked process must not generate the same ids as its parent.
        os.register_at_fork(after_in_child=self._left.clear)

    def next(self) -> int:
        if not self._left:
            self._left += memoryview(os.urandom(8 * _NUMBERS_AT_ONCE)).cast("Q")
        return self._left.pop()


_random = _RandomNumbers()


def id_maker(clock_ns: Callable[[], int]) -> Callable[[], str]:
    """A function that makes new ids with the time of this clock."""
    random = _random.next
    return lambda: uuid7(clock_ns(), random())
