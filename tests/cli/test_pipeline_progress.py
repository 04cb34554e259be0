"""Tests of the pipeline's progress bar: it never adds to what a failed job reports."""

import io
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from rich.console import Console
from rich.progress import Progress

from fairlead.cli.pipeline.progress import ProgressDisplay


def fail() -> None:
    """Fail as py4j does once Java has ended."""
    raise Py4JNetworkError("Error while sending or receiving")


def fail_in_spark() -> None:
    """Fail as Spark does if an exception in Java is its answer."""
    raise PySparkException("the status store is closed")


@pytest.mark.parametrize(
    "tracker",
    [
        pytest.param(fail, id="before the first call"),
        pytest.param(lambda: SimpleNamespace(getActiveStageIds=fail), id="between two calls"),
        pytest.param(lambda: SimpleNamespace(getActiveStageIds=fail_in_spark), id="while Java ends"),
    ],
)
def test_following_ends_quietly_when_java_has_ended(tracker: object) -> None:
    with Progress(console=Console(file=io.StringIO()), disable=True) as bar:
        display = ProgressDisplay(bar, bar.add_task("ingest", total=None))
        display.follow(SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=tracker)))  # type: ignore[arg-type]
