"""The input and the result of a pipeline job."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import SparkSession

from fairlead.pipeline.lake import Lake

# Share of its data that a job may leave out without raising an alarm.
LEFT_OUT_SHARE_MAX = 0.5


def say_nothing(_line: str) -> None:
    """Progress callback that does nothing."""


@dataclass(frozen=True)
class JobContext:
    """Input and tools of a job, which covers the times `since_us` <= time < `until_us`, in microseconds since the
    epoch.
    """

    spark: SparkSession
    lake: Lake
    journal: Path | None = None
    since_us: int | None = None
    until_us: int | None = None
    namespace: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    progress: Callable[[str], None] = say_nothing
    # Distinguishes the tables of this run from those of other runs.
    run_id: str = field(default_factory=lambda: datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ"))


@dataclass(frozen=True)
class Summary:
    """Result of a job: the number of rows written to each table, and its findings.

    `alarm` is one line for the operator: the job has succeeded, but its findings need attention. The command then ends
    with a distinct exit code.
    """

    job: str
    rows: dict[str, int]
    findings: dict[str, Any]
    alarm: str | None = None


def left_out_alarm(left_out: int, total: int, *, what: str, why: str) -> str | None:
    """Return an alarm if a job left out most of its data, so that its tables say little about the recorded traffic."""
    if left_out <= LEFT_OUT_SHARE_MAX * total:
        return None
    return f"{left_out:,} of {total:,} {what} were left out ({left_out / total:.0%}): {why}"


class Job(Protocol):
    """A module of `fairlead.pipeline.jobs`; its command-line flags, if any, are in `OPTIONS`."""

    def run(self, context: JobContext) -> Summary:
        """Run the whole job once. A rerun writes the same tables, however the previous run ended."""
        ...
