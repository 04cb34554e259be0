"""The sections on the totals of all histories: waits, failures and billable actions."""

from collections.abc import Sequence

from fairlead.pipeline.report.markup import Markup, join, table, tag
from fairlead.pipeline.report.page import Finding, Section, missing
from fairlead.pipeline.report.tables import Tables, length, moment
from fairlead.report import counted

WAITS = "Waits for workers"
FAILURES = "Failures"
ACTIONS = "Actions that Temporal Cloud would bill"
ROWS_SHOWN = 15
MESSAGE_CHARACTERS_SHOWN = 120
_KINDS = {1: "workflow tasks", 2: "activities"}


def waits(tables: Tables) -> Section:
    """Build the section: the windows with the longest waits from scheduling to start."""
    if not tables.have("waits"):
        return missing("waits", WAITS, job="histories")
    rows = tables.queries.rows(
        """
        FROM waits
        ORDER BY wait_s_p99 DESC, window_us, task_list, task_type, type, build_id, cluster, namespace_id LIMIT $count
        """,
        count=ROWS_SHOWN,
    )
    if not rows:
        return _nothing("waits", WAITS, "No task was started.")
    worst = rows[0]
    finding = Finding(
        f"The longest waits for a worker: 1 % of the {_KINDS.get(worst['task_type'], 'tasks')} of {worst['type']} in "
        f"{worst['task_list']} waited {length(worst['wait_s_p99'])} or longer, from {moment(worst['window_us'])}."
    )
    shown = table(
        (
            "window",
            "task queue",
            "kind",
            "type",
            "build id",
            "namespace",
            "cluster",
            "tasks",
            "half within",
            "99 % within",
        ),
        (
            (
                moment(row["window_us"]),
                tables.console.task_queue(row, row["task_list"]),
                _KINDS.get(row["task_type"], "tasks"),
                row["type"],
                row["build_id"] or "-",
                row["namespace_id"],
                row["cluster"],
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
    rows = tables.queries.rows(
        """
        FROM failures
        ORDER BY count DESC, source, type, failure_type, message_class, cluster, namespace_id LIMIT $count
        """,
        count=ROWS_SHOWN,
    )
    if not rows:
        return _nothing("failures", FAILURES, "No workflow and no activity failed.")
    kinds = tables.queries.one("SELECT count(DISTINCT failure_type) AS kinds FROM failures")["kinds"]
    first = rows[0]
    finding = Finding(
        f"{counted(kinds, 'type')} of failures; the most frequent: {first['failure_type']} in "
        f"{first['type'] or 'an unknown type'}, {counted(first['count'], 'time')}."
    )
    shown = table(
        ("failed", "type", "failure", "message", "namespace", "cluster", "times", "first", "last", "for example"),
        (
            (
                row["source"].replace("_", " "),
                row["type"],
                row["failure_type"],
                (row["message_class"] or "-")[:MESSAGE_CHARACTERS_SHOWN],
                row["namespace_id"],
                row["cluster"],
                row["count"],
                moment(row["first_us"]),
                moment(row["last_us"]),
                _links([tables.console.workflow(row["namespace_id"], one) for one in row["workflow_ids"]]),
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
    total = tables.queries.one("SELECT coalesce(sum(actions), 0) AS actions, count(DISTINCT day) AS days FROM actions")
    if not total["actions"]:
        return _nothing("actions", ACTIONS, "No run could be read.")
    shown = tables.queries.rows(
        """
        SELECT cluster, namespace_id, day, sum(actions) AS actions,
               list({'kind': kind, 'actions': actions} ORDER BY actions DESC, kind) AS kinds
        FROM actions GROUP BY cluster, namespace_id, day
        ORDER BY sum(actions) DESC, day, cluster, namespace_id LIMIT $count
        """,
        count=ROWS_SHOWN,
    )
    finding = Finding(
        f"Temporal Cloud would bill at least {total['actions']:,} actions for the events of "
        f"{counted(total['days'], 'day')}."
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


def _links(links: Sequence[str]) -> Markup:
    return join([piece for link in links for piece in (", ", link)][1:])


def _nothing(name: str, title: str, note: str) -> Section:
    return Section(name, title, (), (tag("p", note, class_="note"),))
