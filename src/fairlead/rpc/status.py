"""gRPC statuses: how a call ended."""

from enum import IntEnum

from fairlead.core.errors import FairleadError

_PLAIN = frozenset(range(0x20, 0x7F)) - {ord("%")}
# Characters of a status message: clients drop a whole response whose headers are too large.
MESSAGE_CHARACTERS_MAX = 2_000


class Code(IntEnum):
    """The status codes of gRPC."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class RpcStatus(FairleadError):
    """Ends a call with a status; `details` is a serialized google.rpc.Status, for grpc-status-details-bin."""

    def __init__(self, code: Code, message: str, details: bytes | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details


def percent_encoded(text: str) -> bytes:
    """Encode a status message for the grpc-message header."""
    data = text[:MESSAGE_CHARACTERS_MAX].encode("utf-8", "replace")
    if _PLAIN.issuperset(data):
        return data
    return b"".join(bytes((byte,)) if byte in _PLAIN else b"%%%02X" % byte for byte in data)
