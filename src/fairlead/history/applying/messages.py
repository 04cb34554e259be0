"""What another cluster's history is brought with, and what is answered."""

from enum import StrEnum

import msgspec

from fairlead.history.state.pending import ActivityProgress


class ReplicatedBatch(msgspec.Struct, array_like=True, frozen=True):
    """One batch of events of another cluster, or several that follow each other.

    `items` is the version history of the line that it stands on; it may go beyond the batch. `events` is a serialized
    `History`: of one version, with the task ids that their writer gave them. Of several batches it is one after the
    other, and `sizes` are the bytes of each.
    """

    namespace_id: str
    workflow_id: str
    run_id: str
    # The cluster that it came from.
    source: str
    items: tuple[tuple[int, int], ...]
    events: bytes
    start_request_id: str = ""
    sizes: tuple[int, ...] = ()


class Outcome(StrEnum):
    """What became of a batch."""

    CREATED = "created"
    APPLIED = "applied"
    DUPLICATE = "duplicate"
    # Events before it are missing: nothing was changed.
    GAP = "gap"
    # It begins a branch that is not the current one.
    FORKED = "forked"
    # It was written at the end of a branch that is not the current one.
    BACKFILLED = "backfilled"
    # Its branch is the current one from now on, and the state was rebuilt from the events.
    REBUILT = "rebuilt"
    # The state had its events already, and the store has them again.
    RESTORED = "restored"


class ApplyAnswer(msgspec.Struct, array_like=True, frozen=True):
    """The outcome; of a gap, the half-open range of events of the batch's own line that is missing."""

    outcome: str
    missing_from: int = 0
    missing_to: int = 0


class ReplicatedProgress(msgspec.Struct, array_like=True, frozen=True):
    """How far activities have come in another cluster: scheduled event id, its version, progress."""

    namespace_id: str
    workflow_id: str
    run_id: str
    source: str
    items: tuple[tuple[int, int], ...]
    activities: tuple[tuple[int, int, ActivityProgress], ...]


_encode = msgspec.msgpack.Encoder().encode
_decode_answer = msgspec.msgpack.Decoder(ApplyAnswer).decode


def encode_answer(answer: ApplyAnswer) -> bytes:
    """The answer as it goes back to the caller."""
    return _encode(answer)


def decode_answer(answer: bytes) -> ApplyAnswer:
    """What `encode_answer` made."""
    return _decode_answer(answer)
