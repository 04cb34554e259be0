"""Page tokens of lists with ORDER BY: the values of the last row of a page."""

from math import isfinite
from typing import Final

import msgspec

from fairlead.api.errors import InvalidArgument
from fairlead.storage.visibility import INT64_MAX, Cursor, Scalar, VisibilityRow, kind_of
from fairlead.storage.visibility_order import Sort, SortKey, sort_cursor_of

# Maximum bytes of a token: it holds values of search attributes, which may be long.
SORTED_TOKEN_BYTES_MAX: Final = 1024 * 1024


class SortedToken(msgspec.Struct, array_like=True, frozen=True):
    """The last row of a page. `asked` identifies the list, so that no other list accepts the token."""

    asked: int
    values: list[Scalar | None]
    run_id: str


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(SortedToken).decode


def sorted_token(asked: int, row: VisibilityRow, sort: Sort) -> bytes:
    """The token of the page after a row."""
    *values, run_id = sort_cursor_of(row, sort)
    return _encode((asked, values, run_id))


def sorted_position(token: bytes, asked: int, sort: Sort) -> Cursor:
    """The cursor in a token of the same list; rejects all other tokens."""
    try:
        decoded = _decode(token) if len(token) <= SORTED_TOKEN_BYTES_MAX else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        decoded = None
    if (
        decoded is None
        or decoded.asked != asked
        or len(decoded.values) != len(sort.keys)
        or not all(map(_is_stored, decoded.values, sort.keys))
        or "\0" in decoded.run_id
    ):
        raise InvalidArgument("Invalid NextPageToken.")
    return (*decoded.values, decoded.run_id)


def _is_stored(value: Scalar | None, key: SortKey) -> bool:
    """Whether a row can hold the value: databases reject other values."""
    if value is None:
        return True
    if kind_of(value) is not key.kind:
        return False
    if isinstance(value, str):
        return "\0" not in value
    return isfinite(value) and abs(value) <= INT64_MAX if isinstance(value, int) else isfinite(value)
