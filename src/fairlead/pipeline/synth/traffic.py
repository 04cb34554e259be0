"""Matching telemetry as a busy cluster would journal it: by day and by night, in bursts, with tenants of all sizes.

The same seed gives the same bytes. Tasks arrive by a rate that changes over the day, wait in one line for each
partition, and are served as fast as it can: in the order of arrival in some task lists, fairly by key in the others.
All of it is done a block of time at a time, in numpy, so that memory does not grow with the number of rows.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
import zstandard
from numpy.typing import NDArray

from fairlead.core.errors import FixRequest
from fairlead.core.partitions import Partition, TaskList, TaskType
from fairlead.core.routing import HashRing, Router
from fairlead.journal.records import Happening, Kind, TaskRecord, encode_records
from fairlead.journal.segments import COMPRESSION_LEVEL, OpenSegment, SegmentName, host_slug
from fairlead.journal.writer import FRAME_RECORDS_MAX

Times: TypeAlias = NDArray[np.float64]
Numbers: TypeAlias = NDArray[np.int64]

BLOCK_ROWS = 500_000
MONDAY_US = 1_767_571_200_000_000  # 2026-01-05, in UTC.
_DAY_S = 86_400.0
_STEPS = 1_440
# Of the rows: what a task makes is added, matched and acked, and now and then forwarded.
_TASK_SHARE, _EMPTY_SHARE, _SNAPSHOT_SHARE = 0.92, 0.05, 0.03
_ROWS_PER_TASK = 3.1
_FORWARDED_SHARE = 0.1
# A partition can take so many times what it gets on average: enough by day, too little in a burst.
_HEADROOM = 3.0
# A flood of fewer tasks than that would be hard to tell from chance, and is not planted.
_FLOOD_TASKS_MIN = 250
# A task that was served within this time did not wait: sums of times are not exact.
_AT_ONCE_S = 1e-9
# The fields of a record after its time, what it tells and where it happened.
_FIELDS = TaskRecord.__struct_fields__[7:]
_WEIGHTS = (1.0, 1.0, 1.0, 2.0, 5.0)


class JournalInUse(FixRequest):
    """The folder has segments already: what is written there would be mixed with them."""


@dataclass(frozen=True, slots=True)
class TrafficShape:
    """How much traffic, of what kind, and when."""

    rows: int = 100_000
    seed: int = 0
    cluster: str = "alpha"
    start_us: int = MONDAY_US
    span_s: float = _DAY_S
    namespaces: int = 3
    task_lists: int = 8
    partitions: int = 4
    tenants: int = 30
    hosts: int = 4

    def __post_init__(self) -> None:
        counts = (self.rows, self.namespaces, self.task_lists, self.partitions, self.tenants, self.hosts)
        if min(counts) < 1 or self.span_s <= 0:
            raise JournalShape(f"traffic of {self} makes no journal: give every count at least 1 and a positive span")


class JournalShape(FixRequest):
    """A journal without rows, task lists, partitions, tenants, hosts or time was asked for."""


class Flood(msgspec.Struct, frozen=True):
    """One key that got far more tasks than all others of its task list together, for a while.

    Where tasks are served in the order of arrival, all others starve by it; where they are served fairly, nobody does.
    """

    namespace_id: str
    task_list: str
    fairness_key: str
    from_us: int
    until_us: int
    starves_others: bool


@dataclass(frozen=True, slots=True)
class TrafficManifest:
    """What was written."""

    rows: int
    added: int
    segments: tuple[str, ...]
    task_lists: tuple[TaskList, ...]
    floods: tuple[Flood, ...]


@dataclass(frozen=True, slots=True)
class _List:
    """A task list: how its rate changes over the span, who uses it, and where its partitions are."""

    task_list: TaskList
    hosts: tuple[str, ...]
    arrived: Times  # the share of all its tasks by each step of the span
    tasks: float
    key_shares: Times
    weights: Times
    is_fair: bool
    flood: Flood | None

    @property
    def partitions(self) -> int:
        return len(self.hosts)


@dataclass(slots=True)
class _Block:
    """Records of one span of time, not yet in order."""

    times_us: list[Numbers] = field(default_factory=list)
    records: list[TaskRecord] = field(default_factory=list)

    def add(self, times_us: Numbers, records: list[TaskRecord]) -> None:
        self.times_us.append(times_us)
        self.records.extend(records)


def write_traffic(
    journal: Path, shape: TrafficShape, *, tell: Callable[[int], None] = lambda _rows: None
) -> TrafficManifest:
    """Write about `shape.rows` records as sealed segments of `journal`, one for each host and block of time.

    `tell` hears how many were written since it last did.
    """
    folder = journal / shape.cluster
    folder.mkdir(parents=True, exist_ok=True)
    lists = _lists(shape)
    rows, added, segments = 0, 0, []
    for number, records in enumerate(_blocks(shape, lists)):
        by_host: dict[str, list[TaskRecord]] = {}
        for record in records:
            by_host.setdefault(record.host, []).append(record)
        for host, its in sorted(by_host.items()):
            segments.append(_write_segment(folder, SegmentName(Kind.TASK, host_slug(host), number), its))
        rows += len(records)
        added += sum(record.kind == Happening.ADDED for record in records)
        tell(len(records))
    return TrafficManifest(
        rows=rows,
        added=added,
        segments=tuple(segments),
        task_lists=tuple(one.task_list for one in lists),
        floods=tuple(one.flood for one in lists if one.flood is not None),
    )


def make_traffic(shape: TrafficShape) -> Iterator[TaskRecord]:
    """The same records, in the order of their times within each block, without a journal."""
    for records in _blocks(shape, _lists(shape)):
        yield from records


def _write_segment(folder: Path, name: SegmentName, records: list[TaskRecord]) -> str:
    segment = OpenSegment.create(folder, name)
    if segment is None:
        raise JournalInUse(f"{folder / str(name)} is there already: write to an empty folder")
    compressor = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL, write_checksum=True)
    for first in range(0, len(records), FRAME_RECORDS_MAX):
        segment.append(compressor.compress(encode_records(records[first : first + FRAME_RECORDS_MAX])))
    segment.sync()
    segment.seal()
    return str(name)


def _lists(shape: TrafficShape) -> list[_List]:
    random = np.random.default_rng([shape.seed, 0])
    router = Router(HashRing(f"10.0.0.{number + 1}:7235" for number in range(shape.hosts)), 0)
    # Some task lists are much busier than others.
    shares = 1.0 / np.arange(1, shape.task_lists + 1)
    shares /= shares.sum()
    return [_list(shape, number, float(share), router, random) for number, share in enumerate(shares)]


def _list(shape: TrafficShape, number: int, share: float, router: Router, random: np.random.Generator) -> _List:
    task_list = TaskList(
        namespace_id=f"0000{number % shape.namespaces:04x}-0000-4000-8000-000000000000",
        name=f"queue-{number}",
        type=TaskType.WORKFLOW if number % 3 == 2 else TaskType.ACTIVITY,
    )
    partitions = max(1, round(shape.partitions * (1 - number / shape.task_lists)))
    times_s = np.arange(_STEPS) * shape.span_s / _STEPS
    rate = 1 + 0.7 * np.sin(2 * np.pi * (times_s / _DAY_S + random.random()))
    rate *= random.lognormal(0.0, 0.15, _STEPS)
    for _ in range(3):
        burst = int(random.integers(_STEPS))
        rate[burst : burst + int(random.integers(5, 30))] *= random.uniform(2.0, 5.0)
    key_shares = 1.0 / np.arange(1, shape.tenants + 1)
    is_fair = number % 4 < 2
    flood = None
    tasks = shape.rows * _TASK_SHARE / _ROWS_PER_TASK * share
    if number % 2 == 0 and shape.tenants > 1 and tasks * 2 * _HEADROOM / 48 >= _FLOOD_TASKS_MIN:
        first = int(random.integers(_STEPS // 8, _STEPS // 2))
        last = first + _STEPS // 48
        # At least twice what its partitions can take, also at night.
        rate[first:last] = np.maximum(rate[first:last] * 4.0, 2 * _HEADROOM * rate.mean())
        flood = Flood(
            namespace_id=task_list.namespace_id,
            task_list=task_list.name,
            fairness_key=_key(shape.tenants - 1),
            from_us=shape.start_us + round(first * shape.span_s / _STEPS * 1e6),
            until_us=shape.start_us + round(last * shape.span_s / _STEPS * 1e6),
            starves_others=not is_fair,
        )
    return _List(
        task_list=task_list,
        hosts=tuple(router.route(Partition(task_list, partition), 0.0) for partition in range(partitions)),
        arrived=np.concatenate([[0.0], np.cumsum(rate) / rate.sum()]),
        tasks=tasks,
        key_shares=key_shares / key_shares.sum(),
        weights=random.choice(_WEIGHTS, shape.tenants),
        is_fair=is_fair,
        flood=flood,
    )


def _key(tenant: int) -> str:
    return f"tenant-{tenant}"


def _blocks(shape: TrafficShape, lists: list[_List]) -> Iterator[list[TaskRecord]]:
    blocks = max(1, -(-shape.rows // BLOCK_ROWS))
    edges_s = np.linspace(0.0, shape.span_s, blocks + 1)
    for number in range(blocks):
        random = np.random.default_rng([shape.seed, 1, number])
        block = _Block()
        for one in lists:
            span_s = float(edges_s[number]), float(edges_s[number + 1])
            _fill(block, shape, one, number=number, span_s=span_s, random=random)
        times_us = np.concatenate(block.times_us)
        # What would happen after the span is left out: those tasks still wait.
        order = np.argsort(times_us, kind="stable")
        kept = order[: np.searchsorted(times_us[order], shape.start_us + round(shape.span_s * 1e6))]
        yield [block.records[index] for index in kept.tolist()]


def _fill(
    block: _Block,
    shape: TrafficShape,
    one: _List,
    *,
    number: int,
    span_s: tuple[float, float],
    random: np.random.Generator,
) -> None:
    """Let a task list live through one block of time, beginning with nothing that waits."""
    grid_s = np.linspace(0.0, shape.span_s, _STEPS + 1)
    first, last = np.interp(span_s, grid_s, one.arrived)
    # As shares of all arrivals they are even; by the curve read backwards they are times.
    shares = np.sort(random.uniform(first, last, random.poisson(one.tasks * (last - first))))
    arrivals_s = np.interp(shares, one.arrived, grid_s)
    keys = random.choice(len(one.key_shares), len(arrivals_s), p=one.key_shares)
    if one.flood is not None:
        times_us = shape.start_us + arrivals_s * 1e6
        is_flood = (times_us >= one.flood.from_us) & (times_us < one.flood.until_us)
        keys[is_flood & (random.random(len(keys)) < 0.8)] = len(one.key_shares) - 1
    partitions = random.integers(one.partitions, size=len(arrivals_s))
    rate = _HEADROOM * one.tasks / shape.span_s / one.partitions
    share = (span_s[1] - span_s[0]) / shape.span_s
    for partition in range(one.partitions):
        is_here = partitions == partition
        times_s, its_keys = arrivals_s[is_here], keys[is_here]
        left_s = departures(times_s, its_keys, one.weights if one.is_fair else None, rate=rate)
        place = _Place(one, partition, shape.start_us)
        _add_tasks(block, place, arrivals_s=times_s, left_s=left_s, keys=its_keys, random=random)
        wanted = _scaled(shape, one, _SNAPSHOT_SHARE * share)
        _add_snapshots(block, place, arrivals_s=times_s, left_s=np.sort(left_s), span_s=span_s, wanted=wanted)
        _add_empty_polls(block, place, span_s, random.poisson(_scaled(shape, one, _EMPTY_SHARE * share)), random)
    _add_config(block, _Place(one, 0, shape.start_us), span_s[0], version=number + 1)


def _scaled(shape: TrafficShape, one: _List, share: float) -> float:
    tasks = shape.rows * _TASK_SHARE / _ROWS_PER_TASK
    return shape.rows * share * one.tasks / tasks / one.partitions


def departures(arrivals_s: Times, keys: Numbers, weights: Times | None, *, rate: float) -> Times:
    """When each task of one partition is dispatched, at most `rate` a second: in order, or fairly where weights are."""
    service = np.arange(len(arrivals_s)) / rate
    slots_s = service + np.maximum.accumulate(arrivals_s - service)
    # The sums may round to just before the arrival.
    slots_s = np.maximum(slots_s, arrivals_s)
    if weights is None:
        return slots_s
    fairly_s = slots_s.copy()
    # None is served later because of what comes after a pause: each busy time is a story of its own.
    begins = np.flatnonzero(slots_s - arrivals_s < _AT_ONCE_S)
    ends = np.append(begins[1:], len(arrivals_s))
    for first, last in zip(begins.tolist(), ends.tolist(), strict=True):
        if last - first > 1:
            turns = _turns(arrivals_s[first:last].tolist(), slots_s[first:last].tolist(), keys[first:last], weights)
            fairly_s[first:last][turns] = slots_s[first:last]
    return fairly_s


def _turns(arrivals_s: list[float], slots_s: list[float], keys: Numbers, weights: Times) -> list[int]:
    """Which task of a busy time gets each slot: of those that are there, the one with the lowest pass.

    A key's passes are a stride apart, the shorter the more it weighs, and none is before what is being served: who was
    away is owed nothing, and who had much while others had nothing owes nothing.
    """
    strides = (1.0 / weights).tolist()
    next_pass: dict[int, float] = {}
    waiting: list[tuple[float, int]] = []
    turns: list[int] = []
    served, come = 0.0, 0
    whose = keys.tolist()
    for slot_s in slots_s:
        while come < len(arrivals_s) and arrivals_s[come] <= slot_s:
            key = whose[come]
            begins = max(served, next_pass.get(key, 0.0))
            next_pass[key] = begins + strides[key]
            heappush(waiting, (begins, come))
            come += 1
        served, task = heappop(waiting)
        turns.append(task)
    return turns


class _Place(NamedTuple):
    """A partition, and how records name it."""

    one: _List
    partition: int
    start_us: int

    def records(self, kind: Happening, times_s: Times, **columns: list[Any]) -> tuple[Numbers, list[TaskRecord]]:
        """One record for each time; `columns` are fields with a value for each."""
        times_us = self.start_us + np.round(times_s * 1e6).astype(np.int64)
        task_list = self.one.task_list
        same = (kind.value, task_list.namespace_id, task_list.name, int(task_list.type), self.partition)
        everywhere = (repeat(value) for value in (*same, self.one.hosts[self.partition]))
        # By position, the way in which a record is made fastest.
        fields = (columns.get(name, repeat(None)) for name in _FIELDS)
        return times_us, list(map(TaskRecord, times_us.tolist(), *everywhere, *fields))


def _add_tasks(
    block: _Block, place: _Place, *, arrivals_s: Times, left_s: Times, keys: Numbers, random: np.random.Generator
) -> None:
    count = len(arrivals_s)
    weights = place.one.weights[keys].tolist()
    names = [_key(tenant) for tenant in keys.tolist()]
    priorities = random.choice([1, 3, 5], count, p=[0.1, 0.8, 0.1]).tolist()
    is_sync = left_s - arrivals_s < _AT_ONCE_S
    matched_s = left_s + random.exponential(0.002, count)
    is_forwarded = (random.random(count) < _FORWARDED_SHARE) & (place.partition > 0)
    whose = {"fairness_key": names, "weight": weights, "priority": priorities}
    block.add(*place.records(Happening.ADDED, arrivals_s, **whose))
    block.add(
        *place.records(
            Happening.MATCHED,
            matched_s,
            **whose,
            was_sync=is_sync.tolist(),
            was_forwarded=is_forwarded.tolist(),
            wait_us=np.round((matched_s - arrivals_s) * 1e6).astype(np.int64).tolist(),
        )
    )
    block.add(*place.records(Happening.ACKED, matched_s + random.exponential(0.01, count), **whose))
    forwarded_s = (arrivals_s + (matched_s - arrivals_s) / 2)[is_forwarded]
    block.add(*place.records(Happening.FORWARDED, forwarded_s))


def _add_snapshots(
    block: _Block, place: _Place, *, arrivals_s: Times, left_s: Times, span_s: tuple[float, float], wanted: float
) -> None:
    times_s = np.linspace(*span_s, max(1, round(wanted)), endpoint=False)
    come, gone = np.searchsorted(arrivals_s, times_s, "right"), np.searchsorted(left_s, times_s, "right")
    tasks = np.maximum(come - gone, 0)
    oldest_s = arrivals_s[np.minimum(gone, len(arrivals_s) - 1)] if len(arrivals_s) else times_s
    ages_us = np.round(np.where(tasks > 0, np.maximum(times_s - oldest_s, 0.0), 0.0) * 1e6).astype(np.int64)
    block.add(
        *place.records(
            Happening.BACKLOG,
            times_s,
            tasks=tasks.tolist(),
            age_us=ages_us.tolist(),
            pollers=np.where(tasks > 0, 0, 4).tolist(),
        )
    )


def _add_empty_polls(
    block: _Block, place: _Place, span_s: tuple[float, float], polls: int, random: np.random.Generator
) -> None:
    waits_us = random.normal(60e6, 1e5, polls).astype(np.int64).tolist()
    block.add(*place.records(Happening.POLL_EMPTY, random.uniform(*span_s, polls), wait_us=waits_us))


def _add_config(block: _Block, place: _Place, at_s: float, *, version: int) -> None:
    count = [place.one.partitions]
    block.add(*place.records(Happening.CONFIG, np.array([at_s]), read=count, write=count, version=[version]))
