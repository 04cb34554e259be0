"""The runs of one workflow id: which of them is the newest, and what becomes of the others.

A workflow id has at most one open run, in every cluster and at every moment. Runs arrive from other clusters in any
order, so a cluster may have to take one in that must not run beside the current one: that is a zombie. Only events
from other clusters change a zombie; nothing that happens here does.
"""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from fairlead.core.errors import FixRequest, GiveUp
from fairlead.core.versions.failover import ClusterVersions


class RunState(Enum):
    """What a run is in one cluster; CREATED is open but without a workflow task started yet."""

    CREATED = "created"
    RUNNING = "running"
    ZOMBIE = "zombie"
    COMPLETED = "completed"

    @property
    def is_open(self) -> bool:
        """Whether this run may be written to here, and so excludes every other open one."""
        return self in (RunState.CREATED, RunState.RUNNING)


_NEXT_STATES = {
    RunState.CREATED: frozenset(RunState),
    RunState.RUNNING: frozenset({RunState.RUNNING, RunState.ZOMBIE, RunState.COMPLETED}),
    RunState.ZOMBIE: frozenset(RunState),
    RunState.COMPLETED: frozenset({RunState.COMPLETED}),
}


class IllegalTransition(GiveUp):
    """A run would go to a state that it can't have after the one it has."""


class RunNotMutable(FixRequest):
    """A run was to be written to here, but is a zombie or closed."""


class RunWentBack(GiveUp):
    """A run arrived with older events at its end than it has here already."""


class RunOrder(NamedTuple):
    """The place of a run among those of its workflow id, the same in every cluster.

    The version comes first: what was written after a failover is newer than what was written before it. Runs last
    written at the same version were written by one cluster, in the one shard of their workflow id, and there the
    task ids rise; so the event's task id must be the one that its writer gave it, not one given where it arrived.
    """

    last_write_version: int
    last_event_task_id: int
    run_id: str

    def is_newer_than(self, other: "RunOrder") -> bool:
        """Whether this run takes the other's place as the current one.

        A run that was reset begins with copies of the events of the run it was reset from. When only these have
        arrived, the two end with the same event, and neither is the newer.
        """
        return self[:2] > other[:2]


@dataclass(frozen=True, slots=True)
class CurrentRun:
    """The run that the workflow id means here, and its state: never a zombie."""

    order: RunOrder
    state: RunState

    def __post_init__(self) -> None:
        if self.state is RunState.ZOMBIE:
            raise IllegalTransition(f"run {self.order.run_id} is a zombie and can't be the current run")


@dataclass(frozen=True, slots=True)
class ArrivingRun:
    """A run after events of another cluster were added to its current branch.

    `state` is what its events say: created, running or completed. Whether it is a zombie is this cluster's own
    judgement. `stored` is its state here before, None if it is new; `rebuilt` is whether its current branch switched.
    """

    order: RunOrder
    state: RunState
    stored: RunState | None = None
    rebuilt: bool = False

    def __post_init__(self) -> None:
        if self.state is RunState.ZOMBIE:
            raise IllegalTransition(f"run {self.order.run_id} arrives as a zombie: events can't say that of a run")


class Suppression(Enum):
    """How the open run that was current until now stops running."""

    TERMINATE = "terminate"
    MAKE_ZOMBIE = "make zombie"


@dataclass(frozen=True, slots=True)
class BecomeCurrent:
    """The arriving run is the workflow id's current one, in this state.

    Where `suppress` is given, it is carried out on the current run first, in the same transaction.
    """

    state: RunState
    suppress: Suppression | None = None


@dataclass(frozen=True, slots=True)
class StayBehind:
    """Another run is current; the arriving one is stored beside it, as a zombie until it completes."""

    state: RunState


def check_transition(*, before: RunState, after: RunState, rebuilt: bool = False) -> None:
    """Refuse a change of state that events in their order can't make; a rebuild starts anew and may end anywhere."""
    if not rebuilt and after not in _NEXT_STATES[before]:
        raise IllegalTransition(f"a run that is {before.value} can't become {after.value} without a rebuild")


def check_mutable(run_id: str, state: RunState) -> None:
    """Refuse to write to a run that this cluster must not change by itself."""
    if state is RunState.ZOMBIE:
        raise RunNotMutable(f"run {run_id} is a zombie: a newer run is current, and only replication changes this one")
    if state is RunState.COMPLETED:
        raise RunNotMutable(f"run {run_id} is closed")


def place_run(
    arriving: ArrivingRun, *, current: CurrentRun | None, here: str, clusters: ClusterVersions
) -> BecomeCurrent | StayBehind:
    """Decide which run is current now that `arriving` came: the newest, whatever the order in which they come."""
    placement = _place_run(arriving, current=current, here=here, clusters=clusters)
    if arriving.stored is not None:
        check_transition(before=arriving.stored, after=placement.state, rebuilt=arriving.rebuilt)
    return placement


def _place_run(
    arriving: ArrivingRun, *, current: CurrentRun | None, here: str, clusters: ClusterVersions
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
        return StayBehind(RunState.ZOMBIE if arriving.state.is_open else RunState.COMPLETED)
    if not current.state.is_open:
        return BecomeCurrent(arriving.state)
    return BecomeCurrent(arriving.state, _suppression(arriving, current=current, here=here, clusters=clusters))


def _suppression(arriving: ArrivingRun, *, current: CurrentRun, here: str, clusters: ClusterVersions) -> Suppression:
    """Terminate the run that was last written here, so that it ends everywhere; leave others' runs to their writers.

    The terminating event gets the run's own last write version. It extends the chain of that version where it ends,
    in the cluster that the version belongs to, so it breaks no rule although the namespace has moved on.
    """
    version = current.order.last_write_version
    # Nobody may write at a version without an owner: the local one of a namespace that was made a replicated one
    # since, or one of a cluster that was removed.
    if not clusters.is_owned_by(version, here):
        return Suppression.MAKE_ZOMBIE
    # A cluster that hears from others what it wrote itself at this very version has lost writes of its own. One more
    # event might then be a second one of its id and version, and might even make the loser the newest again.
    if arriving.order.last_write_version == version:
        return Suppression.MAKE_ZOMBIE
    return Suppression.TERMINATE
