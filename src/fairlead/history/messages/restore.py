"""Messages that restore lost events, and messages for a dry run of applying events."""

import msgspec


class RestoreResponse(msgspec.Struct, array_like=True, frozen=True):
    """Number of events that were missing in the store and have been restored."""

    restored: int


class BranchRange(msgspec.Struct, array_like=True, frozen=True):
    """Consecutive events of one version; `items` is the version history of their branch."""

    first_event_id: int
    last_event_id: int
    version: int
    items: tuple[tuple[int, int], ...]


class DryRunRequest(msgspec.Struct, array_like=True, frozen=True):
    """A dry run: the effect of applying some events of a run in this order. Nothing is changed."""

    workflow_id: str
    run_id: str
    ranges: tuple[BranchRange, ...]


class DryRunOutcome(msgspec.Struct, array_like=True, frozen=True):
    """The result for one range: the outcome, the number of events to write, and the missing events of a gap."""

    outcome: str
    events: int = 0
    missing_from: int = 0
    missing_to: int = 0


class DryRunResponse(msgspec.Struct, array_like=True, frozen=True):
    """One result for each range."""

    expected: tuple[DryRunOutcome, ...]


encode = msgspec.msgpack.Encoder().encode
decode_restored = msgspec.msgpack.Decoder(RestoreResponse).decode
decode_dry_run = msgspec.msgpack.Decoder(DryRunResponse).decode
