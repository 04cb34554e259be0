"""What the check of a run works on and what it answers, as plain values."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from fairlead.core.versions import ClusterVersions, Item, VersionHistory

DIGEST_CHARS = 16
# Twenty times what a history may have by default: what is beyond was not counted by a server.
EVENT_ID_MAX = 1_000_000
TYPES_UNKNOWN = -1
SIGNALED_EVENT = 26  # temporal.api.enums.v1.EventType
OPEN_STATUSES = frozenset({1, 8})  # Running and paused, of temporal.api.enums.v1.WorkflowExecutionStatus.


class Kind(StrEnum):
    """What can be wrong with a run."""

    MISSING_RUN = "missing_run"
    MISSING_EVENTS = "missing_events"
    EXTRA_EVENTS = "extra_events"
    DIFFERENT_EVENTS = "different_events"
    GAP = "gap"
    BROKEN_APPEND = "broken_append"
    MIXED_VERSIONS = "mixed_versions"
    MALFORMED_BATCH = "malformed_batch"
    CONTRADICTION = "contradiction"
    STATUS_DIFFERS = "status_differs"
    MANY_OPEN = "many_open"
    ZOMBIE = "zombie"
    LOST_SIGNAL = "lost_signal"
    MISSING_SUCCESSOR = "missing_successor"


class State(StrEnum):
    """How a finding is to be taken: `LATE` may still heal by itself, `EXPIRED` may have been removed as it should."""

    WRONG = "wrong"
    LATE = "late"
    EXPIRED = "expired"


class Batch(NamedTuple):
    """One journaled batch of events of a run in one cluster; `digests` are those of its events, end to end.

    `event_types` are given only with signals, whose places they tell; `types_count` is always how many there are, and
    `TYPES_UNKNOWN` where the run was deleted before its batch was journaled: then there are no digests either.
    """

    tree_id: str
    branch_id: str
    first: int
    last: int
    version: int
    task_id: int
    time_us: int
    status: int
    types_count: int
    digests: str
    items: tuple[tuple[int, int], ...]
    signals: tuple[str, ...]
    event_types: tuple[int, ...]


class Finding(NamedTuple):
    """One thing that is wrong, late or expired: where, and on which events."""

    kind: Kind
    state: State
    cluster: str | None
    other: str | None
    version: int | None
    first_event_id: int | None
    last_event_id: int | None
    detail: str | None = None


class Send(NamedTuple):
    """A step of the repair: events of one version and the line they stand on, from one cluster to another."""

    target: str
    source: str
    version: int
    first_event_id: int
    last_event_id: int
    line: VersionHistory
    kind: Kind


class PairCounts(NamedTuple):
    """How the copies of two clusters compare, in events; `late` counts those of `only_*` within the grace."""

    left: str
    right: str
    shared: int
    only_left: int
    only_right: int
    different: int
    late: int


class CopySummary(NamedTuple):
    """A cluster's copy of the run; `is_overdue`: it lacks events of the winning line that it should have by now."""

    cluster: str
    is_open: bool
    is_overdue: bool
    status: int
    last: Item | None
    events: int
    first_us: int
    last_us: int


@dataclass(frozen=True, slots=True)
class Rules:
    """By what to judge: the moment, how long events may be on their way, and how long closed runs are kept.

    `versions` tells which cluster writes at a version; where it is not given, no cluster's word is above another's.
    """

    now_us: int
    grace_us: int = 0
    retention_us: int | None = None
    versions: ClusterVersions | None = None

    def is_late(self, seen_us: int) -> bool:
        """Whether what happened then may still be on its way."""
        return seen_us > self.now_us - self.grace_us

    def is_expired(self, closed_us: int) -> bool:
        """Whether a run that closed then may have been removed since."""
        return self.retention_us is not None and closed_us < self.now_us - self.retention_us

    def owner(self, version: int) -> str | None:
        """The cluster that writes at the version, if that is known."""
        if self.versions is None:
            return None
        owners = [name for name in self.versions.initial_versions if self.versions.is_owned_by(version, name)]
        return owners[0] if owners else None


@dataclass(slots=True)
class Judgement:
    """All that is known of a run from the journals of all clusters; the first branch is the current one."""

    branches: tuple[VersionHistory, ...] = ()
    ancestor: Item | None = None
    disagreeing: tuple[str, ...] = ()
    status: int = 0
    first_us: int = 0
    last_us: int = 0
    findings: list[Finding] = field(default_factory=list)
    copies: list[CopySummary] = field(default_factory=list)
    pairs: list[PairCounts] = field(default_factory=list)
    sends: list[Send] = field(default_factory=list)
    current_signals: tuple[str, ...] = ()
    lost_signals: list[tuple[str, Item]] = field(default_factory=list)
