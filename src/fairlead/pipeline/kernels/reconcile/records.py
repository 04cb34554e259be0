"""Input and results of the check of one run, as plain values."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from fairlead.core.versions import ClusterVersions, Item, VersionHistory
from fairlead.pipeline.kernels.reconcile.clocks import Clocks, OneClock, Seen

DIGEST_CHARS = 16
# Maximum event id: 20 times the default limit of a history. A higher id is garbage, not written by a server.
EVENT_ID_MAX = 1_000_000
TYPES_UNKNOWN = -1
SIGNALED_EVENT, TASK_FAILED_EVENT = 26, 9  # temporal.api.enums.v1.EventType
OPEN_STATUSES = frozenset({1, 8})  # Running and paused, of temporal.api.enums.v1.WorkflowExecutionStatus.


class Kind(StrEnum):
    """Kinds of findings about a run."""

    MISSING_RUN = "missing_run"
    MISSING_EVENTS = "missing_events"
    EXTRA_EVENTS = "extra_events"
    DIFFERENT_EVENTS = "different_events"
    DIFFERENT_TYPES = "different_types"
    DIFFERENT_SIGNALS = "different_signals"
    WRONG_PAYLOAD = "wrong_payload"
    WRONG_TREE = "wrong_tree"
    NOT_COMPARABLE = "not_comparable"
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
    """How serious a finding is.

    A `LATE` difference may still disappear by itself; an `EXPIRED` one may come from a regular deletion after the
    retention. `NOT_COMPARABLE` means that the journals don't show whether the copies are the same.
    """

    WRONG = "wrong"
    LATE = "late"
    NOT_COMPARABLE = "not_comparable"
    EXPIRED = "expired"


# Findings about missing events; they don't accuse a cluster of having written wrong events.
LACKS = frozenset({Kind.MISSING_RUN, Kind.MISSING_EVENTS, Kind.GAP})


class Batch(NamedTuple):
    """One journaled batch of events of a run in one cluster; `digests` are those of its events, concatenated.

    `types_count` is the number of `event_types`, or `TYPES_UNKNOWN` if the run was deleted before its batch was
    journaled: then there are no digests either. `payload_fault` says how the payload contradicts the record.
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
    arrived_us: int = 0
    payload_fault: str | None = None


class Finding(NamedTuple):
    """One finding: its kind and state, the cluster, and the events concerned."""

    kind: Kind
    state: State
    cluster: str | None
    other: str | None
    version: int | None
    first_event_id: int | None
    last_event_id: int | None
    detail: str | None = None


class Send(NamedTuple):
    """A step of the repair: send events of one version, with their branch, from one cluster to another."""

    target: str
    source: str
    version: int
    first_event_id: int
    last_event_id: int
    branch: VersionHistory
    kind: Kind


class PairCounts(NamedTuple):
    """How the copies of two clusters compare, in events.

    `late` counts the events of `only_*` that are within the grace period; `not_comparable` counts the events of
    `shared` without a digest.
    """

    left: str
    right: str
    shared: int
    only_left: int
    only_right: int
    different: int
    late: int
    not_comparable: int = 0


class CopySummary(NamedTuple):
    """A cluster's copy of the run; `is_overdue`: it lacks events of the current branch although their grace period is
    over.
    """

    cluster: str
    is_open: bool
    is_overdue: bool
    status: int
    last: Item | None
    events: int
    first_us: int
    last_us: int
    tree_id: str


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules for judging runs: how long events may take to arrive, and how long closed runs are kept.

    `clocks` has the watermark of each stream; without it, all clusters are on one clock and delivered up to `now_us`.
    `versions` says which cluster writes at a version; without it, all clusters are equally credible.
    """

    now_us: int
    grace_us: int = 0
    retention_us: int | None = None
    versions: ClusterVersions | None = None
    clocks: Clocks | None = None

    @property
    def watermarks(self) -> Clocks:
        """The clocks by which runs are judged."""
        return self.clocks if self.clocks is not None else OneClock(self.now_us)

    def is_due_in(self, lacking: str, seen: Iterable[Seen]) -> bool:
        """Whether a cluster that lacks an event is wrong, not just late."""
        return self.watermarks.is_due_in(lacking, seen, grace_us=self.grace_us)

    def age_us(self, seen: Seen) -> int:
        """Age of a journaled event."""
        return self.watermarks.age_us(seen)

    def is_expired(self, closed: Seen) -> bool:
        """Whether a run that closed at that time may have been deleted since, by the clock of its own cluster."""
        return self.retention_us is not None and self.age_us(closed._replace(arrived_us=0)) > self.retention_us

    def owner(self, version: int) -> str | None:
        """Return the cluster that writes at the version; None if unknown."""
        if self.versions is None:
            return None
        owners = [name for name in self.versions.initial_versions if self.versions.is_owned_by(version, name)]
        return owners[0] if owners else None


@dataclass(slots=True)
class Judgement:
    """The result of comparing a run's copies in all clusters; the first branch is the current one."""

    branches: tuple[VersionHistory, ...] = ()
    ancestor: Item | None = None
    disagreeing: tuple[str, ...] = ()
    status: int = 0
    first_us: int = 0
    last_us: int = 0
    opened_age_us: int = 0
    last_age_us: int = 0
    findings: list[Finding] = field(default_factory=list)
    copies: list[CopySummary] = field(default_factory=list)
    pairs: list[PairCounts] = field(default_factory=list)
    sends: list[Send] = field(default_factory=list)
    current_signals: tuple[str, ...] = ()
    lost_signals: list[tuple[str, Item]] = field(default_factory=list)
