"""`fairlead pipeline placement`: partition placement under basic and spread routing, and the moves a change causes."""

from typing import Any

import click
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from fairlead.core.errors import FixRequest
from fairlead.core.routing import BATCH_SIZE_MAX, check_batch_size
from fairlead.pipeline.job import JobContext, Summary
from fairlead.pipeline.kernels.routing import ring_table
from fairlead.pipeline.lake import Lake
from fairlead.pipeline.queries import queries_on
from fairlead.pipeline.stages.placement import (
    Plan,
    comparison,
    host_loads,
    hot_spots,
    made_lists,
    moves,
    placed,
    recorded_lists,
    timetable,
    with_hashes,
)

BATCH_SIZES = (0, 4, 8, 16)
CHANGES = 2
# Maximum number of hosts. A lake with more host names than that has a damaged `host` column.
HOSTS_MAX = 10_000

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
    context.progress(f"placing partitions on {len(hosts)} hosts with batch sizes {', '.join(map(str, sizes))}")
    # `placement_partial` holds the partial counts from which the other tables are computed; it has no other reader.
    hashed = with_hashes(lists, batch_size=plan.smallest)
    context.lake.write("placement_partial", placed(hashed, plan), context.run_id)
    found = context.lake.read_derived(context.spark, "placement_partial")
    tables = {
        "placement": comparison,
        "placement_hosts": host_loads,
        "placement_spots": hot_spots,
        "placement_moves": moves,
        "placement_timetable": timetable,
    }
    rows = {table: context.lake.write(table, stage(found), context.run_id) for table, stage in tables.items()}
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
    tasks = _tasks(context)
    if not hosts:
        its = tasks.where((F.col("cluster") == cluster) & F.col("host").isNotNull())
        hosts = tuple(sorted(row["host"] for row in its.select("host").distinct().limit(HOSTS_MAX).collect()))
    return lists or recorded_lists(tasks, cluster=cluster), hosts


def _cluster(context: JobContext) -> str | None:
    """Return the cluster whose partitions are placed; None if no tasks were recorded."""
    wanted: str | None = context.options.get("cluster")
    added = F.count_if(F.col("kind") == "added").alias("added")
    counts = _tasks(context).groupBy("cluster").agg(added).orderBy(F.desc("added"), "cluster")
    found = [row["cluster"] for row in counts.collect()]
    if wanted is not None and wanted not in found:
        there = ", ".join(sorted(found)) or "none"
        raise NoSuchCluster(f"--cluster {wanted}: the lake has no records of this cluster; it has: {there}")
    return wanted or next(iter(found), None)


def _tasks(context: JobContext) -> DataFrame:
    return context.lake.read(
        context.spark, "task", since=context.since_us, until=context.until_us, namespace=context.namespace
    )


def _findings(lake: Lake) -> dict[str, Any]:
    with queries_on(lake, "placement", "placement_moves") as queries:
        return {
            "batch_sizes": queries.rows("FROM placement ORDER BY batch_size"),
            "moves": queries.rows("FROM placement_moves ORDER BY batch_size, change"),
        }
