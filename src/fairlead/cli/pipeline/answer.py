"""What a job of the pipeline answers: lines for people, JSON for programs."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from fairlead.cli.report import Output, Report, Table, new_console, show
from fairlead.pipeline.job import Summary

ITEMS_SHOWN_MAX = 10


def answer(summaries: Sequence[Summary], output: Output, *, is_one: bool) -> None:
    """Print what the jobs did: one object, or a list of them, for programs."""
    console = new_console()
    if output is Output.JSON:
        plain = [dataclasses.asdict(summary) for summary in summaries]
        console.out(json.dumps(plain[0] if is_one else plain, indent=2, default=str), highlight=False)
        return
    for summary in summaries:
        _answer_people(console, summary)


def _answer_people(console: Console, summary: Summary) -> None:
    rows = ", ".join(f"{table} {count:,} rows" for table, count in summary.rows.items()) or "no tables"
    scalars = {name: value for name, value in summary.findings.items() if isinstance(value, str | int | float | bool)}
    tables = [
        _table(name, value)
        for name, value in summary.findings.items()
        if isinstance(value, list | dict) and value and name not in scalars
    ]
    show(Report(summary.job, rows, scalars, tables), output=Output.TABLE, plot=None)
    console.print()


def _table(name: str, value: list[Any] | dict[str, Any]) -> Table:
    """A finding with parts, as far as people want to read it; programs get it whole."""
    title = name.replace("_", " ")
    note = f"... and {len(value) - ITEMS_SHOWN_MAX} more: -o json" if len(value) > ITEMS_SHOWN_MAX else ""
    items: list[dict[str, Any]]
    if isinstance(value, dict):
        items = [{"what": key, "value": part} for key, part in value.items()]
    else:
        items = [item if isinstance(item, dict) else {"what": item} for item in value]
    columns = list(dict.fromkeys(key for item in items for key in item))
    rows = [[_cell(item.get(column)) for column in columns] for item in items[:ITEMS_SHOWN_MAX]]
    return Table(name, title, columns, rows, note=note)


def _cell(value: object) -> str | int | float | bool | None:
    return value if value is None or isinstance(value, str | int | float | bool) else json.dumps(value, default=str)
