"""The payload of a load generator's task: identifies the task, and has the time at which it was due."""

import struct
from typing import NamedTuple

_FIELDS = struct.Struct(">8sQQId")
_MARK = b"fl-bench"

PAYLOAD_BYTES_MIN = _FIELDS.size


class Stamp(NamedTuple):
    """Identity of a task: its run, number and fairness key, and when it was due by the run's clock."""

    run_id: int
    number: int
    key: int
    due_s: float


def pack(stamp: Stamp, *, size_bytes: int) -> bytes:
    """Encode the stamp, padded to this size."""
    return _FIELDS.pack(_MARK, *stamp).ljust(size_bytes, b"\0")


def unpack(payload: bytes) -> Stamp | None:
    """Decode the stamp; None if the payload is not of a load generator."""
    if len(payload) < _FIELDS.size or not payload.startswith(_MARK):
        return None
    _, *stamp = _FIELDS.unpack_from(payload)
    return Stamp(*stamp)
