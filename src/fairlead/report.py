"""Output of a command: tables for people, JSON for programs, and a picture."""

import importlib.util
import json
import unicodedata
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
class DualCell:
    """A cell with different values for people and programs: `text` in a table, `plain` in JSON."""

    text: str
    plain: object


Cell = str | int | float | bool | DualCell | None

# Unicode categories of characters that move the cursor, change the direction of the text, or are no characters.
_UNSAFE = frozenset(("Cc", "Cf", "Cs", "Co", "Zl", "Zp"))

WIDTH_COLUMNS_WHEN_PIPED = 110
PICTURE_WIDTH_INCHES = 11.0
PICTURE_HEIGHT_INCHES = 6.5
PICTURE_DOTS_PER_INCH = 110


class Output(StrEnum):
    """The output formats of a command."""

    TABLE = "table"
    JSON = "json"


class CannotDraw(FixRequest):
    """The requested picture can't be drawn or written."""


@dataclass(frozen=True, slots=True)
class Table:
    """One table of a report. `name` is its key in JSON, `title` its heading for people.

    `headings` replace the column names for people. `plain` replaces the rows in JSON. A line of the note that begins
    with a space is a command, and is never cut.
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
    """The result of one run; the same parameters give the same report to the byte. The picture is optional."""

    subject: str
    summary: str
    parameters: Mapping[str, Cell]
    tables: Sequence[Table]
    draw: Callable[["Figure"], None] | None = None


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural if needed: 1 key, 2,000 keys."""
    return f"{number:,} {noun}" + "s" * (number != 1)


def printable(text: str) -> str:
    """Write control and formatting characters as escapes: names of others must not steer the reader's terminal."""
    if text.isprintable():
        return text
    return "".join(
        character.encode("unicode_escape").decode()
        if unicodedata.category(character) in _UNSAFE and character != "\n"
        else character
        for character in text
    )


def one_line(text: str) -> str:
    """Like `printable`, and write line breaks as escapes, too: a name must not add a line to the output."""
    return printable(text).replace("\n", "\\n")


def new_console() -> Console:
    """Return the console for output: as wide as the terminal, or of fixed width if the output is piped."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDTH_COLUMNS_WHEN_PIPED
    return console


def show(report: Report, *, output: Output, plot: Path | None, rows_max: int | None = None) -> None:
    """Print the report on standard output and, if `plot` is given, draw its picture into that file.

    People see at most `rows_max` rows of a table.
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
    console.print(f"[bold]{report.subject}[/bold]: {escape(one_line(report.summary))}")
    if parameters:
        console.print(f"[dim]{parameters}[/dim]")
    for table in report.tables:
        _show_table(console, table, subject=report.subject, rows_max=rows_max)
    if plot is not None:
        console.print(f"\nPicture: {plot}")


def _show_table(console: Console, table: Table, *, subject: str, rows_max: int | None) -> None:
    """Print one table; of a table without rows, only the title and the note."""
    if not table.rows and not table.note:
        return
    console.print()
    if table.rows:
        console.print(_as_rich(table, rows_max))
    elif table.title:
        console.print(one_line(table.title), style="italic", markup=False)
    if rows_max is not None and len(table.rows) > rows_max:
        console.print(f"[dim]... and {len(table.rows) - rows_max} more: fairlead simulate {subject}[/dim]")
    for line in table.note.splitlines():
        console.print(printable(line), style="dim", markup=False, soft_wrap=line.startswith(" "))


def as_json(report: Report) -> str:
    """Return the report as one JSON object: the parameters, then each table as a list of objects."""
    tables = {table.name: table_as_plain(table) for table in report.tables}
    head = {"subject": report.subject, "headline": report.summary, "parameters": as_plain(report.parameters)}
    return json.dumps(head | tables, indent=2)


def table_as_plain(table: Table) -> object:
    """Return the JSON value of a table: `plain` if set, else a list of objects."""
    if table.plain is not None:
        return table.plain
    return [as_plain(dict(zip(table.columns, row, strict=True))) for row in table.rows]


def as_plain(cells: Mapping[str, Cell]) -> dict[str, object]:
    """Return the JSON values of cells by name."""
    return {name: cell.plain if isinstance(cell, DualCell) else cell for name, cell in cells.items()}


def check_picture(file: Path) -> None:
    """Raise an error if the picture can't be drawn into this file, before any work is done."""
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
    from matplotlib.figure import Figure  # noqa: PLC0415 - takes half a second to load, and is optional

    figure = Figure(figsize=(PICTURE_WIDTH_INCHES, PICTURE_HEIGHT_INCHES), layout="constrained")
    report.draw(figure)
    try:
        # Leave out the library's version, so that an update does not change every picture.
        figure.savefig(file, dpi=PICTURE_DOTS_PER_INCH, metadata={"Software": None})
    except OSError as refused:
        raise CannotDraw(f"--plot {file}: {refused.strerror or refused}") from refused


def _as_rich(table: Table, rows_max: int | None) -> RichTable:
    shown = RichTable(title=one_line(table.title), title_justify="left", box=box.SIMPLE_HEAD)
    for index, column in enumerate(table.headings or table.columns):
        is_number = all(row[index] is None or isinstance(row[index], int | float) for row in table.rows)
        # The first column is never wrapped, and no cell is cut: a partial name is useless.
        shown.add_column(
            printable(column.replace("_", " ")),
            justify="right" if is_number else "left",
            no_wrap=index == 0,
            overflow="fold",
        )
    for row in table.rows[:rows_max]:
        shown.add_row(*(_for_people(cell) for cell in row))
    return shown


def _for_people(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, DualCell):
        return escape(one_line(cell.text))
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int):
        return f"{cell:,}"
    if isinstance(cell, float):
        return f"{cell:,.3f}" if abs(cell) < 10 else f"{cell:,.1f}"
    return escape(one_line(cell))
