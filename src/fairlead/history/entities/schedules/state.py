"""Stored state of a schedule. Add fields only at the end, with a default, so that old rows stay readable."""

import msgspec

CONFLICT_TOKEN_FIRST = 1


class Start(msgspec.Struct, array_like=True):
    """An action to take: buffered, or waiting for its workflow to be started.

    `overlap` is the overlap policy of this action alone, or 0. `overlaps` is true if other actions don't wait for its
    workflow. `decided_ns` is the time of the decision to start it; 0 while it is buffered.
    """

    number: int
    nominal_ns: int
    actual_ns: int
    overlap: int
    is_manual: bool
    overlaps: bool = False
    decided_ns: int = 0


class Backfill(msgspec.Struct, array_like=True):
    """A range of past times whose actions are taken now. The times after `after_ns` are left to do."""

    after_ns: int
    end_ns: int
    overlap: int


class Running(msgspec.Struct, array_like=True):
    """A running workflow for which other actions wait.

    `stop`: 0 no request, 1 cancel requested, 2 terminate requested.
    """

    number: int
    workflow_id: str
    run_id: str
    stop: int = 0


class Action(msgspec.Struct, array_like=True):
    """An action that was taken; `status` is the status of its workflow."""

    number: int
    scheduled_ns: int
    actual_ns: int
    workflow_id: str
    run_id: str
    status: int


class Stop(msgspec.Struct, array_like=True, frozen=True):
    """A workflow to cancel or terminate; `run_id` is the first run of its chain."""

    workflow_id: str
    run_id: str
    terminates: bool


class WorkflowClosed(msgspec.Struct, array_like=True, frozen=True):
    """The end of a workflow that a schedule started, after all retries and continue-as-new.

    `schedule_run_id` and `number` come from the internal callback of its start; `status` is a WorkflowExecutionStatus;
    `result` and `failure` are serialized `Payloads` and `Failure`, or empty.
    """

    schedule_id: str
    schedule_run_id: str
    number: int
    status: int
    result: bytes = b""
    failure: bytes = b""


class ScheduleRecord(msgspec.Struct, array_like=True):
    """A schedule: its settings, its past actions and its pending actions."""

    # Serialized messages: the schedule with its spec in structured form, the memo, the search attributes.
    schedule: bytes
    memo: bytes
    search_attributes: bytes
    created_ns: int
    updated_ns: int = 0
    conflict_token: int = CONFLICT_TOKEN_FIRST
    # The times of the spec up to this time are processed.
    after_ns: int = 0
    action_count: int = 0
    missed_catchup_window: int = 0
    overlap_skipped: int = 0
    buffer_dropped: int = 0
    next_number: int = 1
    buffered: list[Start] = []
    backfills: list[Backfill] = []
    starting: list[Start] = []
    stopping: list[Stop] = []
    running: list[Running] = []
    recent: list[Action] = []
    # Ends of workflows that were reported before their starts were recorded.
    closed_early: list[WorkflowClosed] = []
    # The serialized `Payloads` and `Failure` that the next workflow gets.
    last_result: bytes = b""
    last_failure: bytes = b""
    # Time of the next wake-up; 0 without one. Wake-ups for other times are ignored.
    wake_ns: int = 0
    # Ids of the latest requests that were carried out.
    request_ids: list[str] = []
    # Hash of the last visibility row.
    listed: int = 0
    # Time of the last step of a backfill.
    backfilled_ns: int = 0
