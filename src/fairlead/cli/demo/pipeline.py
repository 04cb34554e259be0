"""The last part: the pipeline on the journal, with windows as short as the demonstration."""

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from fairlead.cli.demo.tenants import SETTINGS
from fairlead.report import Output

WINDOW_S = 1.0
# Candidate values for the backtest, around the values with which the server was started.
CHOICES: dict[str, tuple[float, ...]] = {
    "upscale_rps": (20.0, 40.0, 80.0),
    "upscale_sustained_s": (2.0, 5.0),
    "downscale_sustained_s": (3.0, 10.0),
    "downscale_factor": (0.5, 0.75),
    "interval_s": (1.0,),
}


def is_installed() -> bool:
    """Whether Spark is installed."""
    return importlib.util.find_spec("pyspark") is not None


def analyze(console: Console, folder: Path) -> None:
    """Run all jobs, and print their findings and the report's path."""
    # These modules import Spark.
    from fairlead.cli.pipeline.command import jobs_with_options  # noqa: PLC0415
    from fairlead.cli.pipeline.runner import Request, perform  # noqa: PLC0415
    from fairlead.pipeline.jobs.report import REPORT_FILE  # noqa: PLC0415

    settings = folder / "settings.yaml"
    settings.write_text(yaml.safe_dump({key: [{"value": value}] for key, value in SETTINGS.items()}))
    report = folder / "report.html"
    given: dict[str, Any] = {"window_s": WINDOW_S, "settings_file": settings, "report": report} | CHOICES
    jobs, options = jobs_with_options(given)
    request = Request(
        lake=folder / "lake",
        journal=folder / "journal",
        master=None,
        since_us=None,
        until_us=None,
        namespace=None,
        output=Output.TABLE,
    )
    summaries = {summary.job: summary for summary in perform(jobs, options, request)}
    rows = {table: count for summary in summaries.values() for table, count in summary.rows.items()}
    console.print(
        f"{rows['task']:,} records of tasks and {rows['history']:,} batches of events became {len(rows)} tables:"
    )
    found = summaries["report"].findings
    for sentence in [*found["alarms"], *found["warnings"]]:
        console.print(f"  ! {sentence}", highlight=False, markup=False)
    for sentence in found["findings"]:
        console.print(f"  - {sentence}", highlight=False, markup=False)
    # Copy the report into the lake: the console shows it from there.
    shutil.copyfile(report, folder / "lake" / REPORT_FILE)
    console.print(f"\nThe report: {report}", highlight=False, markup=False, soft_wrap=True)
    console.print(
        "`fairlead pipeline worker --schedule 1h` runs these jobs every hour, as a workflow on a server.",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
