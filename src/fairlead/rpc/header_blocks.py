"""Header blocks of responses.

The common blocks are encoded once. No block uses a header table, so each can be sent to every peer.
"""

import base64
from collections.abc import Iterable

from fairlead.rpc.header_block import literal
from fairlead.rpc.status import Code, RpcStatus, percent_encoded

_STATUS_200 = b"\x88"
_CONTENT_TYPE = literal(b"content-type", b"application/grpc")

# Headers before the first message of a response, and trailers after the last message of a successful call.
HEADERS_BLOCK = _STATUS_200 + _CONTENT_TYPE
OK_TRAILERS_BLOCK = literal(b"grpc-status", b"0")

_ACCEPTED_ENCODINGS = literal(b"grpc-accept-encoding", b"identity,gzip")
# Bytes, as the peer counts them, of a status's fields without its details: names, the code, and 32 bytes per field.
_STATUS_LIST_BYTES = 256

Trailers = Iterable[tuple[str, str | bytes]]


def ok_trailers_block(trailers: Trailers) -> bytes:
    """Trailers of a successful call, with those that its handler added."""
    return OK_TRAILERS_BLOCK + _added(trailers)


def status_block(status: RpcStatus, trailers: Trailers = (), *, list_bytes_max: int, is_whole_answer: bool) -> bytes:
    """Trailers of a failed call; `is_whole_answer` if no headers were sent before.

    Details above the peer's limit are left out: the peer would drop the code and the message with them.
    """
    message = percent_encoded(status.message)
    block = literal(b"grpc-status", b"%d" % status.code)
    if message:
        block += literal(b"grpc-message", message)
    block += _added(trailers)
    if status.details is not None:
        details = base64.b64encode(status.details).rstrip(b"=")
        if len(block) + len(details) + _STATUS_LIST_BYTES <= list_bytes_max:
            block += literal(b"grpc-status-details-bin", details)
    if status.code is Code.UNIMPLEMENTED:
        block += _ACCEPTED_ENCODINGS
    return HEADERS_BLOCK + block if is_whole_answer else block


def http_block(http_status: int) -> bytes:
    """Response to an HTTP request that is not a gRPC call."""
    return literal(b":status", b"%d" % http_status)


def _added(trailers: Trailers) -> bytes:
    return b"".join(
        literal(name.encode(), base64.b64encode(value).rstrip(b"=") if isinstance(value, bytes) else value.encode())
        for name, value in trailers
    )
