"""The repair plan of `fairlead pipeline reconcile`: the events to send, with their source and target clusters."""

from pathlib import Path

import msgspec

from fairlead.core.errors import FixRequest, GiveUp
from fairlead.core.versions import EventBatch, EventRange, VersionHistory

PLAN_SCHEMA = 1
PLAN_BYTES_MAX = 512 << 20


class UnreadablePlan(FixRequest):
    """A file is not a repair plan, or one of another release: nothing was changed."""


class PlannedItem(msgspec.Struct, frozen=True):
    """An item of a version history."""

    event_id: int
    version: int


class PlannedSend(msgspec.Struct, frozen=True):
    """Events of one version that `source` has and `target` lacks; `items` is their version history up to the last
    event.
    """

    namespace_id: str
    workflow_id: str
    run_id: str
    target: str
    source: str
    version: int
    first_event_id: int
    last_event_id: int
    items: tuple[PlannedItem, ...]
    # Reason: missing_run, missing_events or gap.
    kind: str
    # Namespace name, for display; empty in plans of earlier releases.
    namespace: str = ""

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """The version history in the form of replication messages."""
        return tuple((item.event_id, item.version) for item in self.items)

    @property
    def events(self) -> int:
        """Number of events."""
        return self.last_event_id - self.first_event_id + 1


class ByHand(msgspec.Struct, frozen=True):
    """A difference that sending events does not repair."""

    namespace_id: str
    workflow_id: str
    run_id: str
    kind: str
    state: str = ""
    cluster: str = ""
    other: str = ""
    version: int | None = None
    first_event_id: int | None = None
    last_event_id: int | None = None
    detail: str = ""
    namespace: str = ""


class Plan(msgspec.Struct, frozen=True):
    """The whole plan; `now_us` is the time at which the clusters were compared."""

    schema: int
    now_us: int
    grace_us: int
    sends: tuple[PlannedSend, ...]
    by_hand: tuple[ByHand, ...]


class _Head(msgspec.Struct):
    schema: int


def read_plan(file: Path) -> Plan:
    """Read a plan from a file, and check that each send is valid."""
    try:
        size_bytes = file.stat().st_size
        if size_bytes > PLAN_BYTES_MAX:
            raise UnreadablePlan(f"{file} has {size_bytes} bytes, more than the limit of {PLAN_BYTES_MAX} for a plan")
        data = file.read_bytes()
    except OSError as wrong:
        raise UnreadablePlan(f"{file} can't be read: {wrong.strerror or wrong}") from None
    try:
        head = msgspec.json.decode(data, type=_Head)
        if head.schema != PLAN_SCHEMA:
            raise UnreadablePlan(
                f"{file} has schema {head.schema}, but this release reads schema {PLAN_SCHEMA}: reconcile again"
            )
        plan = msgspec.json.decode(data, type=Plan)
    except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
        raise UnreadablePlan(f"{file} is not a plan of `fairlead pipeline reconcile`: {wrong}") from None
    for position, send in enumerate(plan.sends):
        _check(file, position, send)
    return plan


def _check(file: Path, position: int, send: PlannedSend) -> None:
    where = f"{file}: sends[{position}]"
    for name in ("namespace_id", "workflow_id", "run_id", "target", "source"):
        if not getattr(send, name):
            raise UnreadablePlan(f"{where} has no {name}")
    if send.target == send.source:
        raise UnreadablePlan(f"{where} has the same target and source, {send.target!r}")
    try:
        versions = VersionHistory.from_pairs(send.pairs)
        EventBatch(EventRange(send.first_event_id, send.last_event_id), send.version, versions)
    except GiveUp as wrong:
        raise UnreadablePlan(f"{where}: {wrong}") from None
