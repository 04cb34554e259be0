"""Prints the speed of a seed search."""

import time

import pytest

_began_s = time.monotonic()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the number of seeds per second, over all workers."""
    reports = [
        report
        for outcome in ("passed", "failed")
        for report in terminalreporter.stats.get(outcome, [])
        if "test_every_acknowledged_task_is_started" in report.nodeid
    ]
    if reports:
        took_s = time.monotonic() - _began_s
        terminalreporter.write_line(
            f"simulation: {len(reports)} seeds in {took_s:.0f} s, {len(reports) / took_s:.1f} seeds per second; "
            f"each took {sum(report.duration for report in reports) / len(reports):.2f} s on average"
        )
