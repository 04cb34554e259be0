"""`fairlead export`: writes the histories of a store to a journal, for the pipeline."""

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from fairlead.report import Cell, Output, Report, counted, show
from fairlead.settings import InvalidSettings, InvalidValue
from fairlead.settings.static.clusters import NAME_DEFAULT, parse_cluster_name
from fairlead.settings.static.config import SqliteConfig, StaticConfig, StoreConfig, load_config

if TYPE_CHECKING:
    from fairlead.history.export import Exported

RUNS_BETWEEN_SIGHTS = 50


def _cluster(_context: click.Context, _option: click.Parameter, name: str | None) -> str | None:
    try:
        return None if name is None else parse_cluster_name(name)
    except InvalidValue as wrong:
        raise click.BadParameter(f"{name!r} {wrong}") from wrong


@click.command()
@click.option("--config", "file", type=click.Path(path_type=Path), metavar="FILE", help="The server's configuration.")
@click.option("--db", type=click.Path(path_type=Path), metavar="FILE", help="The server's SQLite file.")
@click.option(
    "--journal", type=click.Path(path_type=Path), required=True, metavar="DIR", help="The journal to write to."
)
@click.option(
    "--cluster",
    callback=_cluster,
    metavar="NAME",
    help=f"Name of the store's cluster. [default: that of the configuration, else {NAME_DEFAULT}]",
)
@click.option("--namespace", metavar="NAME", help="Only this namespace.")
@click.option(
    "-o",
    "--output",
    type=click.Choice([shape.value for shape in Output]),
    default=Output.TABLE.value,
    show_default=True,
    help="A line for people, or JSON for programs.",
)
def export(
    *, file: Path | None, db: Path | None, journal: Path, cluster: str | None, namespace: str | None, output: str
) -> None:
    """Write the histories of a store to a journal, with payloads, for `fairlead pipeline ingest`.

    The store is only read, and a server may use it meanwhile. Events that were exported to this journal before are not
    written again. Even after a crash, the journal has the whole export or nothing of it.

    \b
    fairlead export --db fairlead.db --journal journal/
    fairlead export --config fairlead.yaml --journal journal/ --namespace orders
    """
    if (file is None) == (db is None):
        raise click.UsageError("give the store: either --config or --db", click.get_current_context())
    config = StaticConfig(store=SqliteConfig(db)) if db is not None else _load(file or Path())
    name = cluster or (config.cluster.name if config.cluster else NAME_DEFAULT)
    done = asyncio.run(_export(config.store, journal / name, namespace))
    summary = (
        f"{counted(done.events, 'new event')} of {counted(done.runs_changed, 'run')} in "
        f"{counted(done.segments, 'segment')}"
    )
    parameters: dict[str, Cell] = {
        "journal": str(journal),
        "cluster": name,
        "runs": done.runs,
        "runs_changed": done.runs_changed,
        "batches": done.batches,
        "events": done.events,
        "segments": done.segments,
    }
    show(Report("export", summary, parameters, []), output=Output(output), plot=None)


def _load(file: Path) -> StaticConfig:
    try:
        return load_config(file, os.environ)
    except InvalidSettings as wrong:
        from fairlead.cli.server_messages import report_problems  # noqa: PLC0415 - loads the settings

        report_problems(file, wrong)


async def _export(config: StoreConfig, folder: Path, namespace: str | None) -> "Exported":
    # Imported late, so that --help is fast.
    from fairlead.history.export import export_histories  # noqa: PLC0415
    from fairlead.server.bootstrap import read_shards  # noqa: PLC0415
    from fairlead.server.stores import damage, open_reading  # noqa: PLC0415

    reading = await open_reading(config)
    try:
        with _bar() as notify:
            return await export_histories(
                reading.history, folder, shards=await read_shards(reading.history), namespace=namespace, notify=notify
            )
    except Exception as failure:
        if (damaged := damage(config, failure)) is not None:
            raise damaged from failure
        raise
    finally:
        await reading.close()


@contextmanager
def _bar() -> Iterator[Callable[["Exported"], None]]:
    """Show the progress of the export on a terminal, else nothing."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        row = bar.add_task("export", total=None)

        def notify(done: "Exported") -> None:
            if done.runs % RUNS_BETWEEN_SIGHTS == 0:
                text = f"{done.runs:,} runs, {done.events:,} new events"
                bar.update(row, description=text, total=done.shards, completed=done.shards_done)

        yield notify
