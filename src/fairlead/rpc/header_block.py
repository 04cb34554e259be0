"""Header blocks (HPACK, RFC 7541): decodes a peer's blocks, and encodes ours without state at either end."""

from collections.abc import Iterable
from functools import lru_cache

from hpack import HPACKError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from fairlead.rpc.frames import ConnectionFault, ErrorCode

# Bytes that an entry of a table or list counts in addition to its name and value.
ENTRY_BYTES = 32
# Bytes of the dynamic table: the protocol's default, which our settings keep.
TABLE_BYTES_MAX = 4_096
# Fields of one block; calls have some ten, and each takes more time to check than its few bytes to send.
FIELDS_MAX = 256
# Octets of an encoded integer after its prefix: enough for 32 bits, more than any length that we accept.
INTEGER_OCTETS_MAX = 5
# Number of decoded Huffman strings cached, and encoded bytes of one.
_REMEMBERED_STRINGS_MAX = 4_096
_REMEMBERED_BYTES_MAX = 128
# The same of longer strings, up to 7 MB in all. They are tokens: SDKs send theirs with each call, and a JSON Web Token
# of 800 bytes takes 0.13 ms to decode.
_REMEMBERED_TOKENS_MAX = 512
_REMEMBERED_TOKEN_BYTES_MAX = 4_096

Field = tuple[bytes, bytes]

_STATIC: tuple[Field, ...] = HeaderTable.STATIC_TABLE
_STATIC_LENGTH = len(_STATIC)


class HeaderDecoder:
    """Decodes the header blocks of one connection, in their order.

    The Huffman code and the static table come from the `hpack` package. Its decoder takes five times as long as this
    one, which caches decoded strings. A test checks that both give the same results.
    """

    __slots__ = ("_entries", "_list_bytes_max", "_table_bytes", "_table_bytes_max", "generation")

    def __init__(self, *, list_bytes_max: int) -> None:
        self._list_bytes_max = list_bytes_max
        # Dynamic table, newest entry last; at most TABLE_BYTES_MAX / ENTRY_BYTES entries.
        self._entries: list[Field] = []
        self._table_bytes = 0
        self._table_bytes_max = TABLE_BYTES_MAX
        # Increments when the table changes: at the same generation, a block that left the table alone decodes the same.
        self.generation = 0

    def decode(self, block: bytes) -> list[Field]:
        """Decode the fields of a block; raises ConnectionFault, after which the connection's table can't be used."""
        try:
            return self._decoded(block)
        except (IndexError, HPACKError) as error:
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, f"a header block can't be decoded: {error}") from None

    def _decoded(self, block: bytes) -> list[Field]:
        fields: list[Field] = []
        list_bytes = 0
        position, end = 0, len(block)
        while position < end:
            first = block[position]
            if first >= 0x80:
                if first < 0xFF:
                    index = first & 0x7F
                    position += 1
                else:
                    index, position = _integer(block, position, 0x7F)
                field = self._entry(index)
            elif first >= 0x40:
                field, position = self._literal(block, position, 0x3F)
                self._add(field)
            elif first >= 0x20:
                if fields:
                    raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, "a table size that follows a field")
                size, position = _integer(block, position, 0x1F)
                self._resize(size)
                continue
            else:
                field, position = self._literal(block, position, 0x0F)
            list_bytes += len(field[0]) + len(field[1]) + ENTRY_BYTES
            if list_bytes > self._list_bytes_max or len(fields) >= FIELDS_MAX:
                raise ConnectionFault(
                    ErrorCode.ENHANCE_YOUR_CALM,
                    f"headers of more than {self._list_bytes_max} bytes or {FIELDS_MAX} fields: send fewer",
                )
            fields.append(field)
        return fields

    def _entry(self, index: int) -> Field:
        if 0 < index <= _STATIC_LENGTH:
            return _STATIC[index - 1]
        dynamic_index = index - _STATIC_LENGTH
        if not 0 < dynamic_index <= len(self._entries):
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, f"no field {index} in the header table")
        return self._entries[-dynamic_index]

    def _literal(self, block: bytes, position: int, mask: int) -> tuple[Field, int]:
        if block[position] & mask:
            index, position = _integer(block, position, mask)
            name = self._entry(index)[0]
        else:
            name, position = _string(block, position + 1)
        value, position = _string(block, position)
        return (name, value), position

    def _add(self, field: Field) -> None:
        self.generation += 1
        self._entries.append(field)
        self._table_bytes += len(field[0]) + len(field[1]) + ENTRY_BYTES
        self._evict()

    def _resize(self, size: int) -> None:
        if size > TABLE_BYTES_MAX:
            raise ConnectionFault(
                ErrorCode.COMPRESSION_ERROR, f"a header table of {size} bytes: at most {TABLE_BYTES_MAX}"
            )
        self.generation += 1
        self._table_bytes_max = size
        self._evict()

    def _evict(self) -> None:
        # An entry larger than the table empties the table and is not stored: RFC 7541 says that is no error.
        while self._table_bytes > self._table_bytes_max:
            name, value = self._entries.pop(0)
            self._table_bytes -= len(name) + len(value) + ENTRY_BYTES


def list_bytes(fields: Iterable[Field]) -> int:
    """Size of a list of headers, as HTTP/2 counts it."""
    return sum(len(name) + len(value) + ENTRY_BYTES for name, value in fields)


def literal(name: bytes, value: bytes) -> bytes:
    """Encode a field that neither side adds to its table."""
    return b"\x00" + _length(name) + name + _length(value) + value


def indexed_name(index: int, value: bytes) -> bytes:
    """Encode a field with a name of the static table, which neither side adds to its table."""
    prefix = bytes((index,)) if index < 0x0F else bytes((0x0F, index - 0x0F))
    return prefix + _length(value) + value


def literal_before_end(block: bytes, name: bytes) -> int:
    """Position of a literal field with this name that seems to end the block; -1 if there is none.

    The field really ends the block only if the bytes before it are whole fields.
    """
    start = block.rfind(b"\x00" + _length(name) + name)
    value_at = start + 2 + len(name) + 1
    return start if start >= 0 and value_at <= len(block) == value_at + block[value_at - 1] else -1


def _length(text: bytes) -> bytes:
    length = len(text)
    if length < 0x7F:
        return bytes((length,))
    octets = bytearray((0x7F,))
    length -= 0x7F
    while length >= 0x80:
        octets.append(length & 0x7F | 0x80)
        length >>= 7
    octets.append(length)
    return bytes(octets)


def _integer(block: bytes, position: int, mask: int) -> tuple[int, int]:
    number = block[position] & mask
    position += 1
    if number < mask:
        return number, position
    shift = 0
    for _ in range(INTEGER_OCTETS_MAX):
        octet = block[position]
        position += 1
        number += (octet & 0x7F) << shift
        if octet < 0x80:
            return number, position
        shift += 7
    raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, "an integer of more than 32 bits in a header block")


def _string(block: bytes, position: int) -> tuple[bytes, int]:
    is_huffman = block[position] >= 0x80
    length, position = _integer(block, position, 0x7F)
    end = position + length
    if end > len(block):
        raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, "a header block ends within a string")
    text = block[position:end]
    if is_huffman:
        if length <= _REMEMBERED_BYTES_MAX:
            text = _plain(text)
        elif length <= _REMEMBERED_TOKEN_BYTES_MAX:
            text = _plain_token(text)
        else:
            text = decode_huffman(text)
    return text, end


@lru_cache(maxsize=_REMEMBERED_STRINGS_MAX)
def _plain(text: bytes) -> bytes:
    return decode_huffman(text)


@lru_cache(maxsize=_REMEMBERED_TOKENS_MAX)
def _plain_token(text: bytes) -> bytes:
    return decode_huffman(text)
