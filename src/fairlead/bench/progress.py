"""Shows the progress of a run on standard error: a bar on a terminal, else a line every few seconds."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from fairlead.bench.tally import Tally

BAR_INTERVAL_S = 0.2
LINE_INTERVAL_S = 5.0

Response = TypeVar("Response")


async def with_progress(
    running: Awaitable[Response], tally: Tally, *, subject: str, tasks: int | None, console: Console
) -> Response:
    """Wait for `running` and show its progress. `tasks` is the expected number of tasks, if known."""
    reporting = asyncio.create_task(
        _report_by_bar(tally, subject, tasks, console)
        if console.is_terminal
        else _report_by_lines(tally, subject, tasks, console)
    )
    try:
        return await running
    finally:
        reporting.cancel()
        await asyncio.gather(reporting, return_exceptions=True)


async def _report_by_bar(tally: Tally, subject: str, tasks: int | None, console: Console) -> None:
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"), TimeElapsedColumn(),
        console=console, transient=True, auto_refresh=False,
    )  # fmt: skip
    with bar:
        row = bar.add_task(subject, total=tasks, state="")
        while True:
            bar.update(row, completed=tally.received, state=_state(tally, tasks), refresh=True)
            await asyncio.sleep(BAR_INTERVAL_S)


async def _report_by_lines(tally: Tally, subject: str, tasks: int | None, console: Console) -> None:
    now_s: Callable[[], float] = asyncio.get_running_loop().time
    begun_s = now_s()
    while True:
        await asyncio.sleep(LINE_INTERVAL_S)
        console.print(f"{subject}: {now_s() - begun_s:.0f} s, {_state(tally, tasks)}", highlight=False)


def _state(tally: Tally, tasks: int | None) -> str:
    total = "" if tasks is None else f" of {tasks:,}"
    failures = tally.add_failures.total() + tally.poll_failures.total()
    failed = f", {failures:,} failures" if failures else ""
    return f"{tally.acknowledged + tally.preloaded:,}{total} added, {tally.received:,} received{failed}"
