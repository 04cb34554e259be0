"""`fairlead pipeline report`: one self-contained page that presents the tables of the lake."""

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import click

from fairlead.core.errors import FixRequest
from fairlead.pipeline.job import JobContext, Summary
from fairlead.pipeline.report.attention import attention
from fairlead.pipeline.report.backtest import backtest
from fairlead.pipeline.report.clusters import clusters
from fairlead.pipeline.report.comparison import comparison
from fairlead.pipeline.report.fairness import fairness
from fairlead.pipeline.report.journal import journal
from fairlead.pipeline.report.levels import THRESHOLDS, Level, thresholds_of
from fairlead.pipeline.report.links import Console
from fairlead.pipeline.report.page import Section, page
from fairlead.pipeline.report.periods import period_of
from fairlead.pipeline.report.placement import placement
from fairlead.pipeline.report.tables import Tables, tables_of
from fairlead.pipeline.report.totals import actions, failures, waits
from fairlead.pipeline.report.traffic import traffic
from fairlead.pipeline.report.workflows import workflows

REPORT_FILE = "report.html"
# Maximum hours of the period that is judged: a year.
PERIOD_HOURS_MAX = 8_784.0
SECTIONS: tuple[Callable[[Tables], Section], ...] = (
    traffic, fairness, backtest, placement, clusters, workflows, waits, failures, actions, journal
)  # fmt: skip

OPTIONS = [
    click.option(
        "--report",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help=f"File for the page. [default: {REPORT_FILE} in the lake]",
    ),
    click.option(
        "--console",
        metavar="URL",
        help="Link task queues and workflows to this console, like http://127.0.0.1:8233/console.",
    ),
    click.option(
        "--period",
        type=click.FloatRange(1.0, PERIOD_HOURS_MAX),
        metavar="HOURS",
        help="Judge the last hours of the data, and compare them with as many before. [default: the longest of a week, "
        "a day and an hour that fits twice into the data, else half of it]",
    ),
    click.option(
        "--threshold",
        multiple=True,
        metavar="CHECK=AMBER,RED",
        help="Values from which on a check is amber and red, in seconds or as a share of one; may be repeated. "
        f"[default: {' '.join(f'{name}={limit.amber:g},{limit.red:g}' for name, limit in THRESHOLDS.items())}]",
    ),
]


class NoPlaceForReport(FixRequest):
    """The page can't be written to the given path."""


def run(context: JobContext) -> Summary:
    """Write the page from the tables that exist."""
    file = Path(context.options.get("report") or context.lake.root / REPORT_FILE)
    if not context.lake.root.is_dir():
        raise NoPlaceForReport(
            f"{context.lake.root}: there is no lake in this folder: run `fairlead pipeline ingest` first"
        )
    if not file.parent.is_dir() or file.is_dir():
        raise NoPlaceForReport(f"--report {file}: give a file in an existing folder")
    console = Console.at(context.options.get("console"))
    limits = thresholds_of(context.options.get("threshold") or ())
    hours = context.options.get("period")
    sections: list[Section] = []
    now = datetime.now(UTC)
    with tables_of(context.lake, console, made_us=round(now.timestamp() * 1e6)) as tables:
        context.progress("judging the last period")
        period = period_of(tables, hours and hours * 3600.0)
        first = attention(tables, period, limits)
        lead = Section(first.name, first.title, first.findings, (*first.body, *comparison(tables, period)))
        for section in SECTIONS:
            context.progress(f"writing about {section.__name__}")
            sections.append(section(tables))
    made = now.strftime("%Y-%m-%d %H:%M UTC")
    content = page(
        sections,
        title="Fairlead: what the journal shows",
        subtitle=f"{context.lake.root}, {made}. Times are UTC.",
        lead=lead,
    ).encode()
    _write(file, content)
    found = [finding for section in (lead, *sections) for finding in section.findings]
    findings = {
        "report": str(file),
        "bytes": len(content),
        "alarms": [finding.sentence for finding in found if finding.level is Level.RED],
        "warnings": [finding.sentence for finding in found if finding.level is Level.AMBER],
        "findings": [finding.sentence for finding in found if finding.level < Level.AMBER],
    }
    return Summary("report", {}, findings)


def _write(file: Path, content: bytes) -> None:
    """Write the page atomically."""
    draft = file.with_name(f".{file.name}.{os.urandom(4).hex()}")
    try:
        with draft.open("wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
