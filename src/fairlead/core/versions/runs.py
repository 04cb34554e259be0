"""The runs of one workflow id: decides which run is current, and what happens to the other runs.

A workflow id has at most one open run, in every cluster and at every moment. Runs arrive from other clusters in any
order, so a cluster may have to store an open run beside the current run: a zombie, which must not run. Only events from
other clusters change a zombie; this cluster's own operations do not.
"""

from enum import Enum
from typing import NamedTuple

from msgspec import Struct

from fairlead.core.errors import FixRequest, GiveUp
from fairlead.core.versions.failover import ClusterVersions


class ExecutionState(Enum):
    """The state of a run in one cluster; a CREATED run is open, but no workflow task has been started yet."""

    CREATED = "created"
    RUNNING = "running"
    ZOMBIE = "zombie"
    COMPLETED = "completed"

    @property
    def is_open(self) -> bool:
        """Whether this cluster may write to the run; a workflow id has at most one open run."""
        return self in (ExecutionState.CREATED, ExecutionState.RUNNING)


_NEXT_STATES = {
    ExecutionState.CREATED: frozenset(ExecutionState),
    ExecutionState.RUNNING: frozenset({ExecutionState.RUNNING, ExecutionState.ZOMBIE, ExecutionState.COMPLETED}),
    ExecutionState.ZOMBIE: frozenset(ExecutionState),
    ExecutionState.COMPLETED: frozenset({ExecutionState.COMPLETED}),
}


class IllegalTransition(GiveUp):
    """The rules of states don't allow this change of a run's state."""


class RunNotMutable(FixRequest):
    """A write to a run that is a zombie or closed."""


class RunWentBack(GiveUp):
    """A run arrived with an older last event than it has here already."""


class RunOrder(NamedTuple):
    """The position of a run in the order of its workflow id's runs, the same in every cluster.

    The version comes first: events written after a failover are newer than those written before it. If two runs were
    last written at the same version, one cluster wrote both, in the one shard of their workflow id, where task ids
    rise. So the event's task id must be the one from the cluster that wrote it, not from a cluster where it arrived.
    """

    last_write_version: int
    last_event_task_id: int
    run_id: str

    def is_newer_than(self, other: "RunOrder") -> bool:
        """Whether this run replaces the other run as the current run.

        A run that a reset created begins with copies of the events of its base run. When only these have arrived, both
        runs end with the same event, and neither is newer.
        """
        return self[:2] > other[:2]


class CurrentExecution(Struct, frozen=True):
    """The current run of a workflow id in this cluster, and its state, which is never ZOMBIE."""

    order: RunOrder
    state: ExecutionState

    def __post_init__(self) -> None:
        if self.state is ExecutionState.ZOMBIE:
            raise IllegalTransition(f"run {self.order.run_id} is a zombie and can't be the current run")


class ArrivingRun(Struct, frozen=True):
    """A run after events of another cluster were added to its current branch.

    `state` follows from its events: created, running or completed. Each cluster decides for itself whether the run is a
    zombie. `stored` is its previous state here, or None if the run is new. `rebuilt` is true if its current branch has
    switched.
    """

    order: RunOrder
    state: ExecutionState
    stored: ExecutionState | None = None
    rebuilt: bool = False

    def __post_init__(self) -> None:
        if self.state is ExecutionState.ZOMBIE:
            raise IllegalTransition(
                f"run {self.order.run_id} arrives as a zombie: that state does not follow from events"
            )


class Suppression(Enum):
    """How the previous current run, which is open, is stopped."""

    TERMINATE = "terminate"
    MAKE_ZOMBIE = "make zombie"


class BecomeCurrent(Struct, frozen=True):
    """The arriving run becomes the workflow id's current run, in this state.

    If `suppress` is set, it is carried out on the previous current run first, in the same transaction.
    """

    state: ExecutionState
    suppress: Suppression | None = None


class StayBehind(Struct, frozen=True):
    """Another run stays current; the arriving run is stored beside it, as a zombie until it completes."""

    state: ExecutionState


def check_transition(*, before: ExecutionState, after: ExecutionState, rebuilt: bool = False) -> None:
    """Raise an error if new events can't cause this change of state; after a rebuild any state is possible."""
    if not rebuilt and after not in _NEXT_STATES[before]:
        raise IllegalTransition(f"a run that is {before.value} can't become {after.value} without a rebuild")


def check_mutable(run_id: str, state: ExecutionState) -> None:
    """Raise an error if this cluster must not write to the run."""
    if state is ExecutionState.ZOMBIE:
        raise RunNotMutable(f"run {run_id} is a zombie: a newer run is current, and only replication changes this one")
    if state is ExecutionState.COMPLETED:
        raise RunNotMutable(f"run {run_id} is closed")


def resolve_current_run(
    arriving: ArrivingRun, *, current: CurrentExecution | None, here: str, clusters: ClusterVersions
) -> BecomeCurrent | StayBehind:
    """Decide which run is current after `arriving` came: the newest, regardless of the order of arrival."""
    placement = _place_run(arriving, current=current, here=here, clusters=clusters)
    if arriving.stored is not None:
        check_transition(before=arriving.stored, after=placement.state, rebuilt=arriving.rebuilt)
    return placement


def _place_run(
    arriving: ArrivingRun, *, current: CurrentExecution | None, here: str, clusters: ClusterVersions
) -> BecomeCurrent | StayBehind:
    if current is None:
        return BecomeCurrent(arriving.state)
    if arriving.order.run_id == current.order.run_id:
        if current.order.is_newer_than(arriving.order):
            raise RunWentBack(
                f"{arriving.order} arrived, but the run is at {current.order} here: a run never goes back"
            )
        return BecomeCurrent(arriving.state)
    if not arriving.order.is_newer_than(current.order):
        return StayBehind(ExecutionState.ZOMBIE if arriving.state.is_open else ExecutionState.COMPLETED)
    if not current.state.is_open:
        return BecomeCurrent(arriving.state)
    return BecomeCurrent(arriving.state, _suppression(arriving, current=current, here=here, clusters=clusters))


def _suppression(
    arriving: ArrivingRun, *, current: CurrentExecution, here: str, clusters: ClusterVersions
) -> Suppression:
    """Terminate a run that was last written here, so that it ends in all clusters; other runs become zombies.

    The terminating event gets the run's own last write version. It extends the chain of that version at its end, in the
    cluster that owns the version, so it breaks no rule although the namespace has failed over since.
    """
    version = current.order.last_write_version
    # No cluster may write at a version without an owner: the local version of a namespace that became global since, or
    # a version of a cluster that was removed.
    if not clusters.is_owned_by(version, here):
        return Suppression.MAKE_ZOMBIE
    # If this cluster receives its own writes at this version from another cluster, it has lost writes. A new event
    # could then have the same id and version as a lost event, and could even make the older run the newest again.
    if arriving.order.last_write_version == version:
        return Suppression.MAKE_ZOMBIE
    return Suppression.TERMINATE
