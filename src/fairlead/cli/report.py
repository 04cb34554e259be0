"""What a command answers: tables for people, JSON for programs, a picture for those who would rather look."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
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
    """All that one run has to say; the same parameters give the same report to the byte."""

    subject: str
    summary: str
    parameters: Mapping[str, Cell]
    tables: Sequence[Table]
    draw: Callable[["Figure"], None]


def show(report: Report, *, output: Output, plot: Path | None) -> None:
    """Print the report on standard output and, where asked for, draw its picture into the file `plot`."""
    if plot is not None:
        draw_picture(report, plot)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDTH_COLUMNS_WHEN_PIPED
    if output is Output.JSON:
        console.out(as_json(report), highlight=False)
        return
    parameters = ", ".join(f"{name} {_for_people(value)}" for name, value in report.parameters.items())
    console.print(f"[bold]{report.subject}[/bold]: {report.summary}")
    console.print(f"[dim]{parameters}[/dim]")
    for table in report.tables:
        console.print()
        console.print(_as_rich(table))
        if table.note:
            console.print(f"[dim]{table.note}[/dim]")
    if plot is not None:
        console.print(f"\nPicture: {plot}")


def as_json(report: Report) -> str:
    """The report as one JSON object: the parameters, then each table as a list of objects."""
    tables = {table.name: [dict(zip(table.columns, row, strict=True)) for row in table.rows] for table in report.tables}
    return json.dumps(
        {"subject": report.subject, "parameters": dict(report.parameters), **tables},
        indent=2,
        ensure_ascii=False,
    )


def draw_picture(report: Report, file: Path) -> None:
    """Draw the report's picture into `file`, a PNG that is the same to the byte for the same report."""
    if file.suffix.lower() != ".png":
        raise CannotDraw(f"--plot {file}: the picture is a PNG, so the file's name must end in .png")
    if not file.parent.is_dir():
        raise CannotDraw(f"--plot {file}: there is no folder {file.parent}")
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - half a second, and an extra that need not be installed
    except ImportError as missing:
        raise CannotDraw("--plot needs matplotlib: pip install 'fairlead[plot]'") from missing
    figure = Figure(figsize=(PICTURE_WIDTH_INCHES, PICTURE_HEIGHT_INCHES), layout="constrained")
    report.draw(figure)
    try:
        # Without the version of the library in it, so that an update does not change every picture.
        figure.savefig(file, dpi=PICTURE_DOTS_PER_INCH, metadata={"Software": None})
    except OSError as refused:
        raise CannotDraw(f"--plot {file}: {refused.strerror or refused}") from refused


def _as_rich(table: Table) -> RichTable:
    shown = RichTable(title=table.title, title_justify="left", box=box.SIMPLE_HEAD)
    for index, column in enumerate(table.columns):
        is_number = all(isinstance(row[index], int | float) for row in table.rows)
        shown.add_column(column.replace("_", " "), justify="right" if is_number else "left")
    for row in table.rows:
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
    return cell
