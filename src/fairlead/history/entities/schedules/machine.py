"""Decisions of a schedule, without I/O: which times are due, which workflows to start or stop, which starts to buffer.

`advance` is called after every change and at the time `wake_ns`. It records which workflows to start and to stop. The
task executor starts and stops them, and reports the results with `started`, `not_started`, `stopped` and `closed`.
"""

from collections.abc import Iterable
from itertools import islice

from temporalio.api.enums.v1 import ScheduleOverlapPolicy, WorkflowExecutionStatus
from temporalio.api.failure.v1 import Failure
from temporalio.api.schedule.v1 import Schedule, SchedulePatch

from fairlead.api.schedules.calendar import TIME_S_MAX
from fairlead.api.schedules.spec import Firing, Spec, compile_spec
from fairlead.api.times import MILLISECOND_NS, SECOND_NS, from_duration, from_timestamp, to_duration
from fairlead.history.entities.schedules.state import (
    Action,
    Backfill,
    Running,
    ScheduleRecord,
    Start,
    Stop,
    WorkflowClosed,
)

# Maximum numbers of recent and of future actions in a description, as in Temporal.
RECENT_ACTIONS_MAX = 10
FUTURE_ACTIONS_MAX = 10
BUFFERED_MAX = 1000
BACKFILLS_MAX = 1000
# Maximum number of starts that backfills may buffer; the schedule's own times use the rest of the buffer.
BUFFERED_BY_BACKFILLS_MAX = BUFFERED_MAX // 2
# Maximum number of starts in one step of a backfill, and nanoseconds between steps: a backfill must not block other
# work.
BACKFILLED_A_STEP_MAX = 10
BACKFILL_PAUSE_NS = SECOND_NS
CATCHUP_WINDOW_NS_DEFAULT = 365 * 24 * 3600 * SECOND_NS
CATCHUP_WINDOW_NS_MIN = 10 * SECOND_NS
# Nanoseconds after which an idle schedule without future actions is deleted: a week.
RETENTION_NS = 7 * 24 * 3600 * SECOND_NS
# Nanoseconds after which the server gives up a start that keeps failing.
START_MANUAL_NS_MAX = 60 * SECOND_NS
START_NS_MIN, START_NS_MAX = 5 * SECOND_NS, 3600 * SECOND_NS
# Maximum number of times processed in one step; the next step processes the rest.
TIMES_A_STEP_MAX = 1000
REQUEST_IDS_MAX = 20

_SKIP = ScheduleOverlapPolicy.SCHEDULE_OVERLAP_POLICY_SKIP
_BUFFER_ONE = ScheduleOverlapPolicy.SCHEDULE_OVERLAP_POLICY_BUFFER_ONE
_BUFFER_ALL = ScheduleOverlapPolicy.SCHEDULE_OVERLAP_POLICY_BUFFER_ALL
_CANCEL = ScheduleOverlapPolicy.SCHEDULE_OVERLAP_POLICY_CANCEL_OTHER
_TERMINATE = ScheduleOverlapPolicy.SCHEDULE_OVERLAP_POLICY_TERMINATE_OTHER
_ALLOW_ALL = ScheduleOverlapPolicy.SCHEDULE_OVERLAP_POLICY_ALLOW_ALL
_FAILED = WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_FAILED
_TIMED_OUT = WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_TIMED_OUT
_RUNNING = WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING


class Machine:
    """A schedule at time `now_ns`. `seed` makes the jitter differ between schedules.

    Many methods, because each is a small step over the one state of the schedule.
    """

    def __init__(self, record: ScheduleRecord, *, now_ns: int, seed: str) -> None:
        self.record = record
        self.schedule = Schedule.FromString(record.schedule)
        self._spec: Spec = compile_spec(self.schedule.spec)
        # `after_ns` never decreases, so that no time fires twice if the clock goes back.
        self._now_ns = now_ns
        self._seed = seed
        # The first time that is not due yet, or None; and whether due times are left for the next step.
        self._next: Firing | None = None
        self._is_behind = False

    # Changes by users

    def update(self, schedule: Schedule) -> None:
        """Replace the schedule. The new spec starts no actions for times in the past."""
        self.schedule = filled_in(schedule)
        self._spec = compile_spec(self.schedule.spec)
        self.record.updated_ns = self._now_ns
        self._changed()

    def patch(self, patch: SchedulePatch) -> None:
        """Trigger, backfill, pause or unpause."""
        if patch.HasField("trigger_immediately"):
            trigger = patch.trigger_immediately
            at_ns = self._now_ns
            if trigger.HasField("scheduled_time"):
                at_ns = min(max(from_timestamp(trigger.scheduled_time), 0), TIME_S_MAX * SECOND_NS)
            self._add(Firing(at_ns, at_ns), overlap=trigger.overlap_policy, is_manual=True)
        for request in patch.backfill_request:
            if len(self.record.backfills) >= BACKFILLS_MAX:
                self.record.buffer_dropped += 1
                continue
            # The range includes its start time.
            after_ns = from_timestamp(request.start_time) - MILLISECOND_NS
            backfill = Backfill(after_ns, from_timestamp(request.end_time), request.overlap_policy)
            self.record.backfills.append(backfill)
        if patch.pause:
            self._set_paused(notes=patch.pause, is_paused=True)
        if patch.unpause:
            self._set_paused(notes=patch.unpause, is_paused=False)

    # Passing of time

    def advance(self) -> None:
        """Process all times that are due."""
        self._take_times()
        self._take_backfills()
        while self._empty_buffer():
            pass
        self.record.schedule = self.schedule.SerializeToString(deterministic=True)
        self.record.wake_ns = self._wake_ns()

    def is_over(self) -> bool:
        """Whether to delete the schedule: it has been idle for a week and has no future actions."""
        return self._expires_ns() is not None and self._now_ns >= (self._expires_ns() or 0)

    def future_times(self, count: int = FUTURE_ACTIONS_MAX) -> list[int]:
        """The times of the next actions."""
        state = self.schedule.state
        if state.limited_actions:
            count = min(count, state.remaining_actions)
        # A paused schedule skips times that pass during the pause.
        after_ns = self.record.after_ns if self._may_act() else max(self._now_ns, self.record.after_ns)
        times = islice(self._spec.times(after_ns, self._seed), TIMES_A_STEP_MAX) if count > 0 else ()
        return list(islice((time.actual_ns for time in times if time.actual_ns > self._now_ns), count))

    def matching_times(self, start_ns: int, end_ns: int, count_max: int) -> list[int]:
        """The times at which the spec fires after `start_ns` and until `end_ns`, with or without an action."""
        found: list[int] = []
        for time in islice(self._spec.times(start_ns, self._seed), count_max):
            if time.actual_ns > end_ns:
                break
            found.append(time.actual_ns)
        return found

    # Results of actions

    def started(self, number: int, *, workflow_id: str, run_id: str) -> None:
        """Record that the workflow of an action was started."""
        start = self._taken(number)
        if start is None:
            return
        record = self.record
        record.action_count += 1
        action = Action(number, start.actual_ns, self._now_ns, workflow_id, run_id, int(_RUNNING))
        record.recent = [*record.recent, action][-RECENT_ACTIONS_MAX:]
        if not start.overlaps:
            record.running.append(Running(number, workflow_id, run_id))
        for closed in record.closed_early:
            if closed.number == number:
                record.closed_early.remove(closed)
                self.closed(closed)
                break

    def not_started(self, number: int) -> None:
        """Record that the workflow of an action can't be started; the action is dropped."""
        self._taken(number)
        self.record.closed_early = [closed for closed in self.record.closed_early if closed.number != number]

    def stopped(self, stops: Iterable[Stop]) -> None:
        """Record that the workflows were canceled or terminated, or no longer exist."""
        done = set(stops)
        self.record.stopping = [stop for stop in self.record.stopping if stop not in done]

    def closed(self, closed: WorkflowClosed) -> None:
        """Record the end of a workflow: buffered actions may then start, and a failure may pause the schedule."""
        record = self.record
        for action in record.recent:
            if action.number == closed.number:
                action.status = closed.status
        ended = next((running for running in record.running if running.number == closed.number), None)
        if ended is None:
            if any(start.number == closed.number for start in record.starting):
                record.closed_early.append(closed)
            return
        record.running.remove(ended)
        record.stopping = [stop for stop in record.stopping if stop.run_id != ended.run_id]
        self._pause_on_failure(ended, closed)
        if closed.result:
            record.last_result, record.last_failure = closed.result, b""
        elif closed.failure:
            # Keep the last successful result: the next workflow gets it together with this failure.
            record.last_failure = closed.failure

    def gives_up_ns(self, start: Start) -> int:
        """The time at which the server gives up a start that keeps failing."""
        if start.is_manual:
            return start.decided_ns + START_MANUAL_NS_MAX
        in_time_ns = start.actual_ns + self._catchup_ns() - start.decided_ns
        return start.decided_ns + min(max(in_time_ns, START_NS_MIN), START_NS_MAX)

    # Internals

    def _take_times(self) -> None:
        record, now_ns = self.record, self._now_ns
        self._is_behind = False
        if not self._may_act():
            # Times during a pause don't count as missed.
            record.after_ns = max(record.after_ns, now_ns)
            self._next = self._spec.next(record.after_ns, self._seed)
            return
        catchup_ns = self._catchup_ns()
        self._next = None
        for index, time in enumerate(self._spec.times(record.after_ns, self._seed)):
            if time.actual_ns > now_ns:
                self._next = time
                break
            if index >= TIMES_A_STEP_MAX:
                self._next, self._is_behind = time, True
                return
            record.after_ns = time.nominal_ns
            if time.actual_ns <= record.updated_ns:
                continue
            if now_ns - time.actual_ns > catchup_ns:
                record.missed_catchup_window += 1
                continue
            self._add(time, overlap=0, is_manual=False)
        # Stop before the next nominal time, which may be in the past while its jitter delays it.
        dealt_with_ns = now_ns if self._next is None else min(now_ns, self._next.nominal_ns - 1)
        record.after_ns = max(record.after_ns, dealt_with_ns)

    def _take_backfills(self) -> None:
        record, taken = self.record, 0
        if self._now_ns < record.backfilled_ns + BACKFILL_PAUSE_NS:
            return
        while record.backfills and taken < BACKFILLED_A_STEP_MAX and len(record.buffered) < BUFFERED_BY_BACKFILLS_MAX:
            backfill = record.backfills[0]
            time = self._spec.next(backfill.after_ns, self._seed)
            if time is None or time.actual_ns > backfill.end_ns:
                del record.backfills[0]
                continue
            backfill.after_ns = time.nominal_ns
            self._add(time, overlap=backfill.overlap, is_manual=True)
            taken += 1
        if taken:
            record.backfilled_ns = self._now_ns

    def _add(self, time: Firing, *, overlap: int, is_manual: bool) -> None:
        record = self.record
        if len(record.buffered) >= BUFFERED_MAX:
            record.buffer_dropped += 1
            return
        record.buffered.append(Start(record.next_number, *time, overlap, is_manual))
        record.next_number += 1

    def _empty_buffer(self) -> bool:
        """Apply the overlap policies to all buffered starts.

        Returns true if the chosen start was dropped, so that the policies must be applied again.
        """
        record = self.record
        if not self.schedule.action.HasField("start_workflow"):
            record.buffered = []
            return False
        is_running = bool(record.running) or any(not start.overlaps for start in record.starting)
        chosen: Start | None = None
        together: list[Start] = []
        waiting: list[Start] = []
        stop = 0
        for start in record.buffered:
            policy = self._policy(start.overlap)
            if policy == _ALLOW_ALL:
                together.append(start)
            elif not is_running and (chosen is None or policy in (_CANCEL, _TERMINATE)):
                # The previous candidate was not started: replace it, there is no workflow to cancel or terminate.
                chosen = start
            elif policy == _BUFFER_ALL or (policy == _BUFFER_ONE and not waiting):
                waiting.append(start)
            elif policy in (_CANCEL, _TERMINATE):
                waiting.append(start)
                stop = max(stop, 2 if policy == _TERMINATE else 1)
            else:
                record.overlap_skipped += 1
        record.buffered = waiting
        for start in together:
            self._begin(start, overlaps=True)
        if stop:
            self._stop_running(stop)
        return chosen is not None and not self._begin(chosen, overlaps=False) and bool(waiting)

    def _begin(self, start: Start, *, overlaps: bool) -> bool:
        """Decide to start the workflow, if the schedule may still act; a manual start is always allowed."""
        if not start.is_manual:
            if not self._may_act():
                return False
            if self.schedule.state.limited_actions:
                self.schedule.state.remaining_actions -= 1
                self._changed()
        start.overlaps, start.decided_ns = overlaps, self._now_ns
        self.record.starting.append(start)
        return True

    def _stop_running(self, stop: int) -> None:
        for running in self.record.running:
            if running.stop < stop:
                running.stop = stop
                self.record.stopping.append(Stop(running.workflow_id, running.run_id, terminates=stop == 2))

    def _taken(self, number: int) -> Start | None:
        starting = self.record.starting
        start = next((start for start in starting if start.number == number), None)
        if start is not None:
            starting.remove(start)
        return start

    def _pause_on_failure(self, ended: Running, closed: WorkflowClosed) -> None:
        state = self.schedule.state
        if not self.schedule.policies.pause_on_failure or state.paused:
            return
        if closed.status == _FAILED:
            message = Failure.FromString(closed.failure).message
            notes = f"paused due to workflow failure: {ended.workflow_id}: {message}"
        elif closed.status == _TIMED_OUT:
            notes = f"paused due to workflow timeout: {ended.workflow_id}"
        else:
            return
        self._set_paused(notes=notes, is_paused=True)

    def _set_paused(self, *, notes: str, is_paused: bool) -> None:
        self.schedule.state.paused = is_paused
        self.schedule.state.notes = notes
        self._changed()

    def _changed(self) -> None:
        self.record.conflict_token += 1

    def _may_act(self) -> bool:
        state = self.schedule.state
        return not state.paused and (not state.limited_actions or state.remaining_actions > 0)

    def _policy(self, overlap: int) -> int:
        return overlap or self.schedule.policies.overlap_policy or _SKIP

    def _catchup_ns(self) -> int:
        return from_duration(self.schedule.policies.catchup_window)

    def _wake_ns(self) -> int:
        record = self.record
        times = []
        if self._is_behind:
            times.append(self._now_ns)
        elif self._next is not None and self._may_act():
            times.append(self._next.actual_ns)
        if record.backfills and (
            self._policy(record.backfills[0].overlap) == _ALLOW_ALL or not (record.running or record.starting)
        ):
            times.append(record.backfilled_ns + BACKFILL_PAUSE_NS)
        expires_ns = self._expires_ns()
        if expires_ns is not None:
            times.append(expires_ns)
        return min(times, default=0)

    def _expires_ns(self) -> int | None:
        record = self.record
        if self.schedule.state.paused or (self._next is not None and self._may_act()):
            return None
        return None if _has_work(record) else _idle_until_ns(record)


def is_expiry(record: ScheduleRecord, wake_ns: int) -> bool:
    """Whether this wake-up is the one that deletes an idle schedule."""
    return not _has_work(record) and _idle_until_ns(record) == wake_ns


def _has_work(record: ScheduleRecord) -> bool:
    return bool(record.running or record.starting or record.buffered or record.backfills)


def _idle_until_ns(record: ScheduleRecord) -> int:
    last_action_ns = record.recent[-1].actual_ns if record.recent else 0
    return max(record.created_ns, record.updated_ns, last_action_ns) + RETENTION_NS


def filled_in(schedule: Schedule) -> Schedule:
    """The schedule with all its parts set, and with default policies."""
    full = Schedule()
    full.CopyFrom(schedule)
    full.spec.SetInParent()
    full.action.SetInParent()
    full.state.SetInParent()
    policies = full.policies
    policies.overlap_policy = policies.overlap_policy or _SKIP
    window_ns = from_duration(policies.catchup_window) if policies.HasField("catchup_window") else None
    policies.catchup_window.CopyFrom(
        to_duration(CATCHUP_WINDOW_NS_DEFAULT if window_ns is None else max(window_ns, CATCHUP_WINDOW_NS_MIN))
    )
    return full
