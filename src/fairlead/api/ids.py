"""New run ids: UUIDs of version 7, which sort by their creation time."""

import os
from collections.abc import Callable

from fairlead.api.times import MILLISECOND_NS

_VERSION = 7
# Variant of RFC 9562: the upper two bits of the ninth byte.
_VARIANT = 0b10
_RANDOM_BITS = 62
# The rest of the millisecond must fit into 12 bits: 1,000,000 ns >> 8 is below 4096.
_NS_BITS_DROPPED = 8


def uuid7(now_ns: int, random: int) -> str:
    """The UUID for a time; `random` holds 62 random bits."""
    milliseconds, rest_ns = divmod(now_ns, MILLISECOND_NS)
    head = (milliseconds & ((1 << 48) - 1)) << 16 | _VERSION << 12 | rest_ns >> _NS_BITS_DROPPED
    digits = f"{head << 64 | _VARIANT << _RANDOM_BITS | random & ((1 << _RANDOM_BITS) - 1):032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def id_maker(clock_ns: Callable[[], int]) -> Callable[[], str]:
    """A function that makes new ids with the time of this clock."""
    return lambda: uuid7(clock_ns(), int.from_bytes(os.urandom(8)))
