"""Durable appends and reads of the SQLite store, beside bare SQLite on the same disk in the same run.

All commits are fsynced. A shared disk is noisy, so each figure is the best of several rounds; the ratios are more
reliable than the figures.
"""

import asyncio
import gc
import itertools
import sqlite3
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from fairlead.core.fairness import LEVEL_ZERO, Level
from fairlead.core.partitions import TaskType
from fairlead.storage.sqlite import SqliteStore
from fairlead.storage.sqlite.file import DatabaseFile
from fairlead.storage.sqlite.statements import insert_tasks
from fairlead.storage.tasks import Levels, QueueId, StoredTask

ROUNDS = 3
ROUND_S = 2.0
IN_FLIGHT = 1000
APPENDS_PER_S_TARGET = 30_000
KEYS = 100
PAYLOAD = bytes(200)
PAGE_TASKS = 1000


class Figure(NamedTuple):
    """Rows per second and commits per second."""

    rows_per_s: float
    commits_per_s: float


def queue(number: int) -> QueueId:
    return QueueId("namespace", f"orders-{number}", TaskType.ACTIVITY)


def bare(folder: Path, *, rows_a_commit: int) -> Figure:
    """Baseline: bare SQLite with the same table and pragmas, called from Python."""
    file = DatabaseFile(folder / f"bare-{rows_a_commit}.db", readers=0)
    writer = file.writer
    statement = insert_tasks(1)
    ids = itertools.count(1)
    best = Figure(0.0, 0.0)
    for _ in range(ROUNDS):
        commits, started_s = 0, time.perf_counter()
        while time.perf_counter() - started_s < ROUND_S / 2:
            first_id = next(ids) * rows_a_commit
            rows = [
                (1, 3, number, number, f"tenant-{number % KEYS}", 1.0, PAYLOAD, 0.0)
                for number in range(first_id, first_id + rows_a_commit)
            ]
            writer.execute("BEGIN IMMEDIATE")
            writer.executemany(statement, rows)
            writer.execute("COMMIT")
            commits += 1
        took_s = time.perf_counter() - started_s
        best = max(best, Figure(commits * rows_a_commit / took_s, commits / took_s))
    file.close()
    return best


async def appends(folder: Path, *, queues: int) -> Figure:
    """One task per append, from many concurrent callers; each waits until its task is on disk."""
    store = await SqliteStore.open(folder / f"appends-{queues}.db")
    leases = [(queue(number), (await store.take_lease(queue(number))).range_id) for number in range(queues)]
    ids = itertools.count(1)
    best = Figure(0.0, 0.0)

    async def caller(number: int, until_s: float) -> int:
        own_queue, range_id = leases[number % queues]
        appended = 0
        while time.perf_counter() < until_s:
            task_id = next(ids)
            level = Level(task_id // KEYS, task_id)
            task = StoredTask(level, f"tenant-{task_id % KEYS}", 1.0, PAYLOAD)
            await store.append(own_queue, range_id, 3, [task], Levels(LEVEL_ZERO, level))
            appended += 1
        return appended

    for _ in range(ROUNDS):
        gc.collect()
        commits, started_s = store.commits, time.perf_counter()
        counts = await asyncio.gather(*(caller(number, started_s + ROUND_S) for number in range(IN_FLIGHT)))
        took_s = time.perf_counter() - started_s
        best = max(best, Figure(sum(counts) / took_s, (store.commits - commits) / took_s))
    await store.close()
    return best


async def reads(folder: Path) -> Figure:
    """Read a backlog of 200,000 tasks from start to end, page by page, after reopening the store."""
    store = await SqliteStore.open(folder / "reads.db")
    own_queue = queue(0)
    lease = await store.take_lease(own_queue)
    for start in range(1, 200_001, PAGE_TASKS):
        tasks = [
            StoredTask(Level(task_id // KEYS, task_id), f"tenant-{task_id % KEYS}", 1.0, PAYLOAD)
            for task_id in range(start, start + PAGE_TASKS)
        ]
        await store.append(own_queue, lease.range_id, 3, tasks, Levels(LEVEL_ZERO, tasks[-1].level))
    await store.close()
    best = 0.0
    for _ in range(ROUNDS):
        store = await SqliteStore.open(folder / "reads.db")
        after, rows, started_s = LEVEL_ZERO, 0, time.perf_counter()
        while page := await store.read(own_queue, 3, after=after, limit=PAGE_TASKS):
            after, rows = page[-1].level, rows + len(page)
        best = max(best, rows / (time.perf_counter() - started_s))
        await store.close()
    return Figure(best, 0.0)


async def deletes(folder: Path) -> Figure:
    """Delete the same backlog from its start, a hundred tasks per call, one call at a time."""
    store = await SqliteStore.open(folder / "reads.db")
    own_queue = queue(0)
    lease = await store.take_lease(own_queue)
    through = lease.levels[3].max_level
    commits, rows, started_s = store.commits, 0, time.perf_counter()
    while gone := await store.delete_through(own_queue, lease.range_id, 3, through=through, limit=100):
        rows += gone
    took_s = time.perf_counter() - started_s
    figure = Figure(rows / took_s, (store.commits - commits) / took_s)
    await store.close()
    return figure


def main() -> int:
    console = Console()
    if not console.is_terminal:
        console.width = 130
    measurements: list[tuple[str, Callable[[Path], Figure | Awaitable[Figure]], int | None]] = [
        ("bare SQLite, one row per transaction", lambda folder: bare(folder, rows_a_commit=1), None),
        ("bare SQLite, 100 rows per transaction", lambda folder: bare(folder, rows_a_commit=100), None),
        (f"append, {IN_FLIGHT:,} in flight, 1 queue", lambda folder: appends(folder, queues=1), APPENDS_PER_S_TARGET),
        (f"append, {IN_FLIGHT:,} in flight, 100 queues", lambda folder: appends(folder, queues=100), None),
        (f"read, pages of {PAGE_TASKS:,}", reads, None),
        ("delete, 100 per call", deletes, None),
    ]
    table = Table(
        "what", "rows per second", "target", "x one row", "x 100 rows", "commits per second", "rows per commit"
    )
    figures: list[Figure] = []
    misses = []
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as folder, console.status("measuring ...") as status:
        for what, measure, target in measurements:
            status.update(f"measuring: {what}")
            measured = measure(Path(folder))
            figure = measured if isinstance(measured, Figure) else asyncio.run(_result(measured))
            figures.append(figure)
            table.add_row(
                what,
                f"{figure.rows_per_s:,.0f}",
                f"{target:,}" if target else "",
                f"{figure.rows_per_s / figures[0].rows_per_s:.2f}",
                f"{figure.rows_per_s / figures[1].rows_per_s:.2f}" if len(figures) > 1 else "",
                f"{figure.commits_per_s:,.0f}" if figure.commits_per_s else "",
                f"{figure.rows_per_s / figure.commits_per_s:,.0f}" if figure.commits_per_s else "",
            )
            if target and figure.rows_per_s < target:
                misses.append(f"{what}: {figure.rows_per_s:,.0f} per second, the target is {target:,}")
    console.print(table)
    console.print(f"[dim]{len(PAYLOAD)} bytes per task; SQLite {sqlite3.sqlite_version}, WAL, synchronous=FULL[/dim]")
    for miss in misses:
        console.print(f"[red]missed[/red] {miss}")
    return 1 if misses else 0


async def _result(measured: Awaitable[Figure]) -> Figure:
    return await measured


if __name__ == "__main__":
    sys.exit(main())
