"""Tables of the jobs `backtest` and `placement`."""

from fairlead.pipeline.dictionary.entry import Column, Table
from fairlead.pipeline.schemas_backtest import BACKTEST, BACKTEST_SETTINGS, BACKTEST_TIMELINE
from fairlead.pipeline.schemas_placement import (
    PLACEMENT,
    PLACEMENT_HOSTS,
    PLACEMENT_MOVES,
    PLACEMENT_SPOTS,
    PLACEMENT_TIMETABLE,
)

_REPLAY = {
    "setting": Column("number of the candidate; 0 is the current settings", "17"),
    "upscale_rps": Column("tasks per second of a partition above which partitions are added", "200.0", "tasks/s"),
    "upscale_sustained_s": Column("time for which the load must stay above `upscale_rps`", "60.0", "s"),
    "downscale_sustained_s": Column("time for which the load must stay below the lower threshold", "120.0", "s"),
    "downscale_factor": Column("lower threshold divided by `upscale_rps`", "0.75"),
    "interval_s": Column("time between two checks of the scaler", "15.0", "s"),
    "tasks": Column("replayed arrivals", "48000", "tasks"),
    "changes": Column("changes of the partitions: sum of the next three columns", "5", "changes"),
    "ups": Column("changes that added partitions", "2", "changes"),
    "downs": Column("changes that stopped writes to partitions", "2", "changes"),
    "drains": Column("changes that removed drained partitions", "1", "changes"),
    "above_s": Column("time with a load above the threshold in force", "75.0", "s"),
    "partitions_max": Column("largest number of write partitions", "4", "partitions"),
    "partition_hours": Column("write partitions times hours", "31.5", "hours"),
    "overshoot_hours": Column("write partitions beyond the number needed, times hours", "0.4", "hours"),
    "overshoot_max": Column("largest number of write partitions beyond the number needed", "1", "partitions"),
    "backlog_max": Column("largest predicted backlog", "310.0", "tasks"),
    "backlog_mean": Column("mean predicted backlog", "2.5", "tasks"),
    "wait_s_max": Column("longest predicted wait", "1.6", "s"),
    "wait_s_mean": Column("mean predicted wait", "0.02", "s"),
    "late": Column("tasks whose predicted wait exceeds the bound of the job", "12.0", "tasks"),
    "late_share": Column("share of the tasks that are late", "0.0003"),
    "changes_per_day": Column(
        "changes per day; of several task queues, the one with the most changes", "4.2", "changes"
    ),
    "is_within": Column("whether the candidate keeps the bounds on late tasks and changes", "true"),
    "is_recommended": Column("whether the job recommends this candidate", "false"),
    "task_lists": Column("replayed task queues", "12", "task queues"),
}
_TIMELINE = {
    "setting": _REPLAY["setting"],
    "time_us": Column("time of the replay", "1769860800000000", "µs since the epoch"),
    "qps": Column("load of the task queue", "180.0", "tasks/s"),
    "write": Column("write partitions", "2", "partitions"),
    "read": Column("read partitions", "2", "partitions"),
    "backlog": Column("predicted backlog", "0.0", "tasks"),
}

_PLACED = {
    "batch_size": Column("batch size of spread routing; 0 is basic routing", "4", "partitions"),
    "task_lists": Column("placed task queues", "120", "task queues"),
    "partitions": Column("number of partitions", "480", "partitions"),
    "hosts": Column("number of hosts", "6", "hosts"),
    "partitions_max": Column("partitions of the fullest host", "97", "partitions"),
    "partitions_over_mean": Column("partitions of the fullest host divided by the mean", "1.21"),
    "qps_max": Column("load of the busiest host", "900.0", "tasks/s"),
    "qps_over_mean": Column("load of the busiest host divided by the mean", "1.4"),
    "together_max": Column("most partitions of one task queue on one host", "3", "partitions"),
    "together_mean": Column("mean over the task queues of the most partitions on one host", "1.2", "partitions"),
    "hosts_per_task_list": Column("mean number of hosts that own a partition of a task queue", "3.4", "hosts"),
    "qps": Column("load", "55.0", "tasks/s"),
    "rank": Column("position by load, 1 is the highest", "1"),
    "change": Column("`leave HOST`, `join HOST`, or `batch size N` for a change from that batch size", '"leave h-3"'),
    "partitions_share": Column("share of all partitions", "0.17"),
    "qps_share": Column("share of all load", "0.19"),
    "time_share": Column("elapsed share of the change's duration", "0.5"),
    "partitions_moved": Column("partitions moved by then", "61", "partitions"),
    "moved_share": Column("share of the partitions that will move", "0.49"),
}
_MOVED = _PLACED | {
    "partitions": Column("partitions that move", "80", "partitions"),
    "qps": Column("load that moves", "150.0", "tasks/s"),
}

TABLES = (
    Table("backtest", "backtest", "a task queue under one candidate", BACKTEST, _REPLAY),
    Table(
        "backtest_settings",
        "backtest",
        "a candidate, summed over all task queues of a cluster",
        BACKTEST_SETTINGS,
        _REPLAY,
    ),
    Table(
        "backtest_timeline",
        "backtest",
        "a task queue at one time, under the current and the recommended settings",
        BACKTEST_TIMELINE,
        _TIMELINE,
    ),
    Table("placement", "placement", "a routing: basic, or spread with one batch size", PLACEMENT, _PLACED),
    Table("placement_hosts", "placement", "a host under one routing", PLACEMENT_HOSTS, _PLACED),
    Table(
        "placement_spots",
        "placement",
        "one of the task queues that put the highest load on one host",
        PLACEMENT_SPOTS,
        _PLACED,
    ),
    Table("placement_moves", "placement", "a change of the hosts or of the routing", PLACEMENT_MOVES, _MOVED),
    Table(
        "placement_timetable",
        "placement",
        "a moment of a gradual change to this batch size",
        PLACEMENT_TIMETABLE,
        _PLACED,
    ),
)
