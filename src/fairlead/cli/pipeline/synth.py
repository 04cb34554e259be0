"""`fairlead pipeline synth`: writes synthetic journals to try the pipeline on, without Spark or a server."""

import importlib.util
import json
from collections import Counter
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from fairlead.core.errors import FixRequest
from fairlead.report import Output, Report, Table, new_console, show

SCALE_MIN, SCALE_MAX = 0.1, 10_000.0


class NoNumpy(FixRequest):
    """numpy, which generates the traffic, is not installed."""


@click.command()
@click.option(
    "--journal",
    type=click.Path(path_type=Path),
    required=True,
    metavar="DIR",
    help="A new or empty folder to write to.",
)
@click.option(
    "--scale",
    type=click.FloatRange(SCALE_MIN, SCALE_MAX),
    default=1.0,
    show_default=True,
    help="Size: 1 is a day with 300,000 task records and 1,000 workflow runs.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**31),
    default=0,
    show_default=True,
    help="Seed; the same seed gives the same bytes.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice([shape.value for shape in Output]),
    default=Output.TABLE.value,
    show_default=True,
    help="Tables for people, or JSON for programs.",
)
def synth(journal: Path, scale: float, seed: int, output: str) -> None:
    """Write synthetic journals of three clusters, and a manifest of their defects.

    They have traffic by day and by night, with bursts, tenants of all sizes and floods; workflows that fail over,
    diverge and converge again; planted defects in the histories, and unreadable segments. The command does not need
    Spark.

    \b
    fairlead pipeline synth --journal journal/
    fairlead pipeline all --journal journal/ --lake lake/
    """
    if importlib.util.find_spec("numpy") is None:
        raise NoNumpy("synth needs numpy: pip install numpy, or all of 'fairlead[pipeline]'")
    # Imports numpy; late, so that --help is fast.
    from fairlead.pipeline.synth.journals import MANIFEST_FILE, work_of, write_journals  # noqa: PLC0415

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        row = bar.add_task("beginning", total=work_of(scale))
        manifest = write_journals(
            journal,
            scale=scale,
            seed=seed,
            notify=lambda subject, made: bar.update(row, description=subject, advance=made),
        )
    defects = Counter(planted.defect for planted in manifest.histories.planted)
    file = journal / MANIFEST_FILE
    if output == Output.JSON:
        plain = {
            "journal": str(journal),
            "manifest": str(file),
            "task_records": manifest.task_records,
            "runs": manifest.histories.runs,
            "history_records": manifest.histories.records,
            "defects": dict(sorted(defects.items())),
            "floods": len(manifest.floods),
            "damaged_segments": len(manifest.damaged),
        }
        new_console().out(json.dumps(plain, indent=2), highlight=False)
        return
    planted = Table(
        "planted", "Planted in the histories", ["defect", "runs"], [[*each] for each in sorted(defects.items())]
    )
    summary = (
        f"{manifest.task_records:,} records of tasks and {manifest.histories.runs:,} runs of "
        f"{len(manifest.clusters)} clusters in {journal}; {file} lists their defects"
    )
    parameters = {"floods": len(manifest.floods), "damaged_segments": len(manifest.damaged), "seed": seed}
    show(Report("synth", summary, parameters, [planted]), output=Output.TABLE, plot=None)
