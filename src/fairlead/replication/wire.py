"""The protocol between clusters: one gRPC service at the frontend address, with msgpack messages and typed errors.

Responses that may be large are a stream of parts, so that a batch may be larger than a gRPC message.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import msgspec

from fairlead.api.errors import API_ERRORS
from fairlead.core.errors import GiveUp
from fairlead.replication.messages import (
    ClusterInfo,
    DeadLetterCount,
    DeadLetterCountRequest,
    Done,
    FailOverRequest,
    FailOverResponse,
    NamespacesRequest,
    NamespacesResponse,
    Nudge,
    PullRequest,
    PullResponse,
    ReadBranchResponse,
    RemoteReadBranch,
    RepairRequest,
    RepairResponse,
)
from fairlead.rpc.hosts.wire import Errors

SERVICE: Final = "fairlead.replication.v1.Replication"
# Bytes of one part: well below the message limit of either side.
PART_BYTES_MAX = 1 << 20
# Bytes of one response: the largest is a single batch of a run, which can't be divided.
ANSWER_BYTES_MAX = 80 << 20
# Error classes that callers in other clusters must distinguish from others of their kind.
ERRORS = Errors(API_ERRORS)

Request = TypeVar("Request")
Response = TypeVar("Response")


class UnreadableMessage(GiveUp):
    """A message of another cluster can't be decoded: that cluster probably runs another release."""


@dataclass(frozen=True, slots=True)
class ClusterCall(Generic[Request, Response]):
    """A method of the service; `in_parts`: its response is a stream of parts."""

    name: str
    request: type[Request]
    answer: type[Response]
    in_parts: bool = False

    @property
    def path(self) -> str:
        """The method's gRPC path."""
        return f"/{SERVICE}/{self.name}"


INFO = ClusterCall("Info", Done, ClusterInfo)
PULL = ClusterCall("Pull", PullRequest, PullResponse, in_parts=True)
READ_BRANCH = ClusterCall("ReadBranch", RemoteReadBranch, ReadBranchResponse, in_parts=True)
NAMESPACES = ClusterCall("Namespaces", NamespacesRequest, NamespacesResponse, in_parts=True)
FAIL_OVER = ClusterCall("FailOver", FailOverRequest, FailOverResponse)
DEAD_LETTERS = ClusterCall("CountDeadLetters", DeadLetterCountRequest, DeadLetterCount)
NUDGE = ClusterCall("Nudge", Nudge, Done)
REPAIR = ClusterCall("Repair", RepairRequest, RepairResponse)

encode = msgspec.msgpack.Encoder().encode
_decoders: dict[type, msgspec.msgpack.Decoder[Any]] = {}


def decode(data: bytes, kind: type[Response]) -> Response:
    """Decode a message of another cluster."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    try:
        found: Response = decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as wrong:
        raise UnreadableMessage(
            f"{len(data)} bytes are not a valid {kind.__name__} ({wrong}): do both clusters run the same release?"
        ) from None
    return found


def parts_of(data: bytes) -> Iterator[bytes]:
    """The parts of a large response; at least one."""
    for begin in range(0, max(1, len(data)), PART_BYTES_MAX):
        yield data[begin : begin + PART_BYTES_MAX]


def joined(parts: Iterable[bytes]) -> bytes:
    """The response from its parts."""
    return b"".join(parts)
