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

Cell = str | int | float | bool | None

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
    """One table of a report. `name` is its key in JSON, `title` its heading for people."""

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """All that one run has to say; the same parameters give the same report to the byte. Not all have a picture."""

    subject: str
    summary: str
    parameters: Mapping[str, Cell]
    tables: Sequence[Table]
    draw: Callable[["Figure"], None] | None = None


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
    parameters = ", ".join(f"{name} {_for_people(value)}" for name, value in report.parameters.items())
    console.print(f"[bold]{report.subject}[/bold]: {report.summary}")
    console.print(f"[dim]{parameters}[/dim]")
    for table in report.tables:
        console.print()
        console.print(_as_rich(table, rows_max))
        if rows_max is not None and len(table.rows) > rows_max:
            console.print(f"[dim]... and {len(table.rows) - rows_max} more: fairlead simulate {report.subject}[/dim]")
        if table.note:
            console.print(f"[dim]{table.note}[/dim]")
    if plot is not None:
        console.print(f"\nPicture: {plot}")


def as_json(report: Report) -> str:
    """The report as one JSON object: the parameters, then each table as a list of objects."""
    tables = {table.name: [dict(zip(table.columns, row, strict=True)) for row in table.rows] for table in report.tables}
    head = {"subject": report.subject, "headline": report.summary, "parameters": dict(report.parameters)}
    return json.dumps(head | tables, indent=2)


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
    for index, column in enumerate(table.columns):
        is_number = all(row[index] is None or isinstance(row[index], int | float) for row in table.rows)
        # What a row is about stays whole: a name that was cut can't be used for anything.
        shown.add_column(column.replace("_", " "), justify="right" if is_number else "left", no_wrap=index == 0)
    for row in table.rows[:rows_max]:
        shown.add_row(*(_for_people(cell) for cell in row))
    return shown


def _for_people(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int):
        return f"{cell:,}"
    if isinstance(cell, float):
        return f"{cell:,.3f}" if abs(cell) < 10 else f"{cell:,.1f}"
    return escape(cell)
