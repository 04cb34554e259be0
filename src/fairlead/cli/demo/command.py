"""The command `fairlead demo`: its parts, one after the other, then the pipeline on what they journaled."""

import asyncio
import os
import shutil
from pathlib import Path

import click

from fairlead.cli.demo.stage import Part, Stage
from fairlead.cli.report import new_console
from fairlead.core.errors import FixRequest

SECONDS = 30.0
SECONDS_MIN, SECONDS_MAX = 2.0, 3600.0
FOLDER = Path("fairlead-demo")
# By this file a folder is known as one that a demonstration made, and the next one may empty.
MARK = ".fairlead-demo"


class NotOurs(FixRequest):
    """The folder holds other things."""


def parts() -> tuple[Part, ...]:
    """What is shown on live servers, in this order; all journal to one folder, each cluster under its own name.

    A part that fails over between two clusters goes here, behind the first.
    """
    # gRPC says on standard error that a server has gone, which here is no news.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # Loads the SDK, which who asks for help need not wait for.
    from fairlead.cli.demo.failover import failover  # noqa: PLC0415
    from fairlead.cli.demo.tenants import tenants  # noqa: PLC0415

    return (
        Part("Four tenants share a task list, and one of them floods it", tenants),
        Part("Two clusters share a namespace, and one of them is killed", failover),
    )


@click.command()
@click.option(
    "--seconds",
    type=click.FloatRange(SECONDS_MIN, SECONDS_MAX),
    default=SECONDS,
    show_default=True,
    help="How long the workers work.",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=FOLDER,
    show_default=True,
    help="Where the journal, the tables and the report go; what an earlier demonstration left there is replaced.",
)
def demo(seconds: float, folder: Path) -> None:
    """Show the whole on this machine, in about two minutes.

    Starts a server, lets workers of Temporal's SDK work for several tenants, one of which floods the others. Then two
    clusters, with failovers between them, one because the active one is killed. Runs the data pipeline on what all of
    them journaled, and says where the report is. Nothing is left running.

    What the core decides, on made-up workloads: `fairlead simulate --help`.
    """
    console = new_console()
    _empty(folder)
    shown = parts()
    steps = len(shown) + 1
    for number, part in enumerate(shown, start=1):
        console.rule(f"[bold]{number} of {steps}[/bold] · {part.title}", align="left")
        asyncio.run(part.run(Stage(console, folder / "journal", seconds)))
        console.print()
    console.rule(f"[bold]{steps} of {steps}[/bold] · What the journal tells, on Spark", align="left")
    from fairlead.cli.demo.pipeline import analyze, is_installed  # noqa: PLC0415 - as above

    if not is_installed():
        console.print("The data pipeline needs PySpark: pip install 'fairlead[pipeline]'", markup=False)
        console.print(
            f"Then: fairlead pipeline all --journal {folder / 'journal'} --lake {folder / 'lake'}", markup=False
        )
        return
    analyze(console, folder)


def _empty(folder: Path) -> None:
    if folder.exists() and any(folder.iterdir()) and not (folder / MARK).exists():
        raise NotOurs(f"--folder {folder}: something else is in there: give an empty folder, or a new one")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / MARK).touch()
