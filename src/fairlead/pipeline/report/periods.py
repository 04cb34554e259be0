"""The period that the page judges, and the one before it: both of the same length."""

from dataclasses import dataclass

from fairlead.pipeline.report.tables import Tables, length, moment
from fairlead.pipeline.stages.traffic import WINDOW_S_MAX

# Lengths of a period, the longest first, in seconds. The first of which two fit into the recorded time is taken.
LENGTHS_S = (7 * 86_400, 86_400, 3_600)
# Columns with times by table; windows by their beginning.
_TIMES = {
    "traffic_lists": "window_us",
    "history_traffic": "window_us",
    "workflows": "greatest(closed_us, started_us)",
}


@dataclass(frozen=True, slots=True)
class Period:
    """The period from `begin_us` to `end_us`, and an equally long one before it, to compare with.

    A window belongs to the period in which it begins.
    """

    begin_us: int
    end_us: int

    @property
    def before_us(self) -> int:
        """The beginning of the period before."""
        return 2 * self.begin_us - self.end_us

    def now(self, column: str) -> str:
        """Return the condition for times of this period."""
        return f"({column} >= {self.begin_us} AND {column} < {self.end_us})"

    def before(self, column: str) -> str:
        """Return the condition for times of the period before."""
        return f"({column} >= {self.before_us} AND {column} < {self.begin_us})"

    def __str__(self) -> str:
        """Name the period."""
        size = length((self.end_us - self.begin_us) / 1e6)
        return f"the last {size}, {moment(self.begin_us)} to {moment(self.end_us)}"


def period_of(tables: Tables, length_s: float | None = None) -> Period | None:
    """Return the last period of the recorded time, by default the longest that fits twice; None without any time.

    It includes the last window if that may reach to the end. Otherwise, after some seconds of traffic, all windows
    would belong to the period before, and all workflows to this one.
    """
    bounds = [
        (row["first_us"], row["last_us"], column)
        for name, column in _TIMES.items()
        if tables.have(name)
        for row in tables.queries.rows(
            f"SELECT min({column}) AS first_us, max({column}) AS last_us FROM {name}"  # noqa: S608 - our own names
        )
        if row["last_us"] is not None
    ]
    if not bounds:
        return None
    end_us = max(last_us for _, last_us, _ in bounds) + 1
    # The first table that has any: a workflow may have started long before the journal.
    span_us = max(1, end_us - bounds[0][0])
    half_us = -(-span_us // 2)
    lengths = [seconds * 1_000_000 for seconds in LENGTHS_S if 2 * seconds * 1_000_000 <= span_us]
    length_us = round(length_s * 1e6) if length_s else lengths[0] if lengths else max(half_us, 1)
    # Windows that began earlier were over before the end: no task was added since then, or the journal has none.
    windows_from_us = end_us - round(WINDOW_S_MAX * 1e6)
    windows_us = [last_us for _, last_us, column in bounds if column == "window_us" and last_us >= windows_from_us]
    return Period(min(end_us - length_us, *windows_us, end_us - 1), end_us)
