"""Synthetic traffic: the content of its journal, and the same bytes from the same seed."""

from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairlead.core.partitions import Partition, TaskQueueId, TaskType
from fairlead.core.routing import HashRing, Router
from fairlead.journal.records import TaskRecord
from fairlead.journal.segments import read_segment
from fairlead.pipeline.synth import traffic
from fairlead.pipeline.synth.departures import departures
from fairlead.pipeline.synth.traffic import JournalInUse, JournalShape, TrafficShape, make_traffic, write_traffic

SHAPE = TrafficShape(rows=30_000, seed=7)


@pytest.fixture(scope="module")
def records() -> list[TaskRecord]:
    return list(make_traffic(SHAPE))


def test_a_journal_has_the_records_in_whole_segments(tmp_path: Path, records: list[TaskRecord]) -> None:
    manifest = write_traffic(tmp_path, SHAPE)
    read = [record for name in manifest.segments for record in read_segment(tmp_path / SHAPE.cluster / name)]
    assert len(read) == manifest.rows == len(records)
    assert Counter(record["kind"] for record in read) == Counter(record.kind for record in records)
    assert manifest.added == sum(record.kind == "added" for record in records)


def test_the_same_seed_gives_the_same_bytes_and_another_gives_others(tmp_path: Path) -> None:
    for name, seed in (("one", 3), ("two", 3), ("three", 4)):
        write_traffic(tmp_path / name, TrafficShape(rows=5_000, seed=seed))

    def content(name: str) -> list[tuple[str, bytes]]:
        return sorted((file.name, file.read_bytes()) for file in (tmp_path / name).rglob("*.zst"))

    assert content("one") == content("two")
    assert content("one") != content("three")


@pytest.mark.parametrize("rows", [1_000, 30_000])
def test_the_number_of_rows_is_about_the_requested_one(rows: int) -> None:
    assert 0.85 * rows < sum(1 for _ in make_traffic(replace(SHAPE, rows=rows))) < 1.15 * rows


def test_many_rows_are_generated_in_blocks_of_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(traffic, "BLOCK_ROWS", 2_000)
    manifest = write_traffic(tmp_path, TrafficShape(rows=10_000, hosts=2))
    assert len(manifest.segments) == 5 * 2
    assert 8_500 < manifest.rows < 11_500


def test_a_task_is_matched_once_after_its_add_with_the_right_wait(records: list[TaskRecord]) -> None:
    added: dict[tuple[object, ...], Counter[int]] = defaultdict(Counter)
    for record in records:
        if record.kind == "added":
            added[record.namespace_id, record.task_list, record.partition, record.fairness_key][record.time_us] += 1
    for record in records:
        if record.kind == "matched":
            assert record.wait_us is not None
            place = (record.namespace_id, record.task_list, record.partition, record.fairness_key)
            times = added[place]
            # Both times are rounded to whole microseconds.
            since = next(time for time in np.add(record.time_us - record.wait_us, (0, -1, 1)).tolist() if times[time])
            times[since] -= 1


def test_partitions_are_on_the_hosts_that_the_ring_gives_them(records: list[TaskRecord]) -> None:
    router = Router(HashRing({record.host for record in records}), 0)
    for record in records:
        task_queue = TaskQueueId(record.namespace_id, record.task_list, TaskType(record.task_type))
        assert router.route(Partition(task_queue, record.partition), 0.0) == record.host


def test_tenants_are_skewed_and_a_flood_dominates_its_time(tmp_path: Path) -> None:
    shape = TrafficShape(rows=60_000, seed=1)
    floods = write_traffic(tmp_path, shape).floods
    records = [record for record in make_traffic(shape) if record.kind == "added"]
    for flood in floods[:2]:
        its = [record for record in records if record.task_list == flood.task_queue]
        inside = Counter(r.fairness_key for r in its if flood.from_us <= r.time_us < flood.until_us)
        outside = Counter(r.fairness_key for r in its if not flood.from_us <= r.time_us < flood.until_us)
        assert inside[flood.fairness_key] > 0.5 * inside.total()
        assert outside[flood.fairness_key] < 0.05 * outside.total()
        assert outside["tenant-0"] > 5 * outside["tenant-20"]


@given(st.integers(0, 2**32), st.booleans())
@example(976089, True)  # No task arrives.
def test_no_task_is_dispatched_before_it_arrives_and_a_backlog_is_served_at_its_rate(seed: int, is_fair: bool) -> None:
    random = np.random.default_rng(seed)
    arrivals_s = np.sort(random.uniform(0, 10, random.integers(0, 60)))
    keys = random.integers(4, size=len(arrivals_s))
    left_s = departures(arrivals_s, keys, np.array([1.0, 1.0, 2.0, 5.0]) if is_fair else None, rate=3.0)
    assert (left_s >= arrivals_s).all()
    if not is_fair:
        free_s = 0.0
        for arrived_s, gone_s in zip(arrivals_s, left_s, strict=True):
            free_s = max(free_s, arrived_s)
            assert gone_s == pytest.approx(free_s)
            free_s += 1 / 3.0


def test_a_small_key_waits_less_in_a_fair_backlog() -> None:
    arrivals_s = np.concatenate([np.zeros(100), [0.1]])
    keys = np.array([0] * 100 + [1])
    fair, plain = (departures(arrivals_s, keys, weights, rate=1.0) for weights in (np.ones(2), None))
    assert fair[-1] < 5.0
    assert plain[-1] == pytest.approx(100.0)


def test_a_folder_in_use_and_an_impossible_shape_are_refused(tmp_path: Path) -> None:
    write_traffic(tmp_path, TrafficShape(rows=1_000))
    with pytest.raises(JournalInUse, match="empty folder"):
        write_traffic(tmp_path, TrafficShape(rows=1_000))
    with pytest.raises(JournalShape, match="at least 1"):
        TrafficShape(rows=0)
