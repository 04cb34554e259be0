"""Shows Spark's progress on standard error: a bar on a terminal, else nothing."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from fairlead.pipeline.java_errors import Py4JError

INTERVAL_S = 0.3


class ProgressDisplay:
    """The progress bar of one run: its text comes from the job, its length from the tasks of Spark's active stages."""

    def __init__(self, bar: Progress, row: TaskID) -> None:
        self._bar = bar
        self._row = row
        self._ended = threading.Event()

    def say(self, line: str) -> None:
        """Show what the job is doing."""
        self._bar.update(self._row, description=line)

    def follow(self, spark: SparkSession) -> None:
        """Follow Spark's tasks until `end`. Spark Connect does not report them: there the bar has no length."""
        # Java may end at any moment, even before the first call. The job itself reports that.
        with suppress(Py4JError, PySparkException, OSError):
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
        """Stop following."""
        self._ended.set()


@contextmanager
def progress_display(subject: str) -> Iterator[ProgressDisplay]:
    """Show a progress bar during the block."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        display = ProgressDisplay(bar, bar.add_task(subject, total=None))
        try:
            yield display
        finally:
            display.end()


@contextmanager
def following(display: ProgressDisplay, spark: SparkSession) -> Iterator[None]:
    """Let the bar follow a session during the block."""
    thread = threading.Thread(target=display.follow, args=(spark,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        display.end()
        thread.join()
