"""The command `fairlead demo`: its parts in order, then the pipeline on their journal."""

import asyncio
import os
import shutil
from contextlib import suppress
from pathlib import Path

import click

from fairlead.cli.demo.stage import Part, Stage
from fairlead.core.errors import FixRequest
from fairlead.report import new_console

SECONDS = 30.0
SECONDS_MIN, SECONDS_MAX = 2.0, 3600.0
FOLDER = Path("fairlead-demo")
# Marks a folder that a demonstration made, and that the next one may empty.
MARK = ".fairlead-demo"
STORE_FILE = "demo.db"


class NotOurs(FixRequest):
    """The folder holds other files."""


def parts() -> tuple[Part, ...]:
    """Return the parts that need running servers, in order. All use one journal, with a folder for each cluster."""
    # Suppress gRPC's messages about lost servers, which are expected here.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # These modules import the SDK; imported late, so that --help is fast.
    from fairlead.cli.demo.failover import failover  # noqa: PLC0415
    from fairlead.cli.demo.tenants import tenants  # noqa: PLC0415

    return (
        Part("Four tenants share a task queue, and one of them floods it", tenants),
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
    help="Folder for the journal, the tables and the report; the files of an earlier demonstration are replaced.",
)
@click.option("--stay", is_flag=True, help="Leave the first server running with the console, until Ctrl-C.")
def demo(seconds: float, folder: Path, stay: bool) -> None:
    """Demonstrate Fairlead on this machine, in about two minutes.

    Starts a server and workers of Temporal's SDK for several tenants, one of which floods the others. Then starts two
    clusters, with failovers between them, one because the active cluster is killed. Finally runs the data pipeline on
    their journal, and prints the path of the report. All servers are stopped at the end, unless --stay is given.

    For the decisions of the core on synthetic workloads, see `fairlead simulate --help`.
    """
    console = new_console()
    _empty(folder)
    shown = parts()
    # Keep the data in a file if the server is to stay, so that the next server has the workflows.
    store = folder / STORE_FILE if stay else None
    steps = len(shown) + 1
    for number, part in enumerate(shown, start=1):
        console.rule(f"[bold]{number} of {steps}[/bold] · {part.title}", align="left")
        asyncio.run(part.run(Stage(console, folder / "journal", seconds, store)))
        console.print()
    console.rule(f"[bold]{steps} of {steps}[/bold] · Analysis of the journal, on Spark", align="left")
    from fairlead.cli.demo.pipeline import analyze, is_installed  # noqa: PLC0415 - as above

    if is_installed():
        analyze(console, folder)
    else:
        console.print("The data pipeline needs PySpark: pip install 'fairlead[pipeline]'", markup=False)
        console.print(
            f"Then: fairlead pipeline all --journal {folder / 'journal'} --lake {folder / 'lake'}", markup=False
        )
    if store is not None:
        from fairlead.cli.demo.stay import remain  # noqa: PLC0415 - as above

        # Ctrl-C is the normal end here.
        with suppress(KeyboardInterrupt):
            asyncio.run(remain(console, folder, store))


def _empty(folder: Path) -> None:
    if folder.exists() and any(folder.iterdir()) and not (folder / MARK).exists():
        raise NotOurs(f"--folder {folder}: the folder has other files: give an empty or a new one")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / MARK).touch()
