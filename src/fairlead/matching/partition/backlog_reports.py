"""Reports of one partition's backlog, which are part of every response to a poll."""

import math

from fairlead.matching.messages import BacklogReport
from fairlead.matching.partition.add_rates import AddRates
from fairlead.matching.partition.dependencies import Dependencies

# Seconds for which a report is reused.
REPORT_FRESH_S = 0.1


class BacklogReports:
    """Makes reports, at most one every `REPORT_FRESH_S`."""

    __slots__ = ("_adds", "_clock", "_dependencies", "_report", "_report_until_s")

    def __init__(self, dependencies: Dependencies, adds: AddRates) -> None:
        self._dependencies = dependencies
        self._clock = dependencies.clock
        self._adds = adds
        self._report = backlog_report(dependencies)
        self._report_until_s = -math.inf

    def current(self) -> BacklogReport:
        """Return a report that is at most `REPORT_FRESH_S` old."""
        now_s = self._clock()
        if not 0 <= self._report_until_s - now_s <= REPORT_FRESH_S:
            self._report = backlog_report(self._dependencies, self._adds.by_priority.rate(now_s))
            self._report_until_s = now_s + REPORT_FRESH_S
        return self._report


def backlog_report(dependencies: Dependencies, adds_per_s: float = 0.0) -> BacklogReport:
    """Make a report of the present backlog."""
    queue = dependencies.queue
    return BacklogReport(
        partition=dependencies.number,
        tasks=queue.backlog.priorities.tasks,
        age_s=max(0.0, dependencies.clock() - queue.oldest_s()),
        adds_per_s=adds_per_s,
        wait_s=queue.wait_s,
    )
