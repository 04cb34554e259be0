"""The sections on the totals of all histories: waits, failures and billable actions."""

from pyspark.sql import functions as F

from fairlead.pipeline.report.markup import Markup, table, tag
from fairlead.pipeline.report.page import Finding, Section, missing
from fairlead.pipeline.report.tables import Tables, first_rows, length, moment, one_row

WAITS = "Waits for workers"
FAILURES = "Failures"
ACTIONS = "Actions that Temporal Cloud would bill"
ROWS_SHOWN = 15
MESSAGE_CHARACTERS_SHOWN = 120
_KINDS = {1: "workflow tasks", 2: "activities"}
_PLACE = ("task_list", "task_type", "type", "build_id", "cluster", "namespace_id")


def waits(tables: Tables) -> Section:
    """Build the section: the windows with the longest waits from scheduling to start."""
    if not tables.have("waits"):
        return missing("waits", WAITS, job="histories")
    rows = first_rows(tables.read("waits"), ROWS_SHOWN, F.desc("wait_s_p99"), "window_us", *_PLACE)
    if not rows:
        return _nothing("waits", WAITS, "No task was started.")
    worst = rows[0]
    finding = Finding(
        f"The longest waits for a worker: 1 % of the {_KINDS.get(worst['task_type'], 'tasks')} of {worst['type']} in "
        f"{worst['task_list']} waited {length(worst['wait_s_p99'])} or longer, from {moment(worst['window_us'])}."
    )
    shown = table(
        ("window", "task queue", "kind", "type", "build id", "namespace", "tasks", "half within", "99 % within"),
        (
            (
                moment(row["window_us"]),
                row["task_list"],
                _KINDS.get(row["task_type"], "tasks"),
                row["type"],
                row["build_id"] or "-",
                row["namespace_id"],
                row["tasks"],
                length(row["wait_s_p50"]),
                length(row["wait_s_p99"]),
            )
            for row in rows
        ),
    )
    note = f"From scheduling to start, by the events: the {ROWS_SHOWN} windows with the longest waits."
    return Section("waits", WAITS, (finding,), (tag("p", note, class_="note"), shown))


def failures(tables: Tables) -> Section:
    """Build the section: the most frequent failures with example workflows."""
    if not tables.have("failures"):
        return missing("failures", FAILURES, job="histories")
    found = tables.read("failures")
    order = ("source", "type", "failure_type", "message_class", "cluster", "namespace_id")
    rows = first_rows(found, ROWS_SHOWN, F.desc("count"), *order)
    if not rows:
        return _nothing("failures", FAILURES, "No workflow and no activity failed.")
    kinds = one_row(found.agg(F.count_distinct("failure_type").alias("kinds")))["kinds"]
    first = rows[0]
    finding = Finding(
        f"Failures of {kinds:,} types; the most frequent: {first['failure_type']} in {first['type']}, "
        f"{first['count']:,} times."
    )
    shown = table(
        ("failed", "type", "failure", "message", "namespace", "times", "first", "last", "for example"),
        (
            (
                row["source"].replace("_", " "),
                row["type"],
                row["failure_type"],
                (row["message_class"] or "-")[:MESSAGE_CHARACTERS_SHOWN],
                row["namespace_id"],
                row["count"],
                moment(row["first_us"]),
                moment(row["last_us"]),
                ", ".join(row["workflow_ids"]),
            )
            for row in rows
        ),
    )
    note = (
        f"The {ROWS_SHOWN} most frequent types. Ids, numbers and quoted texts of messages are left out. An activity "
        "retry is the failure of the attempt before the last one."
    )
    return Section("failures", FAILURES, (finding,), (tag("p", note, class_="note"), shown))


def actions(tables: Tables) -> Section:
    """Build the section: billable actions of the days with the most."""
    if not tables.have("actions"):
        return missing("actions", ACTIONS, job="histories")
    rows = tables.read("actions")
    total = one_row(rows.agg(F.sum("actions").alias("actions"), F.count_distinct("day").alias("days")))
    if not total["actions"]:
        return _nothing("actions", ACTIONS, "No run could be read.")
    by_kind = F.array_sort(F.collect_list(F.struct((-F.col("actions")).alias("less"), "kind", "actions")))
    days = rows.groupBy("cluster", "namespace_id", "day").agg(F.sum("actions").alias("actions"), by_kind.alias("kinds"))
    shown = first_rows(days, ROWS_SHOWN, F.desc("actions"), "day", "cluster", "namespace_id")
    finding = Finding(
        f"Temporal Cloud would bill at least {total['actions']:,} actions for the events of {total['days']:,} days."
    )
    note = (
        f"The {ROWS_SHOWN} days with the most actions. A lower bound: queries, heartbeats and rejected updates are in "
        "no history."
    )
    body: list[Markup] = [tag("p", note, class_="note")]
    body.append(
        table(
            ("day", "namespace", "cluster", "actions", "by kind"),
            (
                (
                    row["day"].isoformat(),
                    row["namespace_id"],
                    row["cluster"],
                    row["actions"],
                    ", ".join(f"{one['kind'].replace('_', ' ')} {one['actions']:,}" for one in row["kinds"]),
                )
                for row in shown
            ),
        )
    )
    return Section("actions", ACTIONS, (finding,), tuple(body))


def _nothing(name: str, title: str, note: str) -> Section:
    return Section(name, title, (), (tag("p", note, class_="note"),))
