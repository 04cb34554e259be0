"""Summary of a tally: totals, waits, shares and failures of one load."""

from collections.abc import Mapping

from fairlead.bench.partition_counts import PartitionCounts
from fairlead.bench.picture import draw
from fairlead.bench.plan import LoadPlan
from fairlead.bench.result import BenchResult, Measure
from fairlead.bench.series import configs_table, timeline_table
from fairlead.bench.shares import OWED_MIN
from fairlead.bench.tally import Tally
from fairlead.bench.waits import COLUMNS as WAIT_COLUMNS
from fairlead.bench.waits import milliseconds
from fairlead.report import Cell, Table, counted


def summarise(
    tally: Tally, plan: LoadPlan, counts: Mapping[int, PartitionCounts], parameters: Mapping[str, Cell]
) -> BenchResult:
    """Return the result of a load on a running server."""
    return BenchResult(
        subject="bench matching",
        headline=headline(tally),
        parameters=parameters,
        totals=totals(tally),
        tables=[
            waits_table(tally, plan), keys_table(tally, plan), partitions_table(counts), failures_table(tally),
        ],
        series=[timeline_table(tally), configs_table(tally)],
        lost=tally.lost,
        unexplained=tally.outstanding - tally.lost,
        failed=tally.failed,
        draw=lambda figure: draw(figure, tally),
    )  # fmt: skip


def headline(tally: Tally) -> str:
    """Return the run in one sentence, with problems in capitals."""
    said = [_course(tally)]
    if tally.swept:
        said.append(f"{tally.swept:,} {_were(tally.swept)} LEFT BEHIND")
    if tally.outstanding and not tally.lost:
        why = "the run was stopped" if tally.is_interrupted else f"{counted(tally.unasked, 'partition')} did not answer"
        said.append(f"{tally.outstanding:,} acknowledged and not received, {why}")
    if tally.failed:
        adds, polls = tally.add_failures.total(), tally.poll_failures.total()
        failed = [counted(times, noun).upper() for times, noun in ((adds, "add"), (polls, "poll")) if times]
        said.append(f"{' AND '.join(failed)} FAILED")
    latest_s = tally.since_start_s(max(tally.last_answered_s, tally.last_received_s))
    stopped = f"STOPPED after {latest_s:,.1f} s: " if tally.is_interrupted else ""
    return stopped + "; ".join(said)


def _course(tally: Tally) -> str:
    if tally.lost:
        acknowledged = tally.acknowledged + tally.preloaded
        return f"{counted(tally.lost, 'ACKNOWLEDGED TASK').upper()} {_were(tally.lost)} LOST of {acknowledged:,}"
    p50_s, p99_s = tally.task_waits.at_s(50), tally.task_waits.at_s(99)
    if p50_s is None or p99_s is None:
        return "no task was received"
    return (
        f"{counted(tally.received, 'task')}, added at {add_rate_per_s(tally):,.0f} and received at "
        f"{receive_rate_per_s(tally):,.0f} per second; half waited {p50_s * 1000:,.1f} ms at most, "
        f"99 % {p99_s * 1000:,.1f} ms"
    )


def _were(number: int) -> str:
    return "WAS" if number == 1 else "WERE"


def add_rate_per_s(tally: Tally) -> float:
    """Return the tasks acknowledged per second, from the start to the last response."""
    return _rate(tally.acknowledged, tally.last_answered_s - tally.start_s)


def receive_rate_per_s(tally: Tally) -> float:
    """Return the tasks received per second, from the start of load and polls to the last task."""
    since_s = max(tally.start_s, tally.polling_since_s or tally.start_s)
    return _rate(tally.received, tally.last_received_s - since_s)


def totals(tally: Tally) -> list[Measure]:
    """Return the totals of the run."""
    return [
        Measure("tasks_sent", "tasks sent", tally.sent),
        Measure("tasks_added", "tasks acknowledged", tally.acknowledged),
        Measure("tasks_received", "tasks received", tally.received),
        *loss_measures(tally),
        Measure("received_unacknowledged", "received although the add had failed", tally.received_unacknowledged),
        Measure("foreign", "received from other runs", tally.foreign),
        Measure("add_duration_s", "seconds of adding", round(tally.since_start_s(tally.last_answered_s), 3)),
        Measure("duration_s", "seconds until the last task was received", duration_s(tally)),
        Measure("adds_per_s", "adds per second", round(add_rate_per_s(tally), 1)),
        Measure("dispatches_per_s", "dispatches per second", round(receive_rate_per_s(tally), 1)),
        Measure("sync_match_share", "share matched at once", share(tally.started_at_once, tally.acknowledged)),
        Measure("add_forward_share", "share of tasks forwarded", share(tally.adds_forwarded, tally.acknowledged)),
        Measure("poll_forward_share", "share received by forwarding", share(tally.received_forwarded, tally.received)),
        Measure("backlog_share", "share stored before it was received", share(tally.received_later, tally.received)),
        Measure("polls", "polls answered", tally.polls),
        Measure("polls_empty", "of them empty", tally.polls_empty),
        Measure("jain_index", "Jain index of the keys' shares", rounded(tally.shares.jain_index(), 5)),
        Measure("add_failures", "adds that failed", tally.add_failures.total()),
        Measure("poll_failures", "polls that failed", tally.poll_failures.total()),
    ]


def loss_measures(tally: Tally) -> list[Measure]:
    """Return the numbers of lost, missing, left-behind and duplicate tasks."""
    return [
        Measure("lost", "lost (acknowledged, but in no partition)", tally.lost),
        Measure("unexplained", "not received, but not all partitions could be polled", tally.outstanding - tally.lost),
        Measure("left_behind", "left behind (found in a partition at the end)", tally.swept),
        Measure("duplicates", "received more than once", tally.duplicates),
    ]


def waits_table(tally: Tally, plan: LoadPlan) -> Table:
    """Return the durations of all operations."""
    since = "due" if plan.is_open_loop else "sending"
    return Table(
        name="waits",
        title="Waits",
        columns=("of", *WAIT_COLUMNS),
        rows=[
            (f"task, since {since}", *tally.task_waits.row()),
            ("add", *tally.add_waits.row()),
            ("poll", *tally.poll_waits.row()),
            ("sending, since due", *tally.send_delays.row()),
        ],
        note="The last line is the generator's own delay. It is a part of the first line." if plan.is_open_loop else "",
    )


def keys_table(tally: Tally, plan: LoadPlan) -> Table:
    """Return the dispatches that each key got and was owed; empty with a single key."""
    shares = [tally.shares.share(key) for key in range(plan.keys.count)] if plan.keys.count > 1 else []
    weight_sum = sum(plan.keys.weight(key) for key in range(len(shares)))
    contended_sum = sum(one.contended for one in shares)
    rows = []
    for key, one in enumerate(shares):
        received = tally.key_received[key]
        rows.append(
            (
                plan.keys.name(key),
                plan.keys.weight(key),
                received,
                share(plan.keys.weight(key), weight_sum),
                share(one.contended, contended_sum),
                rounded(one.got / one.owed if one.owed else None, 4),
                milliseconds(tally.key_wait_sum_s[key] / received if received else None),
            )
        )
    return Table(
        name="keys",
        title="Fairness keys",
        columns=("key", "weight", "received", "weight_share", "share_when_all_wait", "got_over_owed", "mean_wait_ms"),
        rows=rows,
        note="Owed: each dispatch, divided by weight among the keys with tasks waiting at that time. "
        f"The Jain index is that of got / owed, for keys that were owed at least {OWED_MIN:g} dispatches.",
    )


def partitions_table(counts: Mapping[int, PartitionCounts]) -> Table:
    """Return the client's requests to each partition, and their results."""
    rows = [
        (number, one.adds, one.adds_started, one.polls, one.polls_with_task) for number, one in sorted(counts.items())
    ]
    return Table(
        name="partitions",
        title="Partitions",
        columns=("partition", "adds", "started_at_once", "polls", "polls_with_task"),
        rows=rows,
    )


def failures_table(tally: Tally) -> Table:
    """Return the failures by error."""
    rows = [
        (operation, error, times)
        for operation, failures in (("add", tally.add_failures), ("poll", tally.poll_failures))
        for error, times in failures.most_common()
    ]
    return Table(name="failures", title="Failures", columns=("operation", "error", "times"), rows=rows)


def duration_s(tally: Tally) -> float:
    """Return the seconds from the start to the last task received."""
    return round(tally.since_start_s(tally.last_received_s), 3)


def share(part: float, whole: float) -> float | None:
    """Return a part as a share of the whole; None if the whole is 0."""
    return rounded(part / whole if whole else None, 4)


def rounded(value: float | None, digits: int) -> float | None:
    """Round a number; None stays None."""
    return None if value is None else round(value, digits)


def _rate(events: int, duration_s: float) -> float:
    return events / duration_s if duration_s > 0 else 0.0
