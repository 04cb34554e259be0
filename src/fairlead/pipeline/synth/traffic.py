"""Synthetic matching telemetry of a busy cluster: day and night, bursts, and tenants of all sizes.

The same seed gives the same bytes. Tasks arrive at a rate that changes over the day, wait in one queue per partition,
and are dispatched as fast as the partition can: in order of arrival in some task queues, fairly by key in others. The
records are made in numpy, one block of time at a time, so that memory does not grow with the number of rows.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import zstandard

from fairlead.core.errors import FixRequest
from fairlead.core.partitions import Partition, TaskQueueId, TaskType
from fairlead.core.routing import HashRing, Router
from fairlead.journal.records import Happening, Kind, TaskRecord, encode_records
from fairlead.journal.segments import COMPRESSION_LEVEL, OpenSegment, SegmentName, host_slug
from fairlead.journal.writer import FRAME_RECORDS_MAX
from fairlead.pipeline.synth.departures import _AT_ONCE_S, Numbers, Times, departures

BLOCK_ROWS = 500_000
MONDAY_US = 1_767_571_200_000_000  # 2026-01-05, in UTC.
_DAY_S = 86_400.0
_STEPS = 1_440
# Shares of the rows. A task is added, matched and acked, and sometimes forwarded.
_TASK_SHARE, _EMPTY_SHARE, _SNAPSHOT_SHARE = 0.92, 0.05, 0.03
_ROWS_PER_TASK = 3.1
_FORWARDED_SHARE = 0.1
# Capacity of a partition as a multiple of its average load: enough by day, too little in a burst.
_HEADROOM = 3.0
# Minimum number of tasks of a planted flood: a smaller one would be hard to tell from chance.
_FLOOD_TASKS_MIN = 250
# The fields of a record after its time, kind and partition.
_FIELDS = TaskRecord.__struct_fields__[7:]
_WEIGHTS = (1.0, 1.0, 1.0, 2.0, 5.0)


class JournalInUse(FixRequest):
    """The folder already has segments, with which the new ones would be mixed."""


@dataclass(frozen=True, slots=True)
class TrafficShape:
    """Amount, kind and time of the traffic."""

    rows: int = 100_000
    seed: int = 0
    cluster: str = "alpha"
    start_us: int = MONDAY_US
    span_s: float = _DAY_S
    namespaces: int = 3
    task_queues: int = 8
    partitions: int = 4
    tenants: int = 30
    hosts: int = 4

    def __post_init__(self) -> None:
        counts = (self.rows, self.namespaces, self.task_queues, self.partitions, self.tenants, self.hosts)
        if min(counts) < 1 or self.span_s <= 0:
            raise JournalShape(f"{self} makes no journal: give every count at least 1, and a positive span")


class JournalShape(FixRequest):
    """The requested journal has no rows, task queues, partitions, tenants, hosts or time."""


class Flood(msgspec.Struct, frozen=True):
    """One key that got far more tasks than all other keys of its task queue together, for a while.

    It starves all other keys if tasks are dispatched in order of arrival, and no key if they are dispatched fairly.
    """

    namespace_id: str
    task_queue: str
    fairness_key: str
    from_us: int
    until_us: int
    starves_others: bool


@dataclass(frozen=True, slots=True)
class TrafficManifest:
    """Totals, segments and floods of the journal written."""

    rows: int
    added: int
    segments: tuple[str, ...]
    task_queues: tuple[TaskQueueId, ...]
    floods: tuple[Flood, ...]


@dataclass(frozen=True, slots=True)
class _List:
    """A task queue: its rate over the time range, its keys, and the hosts of its partitions."""

    task_queue: TaskQueueId
    hosts: tuple[str, ...]
    arrived: Times  # cumulative share of its tasks at each step of the time range
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
    """Unsorted records of one block of time."""

    times_us: list[Numbers] = field(default_factory=list)
    records: list[TaskRecord] = field(default_factory=list)

    def add(self, times_us: Numbers, records: list[TaskRecord]) -> None:
        self.times_us.append(times_us)
        self.records.extend(records)


def write_traffic(
    journal: Path, shape: TrafficShape, *, notify: Callable[[int], None] = lambda _rows: None
) -> TrafficManifest:
    """Write about `shape.rows` records as sealed segments of `journal`, one for each host and block of time.

    `notify` is called with the number of records just written.
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
        notify(len(records))
    return TrafficManifest(
        rows=rows,
        added=added,
        segments=tuple(segments),
        task_queues=tuple(one.task_queue for one in lists),
        floods=tuple(one.flood for one in lists if one.flood is not None),
    )


def make_traffic(shape: TrafficShape) -> Iterator[TaskRecord]:
    """Yield the same records without writing a journal, sorted by time within each block."""
    for records in _blocks(shape, _lists(shape)):
        yield from records


def _write_segment(folder: Path, name: SegmentName, records: list[TaskRecord]) -> str:
    segment = OpenSegment.create(folder, name)
    if segment is None:
        raise JournalInUse(f"{folder / str(name)} exists already: write to an empty folder")
    compressor = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL, write_checksum=True)
    for first in range(0, len(records), FRAME_RECORDS_MAX):
        segment.append(compressor.compress(encode_records(records[first : first + FRAME_RECORDS_MAX])))
    segment.sync()
    segment.seal()
    return str(name)


def _lists(shape: TrafficShape) -> list[_List]:
    random = np.random.default_rng([shape.seed, 0])
    router = Router(HashRing(f"10.0.0.{number + 1}:7235" for number in range(shape.hosts)), 0)
    # Some task queues are much busier than others.
    shares = 1.0 / np.arange(1, shape.task_queues + 1)
    shares /= shares.sum()
    return [_list(shape, number, float(share), router, random) for number, share in enumerate(shares)]


def _list(shape: TrafficShape, number: int, share: float, router: Router, random: np.random.Generator) -> _List:
    task_queue = TaskQueueId(
        namespace_id=f"0000{number % shape.namespaces:04x}-0000-4000-8000-000000000000",
        name=f"queue-{number}",
        type=TaskType.WORKFLOW if number % 3 == 2 else TaskType.ACTIVITY,
    )
    partitions = max(1, round(shape.partitions * (1 - number / shape.task_queues)))
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
        # Make the flood arrive at twice the capacity of the partitions or faster, even at night.
        rate[first:last] = np.maximum(rate[first:last] * 4.0, 2 * _HEADROOM * rate.mean())
        flood = Flood(
            namespace_id=task_queue.namespace_id,
            task_queue=task_queue.name,
            fairness_key=_key(shape.tenants - 1),
            from_us=shape.start_us + round(first * shape.span_s / _STEPS * 1e6),
            until_us=shape.start_us + round(last * shape.span_s / _STEPS * 1e6),
            starves_others=not is_fair,
        )
    return _List(
        task_queue=task_queue,
        hosts=tuple(router.route(Partition(task_queue, partition), 0.0) for partition in range(partitions)),
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
        # Drop records after the time range: those tasks are still waiting.
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
    """Add the records of a task queue for one block of time, which begins without a backlog."""
    grid_s = np.linspace(0.0, shape.span_s, _STEPS + 1)
    first, last = np.interp(span_s, grid_s, one.arrived)
    # Arrivals are uniform in the cumulative share; the inverse of the curve turns them into times.
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


class _Place(NamedTuple):
    """A partition, and the fields of its records."""

    one: _List
    partition: int
    start_us: int

    def records(self, kind: Happening, times_s: Times, **columns: list[Any]) -> tuple[Numbers, list[TaskRecord]]:
        """Return one record for each time; `columns` are fields with a value for each."""
        times_us = self.start_us + np.round(times_s * 1e6).astype(np.int64)
        task_queue = self.one.task_queue
        same = (kind.value, task_queue.namespace_id, task_queue.name, int(task_queue.type), self.partition)
        everywhere = (repeat(value) for value in (*same, self.one.hosts[self.partition]))
        # By position: the fastest way to make a record.
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
