"""Placement and moves of partitions. Spark hashes the keys; the kernel finds their owners a batch at a time."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from fairlead.core.partitions import PARTITIONS_MAX
from fairlead.core.partitions.names import RESERVED_PREFIX
from fairlead.pipeline.increments.touched import HOUR_US
from fairlead.pipeline.kernels.routing import Indexes, Owners, TaskQueues, is_moved, loads, ring_table, together
from fairlead.pipeline.schemas_placement import (
    HASHED,
    LISTS,
    PARTIAL,
    PLACEMENT,
    PLACEMENT_HOSTS,
    PLACEMENT_MOVES,
    PLACEMENT_SPOTS,
    PLACEMENT_TIMETABLE,
)
from fairlead.pipeline.stages.traffic import of_task_queues

SPOTS_SHOWN = 20
# Number of steps of a gradual change in the timetable.
STEPS = 12


@dataclass(frozen=True, slots=True)
class Plan:
    """The ring and the changes to try: `batch_size` is the current one, `batch_sizes` are all that are compared."""

    hosts: tuple[str, ...]
    batch_sizes: tuple[int, ...]
    batch_size: int = 0
    leaving: tuple[str, ...] = ()
    joining: tuple[str, ...] = ()

    @property
    def smallest(self) -> int:
        """The smallest batch size above 0, which has the most batches."""
        return min((size for size in (*self.batch_sizes, self.batch_size) if size), default=PARTITIONS_MAX)

    def rings(self) -> list[tuple[str, tuple[str, ...]]]:
        """Return every change of the hosts, with the hosts after it."""
        left = [(f"leave {host}", tuple(one for one in self.hosts if one != host)) for host in self.leaving]
        return left + [(f"join {host}", (*self.hosts, host)) for host in self.joining]


def hourly_loads(tasks: DataFrame) -> DataFrame:
    """Return the added tasks, the partitions and the hosts of each task queue and hour, from which all is computed."""
    return (
        tasks.withColumn("window_us", F.col("time_us") - F.pmod("time_us", F.lit(HOUR_US)))
        .groupBy("cluster", "namespace_id", "task_list", "task_type", "window_us")
        .agg(
            F.count_if(F.col("kind") == "added").alias("added"),
            F.greatest(F.max("partition") + 1, F.max("read"), F.lit(1)).alias("partitions"),
            F.min("time_us").alias("first_us"),
            F.max("time_us").alias("last_us"),
            F.sort_array(F.collect_set("host")).alias("hosts"),
        )
    )


def recorded_lists(loads: DataFrame, *, cluster: str) -> DataFrame:
    """Return the task queues of a cluster, each with its maximum number of partitions and its tasks per second."""
    its = loads.where(F.col("cluster") == cluster)
    spans = its.agg((F.greatest(F.max("last_us") - F.min("first_us"), F.lit(1_000_000)) / 1e6).alias("span_s"))
    seen = F.max("partitions")
    return (
        of_task_queues(its)
        .groupBy("namespace_id", "task_list", "task_type")
        .agg(F.least(seen, F.lit(PARTITIONS_MAX)).alias("partitions"), F.sum("added").alias("n"))
        .crossJoin(F.broadcast(spans))
        .withColumn("qps", F.col("n") / F.col("span_s"))
        .select(*LISTS.names)
    )


def made_lists(spark: SparkSession, *, partitions: int, each: int) -> DataFrame:
    """Make up task queues of `each` partitions, about `partitions` in all; some are busier than others."""
    lists = spark.range(max(1, -(-partitions // each)))
    return lists.select(
        F.concat(F.lit("namespace-"), (F.col("id") % 100).cast("string")).alias("namespace_id"),
        F.concat(F.lit("queue-"), F.col("id").cast("string")).alias("task_list"),
        F.lit(2).alias("task_type"),
        F.lit(each).alias("partitions"),
        (F.lit(1000.0) / (1 + F.pmod(F.xxhash64("id"), F.lit(1000)))).alias("qps"),
    ).select(*LISTS.names)


def with_hashes(lists: DataFrame, *, batch_size: int) -> DataFrame:
    """Hash the keys of all partitions and of all batches of this size; the ring also uses `xxhash64`."""
    last = F.col("partitions") - 1

    def basic(number: Column) -> Column:
        sub = F.concat(F.lit(RESERVED_PREFIX), "task_list", F.lit("/"), number.cast("string"))
        name = F.when(number == 0, F.col("task_list")).otherwise(sub)
        return F.xxhash64(_joined("namespace_id", name, "task_type"))

    def batch(number: Column) -> Column:
        first = _joined("namespace_id", "task_list", "task_type")
        other = _joined("namespace_id", "task_list", number.cast("string"), "task_type")
        return F.xxhash64(F.when(number == 0, first).otherwise(other))

    return lists.select(
        *LISTS.names,
        F.transform(F.sequence(F.lit(0), last), basic).alias("basic"),
        F.transform(F.sequence(F.lit(0), F.floor(last / batch_size).cast("int")), batch).alias("batches"),
    ).select(*HASHED.names)


def _joined(*parts: Column | str) -> Column:
    return F.concat_ws(":", *parts)


def placed(hashed: DataFrame, plan: Plan) -> DataFrame:
    """Return the contribution of every batch of task queues to the loads, hot spots, moves and timetable."""
    return hashed.mapInArrow(partial(_place_batches, plan=plan), PARTIAL)


def _place_batches(batches: Iterable[pa.RecordBatch], *, plan: Plan) -> Iterator[pa.RecordBatch]:
    schema = to_arrow_schema(PARTIAL)
    for batch in batches:
        first = 0
        for lists in _task_queues(batch).cut(len(plan.hosts) + 1):
            rows = batch.slice(first, len(lists.partitions))
            first += len(lists.partitions)
            yield pa.RecordBatch.from_pylist(list(_found(rows, lists, plan)), schema)


def _task_queues(batch: pa.RecordBatch) -> TaskQueues:
    def hashes(name: str) -> Any:
        return batch.column(name).flatten().to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64)

    return TaskQueues(
        partitions=batch.column("partitions").to_numpy().astype(np.int64),
        qps=batch.column("qps").to_numpy(),
        basic=hashes("basic"),
        batches=hashes("batches"),
        batch_counts=batch.column("batches").value_lengths().to_numpy().astype(np.int64),
    )


def _found(rows: pa.RecordBatch, lists: TaskQueues, plan: Plan) -> Iterator[dict[str, Any]]:
    numbers, _ = lists.numbers()
    qps = (lists.qps / lists.partitions)[numbers]
    hosts = ring_table(plan.hosts, 0).hosts
    now = lists.place(hosts, plan.batch_size)
    for batch_size in plan.batch_sizes:
        owners = now if batch_size == plan.batch_size else lists.place(hosts, batch_size)
        counts, rates = loads(owners, qps, hosts=len(hosts))
        for host, count, rate in zip(hosts, counts.tolist(), rates.tolist(), strict=True):
            yield {"what": "load", "batch_size": batch_size, "host": host, "partitions": count, "qps": rate}
        yield from _spots(rows, lists, numbers, owners, hosts=hosts, batch_size=batch_size)
        for change, others in plan.rings():
            after = lists.place(others, batch_size)
            moved = is_moved(owners, after, hosts_before=hosts, hosts_after=ring_table(others, batch_size).hosts)
            yield _move(batch_size, change, moved, qps)
        if batch_size != plan.batch_size:
            moved = now != owners
            change = f"batch size {plan.batch_size}"
            yield _move(batch_size, change, moved, qps)
            steps = np.minimum((lists.moments() * STEPS).astype(np.int64), STEPS - 1)
            reached, went = np.bincount(steps, minlength=STEPS), np.bincount(steps[moved], minlength=STEPS)
            for step, (count, gone) in enumerate(zip(reached.tolist(), went.tolist(), strict=True)):
                reported = {"change": change, "step": step + 1, "partitions": count, "most": gone}
                yield {"what": "step", "batch_size": batch_size} | reported


def _move(batch_size: int, change: str, moved: Any, qps: Any) -> dict[str, Any]:
    counts = {"partitions": int(np.count_nonzero(moved)), "qps": float(qps[moved].sum())}
    return {"what": "move", "batch_size": batch_size, "change": change, **counts}


def _spots(
    rows: pa.RecordBatch,
    lists: TaskQueues,
    numbers: Indexes,
    owners: Owners,
    *,
    hosts: tuple[str, ...],
    batch_size: int,
) -> Iterator[dict[str, Any]]:
    """Yield how the partitions of task queues share hosts, and the task queues of this batch with the hottest spots."""
    found = together(numbers, owners, task_lists=len(lists.partitions), hosts=len(hosts))
    yield {
        "what": "together",
        "batch_size": batch_size,
        "task_lists": len(lists.partitions),
        "partitions": int(found.most.sum()),
        "most": int(found.most.max()),
        "hosts": int(found.hosts.sum()),
    }
    rates = found.most * lists.qps / lists.partitions
    names = ("namespace_id", "task_list", "task_type")
    # Yield more spots than needed: the final order also compares names, so an equal spot may rank higher there.
    for index in np.lexsort((-found.most, -rates))[: 2 * SPOTS_SHOWN].tolist():
        yield {name: rows.column(name)[index].as_py() for name in names} | {
            "what": "spot",
            "batch_size": batch_size,
            "host": hosts[found.host[index]],
            "partitions": int(found.most[index]),
            "qps": float(rates[index]),
        }


def host_loads(found: DataFrame) -> DataFrame:
    """Return the load of every host under every batch size."""
    return (
        found.where("what = 'load'")
        .groupBy("batch_size", "host")
        .agg(F.sum("partitions").alias("partitions"), F.sum("qps").alias("qps"))
        .select(*PLACEMENT_HOSTS.names)
    )


def comparison(found: DataFrame) -> DataFrame:
    """Return one row per batch size: how even the hosts are, and how many partitions of a task queue share a host."""
    hosts = (
        host_loads(found)
        .groupBy("batch_size")
        .agg(
            F.sum("partitions").alias("partitions"),
            F.count(F.lit(1)).alias("hosts"),
            F.max("partitions").alias("partitions_max"),
            F.try_divide(F.max("partitions"), F.avg("partitions")).alias("partitions_over_mean"),
            F.max("qps").alias("qps_max"),
            F.try_divide(F.max("qps"), F.avg("qps")).alias("qps_over_mean"),
        )
    )
    lists = (
        found.where("what = 'together'")
        .groupBy("batch_size")
        .agg(
            F.sum("task_lists").alias("task_lists"),
            F.max("most").alias("together_max"),
            (F.sum("partitions") / F.sum("task_lists")).alias("together_mean"),
            (F.sum("hosts") / F.sum("task_lists")).alias("hosts_per_task_list"),
        )
    )
    return hosts.join(lists, on="batch_size", how="inner").select(*PLACEMENT.names)


def hot_spots(found: DataFrame) -> DataFrame:
    """Return the task queues that put the highest load on one host."""
    order = Window.partitionBy("batch_size").orderBy(
        F.desc("qps"), F.desc("partitions"), "namespace_id", "task_list", "task_type"
    )
    ranked = found.where("what = 'spot'").withColumn("rank", F.row_number().over(order))
    return ranked.where(F.col("rank") <= SPOTS_SHOWN).select(*PLACEMENT_SPOTS.names)


def moves(found: DataFrame) -> DataFrame:
    """Return the partitions and tasks per second that each change moves, also as shares of all."""
    totals = host_loads(found).groupBy("batch_size").agg(F.sum("partitions").alias("all"), F.sum("qps").alias("rate"))
    return (
        found.where("what = 'move'")
        .groupBy("batch_size", "change")
        .agg(F.sum("partitions").alias("partitions"), F.sum("qps").alias("qps"))
        .join(F.broadcast(totals), on="batch_size", how="inner")
        .withColumn("partitions_share", F.try_divide("partitions", "all"))
        .withColumn("qps_share", F.try_divide("qps", "rate"))
        .select(*PLACEMENT_MOVES.names)
    )


def timetable(found: DataFrame) -> DataFrame:
    """Return the progress of a gradual change of the batch size after each step."""
    its = Window.partitionBy("batch_size", "change")
    so_far = its.orderBy("step").rowsBetween(Window.unboundedPreceding, 0)
    return (
        found.where("what = 'step'")
        .groupBy("batch_size", "change", "step")
        .agg(F.sum("partitions").alias("partitions"), F.sum("most").alias("moved"))
        .select(
            "batch_size",
            "change",
            (F.col("step") / STEPS).alias("time_share"),
            F.sum("partitions").over(so_far).alias("partitions"),
            F.sum("moved").over(so_far).alias("partitions_moved"),
            F.try_divide(F.sum("moved").over(so_far), F.sum("moved").over(its)).alias("moved_share"),
        )
        .select(*PLACEMENT_TIMETABLE.names)
    )
