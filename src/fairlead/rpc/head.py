"""The head of a call: its decoded and checked headers."""

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from msgspec import Struct

from fairlead.rpc.frames import ErrorCode, StreamFault
from fairlead.rpc.header_block import Field, list_bytes
from fairlead.rpc.status import Code, RpcStatus

IDENTITY = "identity"
GZIP = "gzip"
# Seconds of a call's timeout; a longer one is cut to this, since the event loop can't schedule very distant times.
TIMEOUT_S_MAX = 365 * 86_400.0

TIMEOUT_NAME = b"grpc-timeout"
# Digits of a grpc-timeout.
TIMEOUT_DIGITS_MAX = 8

_UNIT_S = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_PSEUDO_NAMES = frozenset((b":method", b":scheme", b":authority", b":path"))
_REQUIRED_PSEUDO_NAMES = (b":method", b":scheme", b":path")
_OF_A_CONNECTION = frozenset((b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"))
# Headers that the transport interprets itself and keeps out of the handler's metadata.
_OF_THE_TRANSPORT = frozenset((b"te", b"content-type", TIMEOUT_NAME, b"grpc-encoding", b"grpc-accept-encoding"))

_NO_METADATA: Mapping[str, str] = MappingProxyType({})
_NO_BINARY_METADATA: Mapping[str, bytes] = MappingProxyType({})


class ErrorResponse(Struct, frozen=True):
    """Error response to a call's headers: an HTTP status if the request is not gRPC, else 200 and a gRPC status."""

    http_status: int
    status: RpcStatus


class Head(Struct, frozen=True):
    """Decoded headers of a call. Calls with the same header block share one instance."""

    path: str
    metadata: Mapping[str, str]
    binary_metadata: Mapping[str, bytes]
    timeout_s: float | None
    encoding: str
    refusal: ErrorResponse | None
    # Bytes of the header list, as HTTP/2 counts it.
    list_bytes: int = 0


def request_head(fields: Sequence[Field], *, list_bytes_max: int) -> Head:
    """Read the headers of a call; raises StreamFault if they are not valid HTTP/2 request headers."""
    pseudo, rest = _parted(fields)
    path = pseudo[b":path"].decode("latin-1")
    refusal = _http_refusal(pseudo, rest)
    size = list_bytes(fields)
    if refusal is None and size > list_bytes_max:
        refusal = ErrorResponse(
            200, RpcStatus(Code.RESOURCE_EXHAUSTED, f"the call's headers have more than {list_bytes_max} bytes")
        )
    if refusal is None:
        try:
            return _head(path, rest, size)
        except RpcStatus as status:
            refusal = ErrorResponse(200, status)
    return Head(
        path,
        _NO_METADATA,
        _NO_BINARY_METADATA,
        timeout_s=None,
        encoding=IDENTITY,
        refusal=refusal,
        list_bytes=len(path),
    )


def timeout_seconds(value: bytes) -> float:
    """Decode a grpc-timeout; raises RpcStatus."""
    digits, unit_s = value[:-1], _UNIT_S.get(value[-1:])
    if unit_s is None or not digits.isdigit() or len(digits) > TIMEOUT_DIGITS_MAX:
        raise RpcStatus(
            Code.INVALID_ARGUMENT, f"grpc-timeout {value.decode('latin-1')!r} is not 1 to 8 digits and one of HMSmun"
        )
    return min(int(digits) * unit_s, TIMEOUT_S_MAX)


def check_trailers(fields: Sequence[Field]) -> None:
    """Raise StreamFault for a malformed trailer of a request; well-formed ones are ignored."""
    for name, _ in fields:
        if not _NAME.fullmatch(name):
            raise StreamFault(ErrorCode.PROTOCOL_ERROR, f"the trailer name {name!r} is malformed")


def _parted(fields: Sequence[Field]) -> tuple[dict[bytes, bytes], list[Field]]:
    """Split headers into pseudo-headers and the rest."""
    pseudo: dict[bytes, bytes] = {}
    rest: list[Field] = []
    for field in fields:
        name, value = field
        if name[:1] == b":":
            if rest or name in pseudo or name not in _PSEUDO_NAMES:
                raise StreamFault(ErrorCode.PROTOCOL_ERROR, f"pseudo-header {name!r} late, repeated or unknown")
            pseudo[name] = value
            continue
        if not _NAME.fullmatch(name) or name in _OF_A_CONNECTION or (name == b"te" and value != b"trailers"):
            raise StreamFault(ErrorCode.PROTOCOL_ERROR, f"header {name!r} is not allowed in HTTP/2")
        if b"\x00" in value or b"\r" in value or b"\n" in value:
            raise StreamFault(ErrorCode.PROTOCOL_ERROR, f"the value of header {name!r} has control characters")
        rest.append(field)
    for name in _REQUIRED_PSEUDO_NAMES:
        if not pseudo.get(name):
            raise StreamFault(ErrorCode.PROTOCOL_ERROR, f"no {name.decode()} in a request")
    return pseudo, rest


def _head(path: str, rest: Sequence[Field], size: int) -> Head:
    metadata: dict[str, str] = {}
    binary_metadata: dict[str, bytes] = {}
    timeout_s: float | None = None
    encoding = IDENTITY
    for name, value in rest:
        if name == TIMEOUT_NAME:
            timeout_s = timeout_seconds(value)
        elif name == b"grpc-encoding":
            encoding = value.decode("latin-1")
        elif name in _OF_THE_TRANSPORT:
            continue
        elif name.endswith(b"-bin"):
            _add_binary(binary_metadata, name.decode("ascii"), value)
        else:
            _add(metadata, name.decode("ascii"), value.decode("latin-1"))
    if encoding not in {IDENTITY, GZIP}:
        raise RpcStatus(Code.UNIMPLEMENTED, f"grpc-encoding {encoding!r} is not supported: send {IDENTITY} or {GZIP}")
    return Head(
        path,
        MappingProxyType(metadata),
        MappingProxyType(binary_metadata),
        timeout_s=timeout_s,
        encoding=encoding,
        refusal=None,
        list_bytes=size,
    )


def _http_refusal(pseudo: Mapping[bytes, bytes], rest: Sequence[Field]) -> ErrorResponse | None:
    if pseudo[b":method"] != b"POST":
        return ErrorResponse(405, RpcStatus(Code.UNKNOWN, "a gRPC call must be a POST"))
    content_type = next((value for name, value in rest if name == b"content-type"), b"")
    # A suffix such as +proto names the encoding of the messages, which the handler decodes.
    if content_type != b"application/grpc" and not content_type.startswith(
        (b"application/grpc+", b"application/grpc;")
    ):
        return ErrorResponse(
            415, RpcStatus(Code.UNKNOWN, f"content-type {content_type.decode('latin-1')!r} is not application/grpc")
        )
    return None


def _add(metadata: dict[str, str], name: str, value: str) -> None:
    metadata[name] = f"{metadata[name]},{value}" if name in metadata else value


def _add_binary(metadata: dict[str, bytes], name: str, value: bytes) -> None:
    # A repeated name may come as two headers or as one with a comma; the first value counts.
    first = value.partition(b",")[0].rstrip(b"=")
    try:
        decoded = base64.b64decode(first + b"=" * (-len(first) % 4), validate=True)
    except binascii.Error as error:
        raise RpcStatus(Code.INVALID_ARGUMENT, f"header {name!r} is not base64: {error}") from None
    metadata.setdefault(name, decoded)
