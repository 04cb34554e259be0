"""Cache of the decoded heads of one connection's calls, which mostly repeat."""

from collections.abc import Sequence
from contextlib import suppress

from msgspec import structs

from fairlead.rpc.frames import ConnectionFault
from fairlead.rpc.head import TIMEOUT_NAME, Head, request_head, timeout_seconds
from fairlead.rpc.header_block import Field, HeaderDecoder, literal, literal_before_end
from fairlead.rpc.memory import Account
from fairlead.rpc.status import RpcStatus

# Number of header blocks cached decoded, per connection: a client sends about one distinct block per method that it
# calls.
HEADS_MAX = 128
# Bytes of a header block above which its decoded form is not cached: enough for a JSON Web Token.
BLOCK_BYTES_MAX = 4_096
# Bytes of all cached heads of one connection: a short block may decode to many kilobytes.
HEADS_BYTES_MAX = 64 * 1024
# Bytes of a literal field for the timeout before its value.
_TIMEOUT_FRONT_BYTES = len(literal(TIMEOUT_NAME, b""))


class HeadCache:
    """Decodes header blocks, and caches the heads of blocks that leave the header table unchanged."""

    __slots__ = ("_account", "_bytes", "_decoder", "_generation", "_heads", "_list_bytes_max")

    def __init__(self, *, list_bytes_max: int, decoded_bytes_max: int, account: Account | None = None) -> None:
        """Above `list_bytes_max` a head refuses its call; above `decoded_bytes_max` a block is not decoded."""
        self._account = account or Account()
        self._list_bytes_max = list_bytes_max
        self._decoder = HeaderDecoder(list_bytes_max=decoded_bytes_max)
        # Decoded heads by header block; valid until the decoder's table changes.
        self._heads: dict[bytes, Head] = {}
        self._bytes = 0
        self._generation = 0

    def find(self, block: bytes) -> tuple[Head | None, float | None]:
        """Cached head of a block, and the block's timeout if that is not the head's own."""
        head = self._heads.get(block)
        if head is not None:
            return head, None
        # Our clients end a block with the timeout, which differs from call to call: the rest is cached without it.
        timeout_at = literal_before_end(block, TIMEOUT_NAME)
        head = self._heads.get(block[:timeout_at]) if timeout_at >= 0 else None
        if head is None:
            return None, None
        try:
            return head, timeout_seconds(block[timeout_at + _TIMEOUT_FRONT_BYTES :])
        except RpcStatus:
            return None, None

    def decode(self, block: bytes) -> tuple[Sequence[Field], bool]:
        """Fields of a block, and whether the same bytes will decode to the same fields next time."""
        decoder = self._decoder
        fields = decoder.decode(block)
        if decoder.generation == self._generation:
            return fields, True
        # The block changed the header table, so cached blocks may now decode differently.
        self._generation = decoder.generation
        self._clear()
        return fields, False

    def head(self, block: bytes, fields: Sequence[Field], *, is_stable: bool) -> Head:
        """Head of a call with these headers; raises StreamFault. It is cached if the block is stable and short."""
        head = request_head(fields, list_bytes_max=self._list_bytes_max)
        if is_stable and len(block) <= BLOCK_BYTES_MAX:
            self._keep(block, head, fields)
        return head

    def _keep(self, block: bytes, head: Head, fields: Sequence[Field]) -> None:
        size = len(block) + head.list_bytes
        if len(self._heads) >= HEADS_MAX or self._bytes + size > HEADS_BYTES_MAX:
            self._clear()
        timeout_at = literal_before_end(block, TIMEOUT_NAME)
        if timeout_at > 0 and head.timeout_s is not None:
            # Exact: an odd encoding may only look as if it ended with the timeout.
            with suppress(ConnectionFault):
                if [*self._decoder.decode(block[:timeout_at]), fields[-1]] == fields:
                    block, head = block[:timeout_at], structs.replace(head, timeout_s=None)
        self._heads[block] = head
        self._bytes += size
        self._account.hold(size)

    def _clear(self) -> None:
        self._heads.clear()
        self._account.free(self._bytes)
        self._bytes = 0
