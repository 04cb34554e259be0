"""The section on traffic: rates of the busiest task queues, and the load at which partitions are added."""

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from fairlead.pipeline.report.charts import Line, lines
from fairlead.pipeline.report.markup import Markup, shown, tag
from fairlead.pipeline.report.page import Finding, Section, missing
from fairlead.pipeline.report.tables import Tables, among, first_rows, length, moment, one_row, place, points, thinned
from fairlead.pipeline.stages.traffic import TASK_QUEUE
from fairlead.settings.dynamic import matching

TITLE = "Traffic"
LISTS_SHOWN = 4
# Maximum ratio of a plotted threshold to the peak load: a higher threshold would flatten the curve, and is only given
# in the text.
THRESHOLD_SHOWN_MAX = 4.0


def traffic(tables: Tables) -> Section:
    """Build the section: rates against thresholds, and waits."""
    if not tables.have("traffic_lists"):
        return missing("traffic", TITLE, job="traffic")
    lists = tables.read("traffic_lists")
    threshold_rps = _threshold(tables)
    busiest = first_rows(
        lists.groupBy(*TASK_QUEUE).agg(F.sum("added").alias("added")), LISTS_SHOWN, F.desc("added"), *TASK_QUEUE
    )
    series = thinned(
        lists.where(among(busiest, TASK_QUEUE)),
        TASK_QUEUE,
        "window_us",
        added=F.max("write_qps"),
        dispatched=F.max("dispatch_qps"),
        partitions=F.max("partitions"),
        p50=F.max("wait_s_p50"),
        p99=F.max("wait_s_p99"),
    )
    plots = [plot for row in busiest for plot in _plots(row, series[tuple(row)[:-1]], threshold_rps)]
    note = (
        f"The {len(busiest)} task queues with the most new tasks. Curves show the highest value of each time step. "
        f"Partitions are added above {shown(threshold_rps)} new tasks per second and partition."
    )
    return Section(
        "traffic", TITLE, _findings(lists), (tag("p", note, class_="note"), tag("div", *plots, class_="plots"))
    )


def _findings(lists: DataFrame) -> list[Finding]:
    total = one_row(
        lists.agg(
            F.countDistinct(*TASK_QUEUE).alias("lists"),
            F.coalesce(F.sum("added"), F.lit(0)).alias("added"),
            F.try_divide(F.sum("matched_at_once"), F.sum("matched")).alias("at_once"),
        )
    )
    if not total["lists"]:
        return [Finding("No task was recorded.")]
    at_once = "" if total["at_once"] is None else f", and {total['at_once']:.1%} of those dispatched did not wait"
    found = [Finding(f"{total['added']:,} tasks were added to {total['lists']:,} task queues{at_once}.")]
    slowest = (
        lists.where(F.col("wait_s_p99").isNotNull()).orderBy(F.desc("wait_s_p99"), *TASK_QUEUE, "window_us").head()
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
        row = tables.read("backtest_settings").where("setting = 0").head()
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
