"""The section on clusters: whether they hold the same histories, how they differ, and which runs are wrong."""

from fairlead.pipeline.queries import Row
from fairlead.pipeline.report.charts import bars, heat, plots_of
from fairlead.pipeline.report.levels import Level
from fairlead.pipeline.report.markup import Markup, shown, table, tag
from fairlead.pipeline.report.page import Finding, Section, missing
from fairlead.pipeline.report.tables import Tables

TITLE = "Clusters"
CLUSTERS_SHOWN = 8
KINDS_SHOWN = 30
RUNS_SHOWN = 25
KINDS_IN_WORDS = 4
DRAWING_MAX = 2_000
KINDS = """
    SELECT kind, count(*) AS count
    FROM (SELECT unnest(kinds) AS kind FROM verdicts WHERE verdict = 'wrong')
    GROUP BY kind ORDER BY count(*) DESC, kind LIMIT $count
"""
PAIRS = """
    SELECT "left", "right",
           sum(events_only_left) AS events_only_left,
           sum(events_only_right) AS events_only_right,
           sum(events_different) AS events_different
    FROM pairs GROUP BY ALL ORDER BY "left", "right" LIMIT $count
"""


def clusters(tables: Tables) -> Section:
    """Build the section: differences of each pair of clusters, kinds of findings, and the wrong runs."""
    if not tables.have("verdicts", "pairs", "repair_plan"):
        return missing("clusters", TITLE, job="reconcile")
    found = tables.queries.rows("SELECT verdict, count(*) AS runs FROM verdicts GROUP BY verdict")
    counts = {row["verdict"]: row["runs"] for row in found}
    kinds = tables.queries.rows(KINDS, count=KINDS_SHOWN)
    wrong = tables.queries.rows(
        "FROM verdicts WHERE verdict = 'wrong' ORDER BY namespace_id, workflow_id, run_id LIMIT $count",
        count=RUNS_SHOWN,
    )
    sends = tables.queries.one("SELECT count(*) AS sends FROM repair_plan")["sends"]
    body: list[Markup] = []
    plots = [plot for plot in (*_divergence(tables), *_kind_bars(kinds)) if plot]
    if plots:
        note = f"The first {CLUSTERS_SHOWN} clusters by name. Darker is more; an empty cell has no differences."
        body += [tag("p", note, class_="note"), *plots_of(plots)]
    if wrong:
        body.append(tag("h3", f"Runs that are wrong: {len(wrong):,} of {counts['wrong']:,}, by namespace and name"))
        body.append(_runs(tables, wrong))
        body.append(tag("p", "All are in the table ", tag("code", "verdicts"), " of the lake.", class_="note"))
    if not body:
        body.append(tag("p", "No two clusters differ.", class_="note"))
    return Section("clusters", TITLE, _findings(counts, kinds, sends), tuple(body))


def _findings(counts: dict[str, int], kinds: list[Row], sends: int) -> list[Finding]:
    runs = sum(counts.values())
    if not runs:
        return [Finding("No history was recorded.")]
    wrong, late, unknown = (counts.get(verdict, 0) for verdict in ("wrong", "late", "not_comparable"))
    found = []
    if wrong:
        most = ", ".join(f"{row['kind'].replace('_', ' ')} ({row['count']:,})" for row in kinds[:KINDS_IN_WORDS])
        repair = f"; the repair plan has {sends:,} sends" if sends else ""
        found.append(Finding(f"{wrong:,} of {runs:,} runs are wrong: mostly {most}{repair}.", level=Level.RED))
    elif not unknown:
        found.append(
            Finding(f"All {runs:,} runs agree: no event is missing, different or duplicated.", level=Level.GREEN)
        )
    if unknown:
        found.append(Finding(f"{unknown:,} of {runs:,} runs can't be compared: they were journaled without digests."))
    if late:
        found.append(Finding(f"{late:,} runs differ only in events that may still arrive."))
    return found


def _kind_bars(kinds: list[Row]) -> list[Markup]:
    if not kinds:
        return []
    rows = [(row["kind"].replace("_", " "), [("runs", float(row["count"]))]) for row in kinds]
    return [bars(rows, caption="Wrong runs by finding", parts=["runs"])]


def _divergence(tables: Tables) -> list[Markup]:
    """Plot, for each pair of clusters, how many events only one of them has, and how many differ."""
    rows = tables.queries.rows(PAIRS, count=CLUSTERS_SHOWN**2)
    names = sorted({name for row in rows for name in (row["left"], row["right"])})[:CLUSTERS_SHOWN]
    if len(names) < 2:
        return []
    only: dict[tuple[str, str], int] = {}
    different: dict[tuple[str, str], int] = {}
    for row in rows:
        left, right = row["left"], row["right"]
        only[left, right], only[right, left] = row["events_only_left"], row["events_only_right"]
        different[left, right] = different[right, left] = row["events_different"]
    return [
        _matrix(
            names, only, caption="Events that the row's cluster has and the column's cluster lacks", of="only here"
        ),
        _matrix(names, different, caption="Events that are different in two clusters", of="different"),
    ]


def _matrix(names: list[str], counts: dict[tuple[str, str], int], *, caption: str, of: str) -> Markup:
    most = max(counts.values(), default=0)
    if not most:
        return Markup()
    cells = [
        [
            (
                counts.get((row, column), 0) / most,
                f"{counts[row, column]:,}" if counts.get((row, column)) else "",
                f"{shown(row)} against {shown(column)}: {counts.get((row, column), 0):,} events {of}",
            )
            for column in names
        ]
        for row in names
    ]
    return heat(names, names, cells, caption=caption)


def _runs(tables: Tables, rows: list[Row]) -> Markup:
    return table(
        ("workflow", "namespace", "run", "findings", "disagreeing clusters", "branches"),
        (
            (
                tables.console.workflow(row["namespace_id"], row["workflow_id"], row["run_id"]),
                row["namespace_id"],
                row["run_id"],
                ", ".join(sorted({_described(finding) for finding in row["findings"]}))[:DRAWING_MAX],
                ", ".join(row["disagreeing"] or ()) or "-",
                tag("pre", (row["drawing"] or "")[:DRAWING_MAX]),
            )
            for row in rows
        ),
    )


def _described(finding: Row) -> str:
    kind = finding["kind"].replace("_", " ")
    return f"{kind} in {finding['cluster']}" if finding["cluster"] else str(kind)
