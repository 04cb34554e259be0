"""Limits of one run: plain values, which the service reads from its settings."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from fairlead.api.times import SECOND_NS

# Maximum number of request ids of signals and cancel requests that a run remembers.
REQUEST_IDS_MAX = 1_000
# Maximum number of reset points; the same as in Temporal.
RESET_POINTS_MAX = 20


class LimitedSize(StrEnum):
    """A size with a limit and a warning limit; the value is the prefix of their settings' keys."""

    BLOB = "limit.blobSize"
    MEMO = "limit.memoSize"
    HISTORY_SIZE = "limit.historySize"
    HISTORY_COUNT = "limit.historyCount"


@dataclass(frozen=True, slots=True)
class Limits:
    """The values of one namespace's settings, with Temporal's names and defaults; sizes are in bytes.

    For the numbers of pending items, signals and updates, 0 means no limit.
    """

    id_length_max: int = 1000
    blob_size_max: int = 2 * 1024 * 1024
    blob_size_warn: int = 512 * 1024
    memo_size_max: int = 2 * 1024 * 1024
    memo_size_warn: int = 2 * 1024
    pending_activities_max: int = 2000
    pending_children_max: int = 2000
    pending_signals_max: int = 2000
    pending_cancels_max: int = 2000
    buffered_events_max: int = 100
    signals_max: int = 10_000
    updates_in_flight_max: int = 10
    updates_max: int = 2_000
    history_count_max: int = 50 * 1024
    history_count_warn: int = 10 * 1024
    history_size_max: int = 50 * 1024 * 1024
    history_size_warn: int = 10 * 1024 * 1024
    history_count_suggest: int = 4096
    history_size_suggest: int = 4 * 1024 * 1024
    workflow_task_timeout_default_ns: int = 10 * SECOND_NS
    workflow_task_timeout_max_ns: int = 120 * SECOND_NS
    workflow_task_retry_max_ns: int = 600 * SECOND_NS
    # Maximum nanoseconds of consecutive workflow task heartbeats: empty responses that request a new workflow task.
    workflow_task_row_max_ns: int = 1800 * SECOND_NS
    # Minimum nanoseconds between the starts of two runs of a chain, so that a workflow that fails at once does not run
    # all the time.
    run_interval_min_ns: int = SECOND_NS
    # Maximum number of events sent with a workflow task; further events follow in pages.
    task_page_events: int = 256
    eager_start: bool = True
    eager_activities: bool = True
    # Whether a task queue limits its running activities. If so, activities don't start eagerly, because they need a
    # slot first.
    limits_running: Callable[[str], bool] = field(default=lambda _task_queue: False, compare=False)
    # Number of failed workflow tasks in a row from which TemporalReportedProblems is set; 0 means never.
    reported_problems_tasks_min: int = 5
    cross_namespace_commands: bool = False


DEFAULT_LIMITS = Limits()
