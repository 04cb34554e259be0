from itertools import islice

import pytest

from fairlead.bench.keys import KeyPlan
from fairlead.bench.payload import PAYLOAD_BYTES_MIN, Stamp, pack, unpack
from fairlead.bench.plan import LoadPlan
from fairlead.bench.schedule import Phase, due_times, peak_rate_per_s
from fairlead.bench.timeline import BIN_S, BINS_MAX, Timeline


def test_tasks_are_evenly_spaced_within_each_phase() -> None:
    phases = (Phase(2.0, 2.0), Phase(0.0, 1.0), Phase(10.0, 0.3), Phase(1.0))
    assert list(islice(due_times(phases), 9)) == pytest.approx([0, 0.5, 1, 1.5, 3, 3.1, 3.2, 3.3, 4.3])
    assert peak_rate_per_s(phases) == 10.0


def test_the_number_of_tasks_is_rate_times_duration() -> None:
    assert len(list(due_times((Phase(250.0, 15.0), Phase(10.0, 30.0))))) == 250 * 15 + 10 * 30


def test_a_faster_plan_keeps_its_rates_and_shortens_durations() -> None:
    plan = LoadPlan(phases=(Phase(10.0, 30.0), Phase(250.0)), tasks=5_000, duration_s=60.0, keys=KeyPlan(count=3))
    faster = plan.faster(20)
    assert faster.phases == (Phase(10.0, 1.5), Phase(250.0))
    assert (faster.tasks, faster.duration_s) == (250, 3.0)
    assert faster.keys == plan.keys
    assert LoadPlan(tasks=3).faster(100).tasks == 1


@pytest.mark.parametrize("size_bytes", [0, PAYLOAD_BYTES_MIN, 1000])
def test_a_payload_is_unpacked_to_the_same_stamp(size_bytes: int) -> None:
    stamp = Stamp(run_id=2**64 - 1, number=2**40, key=99_999, due_s=1234.5678901)
    payload = pack(stamp, size_bytes=size_bytes)
    assert len(payload) == max(size_bytes, PAYLOAD_BYTES_MIN)
    assert unpack(payload) == stamp


@pytest.mark.parametrize("payload", [b"", b"x" * 100, b"fl-bench"])
def test_a_foreign_payload_is_not_unpacked(payload: bytes) -> None:
    assert unpack(payload) is None


def test_the_bins_of_a_long_run_are_merged_without_loss() -> None:
    timeline = Timeline()
    for second in range(1000):
        stretch = timeline.at(float(second))
        stretch.adds += 1
        stretch.receives += 2
        stretch.waits.add(second / 1000)
    assert timeline.bin_s > BIN_S
    assert len(timeline.bins) <= BINS_MAX
    assert sum(stretch.adds for stretch in timeline.bins) == 1000
    assert sum(stretch.receives for stretch in timeline.bins) == 2000
    assert sum(stretch.waits.count for stretch in timeline.bins) == 1000
    assert timeline.at(8.5).adds == pytest.approx(timeline.bin_s)


def test_times_before_the_start_belong_to_the_first_bin() -> None:
    timeline = Timeline()
    assert timeline.at(-3.0) is timeline.at(0.0)
