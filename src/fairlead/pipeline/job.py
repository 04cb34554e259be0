"""What every job is given and what it answers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import SparkSession

from fairlead.pipeline.lake import Lake


def say_nothing(_line: str) -> None:
    """Progress that nobody watches."""


@dataclass(frozen=True)
class JobContext:
    """All that a job may use. Times are microseconds of the epoch: from `since_us` on, and before `until_us`."""

    spark: SparkSession
    lake: Lake
    journal: Path | None = None
    since_us: int | None = None
    until_us: int | None = None
    namespace: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    progress: Callable[[str], None] = say_nothing
    # By which the tables of this run are told from those of others.
    run_id: str = field(default_factory=lambda: datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ"))


@dataclass(frozen=True)
class Summary:
    """What a job did: rows written for each table, and what it found.

    `alarm` is one line for whoever schedules the job: the work is done, and somebody must look at what it found. The
    command then ends with an exit code of its own.
    """

    job: str
    rows: dict[str, int]
    findings: dict[str, Any]
    alarm: str | None = None


class Job(Protocol):
    """A module of `fairlead.pipeline.jobs`; one with flags of its own lists them as `OPTIONS`."""

    def run(self, context: JobContext) -> Summary:
        """Do the whole job once; again, after whatever end, gives the same tables."""
        ...
