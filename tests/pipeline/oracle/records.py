"""The records of a journal, read line by line."""

import json
from collections import defaultdict
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import zstandard

Row = dict[str, Any]
# A task queue of a cluster: cluster, namespace id, name, type.
Queue = tuple[str, str, str, int]

STICKY = "__sticky__"


def task_records(journal: Path, *, damaged: Collection[tuple[str, str]]) -> list[Row]:
    """The records of all sound segments of tasks; of segments with the same bytes, one counts."""
    found: list[Row] = []
    for folder in sorted(path for path in journal.iterdir() if path.is_dir()):
        contents: set[bytes] = set()
        for segment in sorted(folder.glob("task.v1.*.zst")):
            content = segment.read_bytes()
            if (folder.name, segment.name) in damaged or content in contents:
                continue
            contents.add(content)
            text = zstandard.ZstdDecompressor().stream_reader(content, read_across_frames=True).read()
            found += [json.loads(line) | {"cluster": folder.name} for line in text.splitlines()]
    return found


def of_queues(records: Iterable[Row]) -> dict[Queue, list[Row]]:
    """The records of each task queue, in order of time."""
    found: dict[Queue, list[Row]] = defaultdict(list)
    for record in sorted(records, key=lambda one: int(one["time_us"])):
        if record.get("task_list") is not None:
            found[record["cluster"], record["namespace_id"], record["task_list"], record["task_type"]].append(record)
    return found


def named(queue: Queue) -> Row:
    """The columns that name a task queue; no record of the journal has a name of its namespace."""
    cluster, namespace_id, task_list, task_type = queue
    return {
        "cluster": cluster,
        "namespace_id": namespace_id,
        "namespace": namespace_id,
        "task_list": task_list,
        "task_type": task_type,
    }


def by_window(records: Iterable[Row], window_us: int) -> dict[int, list[Row]]:
    """The records of each window, by its beginning."""
    found: dict[int, list[Row]] = defaultdict(list)
    for record in records:
        found[record["time_us"] // window_us * window_us].append(record)
    return found


def percentile(values: Iterable[float], share: float) -> float | None:
    """The value at a position between the first (0) and the last (1), interpolated."""
    ordered = sorted(values)
    if not ordered:
        return None
    place = (len(ordered) - 1) * share
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def waits_of(records: Iterable[Row]) -> Row:
    """The percentiles of the waits of the matched tasks, in seconds."""
    waits = [record["wait_us"] / 1e6 for record in records if record["kind"] == "matched" and "wait_us" in record]
    return {f"wait_s_p{share}": percentile(waits, share / 100) for share in (50, 95, 99)}


def divided(number: float, by: float) -> float | None:
    """The quotient; None for a division by zero."""
    return number / by if by else None
