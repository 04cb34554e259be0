"""The `fairness` job, compared with a plain computation that goes through the windows in order."""

import math
from collections import defaultdict
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from fairlead.core.partitions import STICKY
from fairlead.pipeline.job import JobContext
from fairlead.pipeline.jobs import fairness, ingest
from fairlead.pipeline.lake import Lake
from fairlead.pipeline.schemas_fairness import FAIRNESS, FAIRNESS_KEYS
from fairlead.pipeline.stages.fairness import CARRIED_WINDOWS_MAX, MISSED_MIN, key_fairness, window_fairness
from fairlead.pipeline.synth.traffic import TrafficShape, write_traffic
from tests.pipeline.schemas import differences
from tests.pipeline.test_traffic import FEW, LakeOfFrames, frame_of

WINDOW_US = 10_000_000
Row = dict[str, Any]


def random_records(random: Random, clusters: int) -> list[Row]:
    """Each cluster has random keys with adds and dispatches, idle periods and reported backlogs."""
    records: list[Row] = []
    for cluster in range(clusters):
        keys = [None, "a", "b", "c", "d"][: random.randint(1, 5)]
        windows = sorted(random.sample(range(8), random.randint(1, 8)))
        if random.random() < 0.3:
            # Idle periods just below and just above the longest one over which a backlog is carried.
            windows.append(windows[-1] + CARRIED_WINDOWS_MAX + random.choice((0, 1, 2, 3)))
        for window in windows:
            times = iter(random.sample(range(window * WINDOW_US, (window + 1) * WINDOW_US), 200))
            where: Row = {
                "cluster": str(cluster),
                "namespace_id": "n",
                "task_list": "x",
                "task_type": 1,
                "partition": 0,
            }
            for key in keys:
                for kind in ("added", "matched"):
                    # Sometimes one key has much more work than all others, and is served.
                    many = 40 if key == "a" and random.random() < 0.3 else 5
                    for _ in range(random.choice((0, 0, 1, many))):
                        weight = random.choice((None, 0.0, 1.0, 2.5))
                        record = where | {"time_us": next(times), "kind": kind, "fairness_key": key, "weight": weight}
                        records.append(record | ({"wait_us": random.randrange(10**8)} if kind == "matched" else {}))
            for partition in range(random.choice((0, 0, 1, 2))):
                reported = {
                    "time_us": next(times),
                    "kind": "backlog",
                    "partition": partition,
                    "tasks": random.choice((0, 0, 1)),
                }
                records.append(where | reported)
    return records


def account(records: list[Row]) -> list[Row]:
    """The expected result of the job for each key with work, computed window by window."""
    found: list[Row] = []
    for cluster in sorted({record["cluster"] for record in records}):
        its = sorted(
            (record for record in records if record["cluster"] == cluster), key=lambda record: record["time_us"]
        )
        by_window: dict[int, list[Row]] = defaultdict(list)
        for record in its:
            by_window[record["time_us"] // WINDOW_US].append(record)
        left: dict[str, int] = defaultdict(int)
        weights: dict[str, float] = {}
        heard: dict[str, int] = {}
        for window in range(min(by_window), max(by_window) + 1):
            rows = [row for row in _flows(by_window[window], left, weights, heard, window) if row["demand"] > 0]
            _deal_out(rows)
            _judge(rows)
            found += [row | {"cluster": cluster, "window_us": window * WINDOW_US} for row in rows]
            reported = {r["partition"]: r["tasks"] for r in by_window[window] if r["kind"] == "backlog"}
            if reported and not any(reported.values()):
                left.clear()
    return found


def _flows(
    records: list[Row], left: dict[str, int], weights: dict[str, float], heard: dict[str, int], window: int
) -> list[Row]:
    rows = []
    for key in {record.get("fairness_key") or "" for record in records if record["kind"] != "backlog"} | set(left):
        its = [r for r in records if r["kind"] != "backlog" and (r.get("fairness_key") or "") == key]
        if not its and window - heard.get(key, window) > CARRIED_WINDOWS_MAX:
            left.pop(key, None)
            continue
        if its:
            given = [record["weight"] for record in its if record["weight"] is not None]
            weights[key] = max(0.001, given[-1]) if given else 1.0
            if window - heard.get(key, window) > CARRIED_WINDOWS_MAX + 1:
                left.pop(key, None)
            heard[key] = window
        added = sum(record["kind"] == "added" for record in its)
        dispatched = sum(record["kind"] == "matched" for record in its)
        before = left.get(key, 0)
        left[key] = max(0, before + added - dispatched)
        rows.append(
            {
                "fairness_key": key,
                "weight": weights.get(key, 1.0),
                "backlog_before": before,
                "added": added,
                "dispatched": dispatched,
                "demand": max(before + added, dispatched),
            }
        )
    return rows


def _deal_out(rows: list[Row]) -> None:
    """Serve all keys in proportion to their weights until all dispatches are used; exact, in fractions."""
    remaining = Fraction(sum(row["dispatched"] for row in rows))
    for row in rows:
        row["fair"] = Fraction(0)
    hungry = list(rows)
    while hungry and remaining > 0:
        weight = sum(Fraction(row["weight"]) for row in hungry)
        wanted = ((row["demand"] - row["fair"]) / Fraction(row["weight"]) for row in hungry)
        step = min([remaining / weight, *wanted])
        for row in hungry:
            row["fair"] += step * Fraction(row["weight"])
        remaining -= step * weight
        hungry = [row for row in hungry if row["demand"] > row["fair"]]


def _judge(rows: list[Row]) -> None:
    for row in rows:
        is_due = row["backlog_before"] > 0 and row["fair"] >= 1
        row["is_starved"] = is_due and row["dispatched"] < row["fair"] / 10
    starved = [row for row in rows if row["is_starved"]]
    missed = sum(row["fair"] - row["dispatched"] for row in starved)
    work = sum(row["demand"] for row in rows)
    for row in rows:
        beyond = row["dispatched"] - row["fair"]
        # Three standard deviations: of a third of all the work, and of the missed dispatches.
        has_much = row["demand"] >= work / 3 + 3 * math.sqrt(work * 2 / 9)
        got_much = beyond >= missed / 2 and beyond**2 >= 9 * missed
        row["is_flood"] = bool(starved) and has_much and got_much


def jain_of(rows: list[Row]) -> float | None:
    ratios = [row["dispatched"] / float(row["fair"]) for row in rows if row["fair"] > 0]
    return sum(ratios) ** 2 / (len(ratios) * sum(ratio**2 for ratio in ratios)) if any(ratios) else None


@FEW
@given(seed=st.integers(0, 2**32))
def test_keys_and_windows_agree_with_a_plain_computation(spark: SparkSession, seed: int) -> None:
    records = random_records(Random(seed), clusters=40)
    keys = key_fairness(frame_of(spark, records), window_s=WINDOW_US / 1e6).cache()
    windows = window_fairness(keys)
    assert differences(expected=FAIRNESS_KEYS, found=keys.schema) == []
    assert differences(expected=FAIRNESS, found=windows.schema) == []
    expected = {(row["cluster"], row["window_us"], row["fairness_key"]): row for row in account(records)}
    found = {(row.cluster, row.window_us, row.fairness_key): row.asDict() for row in keys.collect()}
    assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
    for place, row in expected.items():
        for name in ("weight", "backlog_before", "added", "dispatched", "is_starved", "is_flood"):
            assert found[place][name] == row[name], (name, found[place], row)
        assert found[place]["fair"] == pytest.approx(float(row["fair"]))
    for reported in windows.collect():
        its = [one for place, one in expected.items() if place[:2] == (reported.cluster, reported.window_us)]
        jain = jain_of(its)
        assert reported.jain == (None if jain is None else pytest.approx(jain))
        assert reported["keys"] == len(its)
        assert reported.starved == sum(one["is_starved"] for one in its)
        assert set(reported.starved_keys) == {one["fairness_key"] for one in its if one["is_starved"]}
        beyond = {one["fairness_key"]: float(one["dispatched"] - one["fair"]) for one in its if one["is_flood"]}
        assert (reported.flood_key in beyond) if beyond else (reported.flood_key is None)
        assert reported.flood_tasks == (pytest.approx(max(beyond.values())) if beyond else None)
    keys.unpersist()


def tasks_of(window: int, key: str, *, added: int = 0, matched: int = 0, weight: float = 1.0) -> list[Row]:
    base: Row = {"cluster": "c", "namespace_id": "n", "task_list": "x", "task_type": 2, "partition": 0}
    base |= {"fairness_key": key, "weight": weight, "time_us": window * WINDOW_US}
    waits = [base | {"kind": "matched", "wait_us": 1_000_000 * (number + 1)} for number in range(matched)]
    return [base | {"kind": "added"}] * added + waits


def test_a_flood_is_named_where_it_starves_a_small_tenant(spark: SparkSession) -> None:
    records = [*tasks_of(0, "flood", added=1000, matched=50), *tasks_of(0, "small", added=10)]
    records += tasks_of(1, "flood", matched=100)
    records += [*tasks_of(2, "flood", matched=90), *tasks_of(2, "small", matched=10)]
    windows = window_fairness(key_fairness(frame_of(spark, records), window_s=WINDOW_US / 1e6))
    first, starved, last = windows.orderBy("window_us").collect()
    # In the first window no task had waited since its start.
    assert first.starved == 0
    assert (starved.starved_keys, starved.flood_key) == (["small"], "flood")
    assert starved.starved_tasks == pytest.approx(10.0)
    assert starved.jain == pytest.approx(0.5)
    assert last.jain == pytest.approx(1.0)
    assert last.flood_key is None


def test_sticky_task_queues_have_no_floods_and_no_starved_keys(spark: SparkSession) -> None:
    records = [*tasks_of(0, "flood", added=1000, matched=50), *tasks_of(0, "small", added=10)]
    records = [record | {"task_list": STICKY} for record in [*records, *tasks_of(1, "flood", matched=100)]]
    assert key_fairness(frame_of(spark, records), window_s=WINDOW_US / 1e6).collect() == []


def test_two_keys_that_flood_alike_are_both_named(spark: SparkSession) -> None:
    # Each key has a fair share of 100 of 300; two keys get 150 each, so each takes half of the third key's share.
    records = [record for key in "abc" for record in tasks_of(0, key, added=900 if key < "c" else 100)]
    records += [record for key in "ab" for record in tasks_of(1, key, matched=150)]
    keys = key_fairness(frame_of(spark, records), window_s=WINDOW_US / 1e6).where("window_us > 0")
    assert {row.fairness_key: (row.is_starved, row.is_flood) for row in keys.collect()} == {
        "a": (False, True),
        "b": (False, True),
        "c": (True, False),
    }


def test_the_largest_key_in_a_burst_of_all_keys_is_not_a_flood(spark: SparkSession) -> None:
    # Twenty keys have 30 tasks each, `large` has 60; all get their share of the arrivals, only key `last` gets nothing.
    records = [record for number in range(20) for record in tasks_of(0, f"key-{number}", added=30)]
    records += [*tasks_of(0, "large", added=60), *tasks_of(0, "last", added=5)]
    records += [record for number in range(20) for record in tasks_of(1, f"key-{number}", matched=10)]
    records += tasks_of(1, "large", matched=20)
    windows = window_fairness(key_fairness(frame_of(spark, records), window_s=WINDOW_US / 1e6))
    row = windows.where("window_us > 0").first()
    assert row is not None
    assert (row.starved_keys, row.flood_key) == (["last"], None)


def test_the_planted_floods_that_starve_others_are_named_and_no_others(spark: SparkSession, tmp_path: Path) -> None:
    planted = {}
    for seed, cluster in enumerate("abc"):
        shape = TrafficShape(rows=100_000, seed=seed, task_queues=4, cluster=cluster)
        for flood in write_traffic(tmp_path / "journal", shape).floods:
            planted[cluster, flood.task_queue, flood.fairness_key] = flood
    assert len(planted) == 6
    lake = Lake(tmp_path / "lake")
    ingest.run(JobContext(spark, lake, tmp_path / "journal"))
    found = fairness.run(JobContext(spark, lake)).findings["floods"]
    named = {(one["cluster"], one["task_list"], one["flood_key"]): one for one in found}
    assert named.keys() == {place for place, flood in planted.items() if flood.starves_others}
    for place, one in named.items():
        # The finding starts within the flood; the flood's backlog is served for a while after its end.
        flood = planted[place]
        assert flood.from_us - 60_000_000 <= one["first_us"] < flood.until_us
        assert one["last_us"] < flood.until_us + (flood.until_us - flood.from_us)
    # A flood without a finding starves no key: while it lasts, each other key misses its share only by chance.
    keys = lake.read_derived(spark, "fairness_keys").where("is_starved")
    for (cluster, task_list, _), flood in planted.items():
        at = (F.col("window_us") >= flood.from_us) & (F.col("window_us") < flood.until_us)
        its = keys.where(at & (F.col("cluster") == cluster) & (F.col("task_list") == task_list))
        missed = its.groupBy("fairness_key").agg(F.sum(F.col("fair") - F.col("dispatched"))).collect()
        most = max((row[1] for row in missed), default=0.0)
        assert (most >= MISSED_MIN) == flood.starves_others, (flood, most)


def test_a_task_queue_without_a_backlog_is_fair_with_any_shares(spark: SparkSession) -> None:
    records = [*tasks_of(0, "large", added=90, matched=90), *tasks_of(0, "small", added=10, matched=10)]
    (row,) = window_fairness(key_fairness(frame_of(spark, records), window_s=WINDOW_US / 1e6)).collect()
    assert row.jain == pytest.approx(1.0)


def test_the_table_has_shares_weights_and_waits_of_each_key(spark: SparkSession) -> None:
    records = [*tasks_of(0, "gold", added=90, matched=3, weight=3.0), *tasks_of(0, "basic", added=90, matched=1)]
    keys = key_fairness(frame_of(spark, records), window_s=WINDOW_US / 1e6)
    found = {row.fairness_key: row for row in keys.collect()}
    assert (found["gold"].share, found["gold"].weight_share, found["gold"].ratio) == (0.75, 0.75, 1.0)
    assert (found["gold"].wait_s_p50, found["basic"].wait_s_p99) == (2.0, 1.0)


def test_the_job_names_the_starved_keys_and_the_flooding_key(spark: SparkSession, tmp_path: Path) -> None:
    records = [*tasks_of(0, "flood", added=1000, matched=50), *tasks_of(0, "small", added=10)]
    records += tasks_of(1, "flood", matched=100)
    lake = LakeOfFrames(tmp_path, frame_of(spark, records))
    summary = fairness.run(JobContext(spark, lake, options={"window_s": WINDOW_US / 1e6}))
    assert summary.rows == {"fairness_keys": 4, "fairness": 2}
    assert [one["fairness_key"] for one in summary.findings["starved"]] == ["small"]
    assert [one["flood_key"] for one in summary.findings["floods"]] == ["flood"]
    assert summary.findings["windows_with_starved_keys"] == 1
    assert summary.alarm is not None
    assert "'flood' flooded task queue 'x'" in summary.alarm
