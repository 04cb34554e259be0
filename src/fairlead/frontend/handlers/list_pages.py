"""Pages of all lists in the visibility store, in the default order or in the order of the query's ORDER BY.

A page token has the values of the page's last row, so that rows that change between two pages are neither repeated nor
skipped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

import msgspec
import xxhash
from google.protobuf.message import Message

from fairlead.api.errors import InvalidArgument
from fairlead.frontend.handlers.sorted_tokens import sorted_position, sorted_token
from fairlead.frontend.validation.common import page_rows
from fairlead.storage.visibility import INT64_MAX, LATEST_FIRST, cursor_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fairlead.api.namespaces import Namespace
    from fairlead.frontend.gateway.context import Frontend
    from fairlead.storage.predicates import Predicate
    from fairlead.storage.visibility import Cursor, VisibilityRow
    from fairlead.storage.visibility_order import Sort

# Maximum bytes of a page's entries: clients accept 4 MiB in one message.
PAGE_BYTES_MAX: Final = 3 * 1024 * 1024
# Maximum bytes of a token in the default order.
TOKEN_BYTES_MAX: Final = 4096

Entry = TypeVar("Entry", bound=Message)


class ListPageToken(msgspec.Struct, array_like=True, frozen=True):
    """The last row of a page. `asked` identifies the list, so that no other list accepts the token."""

    asked: int
    close_time_ns: int
    start_time_ns: int
    run_id: str


class Listed(NamedTuple):
    """A list: the rows of an owner (a namespace, or one archetype in it) that match, and their order."""

    owner: str
    # The query's text, or any other text that differs between two lists of the same owner.
    question: str
    where: Predicate | None
    # None means the default order: open rows first, then closed ones, latest first.
    sort: Sort | None = None

    @property
    def digest(self) -> int:
        """Identifies the list in its page tokens."""
        # Drop the last bit, so that the digest fits into a signed 64-bit integer.
        return xxhash.xxh64_intdigest(f"{self.owner}\n{self.question}".encode(errors="surrogatepass")) >> 1


class Page(NamedTuple, Generic[Entry]):
    """Entries of a list; the token is empty at its end."""

    entries: list[Entry]
    next_page_token: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ListPageToken).decode


async def page_of(
    frontend: Frontend,
    namespace: Namespace,
    listed: Listed,
    *,
    page_size: int,
    token: bytes,
    entry: Callable[[VisibilityRow, Mapping[str, int]], Entry],
) -> Page[Entry]:
    """The page after a token, or the first one; `entry` converts a row, with the namespace's search attributes."""
    sort, asked = listed.sort, listed.digest
    limit = page_rows(frontend, namespace, page_size)
    after: Cursor | None = None
    if token:
        after = _position(token, asked) if sort is None else sorted_position(token, asked, sort)
    # Read one row more, to know whether there is another page.
    rows = await frontend.store.list_visibility(
        listed.owner, listed.where, order=sort or LATEST_FIRST, after=after, limit=limit + 1
    )
    entries: list[Entry] = []
    size = 0
    for row in rows[:limit]:
        info = entry(row, namespace.search_attributes)
        size += info.ByteSize()
        if entries and size > PAGE_BYTES_MAX:
            break
        entries.append(info)
    if len(entries) == len(rows):
        return Page(entries, b"")
    last = rows[len(entries) - 1]
    if sort is None:
        return Page(entries, _encode((asked, *cursor_of(last, LATEST_FIRST))))
    return Page(entries, sorted_token(asked, last, sort))


def _position(token: bytes, asked: int) -> tuple[int, int, str]:
    """Decode the position after which the list continues."""
    try:
        decoded = _decode(token) if len(token) <= TOKEN_BYTES_MAX else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        decoded = None
    if decoded is None or decoded.asked != asked or not _is_stored(decoded):
        raise InvalidArgument("Invalid NextPageToken.")
    return decoded.close_time_ns, decoded.start_time_ns, decoded.run_id


def _is_stored(token: ListPageToken) -> bool:
    """Whether a row can have these values: databases reject others."""
    return "\0" not in token.run_id and max(abs(token.close_time_ns), abs(token.start_time_ns)) <= INT64_MAX
