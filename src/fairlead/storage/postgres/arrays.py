"""Arrays as parameters, encoded without the driver, which is slower because it checks the type of every element."""

from collections.abc import Sequence
from itertools import chain
from struct import Struct

# Header of a binary array: number of dimensions, whether it has NULL, type of the elements, length, lower bound.
_HEADER = Struct(">iiIii")
_EMPTY = Struct(">iiI")
_LENGTH = Struct(">i")
_NULL = _LENGTH.pack(-1)
_BYTEA_OID = 17
_TEXT_OID = 25

# Encoded length fields of short elements.
_LENGTHS = tuple(_LENGTH.pack(length) for length in range(512))


def numbers(values: Sequence[float | None]) -> str:
    """An array of numbers, in PostgreSQL's text format."""
    if None in values:
        return "{" + ",".join(["NULL" if value is None else str(value) for value in values]) + "}"
    return "{" + ",".join(map(str, values)) + "}"


def blobs(values: Sequence[bytes | None]) -> bytes:
    """An array of bytea, in PostgreSQL's binary format."""
    return _binary(values, _BYTEA_OID)


def texts(values: Sequence[bytes | None]) -> bytes:
    """An array of text, given as UTF-8, in PostgreSQL's binary format."""
    return _binary(values, _TEXT_OID)


def _binary(values: Sequence[bytes | None], type_oid: int) -> bytes:
    if not values:
        return _EMPTY.pack(0, 0, type_oid)
    has_null = None in values
    parts = chain.from_iterable(
        [
            (_NULL, b"")
            if value is None
            else (_LENGTHS[len(value)] if len(value) < 512 else _LENGTH.pack(len(value)), value)
            for value in values
        ]
    )
    return _HEADER.pack(1, has_null, type_oid, len(values), 1) + b"".join(parts)
