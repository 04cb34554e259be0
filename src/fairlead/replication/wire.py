"""How clusters talk: the methods of one gRPC service at a cluster's frontend address, in msgpack, errors by their kind.

Answers that may be large come as a stream of parts, so that a batch beyond the size of a gRPC message gets through.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import msgspec

from fairlead.cluster.wire import Errors
from fairlead.core.errors import GiveUp
from fairlead.history.refusals import Refused
from fairlead.replication.messages import (
    ClusterInfo,
    Done,
    FailOverAnswer,
    FailOverRequest,
    LettersAsked,
    LettersCounted,
    NamespacesAnswer,
    NamespacesRequest,
    Nudge,
    PullAnswer,
    PullRequest,
    ReadLineAnswer,
    RemoteReadLine,
    RepairAnswer,
    RepairRequest,
)

SERVICE: Final = "fairlead.replication.v1.Replication"
# Well below what either side takes as one message.
PART_BYTES_MAX = 1 << 20
# No answer is larger: one batch of a run is the most that is sent without choice.
ANSWER_BYTES_MAX = 80 << 20
# Those that a caller in another cluster must tell from others of their kind.
ERRORS = Errors((Refused,))

Request = TypeVar("Request")
Answer = TypeVar("Answer")


class UnreadableMessage(GiveUp):
    """Another cluster sent something that is not what it should be: it is of another release."""


@dataclass(frozen=True, slots=True)
class Call(Generic[Request, Answer]):
    """One thing that another cluster can be asked for; `in_parts`: its answer is a stream of parts."""

    name: str
    request: type[Request]
    answer: type[Answer]
    in_parts: bool = False

    @property
    def path(self) -> str:
        """As gRPC names it."""
        return f"/{SERVICE}/{self.name}"


INFO = Call("Info", Done, ClusterInfo)
PULL = Call("Pull", PullRequest, PullAnswer, in_parts=True)
READ_LINE = Call("ReadLine", RemoteReadLine, ReadLineAnswer, in_parts=True)
NAMESPACES = Call("Namespaces", NamespacesRequest, NamespacesAnswer, in_parts=True)
FAIL_OVER = Call("FailOver", FailOverRequest, FailOverAnswer)
LETTERS = Call("CountLetters", LettersAsked, LettersCounted)
NUDGE = Call("Nudge", Nudge, Done)
REPAIR = Call("Repair", RepairRequest, RepairAnswer)

encode = msgspec.msgpack.Encoder().encode
_decoders: dict[type, msgspec.msgpack.Decoder[Any]] = {}


def decode(data: bytes, kind: type[Answer]) -> Answer:
    """A message of another cluster."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    try:
        found: Answer = decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as wrong:
        raise UnreadableMessage(
            f"{len(data)} bytes are no {kind.__name__} ({wrong}): is the sender of this release?"
        ) from None
    return found


def parts_of(data: bytes) -> Iterator[bytes]:
    """What a large answer is sent as; at least one."""
    for begin in range(0, max(1, len(data)), PART_BYTES_MAX):
        yield data[begin : begin + PART_BYTES_MAX]


def joined(parts: Iterable[bytes]) -> bytes:
    """What the parts were made of."""
    return b"".join(parts)
