"""The tables `traffic` and `traffic_lists`."""

import math
from collections import defaultdict
from collections.abc import Iterable

from tests.pipeline.oracle.records import STICKY, Queue, Row, by_window, divided, named, of_queues, waits_of


def tables(records: Iterable[Row], *, window_s: float = 60.0) -> dict[str, list[Row]]:
    """Both tables."""
    partitions: list[Row] = []
    lists: list[Row] = []
    for queue, its in of_queues(records).items():
        for window_us, inside in by_window(its, round(window_s * 1e6)).items():
            at: dict[int, list[Row]] = defaultdict(list)
            for record in inside:
                at[record["partition"]].append(record)
            rows = [_flow(queue, each, window_s) | {"partition": number} for number, each in at.items()]
            partitions += [row | {"window_us": window_us} for row in rows]
            lists.append(_sum(_flow(queue, inside, window_s), rows) | {"window_us": window_us})
    return {"traffic": partitions, "traffic_lists": lists}


def _flow(queue: Queue, records: list[Row], window_s: float) -> Row:
    """The counts of these records, and the backlog if they are of one partition."""
    added, forwarded, empty = (
        sum(one["kind"] == kind for one in records) for kind in ("added", "forwarded", "poll_empty")
    )
    matched = [one for one in records if one["kind"] == "matched"]
    at_once = sum(bool(one.get("was_sync")) for one in matched)
    from_others = sum(bool(one.get("was_forwarded")) for one in matched)
    reports = [one for one in records if one["kind"] == "backlog"]
    # The queues of single workers have one name: a report covers only one of them.
    known = [] if queue[2] == STICKY else reports
    return {
        **named(queue),
        "added": added,
        "matched": len(matched),
        "matched_at_once": at_once,
        "matched_forwarded": from_others,
        "forwarded": forwarded,
        "polls_empty": empty,
        "write_qps": added / window_s,
        "dispatch_qps": len(matched) / window_s,
        **waits_of(records),
        "at_once_share": divided(at_once, len(matched)),
        "forwarded_share": divided(from_others, len(matched)),
        "idle_share": divided(empty, empty + len(matched)),
        "backlog": known[-1]["tasks"] if known else None,
        "backlog_max": max((one["tasks"] for one in known), default=None),
        "backlog_age_s_max": max((one["age_us"] / 1e6 for one in reports), default=None),
        "pollers_mean": divided(sum(one["pollers"] for one in known), len(known)),
    }


def _sum(flow: Row, partitions: list[Row]) -> Row:
    added = [row["added"] for row in partitions]
    mean = sum(added) / len(added)
    deviation = math.sqrt(sum((one - mean) ** 2 for one in added) / len(added))
    sums = {
        name: sum(values) if (values := [row[name] for row in partitions if row[name] is not None]) else None
        for name in ("backlog", "backlog_max", "pollers_mean")
    }
    skew = {"skew": divided(max(added), mean), "skew_deviation": divided(deviation, mean)}
    return flow | sums | skew | {"partitions": len(partitions)}
