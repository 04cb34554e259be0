"""The tables `verdicts` and `pairs`: compares the events that each cluster journaled, one by one."""

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from itertools import combinations
from pathlib import Path

import zstandard

from tests.pipeline.oracle.records import Row

CLUSTERS = ("east", "north", "west")
OPEN = (1, 8)
# Event id and version.
Event = tuple[int, int]
# The digest of each event of a cluster's copy; None for an event that was journaled without one.
Copy = dict[Event, str | None]


def history_records(journal: Path, *, damaged: Collection[tuple[str, str]]) -> list[Row]:
    """The batches of all sound segments; of segments with the same bytes, one counts."""
    found: list[Row] = []
    for folder in sorted(path for path in journal.iterdir() if path.is_dir()):
        contents: set[bytes] = set()
        for segment in sorted(folder.glob("history.v1.*.zst")):
            content = segment.read_bytes()
            if (folder.name, segment.name) not in damaged and content not in contents:
                contents.add(content)
                text = zstandard.ZstdDecompressor().stream_reader(content, read_across_frames=True).read()
                found += [json.loads(line) | {"cluster": folder.name} for line in text.splitlines()]
    return found


def copies_of(records: Iterable[Row]) -> dict[str, dict[str, Copy]]:
    """The copies of each run by cluster."""
    found: dict[str, dict[str, Copy]] = defaultdict(lambda: defaultdict(dict))
    for one in records:
        digests = one.get("event_digests") or []
        for place, event in enumerate(range(one["first_event_id"], one["last_event_id"] + 1)):
            digest = digests[place] if place < len(digests) else None
            found[one["run_id"]][one["cluster"]][event, one["version"]] = digest
    return found


def agreed(records: Iterable[Row]) -> list[Row]:
    """The verdicts of runs of which all clusters have the same events."""
    by_run: dict[str, list[Row]] = defaultdict(list)
    for one in records:
        by_run[one["run_id"]].append(one)
    return [_agreed(its) for its in by_run.values()]


def _agreed(records: list[Row]) -> Row:
    branches = {tuple((item["event_id"], item["version"]) for item in one["items"]) for one in records}
    # A branch that another one continues is the beginning of that branch.
    whole = [each for each in branches if not any(_is_begin(each, other) for other in branches if other != each)]
    whole.sort(key=lambda branch: (-branch[-1][1], -branch[-1][0]))
    current = whole[0]
    last = max(
        (one for one in records if [(item["event_id"], item["version"]) for item in one["items"]] == [*current]),
        key=lambda one: int(one["time_us"]),
    )
    event, version = current[-1]
    named = {name: records[0][name] for name in ("namespace_id", "workflow_id", "run_id")}
    # A batch that was journaled twice counts once, by its earlier time.
    first_times: dict[str, int] = {}
    for one in records:
        names = ("cluster", "branch_id", "first_event_id", "last_event_id", "version", "task_id", "event_digests")
        batch = json.dumps([one.get(name) for name in names])
        first_times[batch] = min(one["time_us"], first_times.get(batch, one["time_us"]))
    times = [*first_times.values()]
    return {
        **named,
        "namespace": records[0]["namespace_id"],
        "verdict": "agreed",
        "kinds": [],
        "branches": [[{"event_id": item[0], "version": item[1]} for item in branch] for branch in whole],
        "ancestor": {"event_id": event, "version": version},
        "disagreeing": [],
        "status": last["status"],
        "is_open": last["status"] in OPEN,
        "last_event_id": event,
        "last_version": version,
        "first_us": min(times),
        "last_us": max(times),
        "findings": [],
        "clusters": sorted({one["cluster"] for one in records}),
    }


def _is_begin(begin: tuple[Event, ...], other: tuple[Event, ...]) -> bool:
    """Whether all events of a branch are on the other one, too."""
    *before, (event, version) = begin
    return tuple(before) == other[: len(before)] and any(
        item[1] == version and item[0] >= event for item in other[len(before) : len(begin)]
    )


def pairs(
    copies: Mapping[str, Mapping[str, Copy]], namespaces: Mapping[str, str], late: Collection[str]
) -> dict[tuple[str, str, str], Counter[str]]:
    """The counts of each namespace and pair of clusters; what runs in `late` lack is late."""
    found: dict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)
    # A cluster without any run of a namespace does not share it.
    shared: dict[str, set[str]] = defaultdict(set)
    for run_id, held in copies.items():
        shared[namespaces[run_id]] |= {*held}
    for run_id, held in copies.items():
        for left, right in combinations(CLUSTERS, 2):
            ours, theirs = held.get(left, {}), held.get(right, {})
            if {left, right} <= shared[namespaces[run_id]] and (ours or theirs):
                found[namespaces[run_id], left, right] += _pair(ours, theirs, is_late=run_id in late)
    return found


def _pair(ours: Copy, theirs: Copy, *, is_late: bool) -> Counter[str]:
    shared = ours.keys() & theirs.keys()
    unknown = sum(ours[event] is None or theirs[event] is None for event in shared)
    different = sum(ours[event] != theirs[event] for event in shared if None not in (ours[event], theirs[event]))
    lacking = len(ours.keys() ^ theirs.keys())
    return Counter(
        runs=1,
        runs_equal=lacking + different + unknown == 0,
        runs_only_left=not theirs,
        runs_only_right=not ours,
        events_shared=len(shared),
        events_only_left=len(ours.keys() - theirs.keys()),
        events_only_right=len(theirs.keys() - ours.keys()),
        events_different=different,
        events_late=lacking if is_late else 0,
        events_not_comparable=unknown,
    )
