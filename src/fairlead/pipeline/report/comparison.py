"""The period and the one before it, side by side."""

from dataclasses import dataclass

from fairlead.pipeline.report.markup import Markup, shown, table, tag
from fairlead.pipeline.report.periods import Period
from fairlead.pipeline.report.tables import Tables, length

TITLE = "Compared with the period before"
# Smallest change of a share that is shown: a twentieth of a percentage point.
SHARE_MIN = 0.0005


@dataclass(frozen=True, slots=True)
class _Measure:
    """A measure of a table: an aggregate over the rows whose `time` is in a period."""

    text: str
    table: str
    time: str
    aggregate: str
    kind: str = "count"


_FAILED = "count_if(status IN ('failed', 'timed_out'))"
_MEASURES = (
    _Measure("tasks added", "traffic_lists", "window_us", "sum(added)"),
    _Measure("tasks dispatched", "traffic_lists", "window_us", "sum(matched)"),
    _Measure(
        "dispatched without a wait", "traffic_lists", "window_us",
        "sum(matched_at_once) / nullif(sum(matched), 0)", "share",
    ),
    _Measure(
        "wait of 99 % of the tasks, median window", "traffic_lists", "window_us",
        "median(wait_s_p99) FILTER (task_list <> '__sticky__')", "time",
    ),
    _Measure(
        "wait of 99 % of the tasks, worst window", "traffic_lists", "window_us",
        "max(wait_s_p99) FILTER (task_list <> '__sticky__')", "time",
    ),
    _Measure("tasks that starved keys missed", "fairness", "window_us", "sum(starved_tasks)"),
    _Measure("runs started", "workflows", "started_us", "count(*)"),
    _Measure("runs closed", "workflows", "closed_us", "count(*)"),
    _Measure("of these failed or timed out", "workflows", "closed_us", f"{_FAILED} / nullif(count(*), 0)", "share"),
    _Measure("activities scheduled", "activities", "scheduled_us", "count(*)"),
    _Measure("retries of activities", "activities", "started_us", "sum(retries)"),
)  # fmt: skip


def comparison(tables: Tables, period: Period | None) -> list[Markup]:
    """Return the table of the measures that have a value, or nothing without a period before."""
    if period is None:
        return []
    rows: list[tuple[object, ...]] = []
    for one in _MEASURES:
        if not tables.have(one.table):
            continue
        sums = (
            f"(SELECT {one.aggregate} FROM {one.table} WHERE {condition(one.time)})"  # noqa: S608 - our own names
            for condition in (period.before, period.now)
        )
        found = tables.queries.one(f"SELECT {' AS before, '.join(sums)} AS now")
        before, now = found["before"], found["now"]
        if not before and not now:
            continue
        rows.append((one.text, _shown(one.kind, before), _shown(one.kind, now), _change(one.kind, before, now)))
    if not rows:
        return []
    headings = ("measure", "period before", "this period", "change")
    return [tag("h2", TITLE, id="comparison"), table(headings, rows)]


def _shown(kind: str, value: float | None) -> Markup:
    text = "-" if value is None else f"{value:.1%}" if kind == "share" else length(value) if kind == "time" else ""
    return tag("span", text or shown(round(value or 0)), class_="number")


def _change(kind: str, before: float | None, now: float | None) -> str:
    if before is None or now is None:
        return "-"
    if kind == "share":
        return "unchanged" if abs(now - before) < SHARE_MIN else f"{100 * (now - before):+.1f} points"
    if now == before:
        return "unchanged"
    if not before:
        return "new"
    return f"{now / before - 1:+.0%}"
