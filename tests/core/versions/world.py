"""Clusters that write, fail over and replicate by the rules of the core: a source of valid executions for the tests.

The world records every event with its parent, without version histories. This record is the oracle for the trees of the
replicas.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from fairlead.core.errors import RetryElsewhere
from fairlead.core.versions import (
    LOCAL_VERSION,
    Append,
    ArrivingRun,
    BecomeCurrent,
    BranchTree,
    ClusterVersions,
    Create,
    CurrentExecution,
    Duplicate,
    EventBatch,
    EventRange,
    ExecutionState,
    Fork,
    Gap,
    Item,
    RunOrder,
    Suppression,
    VersionHistory,
    check_mutable,
    cut_batches,
    resolve_current_run,
)

INCREMENT = 10
Path = tuple[Item, ...]
Step = tuple[str, int, int, int]


@dataclass(frozen=True)
class Event:
    item: Item
    kind: str
    task_id: int
    writer: str


@dataclass(frozen=True)
class Message:
    run_id: str
    batch: EventBatch
    events: tuple[Event, ...]
    sender: str


@dataclass
class RunCopy:
    tree: BranchTree = field(default_factory=BranchTree)
    events: dict[Item, Event] = field(default_factory=dict)
    state: ExecutionState | None = None

    @property
    def last_event(self) -> Event:
        return self.events[self.tree.current.last]

    @property
    def state_by_events(self) -> ExecutionState:
        kinds = {"start": ExecutionState.CREATED, "progress": ExecutionState.RUNNING}
        return kinds.get(self.last_event.kind, ExecutionState.COMPLETED)


@dataclass
class Cluster:
    name: str
    namespace_version: int
    runs: dict[str, RunCopy] = field(default_factory=dict)
    current_run_id: str | None = None
    task_id: int = 0
    happened: Counter[str] = field(default_factory=Counter)

    def order(self, run_id: str) -> RunOrder:
        last = self.runs[run_id].last_event
        return RunOrder(last.item.version, last.task_id, run_id)

    @property
    def current(self) -> CurrentExecution | None:
        if self.current_run_id is None:
            return None
        state = self.runs[self.current_run_id].state
        assert state is not None
        return CurrentExecution(self.order(self.current_run_id), state)


def expand(history: VersionHistory) -> Path:
    """All events of a history."""
    path = []
    event_id = 1
    for last, version in history.items:
        while event_id <= last:
            path.append(Item(event_id, version))
            event_id += 1
    return tuple(path)


def summarise(path: Path) -> VersionHistory:
    """The version history of a sequence of events, computed in the simplest way."""
    last_of_version = {version: event_id for event_id, version in path}
    return VersionHistory(tuple(Item(event_id, version) for version, event_id in last_of_version.items()))


class World:
    def __init__(self, cluster_count: int) -> None:
        names = "ABCDE"[:cluster_count]
        self.versions = ClusterVersions(INCREMENT, {name: position + 1 for position, name in enumerate(names)})
        self.clusters = [Cluster(name, namespace_version=1) for name in names]
        self.messages: list[Message] = []
        self.parents: dict[str, dict[Item, Item | None]] = {}

    def run_program(self, program: list[Step]) -> None:
        for operation, cluster, other, number in program:
            here = self.clusters[cluster % len(self.clusters)]
            there = self.clusters[other % len(self.clusters)]
            if operation == "failover":
                # The failover request goes to the target cluster, which may have an old version of the namespace.
                here.namespace_version = self.versions.next_version(to=here.name, current=here.namespace_version)
            elif operation == "learn":
                here.namespace_version = max(here.namespace_version, there.namespace_version)
            elif operation == "deliver" and self.messages:
                # Mostly recent messages, as in a network.
                message = self.messages[-1 - other % 9 % len(self.messages)]
                self.receive(here, message, answer_gap=number % 2 == 0)
            elif operation == "start":
                self.start(cluster)
            elif operation == "close":
                self.write(cluster, "close", 1)
            elif operation == "write":
                self.write(cluster, "progress", number)

    def start(self, choice: int) -> None:
        """Start a run in one of the clusters that can."""
        able = [here for here in self.clusters if self._may_write(here) and not self._is_open(here)]
        if able:
            here = able[choice % len(able)]
            run_id = f"{here.name}{len(self.parents):03}"
            here.runs[run_id] = RunCopy()
            here.current_run_id = run_id
            self._commit(here, run_id, "start", 1, here.namespace_version)
            self.check(here)

    def write(self, choice: int, kind: str, count: int) -> None:
        """Write to the current run in one of the clusters that can."""
        able = [here for here in self.clusters if self._may_write(here) and self._is_open(here)]
        if able:
            here = able[choice % len(able)]
            current = here.current
            assert current is not None
            check_mutable(current.order.run_id, current.state)
            self._commit(here, current.order.run_id, kind, count, here.namespace_version)
            self.check(here)

    def receive(self, here: Cluster, message: Message, *, answer_gap: bool) -> bool:
        """Apply a message. Returns False if it leaves a gap, and must be retried later."""
        copy = here.runs.get(message.run_id, RunCopy())
        decision = copy.tree.plan(message.batch)
        if isinstance(decision, Gap):
            if not answer_gap:
                return False
            for batch in cut_batches(message.batch.history, decision.missing):
                assert self.receive(here, self._message(message.run_id, batch, message.sender), answer_gap=False)
            decision = here.runs[message.run_id].tree.plan(message.batch)
        assert not isinstance(decision, Gap)
        if not isinstance(decision, Duplicate):
            is_state_changed = isinstance(decision, Create) or (
                decision.switches_current
                or (isinstance(decision, Append) and decision.branch_index == copy.tree.current_index)
            )
            copy = here.runs.setdefault(message.run_id, copy)
            self._store(copy, decision, message.events)
            if is_state_changed:
                rebuilt = not isinstance(decision, Create) and decision.switches_current
                self._resolve_current_run(here, message.run_id, rebuilt=rebuilt)
        self.check(here)
        return True

    def settle(self, random: Random) -> None:
        """Deliver all messages to all clusters, in random order and with repetitions, until no new messages appear."""
        reported = 0
        while reported < len(self.messages):
            reported = len(self.messages)
            for here in self.clusters:
                waiting = [*self.messages, *random.choices(self.messages, k=len(self.messages) // 2)]
                random.shuffle(waiting)
                while waiting:
                    message = waiting.pop()
                    if not self.receive(here, message, answer_gap=random.random() < 0.5):
                        waiting.insert(0, message)

    def paths(self, run_id: str) -> set[Path]:
        """The branches of all events ever written: from the first event to each event without a successor."""
        parents = self.parents[run_id]
        tips = set(parents) - set(parents.values())
        return {self.path(run_id, tip) for tip in tips}

    def path(self, run_id: str, tip: Item) -> Path:
        path = [tip]
        while (parent := self.parents[run_id][path[-1]]) is not None:
            path.append(parent)
        return tuple(reversed(path))

    def check(self, here: Cluster) -> None:
        """Check the invariants of one cluster."""
        open_runs = [run_id for run_id, copy in here.runs.items() if copy.state and copy.state.is_open]
        assert len(open_runs) <= 1
        assert open_runs in ([], [here.current_run_id])
        if here.runs:
            assert here.current_run_id == max(here.runs, key=here.order)
        for copy in here.runs.values():
            versions = [branch.last.version for branch in copy.tree.branches]
            assert copy.tree.current.last.version == max(versions)

    def _may_write(self, here: Cluster) -> bool:
        last_version = here.current.order.last_write_version if here.current else LOCAL_VERSION
        try:
            self.versions.check_mutation(
                cluster=here.name, namespace_version=here.namespace_version, last_event_version=last_version
            )
        except RetryElsewhere:
            return False
        return True

    def _is_open(self, here: Cluster) -> bool:
        return here.current is not None and here.current.state is not ExecutionState.COMPLETED

    def _commit(self, here: Cluster, run_id: str, kind: str, count: int, version: int) -> None:
        """Append events to the current branch of a run in this cluster, and send them to all clusters."""
        assert self.versions.owner(version) == here.name
        copy = here.runs[run_id]
        last = copy.tree.current.last if copy.tree.branches else None
        first_id = last.event_id + 1 if last else 1
        events = []
        for event_id in range(first_id, first_id + count):
            here.task_id += 1
            event = Event(Item(event_id, version), kind, here.task_id, here.name)
            # An event id and version belong to one event in all clusters.
            assert event.item not in self.parents.setdefault(run_id, {})
            self.parents[run_id][event.item] = last
            last = event.item
            events.append(event)
        assert last is not None
        history = (
            copy.tree.current.append(event_id=last.event_id, version=version)
            if copy.tree.branches
            else VersionHistory((last,))
        )
        batch = EventBatch(EventRange(first_id, last.event_id), version, history)
        decision = copy.tree.plan(batch)
        assert isinstance(decision, Create | Append)
        assert isinstance(decision, Create) or not decision.switches_current
        self._store(copy, decision, tuple(events))
        copy.state = copy.state_by_events
        self.messages.append(Message(run_id, batch, tuple(events), here.name))

    def _store(self, copy: RunCopy, decision: Create | Append | Fork, events: tuple[Event, ...]) -> None:
        copy.tree = copy.tree.apply(decision)
        for event in events:
            if decision.events.first <= event.item.event_id <= decision.events.last:
                assert event.item not in copy.events
                copy.events[event.item] = event

    def _resolve_current_run(self, here: Cluster, run_id: str, *, rebuilt: bool) -> None:
        copy = here.runs[run_id]
        arriving = ArrivingRun(here.order(run_id), copy.state_by_events, stored=copy.state, rebuilt=rebuilt)
        current = here.current
        placement = resolve_current_run(arriving, current=current, here=here.name, clusters=self.versions)
        if isinstance(placement, BecomeCurrent):
            if placement.suppress is not None:
                assert current is not None
                self._suppress(here, current, placement.suppress)
            here.happened["revived"] += copy.state is ExecutionState.ZOMBIE
            here.current_run_id = run_id
        copy.state = placement.state
        here.happened[placement.state.value] += 1

    def _suppress(self, here: Cluster, loser: CurrentExecution, how: Suppression) -> None:
        here.happened[how.value] += 1
        if how is Suppression.TERMINATE:
            self._commit(here, loser.order.run_id, "terminate", 1, loser.order.last_write_version)
        else:
            here.runs[loser.order.run_id].state = ExecutionState.ZOMBIE

    def _message(self, run_id: str, batch: EventBatch, sender: str) -> Message:
        source = next(cluster for cluster in self.clusters if cluster.name == sender)
        return Message(run_id, batch, tuple(self._events(source.runs[run_id], batch)), sender)

    def _events(self, copy: RunCopy, batch: EventBatch) -> Iterator[Event]:
        for event_id in range(batch.events.first, batch.events.last + 1):
            yield copy.events[Item(event_id, batch.version)]
