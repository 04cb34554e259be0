"""`fairlead export`: writes the histories of a store or of a server to a journal, for the pipeline."""

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from fairlead.cli.admin.command import read_address
from fairlead.cli.admin.credentials import client_options, credentials_of
from fairlead.report import Cell, Output, Report, counted, printable, show
from fairlead.rpc.hosts.credentials import Credentials
from fairlead.settings import InvalidSettings, InvalidValue
from fairlead.settings.static.clusters import NAME_DEFAULT, parse_cluster_name
from fairlead.settings.static.config import SqliteConfig, StaticConfig, StoreConfig, load_config

if TYPE_CHECKING:
    from fairlead.history.export import Exported
    from fairlead.pipeline.public_export import ExportedRuns

RUNS_BETWEEN_SIGHTS = 50
# Calls a second: a third of what Temporal Cloud allows for the lists of a namespace.
CALLS_PER_S = 10.0
CALLS_PER_S_MIN, CALLS_PER_S_MAX = 0.1, 1_000.0


def _cluster(_context: click.Context, _option: click.Parameter, name: str | None) -> str | None:
    try:
        return None if name is None else parse_cluster_name(name)
    except InvalidValue as wrong:
        raise click.BadParameter(f"{name!r} {wrong}") from wrong


@click.command()
@click.option("--config", "file", type=click.Path(path_type=Path), metavar="FILE", help="The server's configuration.")
@click.option("--db", type=click.Path(path_type=Path), metavar="FILE", help="The server's SQLite file.")
@click.option(
    "--from",
    "address",
    metavar="HOST:PORT",
    callback=read_address,
    help="A running server of Temporal or Fairlead, or Temporal Cloud, read by its public API.",
)
@click.option(
    "--journal", type=click.Path(path_type=Path), required=True, metavar="DIR", help="The journal to write to."
)
@click.option(
    "--cluster",
    callback=_cluster,
    metavar="NAME",
    help=f"Name of the store's cluster. [default: that of the configuration, else {NAME_DEFAULT}]",
)
@click.option("--namespace", metavar="NAME", help="Only this namespace; required with --from.")
@click.option(
    "--rate",
    "calls_per_s",
    type=click.FloatRange(CALLS_PER_S_MIN, CALLS_PER_S_MAX),
    default=CALLS_PER_S,
    show_default=True,
    metavar="N",
    help="With --from: calls a second at most.",
)
@client_options
@click.option(
    "-o",
    "--output",
    type=click.Choice([shape.value for shape in Output]),
    default=Output.TABLE.value,
    show_default=True,
    help="A line for people, or JSON for programs.",
)
@click.pass_context
def export(
    context: click.Context,
    /,
    *,
    file: Path | None,
    db: Path | None,
    address: str | None,
    journal: Path,
    cluster: str | None,
    namespace: str | None,
    calls_per_s: float,
    output: str,
    **credentials: Any,
) -> None:
    """Write the histories of a store or a server to a journal, with payloads, for `fairlead pipeline ingest`.

    The source is only read, and a server may use the store meanwhile. Events that were exported to this journal before
    are not written again. After a crash, the journal has all of an export of a store or nothing; an export from a
    server is committed every few hundred runs, and the next one continues from there.

    \b
    fairlead export --db fairlead.db --journal journal/
    fairlead export --config fairlead.yaml --journal journal/ --namespace orders
    fairlead export --from 127.0.0.1:7233 --namespace orders --journal journal/
    """
    if [file, db, address].count(None) != 2:
        raise click.UsageError("give one source: either --config or --db or --from", context)
    if address is not None:
        if not namespace:
            raise click.UsageError("--from needs --namespace: the name of the namespace to export", context)
        name = cluster or NAME_DEFAULT
        report = _report_runs(
            asyncio.run(_export_runs(address, namespace, journal / name, calls_per_s, credentials_of(**credentials))),
            {"journal": str(journal), "cluster": name, "namespace": namespace},
        )
    else:
        config = StaticConfig(store=SqliteConfig(db)) if db is not None else _load(file or Path())
        name = cluster or (config.cluster.name if config.cluster else NAME_DEFAULT)
        report = _report_store(
            asyncio.run(_export(config.store, journal / name, namespace)), {"journal": str(journal), "cluster": name}
        )
    show(report, output=Output(output), plot=None)


def _report_store(done: "Exported", parameters: dict[str, Cell]) -> Report:
    counts: dict[str, Cell] = {
        name: getattr(done, name) for name in ("runs", "runs_changed", "batches", "events", "segments")
    }
    return Report("export", _summary(done), parameters | counts, [])


def _report_runs(done: "ExportedRuns", parameters: dict[str, Cell]) -> Report:
    if done.runs_left_out:
        click.echo(f"fairlead: {counted(done.runs_left_out, 'run')} left out: {printable(done.fault)}", err=True)
    names = ("runs", "runs_changed", "runs_left_out", "batches", "events", "segments", "calls")
    counts: dict[str, Cell] = {name: getattr(done, name) for name in names}
    return Report("export", _summary(done), parameters | counts, [])


def _summary(done: "Exported | ExportedRuns") -> str:
    return (
        f"{counted(done.events, 'new event')} of {counted(done.runs_changed, 'run')} in "
        f"{counted(done.segments, 'segment')}"
    )


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


async def _export_runs(
    address: str, namespace: str, folder: Path, calls_per_s: float, credentials: Credentials
) -> "ExportedRuns":
    # Imported late, so that --help is fast.
    from fairlead.cli.lean_imports import import_lean  # noqa: PLC0415

    import_lean()
    from fairlead.pipeline.public_export import SourceServer, export_namespace  # noqa: PLC0415

    source = SourceServer(address, namespace, calls_per_s=calls_per_s, credentials=credentials)
    try:
        with _bar() as notify:
            return await export_namespace(source, folder, notify=notify)
    finally:
        await source.close()


@contextmanager
def _bar() -> Iterator[Callable[["Exported | ExportedRuns"], None]]:
    """Show the progress of the export on a terminal, else nothing."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        row = bar.add_task("export", total=None)

        shown = 0

        def notify(done: "Exported | ExportedRuns") -> None:
            nonlocal shown
            if done.runs - shown >= RUNS_BETWEEN_SIGHTS:
                shown = done.runs
                text = f"{done.runs:,} runs, {done.events:,} new events"
                # The total number of runs is unknown until the export ends.
                shards, shards_done = getattr(done, "shards", None), getattr(done, "shards_done", 0)
                bar.update(row, description=text, total=shards, completed=shards_done)

        yield notify
