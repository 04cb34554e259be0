"""One table of the lake in the dictionary: the meaning of its rows, and of each column."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class Column:
    """The meaning of a column, its unit if it has one, and an example as JSON."""

    meaning: str
    example: str
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table: `row` says what one row is, `job` is the command that writes it.

    `columns` has the columns that `SHARED` lacks, or to which this table gives another meaning.
    """

    name: str
    job: str
    row: str
    schema: StructType
    columns: Mapping[str, Column] = field(default_factory=dict)


# Columns that mean the same in all tables.
SHARED = {
    "cluster": Column("name of the cluster that journaled the records", '"active"'),
    "namespace_id": Column(
        "id of the namespace; ends with `#<deployment>:<build id>` for a task queue of one worker version",
        '"7d0d1b1c-2c3c-4a73-93a4-6e4a3a1f0b6e"',
    ),
    "namespace": Column("name of the namespace, or its id if no record has a name", '"orders"'),
    "task_list": Column("name of the task queue; `__sticky__` for the queues of single workers", '"packing"'),
    "task_type": Column("1 for workflow tasks, 2 for activity tasks, 3 for Nexus tasks", "2"),
    "partition": Column("number of the partition; 0 is the root", "3"),
    "host": Column("name of the host", '"10.0.0.7:7240"'),
    "window_us": Column("start of the window", "1769860800000000", "µs since the epoch"),
    "time_us": Column("time of the record, by the clock of its host", "1769860812345678", "µs since the epoch"),
    "workflow_id": Column("id of the workflow", '"order-1042"'),
    "run_id": Column("id of the run", '"019a4b6e-7c1d-7e52-a1b2-0a1b2c3d4e5f"'),
    "fairness_key": Column("fairness key of the task; empty if it has none", '"tenant-7"'),
    "weight": Column("weight of the fairness key", "5.0"),
    "version": Column("failover version of the events", "12"),
    "first_event_id": Column("id of the first event", "5"),
    "last_event_id": Column("id of the last event", "9"),
    "wait_s_p50": Column("median wait of the matched tasks", "0.012", "s"),
    "wait_s_p95": Column("95th percentile of the wait", "0.9", "s"),
    "wait_s_p99": Column("99th percentile of the wait", "2.4", "s"),
}


def documented(table: Table) -> dict[str, Column]:
    """Return the columns of the table as people read it, in order; raise KeyError for one without a meaning."""
    names = [
        shown
        for name in table.schema.names
        for shown in (
            [name, "namespace"] if name == "namespace_id" and "namespace" not in table.schema.names else [name]
        )
    ]
    return {name: table.columns[name] if name in table.columns else SHARED[name] for name in names}
