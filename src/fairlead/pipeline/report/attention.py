"""The checks that come first on the page: each with its level, the worst places, and the period before."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fairlead.pipeline.queries import Row
from fairlead.pipeline.report.levels import Level, Threshold
from fairlead.pipeline.report.markup import Markup, cards, join, shown, tag
from fairlead.pipeline.report.page import Finding, Section
from fairlead.pipeline.report.periods import Period
from fairlead.pipeline.report.tables import Tables, length, moment, place
from fairlead.pipeline.stages.fairness import MISSED_MIN
from fairlead.report import counted

TITLE = "What needs a person first"
# Maximum places of a check that the page lists.
PLACES_SHOWN = 3
EXAMPLES_SHOWN = 3
# Minimum tasks of a window whose waits count, and minimum failures of a type: fewer say little.
TASKS_MIN = 10
FAILED_MIN = 3
_QUEUE = "cluster, namespace_id, task_list, task_type"


@dataclass(frozen=True, slots=True)
class Check:
    """One place with one check: `value` and `before` are in the unit of the threshold, seconds or a share."""

    name: str
    what: str
    level: Level
    place: str
    place_text: str
    value: float
    before: float | None
    detail: str = ""


def attention(tables: Tables, period: Period | None, limits: Mapping[str, Threshold]) -> Section:
    """Build the part of the page that comes first."""
    checks = [] if period is None else [each for check in CHECKS for each in check(tables, period, limits)]
    if not checks or period is None:
        return Section("attention", TITLE, (), (tag("p", "Nothing was recorded that could be judged.", class_="note"),))
    checks.sort(key=lambda one: -one.level)
    note = (
        f"In {period} (UTC). Amber and red begin at these thresholds; ",
        tag("code", "report --threshold"),
        " changes them.",
    )
    rows = [
        (
            _badge(one.level),
            one.what,
            join([one.place, tag("div", one.detail, class_="note")]),
            _value(one.name, one.value),
            "-" if one.before is None else _value(one.name, one.before),
            f"{_value(one.name, limits[one.name].amber)} / {_value(one.name, limits[one.name].red)}",
        )
        for one in checks
    ]
    headings = ("level", "check", "where", "now", "period before", "amber / red")
    body = (tag("p", _summary(checks), class_="verdict"), tag("p", *note, class_="note"), cards(headings, rows))
    return Section("attention", TITLE, [_finding(one) for one in checks if one.level > Level.GREEN], body)


def _waits(tables: Tables, period: Period, limits: Mapping[str, Threshold]) -> Iterator[Check]:
    is_journal = tables.have("traffic_lists")
    if not is_journal and not tables.have("waits"):
        return
    # The journal has all attempts; histories have the first one of each task.
    source, tasks = ("traffic_lists", "matched") if is_journal else ("waits", "tasks")
    rows = tables.queries.rows(
        f"""
        SELECT {_QUEUE}, max(wait_s_p99) FILTER ({period.now("window_us")}) AS value,
               max(wait_s_p99) FILTER ({period.before("window_us")}) AS before,
               arg_max(window_us, wait_s_p99) FILTER ({period.now("window_us")}) AS worst_us,
               count(*) FILTER ({period.now("window_us")} AND wait_s_p99 >= $amber) AS windows
        FROM {source} WHERE {tasks} >= $tasks_min AND task_list <> '__sticky__' GROUP BY ALL
        HAVING value IS NOT NULL ORDER BY value DESC, {_QUEUE} LIMIT $count
        """,  # noqa: S608 - our own names
        amber=limits["waits"].amber,
        tasks_min=TASKS_MIN,
        count=PLACES_SHOWN,
    )
    for row in _urgent(rows, limits["waits"]):
        windows = "" if not row["windows"] else f"; {row['windows']:,} windows above amber"
        yield _of_queue(
            "waits", "Wait of 99 % of the tasks, worst window", tables, row, limits,
            detail=f"from {moment(row['worst_us'])}{windows}",
        )  # fmt: skip


def _failures(tables: Tables, period: Period, limits: Mapping[str, Threshold]) -> Iterator[Check]:
    for name, kind, ended in (
        ("workflows", "workflow_type", "status NOT IN ('running', 'paused')"),
        ("activities", "activity_type", "outcome NOT IN ('open', 'abandoned')"),
    ):
        if not tables.have(name):
            continue
        failed = "status IN ('failed', 'timed_out')" if name == "workflows" else "outcome IN ('failed', 'timed_out')"
        now, before = period.now("closed_us"), period.before("closed_us")
        rows = tables.queries.rows(
            f"""
            SELECT cluster, namespace_id, {kind} AS type,
                   count(*) FILTER ({now}) AS closed, count(*) FILTER ({now} AND {failed}) AS failed,
                   CASE WHEN failed >= {FAILED_MIN} THEN failed / closed ELSE 0.0 END AS value,
                   count(*) FILTER ({before} AND {failed}) / nullif(count(*) FILTER ({before}), 0) AS before,
                   (list(DISTINCT workflow_id ORDER BY workflow_id) FILTER ({now} AND {failed}))[:{EXAMPLES_SHOWN}]
                       AS examples
            FROM {name} WHERE {ended} GROUP BY ALL HAVING closed > 0
            ORDER BY value DESC, failed DESC, cluster, namespace_id, type LIMIT $count
            """,  # noqa: S608 - our own names
            count=PLACES_SHOWN,
        )
        for row in _urgent(rows, limits["failures"]):
            examples = [tables.console.workflow(row["namespace_id"], one) for one in row["examples"] or ()]
            where = f"{shown(row['type'])} of {shown(row['namespace_id'])} ({row['cluster']})"
            yield Check(
                "failures",
                "Failed workflows" if name == "workflows" else "Failed activities",
                limits["failures"].level(row["value"]),
                join([where, *([": ", *_separated(examples)] if examples else [])]),
                where,
                row["value"],
                row["before"],
                f"{row['failed']:,} of {row['closed']:,} that ended",
            )


def _starvation(tables: Tables, period: Period, limits: Mapping[str, Threshold]) -> Iterator[Check]:
    if not tables.have("fairness_keys"):
        return
    now, before = period.now("window_us"), period.before("window_us")
    missed = "sum(fair - dispatched) FILTER ({} AND is_starved)"
    rows = tables.queries.rows(
        f"""
        SELECT {_QUEUE}, coalesce({missed.format(now)}, 0.0) AS missed,
               CASE WHEN missed >= {MISSED_MIN} THEN missed / greatest(1, sum(dispatched) FILTER ({now})) ELSE 0.0 END
                   AS value,
               coalesce({missed.format(before)}, 0.0) / nullif(sum(dispatched) FILTER ({before}), 0) AS before,
               (list(DISTINCT fairness_key ORDER BY fairness_key) FILTER ({now} AND is_starved))[:{EXAMPLES_SHOWN}]
                   AS keys
        FROM fairness_keys GROUP BY ALL HAVING count(*) FILTER ({now}) > 0
        ORDER BY value DESC, {_QUEUE} LIMIT $count
        """,  # noqa: S608 - our own names
        count=PLACES_SHOWN,
    )
    for row in _urgent(rows, limits["starvation"]):
        named = ", ".join(shown(name or "(no key)") for name in row["keys"] or ())
        detail = f"{row['missed']:,.0f} tasks, by starved keys such as {named}" if named else "no key starved"
        yield _of_queue("starvation", "Tasks that starved keys missed", tables, row, limits, detail=detail)


def _backlog(tables: Tables, period: Period, limits: Mapping[str, Threshold]) -> Iterator[Check]:
    if not tables.have("traffic_lists"):
        return
    now, before = period.now("window_us"), period.before("window_us")
    rows = tables.queries.rows(
        f"""
        SELECT {_QUEUE}, max(backlog_age_s_max) FILTER ({now}) AS value,
               max(backlog_age_s_max) FILTER ({before}) AS before,
               arg_max(window_us, backlog_age_s_max) FILTER ({now}) AS worst_us,
               max(backlog_max) FILTER ({now}) AS tasks
        FROM traffic_lists WHERE task_list <> '__sticky__' GROUP BY ALL
        HAVING value IS NOT NULL ORDER BY value DESC, {_QUEUE} LIMIT $count
        """,  # noqa: S608 - our own names
        count=PLACES_SHOWN,
    )
    for row in _urgent(rows, limits["backlog"]):
        tasks = "" if row["tasks"] is None else f"; at most {row['tasks']:,} tasks waited"
        yield _of_queue(
            "backlog", "Age of the oldest waiting task", tables, row, limits,
            detail=f"from {moment(row['worst_us'])}{tasks}",
        )  # fmt: skip


def _journal(tables: Tables, period: Period, limits: Mapping[str, Threshold]) -> Iterator[Check]:
    age_s = max(0.0, (tables.made_us - period.end_us) / 1e6)
    where = "the newest data of the lake"
    detail = f"from {moment(period.end_us)}"
    yield Check("journal", "Age of the data", limits["journal"].level(age_s), where, where, age_s, None, detail)


def _replication(tables: Tables, _period: Period, limits: Mapping[str, Threshold]) -> Iterator[Check]:
    if not tables.have("verdicts"):
        return
    # A table of the last reconciliation: it has no earlier period.
    row = tables.queries.one("SELECT count(*) AS runs, count_if(verdict = 'late') AS late FROM verdicts")
    if not row["runs"]:
        return
    share = row["late"] / row["runs"]
    where = "all clusters"
    detail = f"{row['late']:,} of {row['runs']:,} runs lack events that may still arrive"
    level = limits["replication"].level(share)
    yield Check("replication", "Runs that are late in a cluster", level, where, where, share, None, detail)


def _wrong(tables: Tables, _period: Period, limits: Mapping[str, Threshold]) -> Iterator[Check]:
    if not tables.have("verdicts"):
        return
    row = tables.queries.one("SELECT count(*) AS runs, count_if(verdict = 'wrong') AS wrong FROM verdicts")
    if not row["runs"]:
        return
    level = limits["wrong"].level(row["wrong"])
    where, detail = "all clusters", f"of {counted(row['runs'], 'run')}"
    yield Check("wrong", "Runs that are wrong in a cluster", level, where, where, row["wrong"], None, detail)


def _quarantine(tables: Tables, _period: Period, limits: Mapping[str, Threshold]) -> Iterator[Check]:
    lake = tables.lake
    if not lake.has("task") and not lake.has("history"):
        return
    segments = lake.unresolved()
    level, where = limits["quarantine"].level(len(segments)), "the journal"
    detail = ", ".join(f"{one.entry.cluster}/{one.entry.name}" for one in segments[:1])
    yield Check("quarantine", "Segments that can't be read", level, where, where, len(segments), None, detail)


CHECKS: tuple[Callable[[Tables, Period, Mapping[str, Threshold]], Iterator[Check]], ...] = (
    _waits, _failures, _starvation, _backlog, _replication, _wrong, _quarantine, _journal
)  # fmt: skip


def _of_queue(name: str, what: str, tables: Tables, row: Row, limits: Mapping[str, Threshold], *, detail: str) -> Check:
    where = place(row)
    level = limits[name].level(row["value"])
    return Check(name, what, level, tables.console.task_queue(row, where), where, row["value"], row["before"], detail)


def _urgent(rows: Sequence[Row], limit: Threshold) -> Sequence[Row]:
    """Return the rows, the worst first, that reach amber; if none does, the worst."""
    return [row for row in rows if limit.level(row["value"]) > Level.GREEN] or rows[:1]


def _summary(checks: Sequence[Check]) -> str:
    counts = {level: sum(one.level is level for one in checks) for level in (Level.RED, Level.AMBER)}
    found = [f"{count} {level.name.lower()}" for level, count in counts.items() if count]
    return f"Needs attention: {', '.join(found)}." if found else "All checks are green: nothing needs a person."


def _finding(one: Check) -> Finding:
    before = "" if one.before is None else f", {_value(one.name, one.before)} in the period before"
    sentence = f"{one.what}: {_value(one.name, one.value)} in {shown(one.place_text)}{before}."
    return Finding(sentence, one.level)


def _badge(level: Level) -> Markup:
    word = level.name.lower()
    return tag("span", word, class_=f"level {word}")


def _value(name: str, value: float) -> str:
    if name in {"wrong", "quarantine"}:
        return f"{value:,.0f}"
    return f"{value:.1%}" if name in {"failures", "starvation", "replication"} else length(value)


def _separated(links: Sequence[str]) -> list[str]:
    return [piece for link in links for piece in (", ", link)][1:]
