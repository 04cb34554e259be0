"""Prints the results of pipeline jobs: tables for people, JSON for programs."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from fairlead.pipeline.job import Summary
from fairlead.report import Output, Report, Table, new_console, show

ITEMS_SHOWN_MAX = 10


def print_results(summaries: Sequence[Summary], output: Output, *, is_one: bool) -> None:
    """Print the results of the jobs; as JSON, one object or a list."""
    console = new_console()
    if output is Output.JSON:
        plain = [dataclasses.asdict(summary) for summary in summaries]
        console.out(json.dumps(plain[0] if is_one else plain, indent=2, default=str), highlight=False)
        return
    for summary in summaries:
        _print_table(console, summary)


def _print_table(console: Console, summary: Summary) -> None:
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
    """Return a finding with parts as a table of its first rows; JSON has all of them."""
    title = name.replace("_", " ")
    note = f"... and {len(value) - ITEMS_SHOWN_MAX} more: -o json" if len(value) > ITEMS_SHOWN_MAX else ""
    items: list[dict[str, Any]]
    if isinstance(value, dict):
        items = [{"what": key, "value": part} for key, part in value.items()]
    else:
        items = [item if isinstance(item, dict) else {"what": item} for item in value]
    columns = list(dict.fromkeys(key for item in items for key in item))
    if "namespace" in columns:
        columns = [column for column in columns if column != "namespace_id"]
    rows = [[_cell(item.get(column)) for column in columns] for item in items[:ITEMS_SHOWN_MAX]]
    return Table(name, title, columns, rows, note=note)


def _cell(value: object) -> str | int | float | bool | None:
    return value if value is None or isinstance(value, str | int | float | bool) else json.dumps(value, default=str)
