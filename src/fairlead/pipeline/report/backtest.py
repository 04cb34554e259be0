"""The section on the backtest: the cost and the effect of each setting, and the recommended one."""

from fairlead.pipeline.queries import Row
from fairlead.pipeline.report.charts import Axis, Dot, Line, lines, plots_of, scatter
from fairlead.pipeline.report.levels import Level
from fairlead.pipeline.report.markup import Markup, shown, table, tag
from fairlead.pipeline.report.page import Finding, Section, missing
from fairlead.pipeline.report.tables import Tables, length, place, points

TITLE = "Settings of the scaler"
CLUSTERS_SHOWN = 4
SETTINGS_SHOWN = 400
BUSIEST = """
    FROM backtest WHERE cluster = $cluster AND setting = 0
    ORDER BY tasks DESC, cluster, namespace_id, task_list, task_type LIMIT 1
"""
TRACED = """
    FROM backtest_timeline SEMI JOIN replayed USING (cluster, namespace_id, task_list, task_type)
    WHERE setting IN (SELECT unnest($settings))
"""
_SETTING = ("upscale_rps", "upscale_sustained_s", "downscale_sustained_s", "downscale_factor", "interval_s")
_OUTCOME = ("late_share", "changes_per_day", "partition_hours", "above_s", "wait_s_max", "backlog_max")


def backtest(tables: Tables) -> Section:
    """Build the section: settings against the objective, and partitions over time."""
    if not tables.have("backtest", "backtest_settings", "backtest_timeline"):
        return missing("backtest", TITLE, job="backtest")
    best = tables.queries.rows(
        "FROM backtest_settings WHERE is_recommended ORDER BY tasks DESC, cluster LIMIT $count", count=CLUSTERS_SHOWN
    )
    plots: list[Markup] = []
    rows: list[tuple[object, ...]] = []
    findings: list[Finding] = []
    for row in best:
        now = tables.queries.first(
            "FROM backtest_settings WHERE cluster = $cluster AND setting = 0 LIMIT 1", cluster=row["cluster"]
        )
        plots.append(_comparison(tables, row))
        plots += _timeline(tables, row)
        if now is not None:
            findings.append(_finding(now, row))
            rows += [(row["cluster"], "in force", *_values(now)), (row["cluster"], "recommended", *_values(row))]
    if not best:
        return Section(
            "backtest", TITLE, (), (tag("p", "No task was recorded, so there was nothing to replay.", class_="note"),)
        )
    note = (
        f"Each dot is a setting, replayed over the recorded traffic of a cluster. Shown are at most {SETTINGS_SHOWN} "
        f"settings, the cheapest first, for at most {CLUSTERS_SHOWN} clusters, the busiest first. Green settings keep "
        "the limits for late tasks and for changes per day; of these, the one with the fewest partition-hours is "
        "recommended."
    )
    headings = ("cluster", "setting", *(name.replace("_", " ") for name in (*_SETTING, *_OUTCOME)))
    return Section(
        "backtest",
        TITLE,
        findings,
        (tag("p", note, class_="note"), *plots_of(plots), table(headings, rows)),
    )


def _finding(now: Row, best: Row) -> Finding:
    cluster = shown(best["cluster"])
    if best["setting"] == now["setting"]:
        return Finding(f"The scaler's settings of {cluster} are the best of those that were tried.", level=Level.GREEN)
    outcomes = [(shown(row["partition_hours"]), f"{row['late_share']:.2%}") for row in (best, now)]
    if outcomes[0] == outcomes[1]:
        return Finding(f"No setting that was tried would have served {cluster} better than its own.", level=Level.GREEN)
    hours = f"{shown(best['partition_hours'])} partition-hours in place of {shown(now['partition_hours'])}"
    changed = ", ".join(
        f"{name.replace('_', ' ')} {shown(now[name])} → {shown(best[name])}"
        for name in _SETTING
        if now[name] != best[name]
    )
    return Finding(
        f"Other settings of the scaler would have served {cluster} better: {hours}, "
        f"{best['late_share']:.2%} of the tasks late in place of {now['late_share']:.2%} ({changed})."
    )


def _comparison(tables: Tables, best: Row) -> Markup:
    # The current and the recommended settings are always shown.
    rows = tables.queries.rows(
        """
        FROM backtest_settings WHERE cluster = $cluster
        ORDER BY (is_recommended OR setting = 0) DESC, partition_hours, setting LIMIT $count
        """,
        cluster=best["cluster"],
        count=SETTINGS_SHOWN,
    )
    dots = [
        Dot(
            row["partition_hours"],
            100 * (row["late_share"] or 0.0),
            f"setting {row['setting']}: " + ", ".join(f"{name} {shown(row[name])}" for name in (*_SETTING, *_OUTCOME)),
            2 if row["is_within"] else 5,
            mark=_mark(row),
        )
        for row in rows
    ]
    if len({(dot.x, dot.y) for dot in dots}) < 2:
        # All settings have the same cost and effect.
        return Markup()
    hours = [dot.x for dot in dots]
    room = (max(hours) - min(hours)) * 0.05 or max(hours) * 0.05 or 1.0
    x = Axis(max(0.0, min(hours) - room), max(hours) + room, "partition-hours")
    y = Axis(0.0, max(*(dot.y for dot in dots), 0.001) * 1.1, "% of the tasks late")
    return scatter(dots, x=x, y=y, caption=f"{shown(best['cluster'])}: cost and effect of each setting")


def _mark(row: Row) -> str:
    if row["is_recommended"]:
        return "in force, recommended" if row["setting"] == 0 else "recommended"
    return "in force" if row["setting"] == 0 else ""


def _timeline(tables: Tables, best: Row) -> list[Markup]:
    """Plot the partitions of the cluster's busiest task queue over time, under current and recommended settings."""
    busiest = tables.queries.keep("replayed", BUSIEST, cluster=best["cluster"])
    if not busiest:
        return []
    chosen = {"in force": 0, "recommended": best["setting"]}
    tables.queries.keep("traced", TRACED, settings=list(chosen.values()))
    series = tables.thinned("traced", ("setting",), "time_us", {"write": "max(write)", "qps": "max(qps)"})
    traced = {name: series.get((number,), []) for name, number in chosen.items()}
    curves = [Line(name, points(series, "write"), color) for color, (name, series) in enumerate(traced.items())]
    load = points(traced["in force"], "qps")
    # The load in partitions needed at the threshold, so that load and partitions share one scale.
    needed = [(at_us, qps / best["upscale_rps"]) for at_us, qps in load]
    curves.append(Line(f"load / {shown(best['upscale_rps'])} per second", needed, 5, is_threshold=True))
    return [lines(curves, caption=f"{shown(place(busiest[0]))}: write partitions")]


def _values(row: Row) -> tuple[object, ...]:
    outcome = {name: row[name] for name in _OUTCOME}
    shown_values = outcome | {
        "late_share": f"{outcome['late_share'] or 0:.2%}",
        "above_s": length(outcome["above_s"]),
        "wait_s_max": length(outcome["wait_s_max"]),
    }
    return (*(row[name] for name in _SETTING), *shown_values.values())
