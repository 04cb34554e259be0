"""Comparison of all scenarios."""

import csv
import io
import json
from collections.abc import Sequence

import click

from fairlead.bench.result import BenchResult, as_plain
from fairlead.report import Cell, Output, Report, Table, counted, show

# The measures in which scenarios differ, with their headings.
COMPARED = {
    "latency_avg_ms": "avg ms",
    "latency_p50_ms": "p50",
    "latency_p99_ms": "p99",
    "latency_max_ms": "max",
    "sync_matches": "sync",
    "db_writes": "db",
    "task_forwards": "task fw",
    "poll_forwards": "poll fw",
    "partitions_max": "part",
}
CSV = "csv"


def show_comparison(results: Sequence[BenchResult], *, output: str) -> None:
    """Print all results: a table of the main measures, or all measures as CSV or JSON."""
    if output == CSV:
        click.echo(as_csv(results), nl=False)
    elif output == Output.JSON:
        click.echo(json.dumps({"subject": "scenarios", "scenarios": [as_plain(one) for one in results]}, indent=2))
    else:
        rows: list[tuple[Cell, ...]] = []
        for result in results:
            values = {measure.name: measure.value for measure in result.totals}
            rows.append((result.subject, *(values.get(name) for name in COMPARED)))
        table = Table(name="scenarios", title="Scenarios", columns=("scenario", *COMPARED.values()), rows=rows)
        lost = sum(result.lost for result in results)
        failed = sum(result.failed for result in results)
        summary = f"{counted(len(results), 'scenario')}, " + (f"{lost:,} TASKS LOST" if lost else "no task lost")
        summary += f", {counted(failed, 'request').upper()} FAILED" if failed else ""
        show(Report("scenarios", summary, parameters={}, tables=[table]), output=Output.TABLE, plot=None)


def as_csv(results: Sequence[BenchResult]) -> str:
    """Return one line per scenario with all its totals; missing measures are empty."""
    names = list(dict.fromkeys(measure.name for result in results for measure in result.totals))
    text = io.StringIO()
    writer = csv.DictWriter(text, ["scenario", *names], restval="", lineterminator="\n")
    writer.writeheader()
    for result in results:
        writer.writerow({"scenario": result.subject} | {measure.name: measure.value for measure in result.totals})
    return text.getvalue()
