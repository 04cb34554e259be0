"""`fairlead pipeline report`: one self-contained page that presents the tables of the lake."""

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import click

from fairlead.core.errors import FixRequest
from fairlead.pipeline.job import JobContext, Summary
from fairlead.pipeline.report.backtest import backtest
from fairlead.pipeline.report.clusters import clusters
from fairlead.pipeline.report.fairness import fairness
from fairlead.pipeline.report.journal import journal
from fairlead.pipeline.report.page import Section, page
from fairlead.pipeline.report.placement import placement
from fairlead.pipeline.report.tables import Tables, tables_of
from fairlead.pipeline.report.totals import actions, failures, waits
from fairlead.pipeline.report.traffic import traffic
from fairlead.pipeline.report.workflows import workflows

REPORT_FILE = "report.html"
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
    sections: list[Section] = []
    with tables_of(context.lake) as tables:
        for section in SECTIONS:
            context.progress(f"writing about {section.__name__}")
            sections.append(section(tables))
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    content = page(
        sections, title="Fairlead: what the journal shows", subtitle=f"{context.lake.root}, {made}. Times are UTC."
    ).encode()
    _write(file, content)
    found = [finding for section in sections for finding in section.findings]
    findings = {
        "report": str(file),
        "bytes": len(content),
        "alarms": [finding.sentence for finding in found if finding.is_alarm],
        "findings": [finding.sentence for finding in found if not finding.is_alarm],
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
