"""`fairlead lake`: queries and describes the tables that the pipeline wrote."""

import csv
import json
import math
import sys
from itertools import islice
from pathlib import Path

import click

from fairlead.core.errors import FixRequest
from fairlead.report import Cell, Output, Report, Table, counted, show

# Rows of a query that people see; JSON and CSV have all of them.
ROWS_SHOWN_MAX = 200
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
    """Query and describe the tables of a lake, without Spark."""


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
