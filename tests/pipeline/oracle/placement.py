"""The tables of the job `placement`: asks the server's own router for the host of each partition."""

from collections import Counter
from collections.abc import Callable, Iterable

from fairlead.core.partitions import PARTITIONS_MAX, Partition, TaskQueueId, TaskType
from fairlead.core.routing import GradualChange, HashRing, Router, basic_key
from tests.pipeline.oracle.records import STICKY, Row, divided

BATCH_SIZES = (0, 4, 8, 16)
# Hosts that leave and that join.
CHANGES = 2
STEPS = 12
SPOTS = 20

Owners = dict[Partition, str]


def tables(records: Iterable[Row]) -> dict[str, list[Row]]:
    """All tables, for the cluster with the most added tasks, from basic routing."""
    records = list(records)
    added = Counter(one["cluster"] for one in records if one["kind"] == "added")
    cluster = min(added, key=lambda name: (-added[name], name))
    its = [one for one in records if one["cluster"] == cluster]
    rates = _rates(its)
    hosts = tuple(sorted({one["host"] for one in its if one.get("host") is not None}))
    partitions = [Partition(queue, number) for queue, (count, _) in rates.items() for number in range(count)]

    def owners(ring: Iterable[str], size: int) -> Owners:
        router = Router(HashRing(ring), size)
        return {one: router.route(one, 0.0) for one in partitions}

    def qps(one: Partition) -> float:
        count, rate = rates[one.task_queue]
        return rate / count

    found: dict[str, list[Row]] = {
        "placement": [], "placement_hosts": [], "placement_spots": [], "placement_moves": [], "placement_timetable": [],
    }  # fmt: skip
    now = owners(hosts, 0)
    for size in BATCH_SIZES:
        placed = owners(hosts, size)
        loads = [
            {
                "batch_size": size,
                "host": host,
                "partitions": sum(owner == host for owner in placed.values()),
                "qps": sum(qps(one) for one, owner in placed.items() if owner == host),
            }
            for host in hosts
        ]
        found["placement_hosts"] += loads
        together = {
            queue: Counter(owner for one, owner in placed.items() if one.task_queue == queue) for queue in rates
        }
        found["placement"].append(_compared(size, loads, together))
        found["placement_spots"] += _spots(size, together, rates)
        found["placement_moves"] += _moves(size, hosts, placed, now, owners, qps)
        if size:
            found["placement_timetable"] += _timetable(size, placed, now)
    return found


def _rates(records: list[Row]) -> dict[TaskQueueId, tuple[int, float]]:
    """The partitions and tasks per second of each task queue."""
    times = [one["time_us"] for one in records]
    span_s = max(max(times) - min(times), 1_000_000) / 1e6
    found: dict[TaskQueueId, tuple[int, float]] = {}
    for one in records:
        if one.get("task_list") in (None, STICKY):
            continue
        queue = TaskQueueId(one["namespace_id"], one["task_list"], TaskType(one["task_type"]))
        count, rate = found.get(queue, (1, 0.0))
        seen = max(count, (one.get("partition") or 0) + 1, one.get("read") or 0)
        found[queue] = (min(PARTITIONS_MAX, seen), rate + (one["kind"] == "added") / span_s)
    return found


def _compared(size: int, loads: list[Row], together: dict[TaskQueueId, Counter[str]]) -> Row:
    counts, rates = [row["partitions"] for row in loads], [row["qps"] for row in loads]
    most = [max(each.values()) for each in together.values()]
    return {
        "batch_size": size,
        "task_lists": len(together),
        "partitions": sum(counts),
        "hosts": len(loads),
        "partitions_max": max(counts),
        "partitions_over_mean": divided(max(counts), sum(counts) / len(loads)),
        "qps_max": max(rates),
        "qps_over_mean": divided(max(rates), sum(rates) / len(loads)),
        "together_max": max(most),
        "together_mean": sum(most) / len(most),
        "hosts_per_task_list": sum(map(len, together.values())) / len(together),
    }


def _spots(
    size: int, together: dict[TaskQueueId, Counter[str]], rates: dict[TaskQueueId, tuple[int, float]]
) -> list[Row]:
    """The host with the most partitions of each task queue; `host` is compared by its partitions, for equal ones."""
    spots = []
    for queue, counts in together.items():
        most = max(counts.values())
        spots.append((-most * rates[queue][1] / rates[queue][0], -most, queue, counts))
    spots.sort(key=lambda spot: (spot[0], spot[1], spot[2].namespace_id, spot[2].name, int(spot[2].type)))
    return [
        {
            "batch_size": size,
            "rank": rank,
            "namespace_id": queue.namespace_id,
            "namespace": queue.namespace_id,
            "task_list": queue.name,
            "task_type": int(queue.type),
            "host": {host for host, count in counts.items() if count == -most},
            "partitions": -most,
            "qps": -rate,
        }
        for rank, (rate, most, queue, counts) in enumerate(spots[:SPOTS], start=1)
    ]


def _moves(
    size: int,
    hosts: tuple[str, ...],
    placed: Owners,
    now: Owners,
    owners: Callable[[Iterable[str], int], Owners],
    qps: Callable[[Partition], float],
) -> list[Row]:
    changes = min(CHANGES, max(0, len(hosts) - 1))
    step = max(1, len(hosts) // max(1, changes))
    after = {
        f"leave {host}": owners([one for one in hosts if one != host], size) for host in hosts[::step][:changes]
    } | {f"join joining-{number}:7235": owners([*hosts, f"joining-{number}:7235"], size) for number in range(changes)}
    if size:
        # From basic routing to this one.
        after["batch size 0"] = now
    total = sum(map(qps, placed))
    rows = []
    for change, others in after.items():
        moved = [one for one, owner in placed.items() if others[one] != owner]
        rate = sum(map(qps, moved))
        rows.append(
            {
                "batch_size": size,
                "change": change,
                "partitions": len(moved),
                "partitions_share": len(moved) / len(placed),
                "qps": rate,
                "qps_share": divided(rate, total),
            }
        )
    return rows


def _timetable(size: int, placed: Owners, now: Owners) -> list[Row]:
    gradual = GradualChange(0, size, start_s=0.0, end_s=1.0)
    moved = {one for one, owner in placed.items() if now[one] != owner}
    rows = []
    for step in range(1, STEPS + 1):
        # The last step has all: a moment is below 1.
        reached = [one for one in placed if int(gradual.moment(basic_key(one)) * STEPS) < step]
        gone = sum(one in moved for one in reached)
        rows.append(
            {
                "batch_size": size,
                "change": "batch size 0",
                "time_share": step / STEPS,
                "partitions": len(reached),
                "partitions_moved": gone,
                "moved_share": divided(gone, len(moved)),
            }
        )
    return rows
