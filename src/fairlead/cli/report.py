"""What a command answers: tables for people, JSON for programs, a picture for those who would rather look."""

import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from fairlead.core.errors import FixRequest

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Told:
    """A cell that people and programs are told differently: `text` in a table, `plain` in JSON."""

    text: str
    plain: object


Cell = str | int | float | bool | Told | None

WIDTH_COLUMNS_WHEN_PIPED = 110
PICTURE_WIDTH_INCHES = 11.0
PICTURE_HEIGHT_INCHES = 6.5
PICTURE_DOTS_PER_INCH = 110


class Output(StrEnum):
    """The shapes in which a command can answer."""

    TABLE = "table"
    JSON = "json"


class CannotDraw(FixRequest):
    """The picture that was asked for can't be drawn or written."""


@dataclass(frozen=True, slots=True)
class Table:
    """One table of a report. `name` is its key in JSON, `title` its heading for people.

    `headings` are what people read above the columns, where these are not the names of the columns. `plain` is what
    programs get in place of the rows. A line of the note that begins with a space is a command, and is never cut.
    """

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    headings: Sequence[str] = ()
    plain: object = None


@dataclass(frozen=True, slots=True)
class Report:
    """All that one run has to say; the same parameters give the same report to the byte. Not all have a picture."""

    subject: str
    summary: str
    parameters: Mapping[str, Cell]
    tables: Sequence[Table]
    draw: Callable[["Figure"], None] | None = None


def counted(number: int, noun: str) -> str:
    """So many of something, in words that agree with the number: 1 key, 2,000 keys."""
    return f"{number:,} {noun}" + "s" * (number != 1)


def new_console() -> Console:
    """Where commands print: as wide as the terminal, or a fixed width where the output goes elsewhere."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDTH_COLUMNS_WHEN_PIPED
    return console


def show(report: Report, *, output: Output, plot: Path | None, rows_max: int | None = None) -> None:
    """Print the report on standard output and, where asked for, draw its picture into the file `plot`.

    Of longer tables than `rows_max` only the beginning is shown to people.
    """
    if plot is not None:
        draw_picture(report, plot)
    console = new_console()
    if output is Output.JSON:
        console.out(as_json(report), highlight=False)
        return
    parameters = ", ".join(
        f"{name.replace('_', ' ')} {_for_people(value)}" for name, value in report.parameters.items()
    )
    console.print(f"[bold]{report.subject}[/bold]: {escape(report.summary)}")
    if parameters:
        console.print(f"[dim]{parameters}[/dim]")
    for table in report.tables:
        _show_table(console, table, subject=report.subject, rows_max=rows_max)
    if plot is not None:
        console.print(f"\nPicture: {plot}")


def _show_table(console: Console, table: Table, *, subject: str, rows_max: int | None) -> None:
    """Print one table; of an empty one only what there is to say of it."""
    if not table.rows and not table.note:
        return
    console.print()
    if table.rows:
        console.print(_as_rich(table, rows_max))
    elif table.title:
        console.print(table.title, style="italic", markup=False)
    if rows_max is not None and len(table.rows) > rows_max:
        console.print(f"[dim]... and {len(table.rows) - rows_max} more: fairlead simulate {subject}[/dim]")
    for line in table.note.splitlines():
        console.print(line, style="dim", markup=False, soft_wrap=line.startswith(" "))


def as_json(report: Report) -> str:
    """The report as one JSON object: the parameters, then each table as a list of objects."""
    tables = {table.name: table_as_plain(table) for table in report.tables}
    head = {"subject": report.subject, "headline": report.summary, "parameters": as_plain(report.parameters)}
    return json.dumps(head | tables, indent=2)


def table_as_plain(table: Table) -> object:
    """What programs get of a table: a list of objects, if it is not something of its own."""
    if table.plain is not None:
        return table.plain
    return [as_plain(dict(zip(table.columns, row, strict=True))) for row in table.rows]


def as_plain(cells: Mapping[str, Cell]) -> dict[str, object]:
    """Cells by their names, as programs get them."""
    return {name: cell.plain if isinstance(cell, Told) else cell for name, cell in cells.items()}


def check_picture(file: Path) -> None:
    """Refuse a file that no picture can be drawn into, before any work is done for it."""
    if file.suffix.lower() != ".png":
        raise CannotDraw(f"--plot {str(file)!r}: the picture is a PNG, so give a file name that ends in .png")
    if not file.parent.is_dir():
        raise CannotDraw(f"--plot {file}: there is no folder {file.parent}")
    if importlib.util.find_spec("matplotlib") is None:
        raise CannotDraw("--plot needs matplotlib (the extra 'plot' of this package): pip install matplotlib")


def draw_picture(report: Report, file: Path) -> None:
    """Draw the report's picture into `file`, a PNG that is the same to the byte for the same report."""
    if report.draw is None:
        raise CannotDraw(f"--plot {file}: there is no picture of {report.subject}")
    check_picture(file)
    from matplotlib.figure import Figure  # noqa: PLC0415 - takes half a second, and need not be installed

    figure = Figure(figsize=(PICTURE_WIDTH_INCHES, PICTURE_HEIGHT_INCHES), layout="constrained")
    report.draw(figure)
    try:
        # Without the version of the library in it, so that an update does not change every picture.
        figure.savefig(file, dpi=PICTURE_DOTS_PER_INCH, metadata={"Software": None})
    except OSError as refused:
        raise CannotDraw(f"--plot {file}: {refused.strerror or refused}") from refused


def _as_rich(table: Table, rows_max: int | None) -> RichTable:
    shown = RichTable(title=table.title, title_justify="left", box=box.SIMPLE_HEAD)
    for index, column in enumerate(table.headings or table.columns):
        is_number = all(row[index] is None or isinstance(row[index], int | float) for row in table.rows)
        # What a row is about stays on its line, and nothing is cut: half a name can't be used for anything.
        shown.add_column(
            column.replace("_", " "), justify="right" if is_number else "left", no_wrap=index == 0, overflow="fold"
        )
    for row in table.rows[:rows_max]:
        shown.add_row(*(_for_people(cell) for cell in row))
    return shown


def _for_people(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, Told):
        return escape(cell.text)
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int):
        return f"{cell:,}"
    if isinstance(cell, float):
        return f"{cell:,.3f}" if abs(cell) < 10 else f"{cell:,.1f}"
    return escape(cell)
