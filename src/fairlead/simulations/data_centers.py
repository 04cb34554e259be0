"""Data centers that replicate one workflow to each other over a network that partitions, delays and repeats."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from fairlead.core.errors import RetryElsewhere
from fairlead.core.versions import (
    Append,
    BranchTree,
    ClusterVersions,
    Create,
    Duplicate,
    EventBatch,
    EventRange,
    Fork,
    Gap,
    Item,
    VersionHistory,
    cut_batches,
)

NAMES = "ABCDE"
INCREMENT = 10

BATCH_EVENTS_MAX = 3
BATCH_OVERLAP_EVENTS_MAX = 2
WRITE_PROBABILITY = 0.5
REPEAT_PROBABILITY = 0.25
OVERLAP_PROBABILITY = 0.2
DELAY_TICKS_MAX = 5

OUTCOMES = ("appended", "backfilled", "forked", "switched", "trimmed", "duplicate", "gap", "resent_events")


@dataclass(frozen=True, slots=True)
class Message:
    """One batch in transit, due at a tick unless a network cut delays it; `contents` holds its events' contents."""

    due_tick: int
    sender: str
    receiver: str
    batch: EventBatch
    contents: tuple[str, ...]


@dataclass(slots=True)
class DataCenter:
    """One data center's copy of the workflow, and the namespace version that it knows."""

    name: str
    namespace_version: int
    tree: BranchTree = field(default_factory=BranchTree)
    contents: dict[Item, str] = field(default_factory=dict)
    outcomes: Counter[str] = field(default_factory=Counter)

    def read(self, batch: EventBatch) -> tuple[str, ...]:
        """Return the contents of a batch's events."""
        first, last = batch.events
        return tuple(self.contents[Item(event_id, batch.version)] for event_id in range(first, last + 1))

    def write(self, decision: Create | Append | Fork, contents: Sequence[str]) -> None:
        """Carry out a decision about a batch. If the start of the batch is already here, `contents` has more events
        than are written.
        """
        self.tree = self.tree.apply(decision)
        first, last = decision.events
        version = decision.branch.last.version
        for event_id, content in zip(range(last, first - 1, -1), reversed(contents), strict=False):
            self.contents[Item(event_id, version)] = content


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of every data center at one time."""

    trees: dict[str, BranchTree]
    contents: dict[str, dict[Item, str]]

    @property
    def is_agreed(self) -> bool:
        """Whether all have the same branches, the same current branch, and the same events."""
        held = [(set(tree.branches), tree.current) for tree in self.trees.values() if tree.branches]
        return (
            len(held) == len(self.trees)
            and all(one == held[0] for one in held)
            and all(contents == next(iter(self.contents.values())) for contents in self.contents.values())
        )


class Network:
    """The data centers and the messages between them; a data center that is cut off still writes."""

    def __init__(self, random: Random, *, clusters: int) -> None:
        names = NAMES[:clusters]
        self.versions = ClusterVersions(INCREMENT, {name: place + 1 for place, name in enumerate(names)})
        first_version = self.versions.next_version(to=names[0], current=0)
        self.centers = {name: DataCenter(name, first_version) for name in names}
        self.random = random
        self.tick = 0
        self.event_count = 0
        self.cut_off: str | None = None
        self.messages: list[Message] = []
        self.news: list[tuple[int, str, int]] = []

    @property
    def is_busy(self) -> bool:
        """Whether any message is in transit."""
        return bool(self.messages or self.news)

    def snapshot(self) -> Snapshot:
        """Return the current state of all data centers."""
        return Snapshot(
            {name: center.tree for name, center in self.centers.items()},
            {name: dict(center.contents) for name, center in self.centers.items()},
        )

    def step(self, *, events_left: int) -> None:
        """Let every data center that may write do so, then deliver the messages that are due."""
        self.tick += 1
        for center in self.centers.values():
            count = min(self.random.randint(1, BATCH_EVENTS_MAX), events_left)
            if count > 0 and self.random.random() < WRITE_PROBABILITY and self._may_write(center):
                self._write_new(center, count)
                events_left -= count
        self.deliver()

    def fail_over(self) -> None:
        """Cut off the active data center, as if it were lost, and make another one active."""
        version = max(center.namespace_version for center in self.centers.values() if center.name != self.cut_off)
        active = self.versions.owner(version)
        self.cut_off = active
        target = self.random.choice([name for name in self.centers if name != active])
        version = self.versions.next_version(to=target, current=version)
        self.centers[target].namespace_version = version
        for name in self.centers:
            self.news.append((self.tick + self._delay(), name, version))

    def heal(self) -> None:
        """End the network cut, so that the delayed messages are delivered."""
        self.cut_off = None

    def deliver(self) -> None:
        """Apply every message that is due and not delayed by a cut."""
        for news in [news for news in self.news if news[0] <= self.tick and news[1] != self.cut_off]:
            self.news.remove(news)
            center = self.centers[news[1]]
            center.namespace_version = max(center.namespace_version, news[2])
        passing = [
            message
            for message in self.messages
            if message.due_tick <= self.tick and self.cut_off not in (message.sender, message.receiver)
        ]
        self.random.shuffle(passing)
        for message in passing:
            self.messages.remove(message)
            self._receive(self.centers[message.receiver], message)

    def _may_write(self, center: DataCenter) -> bool:
        if not center.tree.branches and self.event_count > 0:
            return False
        last_version = center.tree.current.last.version if center.tree.branches else 0
        try:
            self.versions.check_mutation(
                cluster=center.name, namespace_version=center.namespace_version, last_event_version=last_version
            )
        except RetryElsewhere:
            return False
        return True

    def _write_new(self, center: DataCenter, count: int) -> None:
        version = center.namespace_version
        if center.tree.branches:
            first = center.tree.current.last.event_id + 1
            history = center.tree.current.append(event_id=first + count - 1, version=version)
        else:
            first = 1
            history = VersionHistory((Item(count, version),))
        contents = tuple(f"{center.name}{self.event_count + place}" for place in range(count))
        batch = EventBatch(EventRange(first, first + count - 1), version, history)
        decision = center.tree.plan(batch)
        if isinstance(decision, Create | Append):
            center.write(decision, contents)
        self.event_count += count
        self._send(center, batch)

    def _send(self, sender: DataCenter, batch: EventBatch) -> None:
        """Send a batch to all other data centers: late, sometimes twice, sometimes with events sent before."""
        for receiver in self.centers:
            if receiver == sender.name:
                continue
            for _ in range(2 if self.random.random() < REPEAT_PROBABILITY else 1):
                sent = self._with_overlap(batch) if self.random.random() < OVERLAP_PROBABILITY else batch
                due = self.tick + self._delay()
                self.messages.append(Message(due, sender.name, receiver, sent, sender.read(sent)))

    def _with_overlap(self, batch: EventBatch) -> EventBatch:
        first, last = batch.events
        wider = max(1, first - self.random.randint(1, BATCH_OVERLAP_EVENTS_MAX))
        while batch.history.version_of(wider) != batch.version:
            wider += 1
        return EventBatch(EventRange(wider, last), batch.version, batch.history)

    def _receive(self, center: DataCenter, message: Message) -> None:
        decision = center.tree.plan(message.batch)
        if isinstance(decision, Gap):
            center.outcomes["gap"] += 1
            center.outcomes["resent_events"] += decision.missing.size
            sender = self.centers[message.sender]
            for batch in cut_batches(message.batch.history, decision.missing):
                self._apply(center, batch, sender.read(batch))
        self._apply(center, message.batch, message.contents)

    def _apply(self, center: DataCenter, batch: EventBatch, contents: tuple[str, ...]) -> None:
        decision = center.tree.plan(batch)
        if isinstance(decision, Duplicate):
            center.outcomes["duplicate"] += 1
        elif not isinstance(decision, Gap):
            center.outcomes[_outcome(center.tree, decision)] += 1
            center.outcomes["switched"] += not isinstance(decision, Create) and decision.switches_current
            center.outcomes["trimmed"] += decision.events.first > batch.events.first
            center.write(decision, contents)

    def _delay(self) -> int:
        return self.random.randint(1, DELAY_TICKS_MAX)


def _outcome(tree: BranchTree, decision: Create | Append | Fork) -> str:
    if isinstance(decision, Fork):
        return "forked"
    if isinstance(decision, Create) or decision.switches_current or decision.branch_index == tree.current_index:
        return "appended"
    return "backfilled"
