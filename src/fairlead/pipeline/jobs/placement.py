"""`fairlead pipeline placement`: partition placement under basic and spread routing, and the moves a change causes."""

from typing import Any

import click
from pyspark.sql import DataFrame

from fairlead.core.errors import FixRequest
from fairlead.core.routing import BATCH_SIZE_MAX, check_batch_size
from fairlead.pipeline.increments.changes import touched_hours
from fairlead.pipeline.increments.origin import plan_run, rows_of
from fairlead.pipeline.increments.selection import of_hours
from fairlead.pipeline.increments.touched import HOUR_US, Hours
from fairlead.pipeline.job import JobContext, Summary
from fairlead.pipeline.kernels.routing import ring_table
from fairlead.pipeline.lake import Lake
from fairlead.pipeline.queries import queries_on
from fairlead.pipeline.stages.placement import (
    Plan,
    comparison,
    host_loads,
    hot_spots,
    hourly_loads,
    made_lists,
    moves,
    placed,
    recorded_lists,
    timetable,
    with_hashes,
)

# Holds the recorded load of each hour; it has no other reader.
LOADS = "placement_loads_partial"
BATCH_SIZES = (0, 4, 8, 16)
CHANGES = 2
# Maximum number of hosts. A lake with more host names than that has a damaged `host` column.
HOSTS_MAX = 10_000

TABLES = {
    "placement": comparison,
    "placement_hosts": host_loads,
    "placement_spots": hot_spots,
    "placement_moves": moves,
    "placement_timetable": timetable,
}

OPTIONS = [
    click.option(
        "--hosts",
        type=click.IntRange(1, HOSTS_MAX),
        help="Number of made-up hosts to place on. [default: the recorded hosts]",
    ),
    click.option(
        "--batch-size",
        "batch_sizes",
        type=click.IntRange(0, BATCH_SIZE_MAX),
        multiple=True,
        default=BATCH_SIZES,
        show_default=True,
        help="Batch size of spread routing, 0 for basic; may be repeated, each value is tried.",
    ),
    click.option(
        "--batch-size-now",
        "batch_size",
        type=click.IntRange(0, BATCH_SIZE_MAX),
        default=0,
        show_default=True,
        help="The current batch size; each --batch-size is simulated as a change from it.",
    ),
    click.option(
        "--changes",
        type=click.IntRange(0, 20),
        default=CHANGES,
        show_default=True,
        help="Number of hosts that leave, one at a time, and of hosts that join.",
    ),
    click.option(
        "--partitions",
        type=click.IntRange(1),
        help="Number of made-up partitions to place. [default: the recorded ones]",
    ),
    click.option(
        "--partitions-each",
        type=click.IntRange(1, 10_000),
        default=16,
        show_default=True,
        help="Partitions of each made-up task queue.",
    ),
    click.option("--cluster", help="The cluster whose partitions are placed. [default: the busiest]"),
]


class NoSuchCluster(FixRequest):
    """The lake has no records of the requested cluster."""


def run(context: JobContext) -> Summary:
    """Write `placement` and the tables `placement_hosts`, `_spots`, `_moves` and `_timetable`."""
    options = context.options
    is_made_up = bool(options.get("partitions") and options.get("hosts"))
    if not is_made_up:
        _write_loads(context)
    cluster = "" if is_made_up else _cluster(context)
    if cluster is None:
        # A lake with histories but without tasks has nothing to place; that is no error.
        return Summary("placement", {}, {"hosts": 0})
    lists, hosts = _lists_and_hosts(context, cluster)
    changes = min(int(options.get("changes", CHANGES)), max(0, len(hosts) - 1))
    step = max(1, len(hosts) // max(1, changes))
    sizes = tuple(sorted({check_batch_size(int(size)) for size in options.get("batch_sizes") or BATCH_SIZES}))
    plan = Plan(
        hosts=hosts,
        batch_sizes=sizes,
        batch_size=check_batch_size(int(options.get("batch_size", 0))),
        leaving=hosts[::step][:changes],
        joining=tuple(f"joining-{number}:7235" for number in range(changes)),
    )
    # Check the size of the ring now: otherwise a worker would fail in the middle of the job.
    ring_table((*plan.hosts, *plan.joining), max(plan.batch_sizes))
    present = {"plan": repr(plan), "made": [options.get("partitions"), int(options.get("partitions_each", 16))]}
    todo = plan_run(context, "task", tuple(TABLES), present)
    if todo.is_unchanged:
        rows = {table: rows_of(context.lake, table) for table in TABLES}
        return Summary("placement", rows, {"hosts": len(hosts), "cluster": cluster, **_findings(context.lake)})
    context.progress(f"placing partitions on {len(hosts)} hosts with batch sizes {', '.join(map(str, sizes))}")
    # `placement_partial` holds the partial counts from which the other tables are computed; it has no other reader.
    hashed = with_hashes(lists, batch_size=plan.smallest)
    context.lake.write("placement_partial", placed(hashed, plan), context.run_id)
    found = context.lake.read_derived(context.spark, "placement_partial")
    rows = {
        table: context.lake.write(table, stage(found), context.run_id, origin=todo.origin)
        for table, stage in TABLES.items()
    }
    return Summary("placement", rows, {"hosts": len(hosts), "cluster": cluster, **_findings(context.lake)})


def _lists_and_hosts(context: JobContext, cluster: str) -> tuple[DataFrame, tuple[str, ...]]:
    """Return the task queues to place and the hosts: each either recorded or made up."""
    options = context.options
    hosts = tuple(sorted(f"host-{number}:7235" for number in range(int(options.get("hosts") or 0))))
    made = options.get("partitions")
    lists = None
    if made:
        each = int(options.get("partitions_each", 16))
        lists = made_lists(context.spark, partitions=int(made), each=each)
        if hosts:
            return lists, hosts
    if not hosts:
        with queries_on(context.lake, LOADS) as queries:
            named = f"SELECT DISTINCT unnest(hosts) AS host FROM {LOADS} WHERE cluster = $cluster"  # noqa: S608 - our own name
            found = queries.rows(f"{named} ORDER BY host LIMIT $most", cluster=cluster, most=HOSTS_MAX)
        hosts = tuple(row["host"] for row in found)
    return lists or recorded_lists(context.lake.read_derived(context.spark, LOADS), cluster=cluster), hosts


def _cluster(context: JobContext) -> str | None:
    """Return the cluster whose partitions are placed; None if no tasks were recorded."""
    wanted: str | None = context.options.get("cluster")
    found: list[str] = []
    if rows_of(context.lake, LOADS):
        with queries_on(context.lake, LOADS) as queries:
            clusters = queries.rows(f"SELECT cluster, sum(added) AS added FROM {LOADS} GROUP BY cluster")  # noqa: S608 - our own name
            found = [row["cluster"] for row in sorted(clusters, key=lambda row: (-row["added"], row["cluster"]))]
    if wanted is not None and wanted not in found:
        there = ", ".join(sorted(found)) or "none"
        raise NoSuchCluster(f"--cluster {wanted}: the lake has no records of this cluster; it has: {there}")
    return wanted or next(iter(found), None)


def _write_loads(context: JobContext) -> None:
    """Write the loads of the hours that new records touch; the tables are computed from the loads of all hours."""
    plan = plan_run(context, "task", (LOADS,), {})
    if plan.is_unchanged:
        return
    touched = None if plan.is_whole else Hours(touched_hours(plan.batches, window_us=HOUR_US))
    tasks = context.lake.read(
        context.spark, "task", since=context.since_us, until=context.until_us, namespace=context.namespace
    )
    hours = of_hours(tasks, touched, window_s=HOUR_US / 1e6)
    context.lake.write(LOADS, hourly_loads(hours), context.run_id, origin=plan.origin, touched=touched)


def _findings(lake: Lake) -> dict[str, Any]:
    with queries_on(lake, "placement", "placement_moves") as queries:
        return {
            "batch_sizes": queries.rows("FROM placement ORDER BY batch_size"),
            "moves": queries.rows("FROM placement_moves ORDER BY batch_size, change"),
        }
