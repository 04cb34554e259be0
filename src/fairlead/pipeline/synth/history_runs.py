"""Synthetic workflows in clusters that share namespaces: how their runs begin, fail over, diverge and end.

Each function makes the correct runs of one workflow id: if all clusters have the same copies, nothing is wrong.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import NamedTuple

from fairlead.core.versions import LOCAL_VERSION, ClusterVersions
from fairlead.journal.records import HistoryRecord, VersionItem

START_US = 1_767_571_200_000_000  # 2026-01-05, a Monday, in UTC.
RUNNING, COMPLETED, FAILED, TERMINATED, CONTINUED = 1, 2, 3, 5, 6

# Event types, of temporal.api.enums.v1.EventType.
_STARTED, _COMPLETED, _TASK_SCHEDULED, _TASK_STARTED, _TASK_COMPLETED = 1, 2, 5, 6, 7
_ACTIVITY_SCHEDULED, _ACTIVITY_STARTED, _ACTIVITY_COMPLETED = 10, 11, 12
SIGNALED, _TERMINATED, _CONTINUED = 26, 27, 28

_BEGIN = (_STARTED, _TASK_SCHEDULED)
_CYCLE = ((_TASK_STARTED,), (_TASK_COMPLETED, _ACTIVITY_SCHEDULED), (_ACTIVITY_STARTED, _ACTIVITY_COMPLETED, 5))
_SIGNAL = (SIGNALED, _TASK_SCHEDULED)

_FAILOVERS = 4
_STEP_US_MIN, _STEP_US_MAX = 50_000, 20_000_000
# Length of the quiet period before the end, in µs: only runs that are meant to be late have events in it.
_QUIET_US = 7_200_000_000
_BEFORE_FAILOVER_US = 60_000_000


class Failover(NamedTuple):
    """A namespace changes its version."""

    at_us: int
    before: int
    after: int


@dataclass(slots=True)
class Step:
    """A batch as it was first written; `branch_number` numbers the branch of the run."""

    branch_number: int
    first: int
    last: int
    version: int
    items: tuple[VersionItem, ...]
    task_id: int
    time_us: int
    status: int
    types: tuple[int, ...]
    digests: list[str]
    signals: list[str] | None = None
    new_run_id: str | None = None


@dataclass(slots=True)
class Run:
    """A run with all batches ever written for it; `cluster` is the only cluster that has it, or None for all."""

    namespace_id: str
    workflow_id: str
    run_id: str
    tree_id: str
    steps: list[Step] = field(default_factory=list)
    cluster: str | None = None


class World:
    """Clusters, namespaces and their failovers, and the random generator for everything."""

    def __init__(self, seed: int, clusters: Sequence[str], *, span_us: int, namespaces: int) -> None:
        self.random = Random(seed)  # noqa: S311 - must be repeatable, not secret
        self.clusters = tuple(clusters)
        self.versions = ClusterVersions(
            increment=max(10, len(clusters) + 1),
            initial_versions={name: place + 1 for place, name in enumerate(clusters)},
        )
        self.end_us = START_US + span_us
        self.quiet_us = max(START_US + span_us // 2, self.end_us - _QUIET_US)
        self.task_id = 1_000_000
        self.namespaces = [self.new_id() for _ in range(namespaces)]
        self.failovers = {namespace: self._fail_over() for namespace in self.namespaces}
        self._changes = {
            namespace: [failover.at_us for failover in failovers] for namespace, failovers in self.failovers.items()
        }

    def _fail_over(self) -> list[Failover]:
        active = self.random.choice(self.clusters)
        version = self.versions.next_version(to=active, current=LOCAL_VERSION)
        failovers = []
        for at_us in sorted(self.random.sample(range(START_US + 10**9, self.quiet_us), _FAILOVERS)):
            target = self.random.choice([name for name in self.clusters if name != active] or [active])
            after = self.versions.next_version(to=target, current=version)
            failovers.append(Failover(at_us, version, after))
            version, active = after, target
        return failovers

    def version_at(self, namespace: str, time_us: int) -> int:
        """Return the version of a namespace at a time."""
        past = bisect_right(self._changes[namespace], time_us)
        failovers = self.failovers[namespace]
        return failovers[past - 1].after if past else failovers[0].before

    def new_id(self) -> str:
        """Return a random id in the form of a UUID."""
        digits = f"{self.random.getrandbits(128):032x}"
        return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"

    def new_time(self) -> int:
        """Return a random time before the quiet period."""
        return self.random.randrange(START_US, self.quiet_us)

    def pause(self) -> int:
        """Return a random time until the next batch."""
        return self.random.randrange(_STEP_US_MIN, _STEP_US_MAX)


class Writer:
    """Writes the batches of one run, one branch after the other."""

    def __init__(
        self, world: World, namespace: str, workflow_id: str, time_us: int, *, version: int | None = None
    ) -> None:
        """Begin a run; without a version, its batches get the namespace's current version."""
        run_id = world.new_id()
        self.world = world
        self.run = Run(namespace, workflow_id, run_id, run_id)
        self.time_us = time_us
        self.version = version
        self.branch_number = 0
        self.items: tuple[VersionItem, ...] = ()

    def write(self, types: tuple[int, ...], *, status: int = RUNNING, signal: str | None = None) -> Step:
        """Append a batch to the branch."""
        world, run = self.world, self.run
        self.time_us += world.pause()
        world.task_id += 1
        version = self.version if self.version is not None else world.version_at(run.namespace_id, self.time_us)
        first = self.items[-1].event_id + 1 if self.items else 1
        last = first + len(types) - 1
        kept = self.items[:-1] if self.items and self.items[-1].version == version else self.items
        self.items = (*kept, VersionItem(last, version))
        bits = world.random.getrandbits
        digests = [f"{bits(64):016x}" for _ in types]
        signals = [signal or f"{bits(64):016x}"] if SIGNALED in types else None
        step = Step(
            self.branch_number,
            first,
            last,
            version,
            self.items,
            world.task_id,
            self.time_us,
            status,
            types,
            digests,
            signals,
        )
        run.steps.append(step)
        return step

    def work(self, cycles: int, *, signal_share: float = 0.2) -> None:
        """Write some activities, and sometimes a signal."""
        for _ in range(cycles):
            for types in _CYCLE:
                self.write(types)
            if self.world.random.random() < signal_share:
                self.write(_SIGNAL)

    def begin(self, cycles: int) -> None:
        """Start the run, and write some work."""
        self.write(_BEGIN)
        self.work(cycles)

    def finish(self) -> None:
        """Complete or fail the run."""
        self.write((_TASK_STARTED,))
        is_failed = self.world.random.random() < 0.1
        self.write((_TASK_COMPLETED, 3 if is_failed else 2), status=FAILED if is_failed else COMPLETED)

    def terminate(self) -> None:
        """Terminate the run."""
        self.write((_TERMINATED,), status=TERMINATED)

    def continue_as(self, run_id: str) -> None:
        """Close the run by continuing as new in another run."""
        self.write((_TASK_STARTED,))
        self.write((_TASK_COMPLETED, _CONTINUED), status=CONTINUED).new_run_id = run_id

    def fork(self, after: Step, *, version: int) -> None:
        """Begin another branch after a batch, with its own version."""
        self.branch_number += 1
        self.items = after.items
        self.version = version


def plain(world: World) -> list[Run]:
    """One ordinary run."""
    writer = _writer(world, world.new_time())
    writer.begin(world.random.randrange(0, 4))
    if world.random.random() < 0.9:
        writer.finish()
    return [writer.run]


def crossing(world: World, *, cycles: int = 1) -> list[Run]:
    """A run that fails over without diverging: all its events were replicated before."""
    writer, failover = _before_failover(world)
    writer.version = failover.before
    writer.begin(cycles)
    writer.version = failover.after
    writer.time_us = max(writer.time_us, failover.at_us)
    writer.work(cycles)
    writer.finish()
    return [writer.run]


def parted(world: World, *, is_reapplied: bool = True) -> list[Run]:
    """A run that two clusters wrote at once: it has two branches, and the lost signal was reapplied."""
    writer, failover = _before_failover(world)
    writer.version = failover.before
    writer.begin(1)
    trunk = writer.run.steps[-1]
    lost = writer.write(_SIGNAL)
    writer.work(world.random.randrange(0, 2), signal_share=0)
    writer.fork(trunk, version=failover.after)
    writer.time_us = max(writer.time_us, failover.at_us)
    writer.write((_TASK_STARTED,))
    if is_reapplied and lost.signals:
        writer.write(_SIGNAL, signal=lost.signals[0])
    writer.finish()
    return [writer.run]


def parted_and_reset(world: World) -> list[Run]:
    """A run that diverged and closed before the lost signal was reapplied; so the run was reset, and the new run got
    the signal.
    """
    (run,) = parted(world, is_reapplied=False)
    trunk, lost = next(
        (before, step)
        for before, step in pairwise(run.steps)
        if step.branch_number == 0 and run.steps[-1].items[-2].event_id == before.last
    )
    again = _reset(world, run, trunk)
    again.write(_SIGNAL, signal=(lost.signals or [""])[0])
    again.finish()
    return [run, again.run]


def chain(world: World) -> list[Run]:
    """Runs that each continue in the next one."""
    runs: list[Run] = []
    writer = _writer(world, world.new_time())
    for _ in range(world.random.randrange(1, 4)):
        writer.begin(1)
        following = Writer(world, writer.run.namespace_id, writer.run.workflow_id, writer.time_us)
        writer.continue_as(following.run.run_id)
        following.time_us = writer.time_us
        runs.append(writer.run)
        writer = following
    writer.begin(1)
    writer.finish()
    return [*runs, writer.run]


def replaced(world: World, *, is_ended: bool = True) -> list[Run]:
    """A run unknown to the new active cluster, which started another; the old cluster has terminated it since."""
    writer, failover = _before_failover(world)
    writer.version = failover.before
    writer.begin(1)
    newer = Writer(
        world,
        writer.run.namespace_id,
        writer.run.workflow_id,
        max(writer.time_us, failover.at_us),
        version=failover.after,
    )
    newer.begin(1)
    newer.finish()
    if is_ended:
        writer.time_us = newer.time_us
        writer.terminate()
    return [writer.run, newer.run]


def reset(world: World) -> list[Run]:
    """A run that was reset: the new run begins with events of the old run."""
    writer = _writer(world, world.new_time())
    writer.version = world.version_at(writer.run.namespace_id, writer.time_us)
    writer.begin(2)
    writer.terminate()
    again = _reset(world, writer.run, writer.run.steps[2])
    again.work(1)
    again.finish()
    return [writer.run, again.run]


def signalled(world: World) -> list[Run]:
    """A run with a failover and a signal."""
    writer, failover = _before_failover(world)
    writer.version = failover.before
    writer.begin(1)
    writer.write(_SIGNAL)
    writer.version = failover.after
    writer.time_us = max(writer.time_us, failover.at_us)
    writer.finish()
    return [writer.run]


def two_open(world: World) -> list[Run]:
    """An invalid state: two open runs of one workflow id, written by one cluster."""
    writer = _writer(world, world.new_time())
    writer.version = world.version_at(writer.run.namespace_id, writer.time_us)
    writer.begin(1)
    other = Writer(world, writer.run.namespace_id, writer.run.workflow_id, writer.time_us, version=writer.version)
    other.begin(1)
    return [writer.run, other.run]


def local(world: World) -> list[Run]:
    """A run of a namespace that is local to one cluster."""
    cluster = world.random.choice(world.clusters)
    writer = Writer(world, f"local-to-{cluster}", world.new_id(), world.new_time(), version=LOCAL_VERSION)
    writer.begin(1)
    writer.finish()
    writer.run.cluster = cluster
    return [writer.run]


def recent(world: World, *, within_us: int) -> list[Run]:
    """A run that ends just before the end of the journals."""
    writer = _writer(world, world.end_us - within_us)
    writer.begin(1)
    writer.finish()
    steps = writer.run.steps
    for place, step in enumerate(steps):
        step.time_us = world.end_us - within_us + within_us * (place + 1) // (len(steps) + 1)
    return [writer.run]


def copies_of(world: World, run: Run) -> dict[str, list[HistoryRecord]]:
    """Return each cluster's records of a run: all batches, with its own branch ids and times."""
    return {
        cluster: list(_records(world, run, place))
        for place, cluster in enumerate(world.clusters)
        if run.cluster in (None, cluster)
    }


def _records(world: World, run: Run, place: int) -> Iterator[HistoryRecord]:
    branches: dict[int, str] = {}
    for step in run.steps:
        branch = branches.get(step.branch_number)
        if branch is None:
            branch = branches[step.branch_number] = world.new_id()
        # The other clusters receive the batch a moment later.
        delay_us = 0 if step.version % world.versions.increment == place + 1 else 20_000 * (place + 1)
        yield HistoryRecord(
            step.time_us + delay_us, run.namespace_id, run.workflow_id, run.run_id, run.tree_id, branch, step.first,
            step.last, step.version, list(step.items), step.task_id, step.status, list(step.types), list(step.digests),
            None if step.signals is None else list(step.signals), step.new_run_id,
        )  # fmt: skip


def _writer(world: World, time_us: int) -> Writer:
    return Writer(world, world.random.choice(world.namespaces), f"order-{world.random.getrandbits(48):012x}", time_us)


def _before_failover(world: World) -> tuple[Writer, Failover]:
    namespace = world.random.choice(world.namespaces)
    failover = world.random.choice(world.failovers[namespace])
    begin_us = failover.at_us - world.random.randrange(1, _BEFORE_FAILOVER_US)
    return Writer(world, namespace, f"order-{world.random.getrandbits(48):012x}", begin_us), failover


def _reset(world: World, base: Run, shared: Step) -> Writer:
    """Return a writer for a run that begins with another run's batches up to `shared`; these are not written again."""
    again = Writer(world, base.namespace_id, base.workflow_id, base.steps[-1].time_us)
    again.run.tree_id = base.run_id
    again.items = shared.items
    return again
