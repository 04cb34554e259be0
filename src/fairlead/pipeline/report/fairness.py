"""The section on fairness: each key's dispatches against its weight, starved keys, and floods."""

from typing import Any

from pyspark.sql import DataFrame, Row, Window
from pyspark.sql import functions as F

from fairlead.pipeline.report.charts import Axis, Dot, Line, lines, scatter
from fairlead.pipeline.report.markup import Markup, shown, table, tag
from fairlead.pipeline.report.page import Finding, Section, missing
from fairlead.pipeline.report.tables import Tables, among, first_rows, moment, one_row, place, points, thinned
from fairlead.pipeline.stages.fairness import floods, starved
from fairlead.pipeline.stages.traffic import TASK_QUEUE

TITLE = "Fairness"
LISTS_SHOWN = 4
KEYS_SHOWN = 60
ROWS_SHOWN = 15
FLOODS_IN_WORDS = 5


def fairness(tables: Tables) -> Section:
    """Build the section: share against weight, starved keys, floods."""
    if not tables.have("fairness", "fairness_keys"):
        return missing("fairness", TITLE, job="fairness")
    windows, keys = tables.read("fairness"), tables.read("fairness_keys")
    flooding = first_rows(floods(windows, keys), ROWS_SHOWN, F.desc("tasks_missed"), *TASK_QUEUE, "flood_key")
    hungry = starved(keys)
    worst = first_rows(hungry, ROWS_SHOWN, F.desc("tasks_missed"), *TASK_QUEUE, "fairness_key")
    ranked = windows.groupBy(*TASK_QUEUE).agg(F.sum("starved_tasks").alias("missed"), F.sum("dispatched").alias("all"))
    shown_lists = first_rows(ranked, LISTS_SHOWN, F.desc("missed"), F.desc("all"), *TASK_QUEUE)
    named = {tuple(row[name] for name in (*TASK_QUEUE, "flood_key")) for row in flooding}
    shares = _shares(keys.where(among(shown_lists, TASK_QUEUE)))
    plots = [_plot(row, shares.get(tuple(row)[: len(TASK_QUEUE)], []), named) for row in shown_lists]
    plots.append(_jain(windows.where(among(shown_lists, TASK_QUEUE)), shown_lists))
    note = (
        f"The {len(shown_lists)} task queues where keys missed most, with their {KEYS_SHOWN} keys with the most "
        "dispatches, in the windows in which tasks waited: only then do keys compete. A key on the dashed "
        "line got exactly its share by weight; a key with few tasks is below it, without missing any. Keys that "
        "starved at any time are magenta, floods are orange."
    )
    body = [tag("p", note, class_="note"), tag("div", *plots, class_="plots")]
    if flooding:
        body += [tag("h3", f"Floods, at most {ROWS_SHOWN}, the worst first"), _flood_table(flooding)]
    if worst:
        body += [tag("h3", f"Keys that starved, at most {ROWS_SHOWN}, the worst first"), _starved_table(worst)]
    return Section("fairness", TITLE, _findings(windows, hungry, flooding), tuple(body))


def _findings(windows: DataFrame, hungry: DataFrame, flooding: list[Row]) -> list[Finding]:
    total = one_row(hungry.agg(F.count(F.lit(1)).alias("keys"), F.sum("tasks_missed").alias("missed")))
    shown_values = [
        Finding(
            f"Key {shown(row['flood_key'])} flooded {shown(place(row))} between {moment(row['first_us'])} and "
            f"{moment(row['last_us'])}: {row['victims']:,} other keys missed {row['tasks_missed']:,.0f} tasks of "
            "their fair share.",
            is_alarm=True,
        )
        for row in flooding[:FLOODS_IN_WORDS]
    ]
    if not total["keys"]:
        mean = one_row(windows.agg(F.avg("jain").alias("jain")))["jain"]
        jain = "" if mean is None else f" (Jain index {mean:.3f}, where 1 is fair to all)"
        return [Finding(f"No fairness key starved{jain}.", is_fine=True)]
    return [
        *shown_values,
        Finding(
            f"{total['keys']:,} fairness keys starved for a while, and missed {total['missed']:,.0f} tasks in all."
        ),
    ]


def _shares(keys: DataFrame) -> dict[tuple[Any, ...], list[Row]]:
    """Return the dispatches of the largest keys of each task queue, over all windows with waiting tasks."""
    window, whole = Window.partitionBy(*TASK_QUEUE, "window_us"), Window.partitionBy(*TASK_QUEUE)
    waited = F.sum(F.col("backlog_before") + F.col("added") - F.col("dispatched")).over(window)
    by_key = (
        keys.withColumn("waited", waited)
        .where("waited > 0")
        .groupBy(*TASK_QUEUE, "fairness_key")
        .agg(
            F.sum("dispatched").alias("dispatched"),
            F.avg("weight_share").alias("weight_share"),
            F.max("weight").alias("weight"),
            F.max("is_starved").alias("is_starved"),
        )
        .withColumn("share", F.coalesce(F.try_divide("dispatched", F.sum("dispatched").over(whole)), F.lit(0.0)))
        .withColumn("rank", F.row_number().over(whole.orderBy(F.desc("dispatched"), "fairness_key")))
        .where(F.col("rank") <= KEYS_SHOWN)
    )
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in by_key.collect():
        found.setdefault(tuple(row[name] for name in TASK_QUEUE), []).append(row)
    return found


def _plot(row: Row, keys: list[Row], flooding: set[tuple[Any, ...]]) -> Markup:
    name = f"{shown(place(row))}: share against weight"
    if not keys:
        return tag("figure", tag("figcaption", name), tag("p", "No task had to wait.", class_="note"))
    dots = []
    for key in keys:
        who = shown(key["fairness_key"] or "(no key)")
        is_flood = (*(key[column] for column in TASK_QUEUE), key["fairness_key"]) in flooding
        caption = (
            f"{who}: {key['share']:.1%} dispatched, {key['weight_share']:.1%} by its weight of {shown(key['weight'])}"
        )
        color = 1 if is_flood else 3 if key["is_starved"] else 0
        dots.append(Dot(key["weight_share"], key["share"], caption, color, mark=who[:20] if is_flood else ""))
    x = Axis(0.0, max(dot.x for dot in dots) * 1.05, "share by weight")
    y = Axis(0.0, max(dot.y for dot in dots) * 1.05, "share received")
    return scatter(dots, x=x, y=y, caption=name, diagonal=True)


def _jain(windows: DataFrame, lists: list[Row]) -> Markup:
    series = thinned(windows, TASK_QUEUE, "window_us", jain=F.avg("jain"))
    curves = [
        Line(place(row), points(series.get(tuple(row)[: len(TASK_QUEUE)], []), "jain"), number)
        for number, row in enumerate(lists)
    ]
    return lines(curves, caption="Jain index of each task queue: 1 is fair to all")


def _flood_table(rows: list[Row]) -> Markup:
    headings = ("key", "task queue", "from", "to", "windows", "beyond its share", "missed by others")
    return table(
        headings,
        (
            (
                row["flood_key"],
                place(row),
                moment(row["first_us"]),
                moment(row["last_us"]),
                row["windows"],
                row["tasks_beyond_due"],
                row["tasks_missed"],
            )
            for row in rows
        ),
    )


def _starved_table(rows: list[Row]) -> Markup:
    return table(
        ("key", "task queue", "windows", "tasks missed"),
        ((row["fairness_key"], place(row), row["windows"], row["tasks_missed"]) for row in rows),
    )
