"""Tables of the jobs `traffic` and `fairness`."""

from fairlead.pipeline.dictionary.entry import Column, Table
from fairlead.pipeline.schemas_fairness import FAIRNESS, FAIRNESS_KEYS
from fairlead.pipeline.schemas_traffic import TRAFFIC, TRAFFIC_LISTS

_FLOW = {
    "added": Column("tasks added in the window", "1200", "tasks"),
    "matched": Column("tasks given to a poll in the window", "1180", "tasks"),
    "matched_at_once": Column("matched tasks that were never stored", "900", "tasks"),
    "matched_forwarded": Column("matched tasks whose task or poll came from another partition", "120", "tasks"),
    "forwarded": Column("offers to the parent partition, with or without a match", "300", "offers"),
    "polls_empty": Column("polls that returned without a task", "40", "polls"),
    "write_qps": Column("tasks added per second", "20.0", "tasks/s"),
    "dispatch_qps": Column("tasks matched per second", "19.7", "tasks/s"),
    "at_once_share": Column("share of the matched tasks that were never stored", "0.76"),
    "forwarded_share": Column("share of the matched tasks that were forwarded", "0.1"),
    "idle_share": Column("share of the polls that returned without a task", "0.03"),
    "backlog": Column("stored tasks, as last reported in the window", "20", "tasks"),
    "backlog_max": Column("largest reported backlog of the window", "250", "tasks"),
    "backlog_age_s_max": Column("largest reported age of a backlog's oldest task", "4.2", "s"),
    "pollers_mean": Column("mean of the reported waiting polls", "7.5", "polls"),
}

_PARTITIONS = {
    "partitions": Column("partitions with activity in the window", "4", "partitions"),
    "skew": Column("tasks of the busiest partition divided by the mean of all", "1.3"),
    "skew_deviation": Column("standard deviation of the partitions' tasks divided by their mean", "0.2"),
}

_FAIR_KEY = {
    "backlog_before": Column("tasks of the key that waited when the window began", "40", "tasks"),
    "added": Column("tasks of the key added in the window", "120", "tasks"),
    "dispatched": Column("tasks of the key matched in the window", "100", "tasks"),
    "share": Column("share of all dispatched tasks of the window", "0.25"),
    "weight_share": Column("weight divided by the weights of all keys with tasks", "0.33"),
    "fair": Column(
        "dispatches that the key should get by its weight and its tasks (max-min fair share)", "96.5", "tasks"
    ),
    "ratio": Column("`dispatched` divided by `fair`", "1.04"),
    "is_starved": Column(
        "whether the key had waiting tasks all the time, and got less than a tenth of `fair`", "false"
    ),
    "is_flood": Column("whether the key flooded the task queue and starved others", "false"),
}

_FAIR_WINDOW = {
    "keys": Column("keys with tasks in the window", "12", "keys"),
    "dispatched": Column("tasks matched in the window", "1180", "tasks"),
    "jain": Column(
        "Jain index of the keys' ratios: 1 is fair to all, 1/keys means that one key got everything", "0.99"
    ),
    "starved": Column("starved keys", "0", "keys"),
    "starved_tasks": Column("dispatches that the starved keys missed", "0.0", "tasks"),
    "starved_keys": Column("the starved keys, worst first", '["tenant-3"]'),
    "flood_key": Column(
        "the flooding key with the most dispatches beyond its fair share; null without a flood", '"tenant-9"'
    ),
    "flood_tasks": Column("dispatches of that key beyond its fair share", "310.0", "tasks"),
    "flood_added": Column("tasks that the key added in the window", "900", "tasks"),
}

TABLES = (
    Table("traffic", "traffic", "a partition in a window with activity", TRAFFIC, _FLOW),
    Table(
        "traffic_lists",
        "traffic",
        "a task queue in a window with activity, summed over its partitions",
        TRAFFIC_LISTS,
        _FLOW | _PARTITIONS,
    ),
    Table("fairness_keys", "fairness", "a fairness key with tasks in a window", FAIRNESS_KEYS, _FAIR_KEY),
    Table("fairness", "fairness", "a task queue in a window in which a key had tasks", FAIRNESS, _FAIR_WINDOW),
)
