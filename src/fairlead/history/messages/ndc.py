"""Replicated events and activity progress of another cluster, and the response to their sender."""

from enum import StrEnum

import msgspec

from fairlead.history.state.pending import ActivityProgress


class ReplicatedBatch(msgspec.Struct, array_like=True, frozen=True):
    """One or several consecutive batches of events of another cluster.

    `items` is the version history of their branch; it may go beyond these events. `events` is a serialized `History` of
    one version, with the task ids of the cluster that wrote it. Several batches are concatenated, and `sizes` are their
    sizes in bytes.
    """

    namespace_id: str
    workflow_id: str
    run_id: str
    # The cluster that sent the batch.
    source: str
    items: tuple[tuple[int, int], ...]
    events: bytes
    start_request_id: str = ""
    sizes: tuple[int, ...] = ()


class Outcome(StrEnum):
    """The result of applying a batch."""

    CREATED = "created"
    APPLIED = "applied"
    DUPLICATE = "duplicate"
    # Events before the batch are missing: nothing was changed.
    GAP = "gap"
    # The batch begins a branch that does not become current.
    FORKED = "forked"
    # The batch was added to a branch that is not current.
    BACKFILLED = "backfilled"
    # The batch made its branch the current branch, and the state was rebuilt from the events.
    REBUILT = "rebuilt"
    # The state had the events, but the store had lost them; they are stored again.
    RESTORED = "restored"


class ApplyResponse(msgspec.Struct, array_like=True, frozen=True):
    """The outcome. For a gap also the half-open range of missing events on the batch's branch."""

    outcome: str
    missing_from: int = 0
    missing_to: int = 0


class ReplicatedProgress(msgspec.Struct, array_like=True, frozen=True):
    """Activity progress of another cluster: the scheduled event id, version and progress of each activity."""

    namespace_id: str
    workflow_id: str
    run_id: str
    source: str
    items: tuple[tuple[int, int], ...]
    activities: tuple[tuple[int, int, ActivityProgress], ...]


_encode = msgspec.msgpack.Encoder().encode
_decode_answer = msgspec.msgpack.Decoder(ApplyResponse).decode


def encode_answer(answer: ApplyResponse) -> bytes:
    """Encode a response."""
    return _encode(answer)


def decode_answer(answer: bytes) -> ApplyResponse:
    """Decode a response."""
    return _decode_answer(answer)
