"""The picture of a run: throughput, partitions and waits over time."""

from typing import TYPE_CHECKING

from fairlead.bench.series import configs_table, timeline_table
from fairlead.bench.tally import Tally

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(figure: "Figure", tally: Tally) -> None:
    """Draw throughput, waits and, if it changed, the number of partitions."""
    has_changes = len(tally.configs) > 1
    axes = figure.subplots(3 if has_changes else 2, 1, sharex=True)
    times_s, adds, receives, p50, p99 = zip(*timeline_table(tally).rows or [(0, 0, 0, None, None)], strict=True)
    axes[0].step(times_s, adds, where="post", label="added", color="tab:blue")
    axes[0].step(times_s, receives, where="post", label="received", color="tab:green")
    axes[0].set_ylabel("tasks per second")
    axes[0].set_ylim(bottom=0)
    for waits, label, colour in ((p50, "median", "tab:blue"), (p99, "99th percentile", "tab:red")):
        known = [(time_s, wait) for time_s, wait in zip(times_s, waits, strict=True) if wait]
        axes[-1].plot(*zip(*known, strict=True) if known else ((), ()), label=label, color=colour, marker=".")
    axes[-1].set_ylabel("wait of tasks, ms")
    axes[-1].set_yscale("log")
    axes[-1].set_xlabel("seconds since the start")
    if has_changes:
        seen_s, _, read, write = zip(*configs_table(tally).rows, strict=True)
        end_s = max(times_s[-1], seen_s[-1])
        axes[1].step((*seen_s, end_s), (*read, read[-1]), where="post", label="read", color="tab:cyan")
        axes[1].step((*seen_s, end_s), (*write, write[-1]), where="post", label="write", color="tab:blue")
        axes[1].set_ylabel("partitions")
        axes[1].set_ylim(bottom=0)
    for axis in axes:
        axis.legend(loc="upper right")
        axis.grid(visible=True, alpha=0.3)
