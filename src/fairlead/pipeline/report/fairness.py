"""The section on fairness: each key's dispatches against its weight, starved keys, and floods."""

from typing import Any

from fairlead.pipeline.fairness_queries import FLOODS, STARVED
from fairlead.pipeline.queries import Row
from fairlead.pipeline.report.charts import Axis, Dot, Line, lines, plots_of, scatter
from fairlead.pipeline.report.levels import Level
from fairlead.pipeline.report.markup import Markup, shown, table, tag
from fairlead.pipeline.report.page import Finding, Section, missing
from fairlead.pipeline.report.tables import Tables, key, moment, place, points
from fairlead.pipeline.stages.fairness import MISSED_MIN
from fairlead.pipeline.stages.traffic import TASK_QUEUE
from fairlead.report import counted

TITLE = "Fairness"
LISTS_SHOWN = 4
KEYS_SHOWN = 60
ROWS_SHOWN = 15
FLOODS_IN_WORDS = 5
WORST_LISTS = """
    SELECT cluster, namespace_id, task_list, task_type, sum(starved_tasks) AS missed, sum(dispatched) AS dispatched
    FROM fairness GROUP BY ALL
    ORDER BY sum(starved_tasks) DESC, sum(dispatched) DESC, cluster, namespace_id, task_list, task_type LIMIT $count
"""
SHARES = """
    WITH shown AS (
        SELECT k.*, sum(backlog_before + added - k.dispatched) OVER same_window AS waited
        FROM fairness_keys k SEMI JOIN worst_lists USING (cluster, namespace_id, task_list, task_type)
        WINDOW same_window AS (PARTITION BY cluster, namespace_id, task_list, task_type, window_us)
    ), by_key AS (
        SELECT cluster, namespace_id, task_list, task_type, fairness_key,
               sum(dispatched) AS dispatched, sum(fair) AS fair, avg(weight_share) AS weight_share,
               max(weight) AS weight, bool_or(is_starved) AS is_starved
        FROM shown WHERE waited > 0 GROUP BY ALL
    )
    SELECT *, coalesce(dispatched / nullif(sum(dispatched) OVER queue, 0), 0.0) AS share,
           coalesce(fair / nullif(sum(fair) OVER queue, 0), 0.0) AS due
    FROM by_key
    WINDOW queue AS (PARTITION BY cluster, namespace_id, task_list, task_type)
    QUALIFY row_number() OVER (queue ORDER BY dispatched DESC, fairness_key) <= $count
    ORDER BY cluster, namespace_id, task_list, task_type, dispatched DESC, fairness_key
"""


def fairness(tables: Tables) -> Section:
    """Build the section: share against weight, starved keys, floods."""
    if not tables.have("fairness", "fairness_keys"):
        return missing("fairness", TITLE, job="fairness")
    tables.queries.keep("starved", STARVED)
    flooding = tables.queries.rows(FLOODS, missed_min=MISSED_MIN, count=ROWS_SHOWN)
    worst = tables.queries.rows("FROM starved LIMIT $count", count=ROWS_SHOWN)
    shown_lists = tables.queries.keep("worst_lists", WORST_LISTS, count=LISTS_SHOWN)
    named = {key(row, (*TASK_QUEUE, "flood_key")) for row in flooding}
    shares = _shares(tables)
    # Without a wait, or with one key, keys did not compete, and there is nothing to draw.
    drawn = [row for row in shown_lists if len(shares.get(key(row, TASK_QUEUE), ())) > 1]
    plots = [_plot(row, shares[key(row, TASK_QUEUE)], named) for row in drawn]
    plots.append(_jain(tables, drawn))
    note = (
        "In no task queue did several keys wait for dispatches."
        if not drawn
        else (
            f"The {counted(len(drawn), 'task queue')} where keys missed most, and for each the keys with the most "
            f"dispatches, at most {KEYS_SHOWN}. Only windows in which tasks waited count: only then do keys compete. "
            "What is due to a key follows from its weight and from what all keys asked for: a key may get three times "
            "its weight where the others had nothing waiting. A key on the dashed line got exactly what was due; one "
            "below it got less. "
            "Keys that starved at any time are magenta, floods are orange."
        )
    )
    body = [tag("p", note, class_="note"), *plots_of(plots)]
    if flooding:
        body += [tag("h3", f"Floods, at most {ROWS_SHOWN}, the worst first"), _flood_table(tables, flooding)]
    if worst:
        body += [tag("h3", f"Keys that starved, at most {ROWS_SHOWN}, the worst first"), _starved_table(tables, worst)]
    return Section("fairness", TITLE, _findings(tables, flooding), tuple(body))


def _findings(tables: Tables, flooding: list[Row]) -> list[Finding]:
    total = tables.queries.one("SELECT count(*) AS keys, sum(tasks_missed) AS missed FROM starved")
    shown_values = [
        Finding(
            f"Key {shown(row['flood_key'])} flooded {shown(place(row))} between {moment(row['first_us'])} and "
            f"{moment(row['last_us'])}: {row['victims']:,} other keys missed {row['tasks_missed']:,.0f} tasks of "
            "their fair share.",
            level=Level.RED,
        )
        for row in flooding[:FLOODS_IN_WORDS]
    ]
    if not total["keys"]:
        mean = tables.queries.one("SELECT avg(jain) AS jain FROM fairness")["jain"]
        jain = "" if mean is None else f" (Jain index {mean:.3f}, where 1 is fair to all)"
        return [Finding(f"No fairness key starved{jain}.", level=Level.GREEN)]
    return [
        *shown_values,
        Finding(
            f"{total['keys']:,} fairness keys starved for a while, and missed {total['missed']:,.0f} tasks in all."
        ),
    ]


def _shares(tables: Tables) -> dict[tuple[Any, ...], list[Row]]:
    """Return the dispatches of the largest keys of each task queue, over all windows with waiting tasks."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in tables.queries.rows(SHARES, count=KEYS_SHOWN):
        found.setdefault(key(row, TASK_QUEUE), []).append(row)
    return found


def _plot(row: Row, keys: list[Row], flooding: set[tuple[Any, ...]]) -> Markup:
    name = f"{shown(place(row))}: dispatched against due"
    dots = []
    for its in keys:
        who = shown(its["fairness_key"] or "(no key)")
        is_flood = key(its, (*TASK_QUEUE, "fairness_key")) in flooding
        caption = (
            f"{who}: {its['share']:.1%} dispatched, {its['due']:.1%} due; its weight of {shown(its['weight'])} is "
            f"{its['weight_share']:.1%} of all"
        )
        color = 1 if is_flood else 3 if its["is_starved"] else 0
        dots.append(Dot(its["due"], its["share"], caption, color, mark=who[:20] if is_flood else ""))
    x = Axis(0.0, max(dot.x for dot in dots) * 1.05, "share due")
    y = Axis(0.0, max(dot.y for dot in dots) * 1.05, "share received")
    return scatter(dots, x=x, y=y, caption=name, diagonal=True)


def _jain(tables: Tables, lists: list[Row]) -> Markup:
    tables.queries.keep(
        "worst_windows", "FROM fairness SEMI JOIN worst_lists USING (cluster, namespace_id, task_list, task_type)"
    )
    series = tables.thinned("worst_windows", TASK_QUEUE, "window_us", {"jain": "avg(jain)"})
    curves = [
        Line(place(row), points(series.get(key(row, TASK_QUEUE), []), "jain"), number)
        for number, row in enumerate(lists)
    ]
    return lines(curves, caption="Jain index of each task queue: 1 is fair to all")


def _flood_table(tables: Tables, rows: list[Row]) -> Markup:
    headings = ("key", "task queue", "from", "to", "windows", "beyond its share", "missed by others")
    return table(
        headings,
        (
            (
                row["flood_key"] or "(no key)",
                tables.console.task_queue(row, place(row)),
                moment(row["first_us"]),
                moment(row["last_us"]),
                row["windows"],
                row["tasks_beyond_due"],
                row["tasks_missed"],
            )
            for row in rows
        ),
    )


def _starved_table(tables: Tables, rows: list[Row]) -> Markup:
    return table(
        ("key", "task queue", "windows", "tasks missed"),
        (
            (
                row["fairness_key"] or "(no key)",
                tables.console.task_queue(row, place(row)),
                row["windows"],
                row["tasks_missed"],
            )
            for row in rows
        ),
    )
