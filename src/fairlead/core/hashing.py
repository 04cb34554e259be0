"""The one hash of the system: XXH64 with seed 42, which is what Spark's own `xxhash64` computes.

So a ring position is the same number in the server and in a Spark column expression.
"""

import xxhash

HASH_BITS = 64
HASH_MAX = (1 << HASH_BITS) - 1
_SEED = 42


def hash64(text: str) -> int:
    """Place `text` evenly on the circle of 64-bit numbers, the same on every machine."""
    return xxhash.xxh64_intdigest(text.encode(), _SEED)
