"""What is kept of a schedule. Fields are only ever added, at the end, with a default: old rows stay readable."""

import msgspec

CONFLICT_TOKEN_FIRST = 1


class Start(msgspec.Struct, array_like=True):
    """An action that is to be taken: waits for others, or for its workflow to be started.

    `overlap` is the policy that was asked for just this one, or 0. `overlaps`: nobody waits for it. `decided_ns` is
    when it was to be started, 0 while it waits for others.
    """

    number: int
    nominal_ns: int
    actual_ns: int
    overlap: int
    is_manual: bool
    overlaps: bool = False
    decided_ns: int = 0


class Backfill(msgspec.Struct, array_like=True):
    """A time of the past whose actions are taken now: what is after `after_ns` is still to be taken."""

    after_ns: int
    end_ns: int
    overlap: int


class Running(msgspec.Struct, array_like=True):
    """A workflow that others wait for. `stop` is what it was asked for: 0 nothing, 1 to cancel, 2 to terminate."""

    number: int
    workflow_id: str
    run_id: str
    stop: int = 0


class Action(msgspec.Struct, array_like=True):
    """An action that was taken; `status` is its workflow's."""

    number: int
    scheduled_ns: int
    actual_ns: int
    workflow_id: str
    run_id: str
    status: int


class Stop(msgspec.Struct, array_like=True, frozen=True):
    """A workflow that is to be canceled or terminated; `run_id` is the first of its runs."""

    workflow_id: str
    run_id: str
    terminates: bool


class WorkflowClosed(msgspec.Struct, array_like=True, frozen=True):
    """A workflow that a schedule started has come to its end, after all retries and continuations.

    `schedule_run_id` and `number` are from the callback that it was started with; `status` is that of Temporal's
    enumeration; `result` and `failure` are serialized `Payloads` and `Failure`, empty where there is none.
    """

    schedule_id: str
    schedule_run_id: str
    number: int
    status: int
    result: bytes = b""
    failure: bytes = b""


class ScheduleRecord(msgspec.Struct, array_like=True):
    """A schedule: what its users have set, what it has done, what it is about to do."""

    # Serialized messages: the schedule with its spec in structured form, the memo, the search attributes.
    schedule: bytes
    memo: bytes
    search_attributes: bytes
    created_ns: int
    updated_ns: int = 0
    conflict_token: int = CONFLICT_TOKEN_FIRST
    # Times of the spec up to here are dealt with.
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
    # Ends that were told before the start was known to have happened.
    closed_early: list[WorkflowClosed] = []
    # Serialized `Payloads` and `Failure` that the next workflow begins with.
    last_result: bytes = b""
    last_failure: bytes = b""
    # When the schedule looks at itself next; other wake-ups mean nothing. 0 for none.
    wake_ns: int = 0
    # The requests that were carried out last.
    request_ids: list[str] = []
    # What the list was last told, as a hash.
    listed: int = 0
    # When a step of a backfill was taken last.
    backfilled_ns: int = 0
