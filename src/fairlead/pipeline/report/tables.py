"""Input of the page's sections: tables of the lake, reduced by queries before rows come to this process."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from fairlead.pipeline.dictionary import TABLES
from fairlead.pipeline.lake import Lake
from fairlead.pipeline.queries import Queries, Row, queries_on
from fairlead.pipeline.report.links import Console
from fairlead.pipeline.schemas import BRONZE

# Maximum number of points of a curve; enough for the width of a phone.
POINTS_MAX = 160


@dataclass(frozen=True, slots=True)
class Tables:
    """The derived tables of a lake, with names of namespaces instead of their ids."""

    lake: Lake
    queries: Queries
    console: Console = field(default_factory=Console)
    # When the page is made, in µs since the epoch.
    made_us: int = 0

    def have(self, *names: str) -> bool:
        """Whether all these tables have been written."""
        return all(self.lake.has(name) for name in names)

    def thinned(
        self, table: str, by: Sequence[str], time: str, measures: Mapping[str, str]
    ) -> dict[tuple[Any, ...], list[Row]]:
        """Downsample each series to at most `POINTS_MAX` equal time steps; a series is one combination of `by` columns.

        `measures` has the aggregate of each measure. Each row has the beginning of its step as `at_us`. Callers bound
        the number of series.
        """
        columns = ", ".join([*by, *(f"{aggregate} AS {name}" for name, aggregate in measures.items())])
        rows = self.queries.rows(
            f"""
            WITH span AS (SELECT min({time}) AS first_us, max({time}) AS last_us FROM {table}),
                 steps AS (SELECT first_us, (last_us - first_us) // {POINTS_MAX} + 1 AS step_us FROM span)
            SELECT first_us + ({time} - first_us) // step_us * step_us AS at_us, {columns}
            FROM {table}, steps GROUP BY ALL ORDER BY at_us
            """  # noqa: S608 - our own names
        )
        found: dict[tuple[Any, ...], list[Row]] = {}
        for row in rows:
            found.setdefault(key(row, by), []).append(row)
        return found


@contextmanager
def tables_of(lake: Lake, console: Console | None = None, *, made_us: int = 0) -> Iterator[Tables]:
    """Open the derived tables that have been written."""
    there = [name for name in TABLES if name not in BRONZE and lake.has(name)]
    with queries_on(lake, *there, with_names=True) as queries:
        yield Tables(lake, queries, console or Console(), made_us)


def key(row: Row, by: Sequence[str]) -> tuple[Any, ...]:
    """Return the values of these columns."""
    return tuple(row[name] for name in by)


def points(rows: Sequence[Row], name: str) -> list[tuple[float, float]]:
    """Return the points of one measure of a series; missing values are left out."""
    return [(float(row["at_us"]), float(row[name])) for row in rows if row[name] is not None]


def moment(time_us: int) -> str:
    """Format a time, in UTC."""
    return datetime.fromtimestamp(time_us / 1e6, tz=UTC).strftime("%Y-%m-%d %H:%M:%S")


def length(seconds: float) -> str:
    """Format a duration."""
    for unit, size in (("d", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f}".removesuffix(".0") + f" {unit}"
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"


def place(row: Row) -> str:
    """Format the name of a task queue."""
    kind = {1: "workflow tasks", 2: "activity tasks", 3: "Nexus tasks"}.get(row["task_type"], "tasks")
    return f"{row['task_list']} of {row['namespace_id']} ({kind}, {row['cluster']})"
