"""`fairlead lake`: queries and describes the tables that the pipeline wrote."""

import csv
import json
import math
import re
import sys
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairlead.cli.lake_erase import erase
from fairlead.core.errors import FairleadError, FixRequest
from fairlead.report import Cell, Output, Report, Table, counted, show

if TYPE_CHECKING:
    from fairlead.pipeline.lake import Lake

# Rows of a query that people see; JSON and CSV have all of them.
ROWS_SHOWN_MAX = 200
# The tables of the journal's records, which are written in batches; named here so that `--help` loads no Spark.
JOURNAL_TABLES = ("task", "history")
CSV = "csv"

_LAKE = click.option(
    "--lake",
    type=click.Path(path_type=Path),
    required=True,
    envvar="FAIRLEAD_LAKE",
    show_envvar=True,
    metavar="DIR",
    help="Folder of the tables.",
)
_OUTPUT = click.option(
    "-o",
    "--output",
    type=click.Choice([shape.value for shape in Output]),
    default=Output.TABLE.value,
    show_default=True,
    help="A table for people, or JSON for programs.",
)


@click.group(no_args_is_help=True)
def lake() -> None:
    """Query, describe and tidy the tables of a lake, without Spark."""


@lake.command()
@click.argument("query")
@_LAKE
@click.option(
    "-o",
    "--output",
    type=click.Choice([*(shape.value for shape in Output), CSV]),
    default=Output.TABLE.value,
    show_default=True,
    help=f"A table of at most {ROWS_SHOWN_MAX} rows for people; JSON lines or CSV with all rows for programs.",
)
def sql(*, query: str, lake: Path, output: str) -> None:
    """Run a query over all tables of the lake, by DuckDB.

    Times are µs since the epoch: make_timestamp(time_us) converts them. `fairlead lake tables` lists the tables.

    \b
    fairlead lake sql --lake lake/ "select task_list, max(backlog_max) from traffic_lists group by 1 order by 2 desc"
    """
    from fairlead.pipeline.lake_sql import query as run  # noqa: PLC0415 - loads DuckDB

    answer = run(lake, query)
    if output == CSV:
        writer = csv.writer(sys.stdout)
        writer.writerow(answer.columns)
        writer.writerows(answer.rows)
        return
    if output == Output.JSON.value:
        for row in answer.rows:
            click.echo(json.dumps(dict(zip(answer.columns, map(_plain, row), strict=True)), default=str))
        return
    shown = list(islice(answer.rows, ROWS_SHOWN_MAX + 1))
    is_cut = len(shown) > ROWS_SHOWN_MAX
    note = f"Only the first {ROWS_SHOWN_MAX} rows: -o json or -o csv has all of them." if is_cut else ""
    rows = [["" if value is None else str(value) for value in row] for row in shown[:ROWS_SHOWN_MAX]]
    summary = counted(len(rows), "row") + (", and more" if is_cut else "")
    show(
        Report("lake sql", summary, {}, [Table("rows", "", answer.columns, rows, note=note)] if rows else []),
        output=Output.TABLE,
        plot=None,
    )


@lake.command()
@click.argument("table", required=False)
@_LAKE
@_OUTPUT
def tables(*, table: str | None, lake: Path, output: str) -> None:
    """List the tables of the lake with their size, or the columns of one TABLE with their meaning."""
    from fairlead.pipeline.lake_sql import tables_of  # noqa: PLC0415 - loads Arrow

    found = tables_of(lake)
    if table is None:
        rows: list[list[Cell]] = [[each.name, _row_of(each.name), each.files, each.bytes] for each in found]
        columns = ["table", "a row is", "files", "bytes"]
        report = Report("lake", counted(len(rows), "table"), {"lake": str(lake)}, [Table("tables", "", columns, rows)])
        show(report, output=Output(output), plot=None)
        return
    from fairlead.pipeline.dictionary import TABLES, documented  # noqa: PLC0415 - loads Spark's types

    if table not in TABLES:
        raise FixRequest(f"{table!r} is not a table of the dictionary: {', '.join(TABLES)}")
    entry = TABLES[table]
    types = {field.name: field.dataType.simpleString() for field in entry.schema.fields}
    described = [
        [name, types.get(name, "string"), column.unit, column.meaning, column.example]
        for name, column in documented(entry).items()
    ]
    is_there = any(each.name == table for each in found)
    summary = f"a row is {entry.row}; written by `fairlead pipeline {entry.job}`" + (
        "" if is_there else ", not yet here"
    )
    columns = ["column", "type", "unit", "meaning", "example"]
    show(Report(table, summary, {}, [Table("columns", "", columns, described)]), output=Output(output), plot=None)


_TABLE = click.option(
    "--table",
    "only",
    type=click.Choice(JOURNAL_TABLES),
    help="Only this table of journal records. [default: all]",
)


@lake.command()
@_LAKE
@_TABLE
@click.option(
    "--batches",
    "batches_min",
    type=click.IntRange(2, 10_000),
    default=8,
    show_default=True,
    help="Merge only where at least this many small batches follow each other.",
)
@_OUTPUT
def compact(*, lake: Path, only: str | None, batches_min: int, output: str) -> None:
    """Merge small batches of journal records, so that the tables stay quick to read.

    Readers see all of it at once, and running jobs continue. `fairlead pipeline stream` compacts automatically.
    """
    from fairlead.pipeline.lake import Lake  # noqa: PLC0415 - loads Spark's types
    from fairlead.pipeline.upkeep.compaction import compact as merge  # noqa: PLC0415 - loads Arrow

    there = Lake(lake)
    there.check_there()
    with there.locked():
        done = [merge(there, table, batches_min=batches_min) for table in _journal_tables(there, only)]
    rows: list[list[Cell]] = [
        [one.table, one.batches_before, one.batches, one.files_before, one.files, one.rows_rewritten] for one in done
    ]
    columns = ["table", "batches before", "batches", "files before", "files", "rows rewritten"]
    merged = sum(one.batches_before - one.batches for one in done)
    tables = [Table("tables", "", columns, rows)] if rows else []
    report = Report("lake compact", f"{merged:,} fewer batches", {"lake": str(lake)}, tables)
    show(report, output=Output(output), plot=None)


@lake.command()
@_LAKE
@click.option(
    "--keep",
    multiple=True,
    required=True,
    metavar="TABLE=DAYS",
    help="Days of records to keep in a table: --keep task=90 --keep history=365.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be removed, and remove nothing.")
@_OUTPUT
def retain(*, lake: Path, keep: tuple[str, ...], dry_run: bool, output: str) -> None:
    """Remove old days of journal records; a run's history stays as long as the run has newer events.

    Tables of jobs change with the next run of the job. Segments that are still in the journal are not ingested again.
    """
    from fairlead.pipeline.lake import Lake  # noqa: PLC0415 - loads Spark's types
    from fairlead.pipeline.upkeep.retention import retain as remove  # noqa: PLC0415 - loads Arrow

    days = dict(_kept_days(text) for text in keep)
    if len(days) < len(keep):
        raise FixRequest("--keep: give each table once")
    there = Lake(lake)
    there.check_there()
    today = datetime.now(tz=UTC).date()
    with there.locked():
        done = [
            remove(there, table, before=today - timedelta(days=days[table]), today=today, is_dry_run=dry_run)
            for table in _journal_tables(there, None)
            if table in days
        ]
    rows: list[list[Cell]] = [
        [one.table, str(one.before), one.rows_removed, one.files_removed, one.files_rewritten, one.bytes_removed]
        for one in done
    ]
    columns = ["table", "first day kept", "rows removed", "files removed", "files rewritten", "bytes removed"]
    removed = counted(sum(one.rows_removed for one in done), "row") + (" would be removed" if dry_run else " removed")
    report = Report("lake retain", removed, {"lake": str(lake)}, [Table("tables", "", columns, rows)] if rows else [])
    show(report, output=Output(output), plot=None)


@lake.command()
@_LAKE
@click.option("--delta", metavar="URL", help="Publish Delta tables in this folder or bucket.")
@click.option(
    "--iceberg",
    metavar="CATALOG",
    help="Publish Iceberg tables in this catalog: the URL of a REST catalog, or sqlite:///FILE.",
)
@click.option("--warehouse", metavar="URL", help="Folder or bucket of the Iceberg tables' files.")
@click.option("--table", "only", multiple=True, metavar="NAME", help="Only this table; may be repeated. [default: all]")
@_OUTPUT
def publish(
    *, lake: Path, delta: str | None, iceberg: str | None, warehouse: str | None, only: tuple[str, ...], output: str
) -> None:
    """Publish the tables of the lake as Delta or Iceberg tables, in a folder or an object store.

    Each run copies new files and makes one commit for each table that changed. Run it after each run of the pipeline.

    \b
    fairlead lake publish --lake lake/ --delta s3://bucket/fairlead
    fairlead lake publish --lake lake/ --iceberg sqlite:////data/catalog.db --warehouse /data/iceberg
    """
    if delta is None and iceberg is None:
        raise FixRequest("nothing to publish to: give --delta or --iceberg")
    if (iceberg is None) != (warehouse is None):
        raise FixRequest("--iceberg and --warehouse need each other: give both, or neither")
    from fairlead.pipeline.dictionary import TABLES  # noqa: PLC0415 - loads Spark's types
    from fairlead.pipeline.lake import Lake  # noqa: PLC0415
    from fairlead.pipeline.publish import CantPublish, DeltaPlace, IcebergPlace, publishing  # noqa: PLC0415 - Arrow

    there = Lake(lake)
    there.check_there()
    # Also tables without a file: a published table that lost all its rows becomes empty.
    names = [table for table in TABLES if there.has(table)]
    unknown = sorted(set(only) - set(names))
    if unknown:
        raise FixRequest(f"--table {unknown[0]}: this lake has no such table; it has {', '.join(names) or 'none'}")
    places: list[DeltaPlace | IcebergPlace] = []
    if delta is not None:
        places.append(DeltaPlace(delta))
    if iceberg is not None and warehouse is not None:
        places.append(IcebergPlace(iceberg, warehouse))
    done = []
    with publishing(there):
        for place in places:
            for table in names:
                if table not in (only or names):
                    continue
                try:
                    done.append(place.publish(there, table))
                except FairleadError:
                    raise
                except Exception as failed:
                    # The libraries have errors of their own for addresses, access and networks.
                    reason = str(failed).strip().partition("\n")[0] or type(failed).__name__
                    raise CantPublish(
                        f"the table {table!r} can't be published: {reason}: check the address"
                    ) from failed
    rows: list[list[Cell]] = [
        [one.table, one.format, one.rows, one.files_added, one.files_removed, one.location] for one in done
    ]
    columns = ["table", "format", "rows", "files added", "files removed", "location"]
    commits = counted(sum(bool(one.files_added or one.files_removed) for one in done), "commit")
    tables = [Table("tables", "", columns, rows)] if rows else []
    show(Report("lake publish", commits, {"lake": str(lake)}, tables), output=Output(output), plot=None)


def _journal_tables(lake: "Lake", only: str | None) -> list[str]:
    """The tables of journal records that the lake has."""
    return [table for table in JOURNAL_TABLES if only in (None, table) and lake.has(table)]


def _kept_days(text: str) -> tuple[str, int]:
    table, _, days = text.partition("=")
    if table not in JOURNAL_TABLES or not re.fullmatch(r"[0-9]{1,5}", days):
        raise FixRequest(f"--keep {text}: give a table and a number of days, like {JOURNAL_TABLES[0]}=90")
    return table, int(days)


@lake.command()
def docs() -> None:
    """Print docs/tables.md: every table and column that the pipeline writes."""
    from fairlead.pipeline.dictionary.page import render  # noqa: PLC0415 - loads Spark's types

    click.echo(render(), nl=False)


def _plain(value: object) -> object:
    """A value for JSON, which has neither infinity nor NaN."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _row_of(table: str) -> str:
    from fairlead.pipeline.dictionary import TABLES  # noqa: PLC0415 - loads Spark's types

    return TABLES[table].row if table in TABLES else ""


lake.add_command(erase)
