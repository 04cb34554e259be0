from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from hypothesis import given
from hypothesis import strategies as st
from temporalio.api.common.v1 import Payload, Payloads, WorkflowType
from temporalio.api.enums.v1 import ScheduleOverlapPolicy as Overlap
from temporalio.api.enums.v1 import WorkflowExecutionStatus as Status
from temporalio.api.failure.v1 import Failure
from temporalio.api.schedule.v1 import (
    BackfillRequest,
    IntervalSpec,
    Schedule,
    ScheduleAction,
    SchedulePatch,
    SchedulePolicies,
    ScheduleSpec,
    ScheduleState,
    TriggerImmediatelyRequest,
)
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflow.v1 import NewWorkflowExecutionInfo

from fairlead.api.schedules.spec import canonical
from fairlead.api.times import SECOND_NS, to_timestamp
from fairlead.history.entities.schedules import machine as machine_module
from fairlead.history.entities.schedules.machine import Machine, filled_in
from fairlead.history.entities.schedules.state import ScheduleRecord, Start, WorkflowClosed

MINUTE_NS = 60 * SECOND_NS
# A full hour.
BEGIN_NS = 1_772_362_800 * SECOND_NS
ALLOW_ALL = Overlap.SCHEDULE_OVERLAP_POLICY_ALLOW_ALL
SKIP = Overlap.SCHEDULE_OVERLAP_POLICY_SKIP
BUFFER_ONE = Overlap.SCHEDULE_OVERLAP_POLICY_BUFFER_ONE
BUFFER_ALL = Overlap.SCHEDULE_OVERLAP_POLICY_BUFFER_ALL
CANCEL = Overlap.SCHEDULE_OVERLAP_POLICY_CANCEL_OTHER
TERMINATE = Overlap.SCHEDULE_OVERLAP_POLICY_TERMINATE_OTHER
COMPLETED = int(Status.WORKFLOW_EXECUTION_STATUS_COMPLETED)
FAILED = int(Status.WORKFLOW_EXECUTION_STATUS_FAILED)
TIMED_OUT = int(Status.WORKFLOW_EXECUTION_STATUS_TIMED_OUT)
TERMINATED = int(Status.WORKFLOW_EXECUTION_STATUS_TERMINATED)
TRIGGER = SchedulePatch(trigger_immediately=TriggerImmediatelyRequest())


def every(interval_s: int, **rest: Any) -> ScheduleSpec:
    return ScheduleSpec(interval=[IntervalSpec(interval=Duration(seconds=interval_s))], **rest)


class Stage:
    """A schedule with its clock; the test itself carries out the schedule's actions."""

    def __init__(
        self,
        overlap: int = 0,
        *,
        spec: ScheduleSpec | None = None,
        state: ScheduleState | None = None,
        has_action: bool = True,
        **policies: Any,
    ) -> None:
        start = NewWorkflowExecutionInfo(
            workflow_id="w", workflow_type=WorkflowType(name="T"), task_queue=TaskQueue(name="q")
        )
        self.schedule = Schedule(
            spec=canonical(spec if spec is not None else every(60)),
            action=ScheduleAction(start_workflow=start) if has_action else None,
            policies=SchedulePolicies(overlap_policy=Overlap.ValueType(overlap), **policies),
            state=state,
        )
        self.now_ns = BEGIN_NS
        serialized = filled_in(self.schedule).SerializeToString()
        self.record = ScheduleRecord(serialized, b"", b"", created_ns=BEGIN_NS, after_ns=BEGIN_NS)
        self.advance()

    def machine(self) -> Machine:
        return Machine(self.record, now_ns=self.now_ns, seed="seed")

    def advance(self, to_ns: int | None = None) -> Machine:
        self.now_ns = max(self.now_ns, to_ns or 0)
        machine = self.machine()
        machine.advance()
        return machine

    def minutes(self, count: float) -> Machine:
        return self.advance(self.now_ns + int(count * MINUTE_NS))

    def patch(self, patch: SchedulePatch) -> None:
        machine = self.machine()
        machine.advance()
        machine.patch(patch)
        machine.advance()

    def start_all(self) -> list[Start]:
        starts = list(self.record.starting)
        machine = self.machine()
        for start in starts:
            machine.started(start.number, workflow_id=f"w{start.number}", run_id=f"r{start.number}")
        machine.advance()
        return starts

    def close(self, number: int, status: int = COMPLETED, result: bytes = b"", failure: bytes = b"") -> None:
        machine = self.machine()
        machine.closed(WorkflowClosed("s", "r", number, status, result, failure))
        machine.advance()

    def state(self) -> ScheduleState:
        return self.machine().schedule.state

    def nominal_minutes(self) -> list[float]:
        return [(start.nominal_ns - BEGIN_NS) / MINUTE_NS for start in self.record.starting]


def test_a_schedule_does_nothing_before_its_time_and_wakes_then() -> None:
    stage = Stage()
    assert stage.record.starting == []
    assert stage.record.wake_ns == BEGIN_NS + MINUTE_NS
    stage.advance(BEGIN_NS + MINUTE_NS - 1)
    assert stage.record.starting == []
    stage.advance(BEGIN_NS + MINUTE_NS)
    assert stage.nominal_minutes() == [1]
    assert stage.record.wake_ns == BEGIN_NS + 2 * MINUTE_NS


def test_each_action_time_is_used_once_even_if_the_schedule_is_evaluated_again() -> None:
    stage = Stage()
    for _ in range(5):
        stage.minutes(0.3)
    assert stage.nominal_minutes() == [1]


def test_the_policy_skip_drops_overlapping_actions() -> None:
    stage = Stage(SKIP)
    stage.minutes(1)
    stage.start_all()
    stage.minutes(1)
    stage.minutes(1)
    assert stage.record.starting == []
    assert stage.record.overlap_skipped == 2
    stage.close(1)
    stage.minutes(1)
    assert stage.nominal_minutes() == [4]


def test_an_action_that_is_about_to_start_already_counts_for_overlap() -> None:
    stage = Stage(SKIP)
    stage.minutes(1)
    stage.minutes(1)
    assert stage.nominal_minutes() == [1]
    assert stage.record.overlap_skipped == 1


def test_buffer_one_keeps_the_first_that_overlaps() -> None:
    stage = Stage(BUFFER_ONE)
    stage.minutes(1)
    stage.start_all()
    stage.minutes(1)
    stage.minutes(1)
    assert len(stage.record.buffered) == 1
    assert stage.record.overlap_skipped == 1
    stage.close(1)
    assert stage.nominal_minutes() == [2]
    assert stage.record.buffered == []


def test_the_policy_buffer_all_starts_actions_one_by_one() -> None:
    stage = Stage(BUFFER_ALL)
    stage.minutes(4)
    taken = []
    for _ in range(4):
        taken += stage.nominal_minutes()
        (start,) = stage.start_all()
        stage.close(start.number)
    assert taken == [1, 2, 3, 4]
    assert stage.record.overlap_skipped == 0


def test_allow_all_starts_everything_and_waits_for_nothing() -> None:
    stage = Stage(ALLOW_ALL)
    stage.minutes(3)
    assert stage.nominal_minutes() == [1, 2, 3]
    stage.start_all()
    assert stage.record.running == []
    assert stage.record.action_count == 3
    stage.close(2, FAILED)
    assert [action.status for action in stage.record.recent] == [1, FAILED, 1]


@pytest.mark.parametrize(("overlap", "terminates"), [(CANCEL, False), (TERMINATE, True)])
def test_the_running_workflow_is_ended_once_before_the_next_begins(overlap: int, terminates: bool) -> None:
    stage = Stage(overlap)
    stage.minutes(1)
    stage.start_all()
    stage.minutes(1)
    (stop,) = stage.record.stopping
    assert (stop.workflow_id, stop.run_id, stop.terminates) == ("w1", "r1", terminates)
    machine = stage.machine()
    machine.stopped([stop])
    machine.advance()
    assert stage.record.stopping == []
    assert stage.record.starting == []
    stage.close(1, TERMINATED)
    assert stage.nominal_minutes() == [2]


def test_an_action_that_has_not_started_is_replaced_without_a_termination() -> None:
    stage = Stage(TERMINATE)
    stage.minutes(3)
    assert stage.nominal_minutes() == [3]
    assert stage.record.stopping == []


def test_a_start_that_fails_lets_the_next_one_begin() -> None:
    stage = Stage(BUFFER_ALL)
    stage.minutes(2)
    machine = stage.machine()
    machine.not_started(stage.record.starting[0].number)
    machine.advance()
    assert stage.nominal_minutes() == [2]
    assert stage.record.action_count == 0
    assert stage.record.recent == []


def test_the_policy_of_a_trigger_applies_to_that_trigger_only() -> None:
    stage = Stage(SKIP)
    stage.minutes(1)
    stage.start_all()
    stage.patch(SchedulePatch(trigger_immediately=TriggerImmediatelyRequest(overlap_policy=ALLOW_ALL)))
    assert len(stage.start_all()) == 1
    stage.patch(TRIGGER)
    assert stage.record.starting == []
    assert stage.record.overlap_skipped == 1


def test_times_before_the_catchup_window_are_missed() -> None:
    stage = Stage(ALLOW_ALL, catchup_window=Duration(seconds=150))
    stage.minutes(10)
    assert stage.nominal_minutes() == [8, 9, 10]
    assert stage.record.missed_catchup_window == 7


@pytest.mark.parametrize(("window", "seconds"), [(None, 31536000), (1, 10), (-5, 10), (3600, 3600)])
def test_the_catchup_window_has_a_default_and_a_minimum(window: int | None, seconds: int) -> None:
    policies = SchedulePolicies() if window is None else SchedulePolicies(catchup_window=Duration(seconds=window))
    assert filled_in(Schedule(policies=policies)).policies.catchup_window.seconds == seconds


def test_a_paused_schedule_skips_its_times_without_counting_them_as_missed() -> None:
    stage = Stage(catchup_window=Duration(seconds=10), state=ScheduleState(paused=True))
    assert stage.record.wake_ns == 0
    stage.minutes(10)
    assert stage.record.missed_catchup_window == 0
    stage.patch(SchedulePatch(unpause="on"))
    assert stage.record.starting == []
    assert stage.record.wake_ns == BEGIN_NS + 11 * MINUTE_NS
    assert (stage.state().paused, stage.state().notes) == (False, "on")


def test_a_pause_does_not_drop_actions_that_are_already_due() -> None:
    stage = Stage()
    stage.now_ns += MINUTE_NS
    stage.patch(SchedulePatch(pause="off"))
    assert stage.nominal_minutes() == [1]
    assert stage.record.wake_ns == 0


def test_a_triggered_action_starts_even_if_the_schedule_is_paused() -> None:
    stage = Stage(state=ScheduleState(paused=True, limited_actions=True))
    stage.patch(TRIGGER)
    assert stage.nominal_minutes() == [0]


def test_limited_actions_run_out_and_each_changes_the_token() -> None:
    stage = Stage(ALLOW_ALL, state=ScheduleState(limited_actions=True, remaining_actions=2))
    assert len(stage.machine().future_times()) == 2
    stage.minutes(5)
    assert stage.nominal_minutes() == [1, 2]
    assert stage.state().remaining_actions == 0
    assert stage.record.conflict_token == 3
    assert stage.machine().future_times() == []


def test_the_buffer_is_drained_when_actions_run_out() -> None:
    stage = Stage(BUFFER_ALL, state=ScheduleState(limited_actions=True, remaining_actions=1))
    stage.minutes(3)
    stage.start_all()
    stage.close(1)
    assert stage.record.buffered == []
    assert stage.record.starting == []
    assert stage.record.action_count == 1


@pytest.mark.parametrize(
    ("status", "notes"),
    [
        (FAILED, "paused due to workflow failure: w1: oh no"),
        (TIMED_OUT, "paused due to workflow timeout: w1"),
        (TERMINATED, ""),
        (COMPLETED, ""),
    ],
)
def test_a_failure_pauses_the_schedule_if_it_has_that_policy(status: int, notes: str) -> None:
    stage = Stage(pause_on_failure=True)
    stage.minutes(1)
    stage.start_all()
    failure = Failure(message="oh no").SerializeToString() if status == FAILED else b""
    stage.close(1, status, failure=failure)
    assert stage.state().notes == notes
    assert stage.state().paused == bool(notes)
    assert stage.record.conflict_token == (2 if notes else 1)


def test_a_failure_does_not_pause_a_schedule_without_that_policy() -> None:
    stage = Stage()
    stage.minutes(1)
    stage.start_all()
    stage.close(1, FAILED)
    assert not stage.state().paused


def test_the_last_result_is_kept_through_failures_and_clears_the_last_failure() -> None:
    stage = Stage()
    result = Payloads(payloads=[Payload(data=b"5")]).SerializeToString()
    failure = Failure(message="f").SerializeToString()
    for number, (status, got, failed) in enumerate(
        [(COMPLETED, result, b""), (FAILED, b"", failure), (COMPLETED, result, b"")], 1
    ):
        stage.minutes(1)
        stage.start_all()
        stage.close(number, status, got, failed)
        assert (stage.record.last_result, stage.record.last_failure) == (result, failed)


def test_an_end_that_is_reported_before_the_start_is_not_lost() -> None:
    stage = Stage(BUFFER_ALL)
    stage.minutes(2)
    stage.close(1, FAILED)
    assert len(stage.record.starting) == 1
    stage.start_all()
    assert stage.record.recent[0].status == FAILED
    assert stage.record.running == []
    assert stage.record.closed_early == []
    assert stage.nominal_minutes() == [2]


def test_an_end_that_is_reported_twice_counts_once() -> None:
    stage = Stage(BUFFER_ALL)
    stage.minutes(3)
    stage.start_all()
    stage.close(1)
    stage.start_all()
    stage.close(1)
    assert [running.number for running in stage.record.running] == [2]
    assert len(stage.record.buffered) == 1


def backfill(begin_minute: float, end_minute: float, overlap: int) -> SchedulePatch:
    request = BackfillRequest(
        start_time=to_timestamp(BEGIN_NS + int(begin_minute * MINUTE_NS)),
        end_time=to_timestamp(BEGIN_NS + int(end_minute * MINUTE_NS)),
        overlap_policy=Overlap.ValueType(overlap),
    )
    return SchedulePatch(backfill_request=[request])


def test_a_backfill_includes_both_ends_of_its_interval() -> None:
    stage = Stage(state=ScheduleState(paused=True))
    stage.patch(backfill(-10, -7, ALLOW_ALL))
    assert stage.nominal_minutes() == [-10, -9, -8, -7]
    assert stage.record.backfills == []


def test_a_long_backfill_continues_step_by_step() -> None:
    stage = Stage(state=ScheduleState(paused=True))
    stage.patch(backfill(-25, -1, ALLOW_ALL))
    steps = [len(stage.start_all())]
    while stage.record.wake_ns:
        assert stage.record.wake_ns == stage.now_ns + SECOND_NS
        stage.advance(stage.record.wake_ns)
        steps.append(len(stage.start_all()))
    assert steps == [10, 10, 5]


def test_a_sequential_backfill_continues_when_each_workflow_ends() -> None:
    stage = Stage(state=ScheduleState(paused=True))
    stage.patch(backfill(-25, -1, BUFFER_ALL))
    taken = []
    while stage.record.starting:
        taken += stage.nominal_minutes()
        (start,) = stage.start_all()
        stage.now_ns += SECOND_NS // 4
        stage.close(start.number)
        if not stage.record.starting and stage.record.wake_ns:
            stage.advance(stage.record.wake_ns)
    assert taken == list(range(-25, 0))


def test_an_updated_spec_applies_from_now_on() -> None:
    stage = Stage(ALLOW_ALL, spec=every(3600))
    stage.minutes(30)
    machine = stage.machine()
    stage.schedule.spec.CopyFrom(canonical(every(60)))
    machine.update(stage.schedule)
    machine.advance()
    assert stage.record.starting == []
    assert stage.record.wake_ns == BEGIN_NS + 31 * MINUTE_NS
    assert stage.record.updated_ns == stage.now_ns
    assert stage.record.conflict_token == 2


def test_a_time_whose_jitter_is_not_over_is_not_lost_by_an_update() -> None:
    stage = Stage(ALLOW_ALL, spec=every(3600, jitter=Duration(seconds=3600)))
    firing_ns = stage.record.wake_ns
    nominal_ns = BEGIN_NS + 3600 * SECOND_NS
    assert nominal_ns < firing_ns < nominal_ns + 3600 * SECOND_NS
    stage.advance((nominal_ns + firing_ns) // 2)
    machine = stage.machine()
    machine.update(stage.schedule)
    machine.advance()
    assert stage.record.wake_ns == firing_ns
    stage.advance(firing_ns)
    assert [start.nominal_ns for start in stage.record.starting] == [nominal_ns]
    assert [start.actual_ns for start in stage.record.starting] == [firing_ns]


def test_a_new_spec_has_no_action_times_before_its_update_even_within_the_jitter() -> None:
    stage = Stage(ALLOW_ALL, spec=every(3600, jitter=Duration(seconds=3600)))
    nominal_ns = BEGIN_NS + 3600 * SECOND_NS
    stage.advance((nominal_ns + stage.record.wake_ns) // 2)
    assert stage.record.after_ns < nominal_ns
    machine = stage.machine()
    stage.schedule.spec.CopyFrom(canonical(every(60)))
    machine.update(stage.schedule)
    machine.advance()
    assert stage.record.starting == []
    assert stage.record.wake_ns == stage.now_ns - stage.now_ns % MINUTE_NS + MINUTE_NS


def test_the_last_ten_and_the_next_ten_actions_are_kept() -> None:
    stage = Stage(ALLOW_ALL)
    stage.minutes(25)
    stage.start_all()
    assert [action.number for action in stage.record.recent] == list(range(16, 26))
    assert stage.machine().future_times() == [BEGIN_NS + minute * MINUTE_NS for minute in range(26, 36)]
    assert stage.machine().future_times(5) == [BEGIN_NS + minute * MINUTE_NS for minute in range(26, 31)]


def test_the_buffer_has_a_bound() -> None:
    stage = Stage(BUFFER_ALL)
    for _ in range(3):
        stage.minutes(600)
    while stage.record.wake_ns == stage.now_ns:
        stage.advance()
    assert len(stage.record.buffered) == machine_module.BUFFERED_MAX
    # One action is being started: the first step left room for it in the buffer.
    assert stage.record.buffer_dropped == 1800 - machine_module.BUFFERED_MAX - 1


def test_a_long_downtime_is_caught_up_in_bounded_steps() -> None:
    stage = Stage(SKIP)
    stage.minutes(2500)
    steps = 1
    while stage.record.wake_ns == stage.now_ns:
        stage.advance()
        steps += 1
    assert steps == 3
    assert stage.record.overlap_skipped == 2499


def test_a_schedule_that_will_never_act_again_is_over_after_a_week() -> None:
    stage = Stage(spec=every(60, end_time=to_timestamp(BEGIN_NS + MINUTE_NS)))
    stage.minutes(1)
    stage.start_all()
    stage.minutes(1)
    assert stage.record.wake_ns == 0
    stage.close(1)
    over_ns = BEGIN_NS + MINUTE_NS + machine_module.RETENTION_NS
    assert stage.record.wake_ns == over_ns
    assert not stage.advance(over_ns - 1).is_over()
    assert stage.advance(over_ns).is_over()


def test_a_paused_schedule_is_never_over() -> None:
    stage = Stage(spec=ScheduleSpec(), state=ScheduleState(paused=True))
    assert not stage.advance(BEGIN_NS + 100 * machine_module.RETENTION_NS).is_over()


def test_without_an_action_nothing_is_started() -> None:
    stage = Stage(has_action=False)
    stage.minutes(5)
    stage.patch(TRIGGER)
    assert stage.record.starting == []
    assert stage.record.buffered == []


def test_a_start_outside_of_the_catchup_window_is_given_up() -> None:
    stage = Stage(ALLOW_ALL, catchup_window=Duration(seconds=90))
    stage.minutes(1.5)
    machine = stage.machine()
    (start,) = stage.record.starting
    assert machine.gives_up_ns(start) == start.actual_ns + 90 * SECOND_NS
    start.is_manual = True
    assert machine.gives_up_ns(start) == start.decided_ns + 60 * SECOND_NS


def test_a_clock_that_goes_back_repeats_nothing() -> None:
    stage = Stage(ALLOW_ALL)
    stage.minutes(3)
    stage.start_all()
    stage.now_ns -= 2 * MINUTE_NS
    stage.advance()
    assert stage.record.starting == []
    assert stage.record.wake_ns == BEGIN_NS + 4 * MINUTE_NS


@pytest.mark.sim
@given(
    overlap=st.sampled_from([SKIP, BUFFER_ONE, BUFFER_ALL, CANCEL, TERMINATE]),
    moves=st.lists(
        st.one_of(
            st.tuples(st.just("wait"), st.integers(0, 400)),
            st.tuples(st.sampled_from(["start", "fail", "close", "trigger", "stop"]), st.just(0)),
        ),
        max_size=60,
    ),
)
def test_without_overlap_at_most_one_workflow_runs_and_every_action_time_is_counted(
    overlap: int, moves: list[tuple[str, int]]
) -> None:
    stage = Stage(overlap, pause_on_failure=False)
    failed = triggered = 0
    for move, seconds in moves:
        record = stage.record
        if move == "wait":
            stage.advance(stage.now_ns + seconds * SECOND_NS)
        elif move == "start":
            stage.start_all()
        elif move == "fail" and record.starting:
            failed += 1
            machine = stage.machine()
            machine.not_started(record.starting[0].number)
            machine.advance()
        elif move == "close" and record.running:
            stage.close(record.running[0].number)
        elif move == "trigger":
            triggered += 1
            stage.patch(TRIGGER)
        elif move == "stop":
            machine = stage.machine()
            machine.stopped(record.stopping)
            machine.advance()
        record = stage.record
        assert len(record.running) + len(record.starting) <= 1
        # Actions are buffered only while another action is running or starting.
        assert not record.buffered or record.running or record.starting
        assert all(stop.run_id in {running.run_id for running in record.running} for stop in record.stopping)
    record = stage.record
    fired = (stage.now_ns - BEGIN_NS) // MINUTE_NS
    accounted = record.action_count + len(record.starting) + len(record.buffered) + record.overlap_skipped + failed
    if overlap in (SKIP, BUFFER_ONE, BUFFER_ALL):
        assert accounted == fired + triggered
    else:
        # A later action replaces one that was not started yet; like Temporal's server, the schedule doesn't count it.
        assert accounted <= fired + triggered
