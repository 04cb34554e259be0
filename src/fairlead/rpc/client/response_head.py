"""Heads of responses: the headers before the messages, and the trailers with the status after them."""

import base64
import binascii
from collections.abc import Mapping, Sequence
from urllib.parse import unquote_to_bytes

from fairlead.rpc.call import BINARY_SUFFIX
from fairlead.rpc.client.failures import CallFailed, RemoteStatus, ResponseLost
from fairlead.rpc.frames import ErrorCode, StreamFault
from fairlead.rpc.head import GZIP, IDENTITY
from fairlead.rpc.header_block import Field, list_bytes
from fairlead.rpc.status import Code

DETAILS_NAME = "grpc-status-details-bin"
_STATUS_NAME = "grpc-status"
_MESSAGE_NAME = "grpc-message"
_HTTP_STATUS = b":status"
_CONTENT_TYPE = b"content-type"
_ENCODING = b"grpc-encoding"

# gRPC codes for HTTP responses without a gRPC status, from gRPC's document http-grpc-status-mapping.
_CODES = {
    400: Code.INTERNAL,
    401: Code.UNAUTHENTICATED,
    403: Code.PERMISSION_DENIED,
    404: Code.UNIMPLEMENTED,
    429: Code.UNAVAILABLE,
    502: Code.UNAVAILABLE,
    503: Code.UNAVAILABLE,
    504: Code.UNAVAILABLE,
}


def is_informational(fields: Sequence[Field]) -> bool:
    """Whether this is a response with status 1xx, after which the real response follows."""
    return bool(fields) and fields[0][0] == _HTTP_STATUS and fields[0][1][:1] == b"1"


def encoding(fields: Sequence[Field], path: str) -> str:
    """Check the headers before the first message and return the messages' encoding; raises CallFailed, StreamFault."""
    status, content_type, chosen = b"", b"", IDENTITY
    for name, value in fields:
        if name == _HTTP_STATUS:
            status = value
        elif name == _CONTENT_TYPE:
            content_type = value
        elif name == _ENCODING:
            chosen = value.decode("latin-1")
    if not status:
        raise StreamFault(ErrorCode.PROTOCOL_ERROR, "a response without :status")
    if status != b"200" or not content_type.startswith(b"application/grpc"):
        raise _not_grpc(path, status, content_type)
    if chosen not in {IDENTITY, GZIP}:
        raise ResponseLost(Code.INTERNAL, f"the response of {path} has the unknown encoding {chosen!r}")
    return chosen


def failure(fields: Sequence[Field], path: str, *, list_bytes_max: int) -> CallFailed | None:
    """Failure that the last header block of a response reports; None for success."""
    if list_bytes(fields) > list_bytes_max:
        return ResponseLost(
            Code.RESOURCE_EXHAUSTED, f"the trailers of {path} have more than {list_bytes_max} bytes, the limit here"
        )
    trailers = _trailers(fields)
    text = trailers.get(_STATUS_NAME)
    if text is None:
        return _not_grpc(path, _first(fields, _HTTP_STATUS), _first(fields, _CONTENT_TYPE))
    if text == "0":
        return None
    code = Code(int(text)) if str(text).isdecimal() and int(text) <= max(Code) else Code.UNKNOWN
    message = unquote_to_bytes(str(trailers.get(_MESSAGE_NAME, ""))).decode(errors="replace")
    details = trailers.get(DETAILS_NAME)
    return RemoteStatus(code, message, details if isinstance(details, bytes) else None, trailers=trailers)


def _trailers(fields: Sequence[Field]) -> Mapping[str, str | bytes]:
    trailers: dict[str, str | bytes] = {}
    for raw_name, raw_value in fields:
        name = raw_name.decode("latin-1")
        if name.endswith(BINARY_SUFFIX):
            first = raw_value.partition(b",")[0].rstrip(b"=")
            try:
                trailers.setdefault(name, base64.b64decode(first + b"=" * (-len(first) % 4), validate=True))
            except binascii.Error:
                continue
        else:
            trailers.setdefault(name, raw_value.decode("latin-1"))
    return trailers


def _first(fields: Sequence[Field], name: bytes) -> bytes:
    return next((value for other, value in fields if other == name), b"")


def _not_grpc(path: str, status: bytes, content_type: bytes) -> ResponseLost:
    number = int(status) if status.isdigit() and len(status) == 3 else 0
    code = Code.INTERNAL if number == 0 else _CODES.get(number, Code.UNKNOWN)
    return ResponseLost(
        code,
        f"the response of {path} has no gRPC status (HTTP status {status.decode('latin-1') or 'missing'}, content-type"
        f" {content_type.decode('latin-1')!r}): is there a gRPC server at this address?",
    )
