"""Says on standard error how far Spark has come: a bar on a terminal, and nothing elsewhere."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

INTERVAL_S = 0.3


class Telling:
    """The bar of one run: its text comes from the job, its length from the tasks of Spark's running stages."""

    def __init__(self, bar: Progress, row: TaskID) -> None:
        self._bar = bar
        self._row = row
        self._ended = threading.Event()

    def say(self, line: str) -> None:
        """What the job does now."""
        self._bar.update(self._row, description=line)

    def follow(self, spark: SparkSession) -> None:
        """Look at Spark's tasks until the end. Spark Connect has no such look: there the bar only moves."""
        try:
            tracker = spark.sparkContext.statusTracker()
        except (PySparkException, AttributeError):
            return
        while not self._ended.wait(INTERVAL_S):
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            total = sum(stage.numTasks for stage in stages if stage)
            done = sum(stage.numCompletedTasks for stage in stages if stage)
            self._bar.update(self._row, total=total or None, completed=done)

    def end(self) -> None:
        """Stop looking."""
        self._ended.set()


@contextmanager
def telling(subject: str) -> Iterator[Telling]:
    """A bar for the time of the block."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        told = Telling(bar, bar.add_task(subject, total=None))
        try:
            yield told
        finally:
            told.end()


@contextmanager
def following(told: Telling, spark: SparkSession) -> Iterator[None]:
    """Let the bar follow a session for the time of the block."""
    thread = threading.Thread(target=told.follow, args=(spark,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        told.end()
        thread.join()
