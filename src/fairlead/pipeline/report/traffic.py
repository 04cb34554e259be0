"""The section on traffic: rates of the busiest task queues, and the load at which partitions are added."""

from fairlead.pipeline.queries import Row
from fairlead.pipeline.report.charts import Line, lines, plots_of
from fairlead.pipeline.report.markup import Markup, shown, tag
from fairlead.pipeline.report.page import Finding, Section, missing
from fairlead.pipeline.report.tables import Tables, key, length, moment, place, points
from fairlead.pipeline.stages.traffic import TASK_QUEUE
from fairlead.settings.dynamic import matching

TITLE = "Traffic"
LISTS_SHOWN = 4
# Maximum ratio of a plotted threshold to the peak load: a higher threshold would flatten the curve, and is only given
# in the text.
THRESHOLD_SHOWN_MAX = 4.0
BUSIEST = """
    SELECT cluster, namespace_id, task_list, task_type, sum(added) AS added FROM traffic_lists
    GROUP BY cluster, namespace_id, task_list, task_type
    ORDER BY task_list = '__sticky__', sum(added) DESC, cluster, namespace_id, task_list, task_type LIMIT $count
"""
MEASURES = {
    "added": "max(write_qps)",
    "dispatched": "max(dispatch_qps)",
    "partitions": "max(partitions)",
    "p50": "max(wait_s_p50)",
    "p99": "max(wait_s_p99)",
}


def traffic(tables: Tables) -> Section:
    """Build the section: rates against thresholds, and waits."""
    if not tables.have("traffic_lists"):
        return missing("traffic", TITLE, job="traffic")
    threshold_rps = _threshold(tables)
    busiest = tables.queries.keep("busiest", BUSIEST, count=LISTS_SHOWN)
    tables.queries.keep(
        "busiest_windows",
        "FROM traffic_lists SEMI JOIN busiest USING (cluster, namespace_id, task_list, task_type)",
    )
    series = tables.thinned("busiest_windows", TASK_QUEUE, "window_us", MEASURES)
    plots = [plot for row in busiest for plot in _plots(row, series[key(row, TASK_QUEUE)], threshold_rps)]
    note = (
        f"The {LISTS_SHOWN} task queues with the most new tasks. Curves show the highest value of each time step. "
        f"Partitions are added above {shown(threshold_rps)} new tasks per second and partition."
    )
    return Section("traffic", TITLE, _findings(tables), (tag("p", note, class_="note"), *plots_of(plots)))


def _findings(tables: Tables) -> list[Finding]:
    total = tables.queries.one(
        """
        SELECT count(DISTINCT (cluster, namespace_id, task_list, task_type)) AS lists,
               coalesce(sum(added), 0) AS added,
               sum(matched_at_once) / nullif(sum(matched), 0) AS at_once
        FROM traffic_lists
        """
    )
    if not total["lists"]:
        return [Finding("No task was recorded.")]
    at_once = "" if total["at_once"] is None else f", and {total['at_once']:.1%} of those dispatched did not wait"
    found = [Finding(f"{total['added']:,} tasks were added to {total['lists']:,} task queues{at_once}.")]
    slowest = tables.queries.first(
        """
        FROM traffic_lists WHERE wait_s_p99 IS NOT NULL AND task_list <> '__sticky__'
        ORDER BY wait_s_p99 DESC, cluster, namespace_id, task_list, task_type, window_us LIMIT 1
        """
    )
    if slowest is not None:
        found.append(
            Finding(
                f"The longest waits were in {shown(place(slowest))} at {moment(slowest['window_us'])}: "
                f"1 % of its tasks waited {length(slowest['wait_s_p99'])} or more."
            )
        )
    return found


def _threshold(tables: Tables) -> float:
    """Return the upscale threshold in force according to the backtest; without a backtest, the default."""
    if tables.have("backtest_settings"):
        row = tables.queries.first("FROM backtest_settings WHERE setting = 0 LIMIT 1")
        if row is not None:
            return float(row["upscale_rps"])
    return float(matching.PARTITION_UPSCALE_RPS.default)


def _plots(row: Row, series: list[Row], threshold_rps: float) -> list[Markup]:
    rates = [Line("added", points(series, "added"), 0), Line("dispatched", points(series, "dispatched"), 2)]
    threshold = [(at_us, partitions * threshold_rps) for at_us, partitions in points(series, "partitions")]
    peak = max((value for _, value in rates[0].points), default=0.0)
    if threshold and min(value for _, value in threshold) <= THRESHOLD_SHOWN_MAX * peak:
        rates.append(Line("partitions are added above", threshold, 1, is_threshold=True))
    waits = [Line("half of the tasks", points(series, "p50"), 0), Line("99 % of them", points(series, "p99"), 1)]
    name = shown(place(row))
    return [
        lines(rates, caption=f"{name}: tasks per second"),
        lines(waits, caption=f"{name}: maximum wait of tasks, in seconds"),
    ]
