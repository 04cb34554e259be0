"""The hash that all code uses: XXH64 with seed 42, like Spark's `xxhash64`.

So a ring position is the same number in the server and in a Spark column expression.
"""

import xxhash

HASH_BITS = 64
HASH_MAX = (1 << HASH_BITS) - 1
_SEED = 42


def hash64(text: str) -> int:
    """Hash `text` to a 64-bit number, the same on every machine."""
    return xxhash.xxh64_intdigest(text.encode(), _SEED)
