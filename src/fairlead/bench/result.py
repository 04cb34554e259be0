"""The result of a bench run: numbers by name for programs, tables for people, and a picture."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fairlead.report import Cell, Output, Report, Table, draw_picture, new_console, show, table_as_plain
from fairlead.report import as_plain as cells_as_plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Maximum number of rows of a table that people see; JSON has all.
ROWS_SHOWN_MAX = 20


class Measure(NamedTuple):
    """One number of a run; `name` is its key in JSON, `label` its text for people."""

    name: str
    label: str
    value: Cell


@dataclass(frozen=True, slots=True)
class BenchResult:
    """The result of one run. `series` are tables for programs only.

    The run fails if any task was `lost` or may be lost (`unexplained`), or if any request `failed`.
    """

    subject: str
    headline: str
    parameters: Mapping[str, Cell]
    totals: Sequence[Measure]
    tables: Sequence[Table]
    series: Sequence[Table]
    lost: int
    unexplained: int = 0
    failed: int = 0
    draw: Callable[["Figure"], None] | None = None


def as_plain(result: BenchResult) -> dict[str, object]:
    """Return the result in plain types: the totals by name, each table as a list of objects."""
    tables = {table.name: table_as_plain(table) for table in (*result.tables, *result.series)}
    head: dict[str, object] = {
        "subject": result.subject,
        "headline": result.headline,
        "parameters": cells_as_plain(result.parameters),
        "totals": cells_as_plain({measure.name: measure.value for measure in result.totals}),
    }
    return head | tables


def show_result(result: BenchResult, *, output: Output, plot: Path | None) -> None:
    """Print the result on standard output and, if `plot` is given, draw its picture."""
    totals = Table(
        name="totals",
        title="Totals",
        columns=("measure", "value"),
        rows=[(measure.label, measure.value) for measure in result.totals],
    )
    report = Report(
        subject=result.subject,
        summary=result.headline,
        parameters=result.parameters,
        tables=[totals, *(_beginning(table) for table in result.tables if table.rows)],
        draw=result.draw,
    )
    if output is Output.TABLE:
        show(report, output=output, plot=plot)
        return
    if plot is not None:
        draw_picture(report, plot)
    new_console().out(json.dumps(as_plain(result), indent=2), highlight=False)


def _beginning(table: Table) -> Table:
    hidden = len(table.rows) - ROWS_SHOWN_MAX
    if hidden <= 0:
        return table
    note = f"... and {hidden:,} more, see -o json. {table.note}".strip()
    return Table(table.name, table.title, table.columns, table.rows[:ROWS_SHOWN_MAX], note)
