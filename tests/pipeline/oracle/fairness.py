"""The tables `fairness_keys` and `fairness`: goes through the windows of each task queue in order."""

import math
from collections import defaultdict
from collections.abc import Iterable
from fractions import Fraction

from tests.pipeline.oracle.records import STICKY, Queue, Row, by_window, divided, named, of_queues, waits_of

# Windows without a record of a key over which its backlog is carried.
CARRIED_WINDOWS = 60
# Starved keys that a row names.
KEYS_NAMED = 20


def tables(records: Iterable[Row], *, window_s: float = 60.0) -> dict[str, list[Row]]:
    """Both tables."""
    keys: list[Row] = []
    windows: list[Row] = []
    for queue, its in of_queues(records).items():
        if queue[2] == STICKY:
            continue
        for window_us, rows in _windows(its, round(window_s * 1e6)):
            _share_out(rows)
            _judge(rows)
            where = named(queue) | {"window_us": window_us}
            keys += [where | {name: value for name, value in row.items() if name != "demand"} for row in rows]
            windows.append(where | _window(queue, rows))
    return {"fairness_keys": keys, "fairness": windows}


def _windows(records: list[Row], window_us: int) -> Iterable[tuple[int, list[Row]]]:
    by_time = by_window((one for one in records if one["kind"] in {"added", "matched", "backlog"}), window_us)
    left: dict[str, int] = defaultdict(int)
    last_window: dict[str, int] = {}
    weights: dict[str, float] = {}
    work = [at_us for at_us, its in by_time.items() if any(one["kind"] != "backlog" for one in its)]
    if not work:
        return
    for at_us in range(min(by_time), max(by_time) + 1, window_us):
        its: dict[str, list[Row]] = defaultdict(list)
        for record in by_time.get(at_us, ()):
            if record["kind"] != "backlog":
                its[record.get("fairness_key") or ""].append(record)
        rows = []
        for key in {*its, *left}:
            silent = (at_us - last_window.get(key, at_us)) // window_us
            if silent > CARRIED_WINDOWS + (key in its):
                left.pop(key, None)
                if key not in its:
                    continue
            if key in its:
                last_window[key] = at_us
                given = [one["weight"] for one in its[key] if one.get("weight") is not None]
                weights[key] = max(0.001, given[-1]) if given else 1.0
            row = _key(key, its[key], left.get(key, 0), weights[key])
            left[key] = max(0, row["backlog_before"] + row["added"] - row["dispatched"])
            if row["demand"]:
                rows.append(row)
        if rows:
            yield at_us, rows
        last_reports = {one["partition"]: one["tasks"] for one in by_time.get(at_us, ()) if one["kind"] == "backlog"}
        if last_reports and not any(last_reports.values()):
            left.clear()


def _key(key: str, records: list[Row], before: int, weight: float) -> Row:
    added, dispatched = (sum(one["kind"] == kind for one in records) for kind in ("added", "matched"))
    return {
        "fairness_key": key,
        "weight": weight,
        "backlog_before": before,
        "added": added,
        "dispatched": dispatched,
        "demand": max(before + added, dispatched),
        **waits_of(records),
    }


def _share_out(rows: list[Row]) -> None:
    """Raise the level at which all keys are served per weight until the dispatches are used up; in fractions."""
    remaining = Fraction(sum(row["dispatched"] for row in rows))
    weight = sum(Fraction(row["weight"]) for row in rows)
    for row in sorted(rows, key=lambda one: Fraction(one["demand"]) / Fraction(one["weight"])):
        its = Fraction(row["weight"])
        row["fair"] = min(Fraction(row["demand"]), remaining * its / weight)
        remaining -= row["fair"]
        weight -= its
    total, weights = sum(row["dispatched"] for row in rows), sum(row["weight"] for row in rows)
    for row in rows:
        row["share"] = divided(row["dispatched"], total)
        row["weight_share"] = row["weight"] / weights
        row["ratio"] = divided(row["dispatched"], float(row["fair"]))


def _judge(rows: list[Row]) -> None:
    for row in rows:
        is_due = row["backlog_before"] > 0 and row["fair"] >= 1
        row["is_starved"] = is_due and row["dispatched"] < row["fair"] / 10
    missed = sum((row["fair"] - row["dispatched"] for row in rows if row["is_starved"]), Fraction(0))
    work = sum(row["demand"] for row in rows)
    for row in rows:
        beyond = row["dispatched"] - row["fair"]
        # Three standard deviations: of a third of all the work, and of the missed dispatches.
        has_much = row["demand"] >= work / 3 + 3 * math.sqrt(work * 2 / 9)
        row["is_flood"] = missed > 0 and has_much and beyond >= missed / 2 and beyond**2 >= 9 * missed
    for row in rows:
        row["fair"] = float(row["fair"])


def _window(_queue: Queue, rows: list[Row]) -> Row:
    ratios = [row["ratio"] for row in rows if row["ratio"] is not None]
    starved = sorted(
        (row for row in rows if row["is_starved"]),
        key=lambda one: (one["fair"] - one["dispatched"], one["fairness_key"]),
        reverse=True,
    )
    floods = sorted(
        (row for row in rows if row["is_flood"]),
        key=lambda one: (one["dispatched"] - one["fair"], one["fairness_key"]),
        reverse=True,
    )
    worst = floods[0] if floods else None
    return {
        "keys": len(rows),
        "dispatched": sum(row["dispatched"] for row in rows),
        "jain": divided(sum(ratios) ** 2, len(ratios) * sum(ratio**2 for ratio in ratios)),
        "starved": len(starved),
        "starved_tasks": float(sum(row["fair"] - row["dispatched"] for row in starved)),
        "starved_keys": [row["fairness_key"] for row in starved][:KEYS_NAMED],
        "flood_key": worst and worst["fairness_key"],
        "flood_tasks": worst and worst["dispatched"] - worst["fair"],
        "flood_added": worst and worst["added"],
    }
