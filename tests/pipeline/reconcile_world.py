"""Random journals of one run in several clusters, and an independent check that works on single events.

The code does not use the rules of version histories, ranges or common ancestors: a branch is the list of its events,
and each question is decided by looking at every event.
"""

from collections import Counter
from dataclasses import dataclass, field
from itertools import combinations
from random import Random

from fairlead.pipeline.kernels.reconcile import Batch

Event = tuple[int, int]
Branch = tuple[Event, ...]

CLUSTERS = ("a", "b", "c")
NOW_US = 1_000_000
RUN_ID = "run"


@dataclass
class Journals:
    """The journals of one run; `branches` are the true branches, `batches` the journaled batches of each cluster."""

    branches: list[Branch] = field(default_factory=list)
    batches: dict[str, list[Batch]] = field(default_factory=dict)

    def branch_of(self, event: Event) -> Branch:
        return next(branch[: branch.index(event) + 1] for branch in self.branches if event in branch)


def items_of(branch: Branch) -> tuple[tuple[int, int], ...]:
    """The version history of a branch, computed in the slow and obvious way."""
    return tuple(
        (event_id, version) for version, event_id in {version: event_id for event_id, version in branch}.items()
    )


def random_journals(random: Random, *, losses: float = 0.15, changes: float = 0.05) -> Journals:
    """Up to three branches, cut into batches differently in each cluster; some batches are lost and some changed."""
    journals = Journals(_random_branches(random))
    for cluster in CLUSTERS:
        kept: list[Batch] = []
        written: set[Event] = set()
        for number, branch in enumerate(journals.branches):
            fresh = [event for event in branch if event not in written]
            written.update(fresh)
            kept.extend(
                _batch(random, cluster, number, branch[: branch.index(events[-1]) + 1], events, changes)
                for events in _cut(random, fresh)
                if random.random() >= losses
            )
        if random.random() < 0.1:
            kept.clear()
        random.shuffle(kept)
        if kept:
            kept.extend(random.choices(kept, k=random.randrange(2)))
            journals.batches[cluster] = kept
    return journals


def _random_branches(random: Random) -> list[Branch]:
    versions = iter(sorted(random.sample(range(1, 40), 8)))
    branches: list[Branch] = []
    for _ in range(random.randrange(1, 4)):
        trunk = random.choice(branches) if branches else ()
        branch = list(trunk[: random.randrange(1, len(trunk) + 1)] if trunk else ())
        for _ in range(random.randrange(1, 3)):
            version = next(versions)
            first = len(branch) + 1
            branch.extend((event_id, version) for event_id in range(first, first + random.randrange(1, 5)))
        branches.append(tuple(branch))
    return branches


def _cut(random: Random, events: list[Event]) -> list[list[Event]]:
    cuts: list[list[Event]] = []
    for event in events:
        if cuts and cuts[-1][-1][1] == event[1] and random.random() < 0.6:
            cuts[-1].append(event)
        else:
            cuts.append([event])
    return cuts


def _batch(random: Random, cluster: str, number: int, branch: Branch, events: list[Event], changes: float) -> Batch:
    digests = [
        f"{random.randrange(1, 3) if random.random() < changes else 0:04x}{event_id:06x}{version:06x}"
        for event_id, version in events
    ]
    return Batch(
        tree_id=RUN_ID,
        branch_id=f"{cluster}{number}",
        first=events[0][0],
        last=events[-1][0],
        version=events[0][1],
        task_id=events[0][0] * 100 + events[0][1],
        time_us=random.randrange(NOW_US),
        status=1,
        types_count=len(events),
        digests="".join(digests),
        items=items_of(branch),
        signals=(),
        event_types=(),
    )


@dataclass
class Opinion:
    """The facts that follow from the journals, found event by event."""

    current: Branch
    ancestor: Event
    disagreeing: set[str]
    lacking: dict[str, dict[Event, str]]
    late: set[Event]
    holders: dict[Event, set[str]]
    deviating: set[tuple[str, Event]]
    pairs: dict[tuple[str, str], tuple[int, int, int, int]]


def give_opinion(journals: Journals, *, grace_us: int) -> Opinion:
    claimed: dict[str, set[Event]] = {}
    held: dict[str, dict[Event, str]] = {}
    seen: dict[Event, int] = {}
    for cluster, batches in journals.batches.items():
        claimed[cluster], held[cluster] = set(), {}
        for batch in batches:
            claimed[cluster].update(journals.branch_of((batch.last, batch.version)))
            for place in range(batch.last - batch.first + 1):
                event = batch.first + place, batch.version
                held[cluster][event] = batch.digests[place * 16 : place * 16 + 16]
                seen[event] = min(batch.time_us, seen.get(event, NOW_US))
    everything = set().union(*claimed.values())
    currents = {cluster: _current(journals, events) for cluster, events in claimed.items()}
    current = _current(journals, everything)
    ancestor = [events[0] for events in zip(*currents.values(), strict=False) if len(set(events)) == 1][-1]
    lacking = {
        cluster: {
            event: _kind(claimed.get(cluster), event) for event in everything if event not in held.get(cluster, {})
        }
        for cluster in CLUSTERS
    }
    holders = {event: {name for name in held if event in held[name]} for event in everything}
    return Opinion(
        current,
        ancestor,
        {cluster for cluster in CLUSTERS if currents.get(cluster) != current},
        lacking,
        {event for event in seen if seen[event] > NOW_US - grace_us},
        holders,
        _deviating(held, holders),
        {
            (left, right): _compare(held.get(left, {}), held.get(right, {}), everything)
            for left, right in combinations(CLUSTERS, 2)
        },
    )


def _current(journals: Journals, events: set[Event]) -> Branch:
    return journals.branch_of(max(events, key=lambda event: (event[1], event[0])))


def _kind(claimed: set[Event] | None, event: Event) -> str:
    return "missing_run" if claimed is None else "gap" if event in claimed else "missing_events"


def _deviating(held: dict[str, dict[Event, str]], holders: dict[Event, set[str]]) -> set[tuple[str, Event]]:
    found: set[tuple[str, Event]] = set()
    for event, names in holders.items():
        counts = Counter(held[name][event] for name in names)
        if len(counts) > 1:
            right = next(
                held[name][event] for name in sorted(names) if counts[held[name][event]] == max(counts.values())
            )
            found.update((name, event) for name in names if held[name][event] != right)
    return found


def _compare(left: dict[Event, str], right: dict[Event, str], events: set[Event]) -> tuple[int, int, int, int]:
    shared = [event for event in events if event in left and event in right]
    return (
        len(shared),
        sum(event in left and event not in right for event in events),
        sum(event in right and event not in left for event in events),
        sum(left[event] != right[event] for event in shared),
    )
