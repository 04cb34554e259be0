"""The bounds of one run: plain values, which the service takes from its settings."""

from dataclasses import dataclass

from fairlead.history.state.times import SECOND_NS

# Request ids of signals and cancellations, of which the latest are remembered.
REQUEST_IDS_MAX = 1_000
# As many points to reset to as Temporal keeps.
RESET_POINTS_MAX = 20


@dataclass(frozen=True, slots=True)
class Limits:
    """Temporal's names and defaults are in the settings; sizes are in bytes."""

    id_length_max: int = 1000
    blob_size_max: int = 2 * 1024 * 1024
    memo_size_max: int = 2 * 1024 * 1024
    pending_activities_max: int = 2000
    pending_children_max: int = 2000
    pending_signals_max: int = 2000
    pending_cancels_max: int = 2000
    buffered_events_max: int = 100
    signals_max: int = 10_000
    history_count_suggest: int = 4096
    history_size_suggest: int = 4 * 1024 * 1024
    workflow_task_timeout_default_ns: int = 10 * SECOND_NS
    workflow_task_timeout_max_ns: int = 120 * SECOND_NS
    workflow_task_retry_max_ns: int = 600 * SECOND_NS
    # For how long a worker may keep a run with empty answers that ask for the next task.
    workflow_task_row_max_ns: int = 1800 * SECOND_NS
    # Runs of one workflow id start at least this far apart, so that a failing one does not spin.
    run_interval_min_ns: int = SECOND_NS
    eager_activities: bool = True


DEFAULT_LIMITS = Limits()
