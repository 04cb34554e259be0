"""Header blocks of requests, without a header table: each is encoded once and valid on every connection."""

import base64
import re
from collections.abc import Sequence
from typing import TypeAlias

from fairlead import __version__
from fairlead.core.errors import FixRequest
from fairlead.rpc.call import BINARY_SUFFIX, RESERVED_PREFIX
from fairlead.rpc.head import TIMEOUT_NAME, TIMEOUT_S_MAX
from fairlead.rpc.header_block import ENTRY_BYTES, indexed_name, literal

Metadata: TypeAlias = Sequence[tuple[str, str | bytes]]

# Number of encoded heads cached, per channel: about one for each method and set of metadata.
HEADS_MAX = 1_024
# Names of the static table (RFC 7541, appendix A): whole fields, and names of literal fields.
_METHOD_POST = b"\x83"
_SCHEME_HTTP = b"\x86"
_SCHEME_HTTPS = b"\x87"
_AUTHORITY = 1
_PATH = 4
_CONTENT_TYPE = 31
_USER_AGENT = 58

_COMMON = (
    literal(b"te", b"trailers")
    + indexed_name(_CONTENT_TYPE, b"application/grpc")
    + indexed_name(_USER_AGENT, f"fairlead/{__version__}".encode())
    + literal(b"grpc-accept-encoding", b"identity,gzip")
)
# Bytes, as HTTP/2 counts them, of the fields that every call has, apart from its path and authority.
_COMMON_LIST_BYTES = 512

_NAME = re.compile(r"[0-9a-z_.-]+")
# Visible characters and spaces; Latin-1, as a server decodes them.
_TEXT = re.compile(r"[\x20-\x7e\x80-\xff]*")
_NOT_OURS = frozenset(("te", "content-type", "user-agent", "host", "connection"))

_TIMEOUT_FRONT = literal(TIMEOUT_NAME, b"")[:-1]


class InvalidMetadata(FixRequest):
    """A caller gave metadata that can't be sent."""


class RequestHeads:
    """Encodes the heads of one channel's calls."""

    __slots__ = ("_authority", "_heads", "_scheme")

    def __init__(self, authority: str, *, is_encrypted: bool) -> None:
        self._authority = indexed_name(_AUTHORITY, authority.encode("ascii", "replace"))
        self._scheme = _SCHEME_HTTPS if is_encrypted else _SCHEME_HTTP
        self._heads: dict[tuple[str, Metadata], tuple[bytes, int]] = {}

    def head(self, path: str, metadata: Metadata = ()) -> tuple[bytes, int]:
        """Header block of a call without its timeout, and its size as the server counts it."""
        key = (path, metadata if isinstance(metadata, tuple) else tuple(metadata))
        head = self._heads.get(key)
        if head is None:
            if len(self._heads) >= HEADS_MAX:
                self._heads.clear()
            head = self._heads[key] = self._encoded(path, key[1])
        return head

    def _encoded(self, path: str, metadata: Metadata) -> tuple[bytes, int]:
        # The connection's own fields first: HTTP/2 wants pseudo-headers before all others.
        block = _METHOD_POST + self._scheme + indexed_name(_PATH, path.encode()) + self._authority + _COMMON
        block += b"".join(literal(name.encode(), _value(name, value)) for name, value in metadata)
        return block, len(block) + _COMMON_LIST_BYTES + ENTRY_BYTES * len(metadata)


def timeout_field(timeout_s: float) -> bytes:
    """Encode a timeout, in the finest unit that 8 digits allow; it is never rounded up."""
    if timeout_s < 0.1:
        value = b"%dn" % int(timeout_s * 1e9)
    elif timeout_s < 100:
        value = b"%du" % int(timeout_s * 1e6)
    elif timeout_s < 100_000:
        value = b"%dm" % int(timeout_s * 1e3)
    else:
        value = b"%dS" % int(min(timeout_s, TIMEOUT_S_MAX))
    return _TIMEOUT_FRONT + bytes((len(value),)) + value


def _value(name: str, value: str | bytes) -> bytes:
    if not _NAME.fullmatch(name) or name.startswith(RESERVED_PREFIX) or name in _NOT_OURS:
        raise InvalidMetadata(f"metadata {name!r}: use lower-case letters, digits and _.-, and no name of gRPC's own")
    if name.endswith(BINARY_SUFFIX) is not isinstance(value, bytes):
        raise InvalidMetadata(f"metadata {name!r}: use bytes if the name ends in {BINARY_SUFFIX}, otherwise text")
    if isinstance(value, bytes):
        return base64.b64encode(value).rstrip(b"=")
    if not _TEXT.fullmatch(value):
        raise InvalidMetadata(f"metadata {name!r}: {value!r} has control characters; use a {BINARY_SUFFIX} name")
    return value.encode("latin-1")
