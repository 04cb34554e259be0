"""What a task of the load generator carries: enough to know it again, and how long it has waited."""

import struct
from typing import NamedTuple

_FIELDS = struct.Struct(">8sQQId")
_MARK = b"fl-bench"

PAYLOAD_BYTES_MIN = _FIELDS.size


class Stamp(NamedTuple):
    """Which task this is: of which run, its number, its fairness key, and when it was due by the run's own clock."""

    run_id: int
    number: int
    key: int
    due_s: float


def pack(stamp: Stamp, *, size_bytes: int) -> bytes:
    """The payload, filled up to its size."""
    return _FIELDS.pack(_MARK, *stamp).ljust(size_bytes, b"\0")


def unpack(payload: bytes) -> Stamp | None:
    """What `pack` wrote, or None if the payload is not of a load generator."""
    if len(payload) < _FIELDS.size or not payload.startswith(_MARK):
        return None
    _, *stamp = _FIELDS.unpack_from(payload)
    return Stamp(*stamp)
