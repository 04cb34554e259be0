import math

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from fairlead.core.concurrency import RETRY_S, Full, ParkedKeys
from fairlead.core.fairness import Level
from fairlead.core.rates import KeyRates, Rate
from fairlead.matching.partition.matcher import HeldTask, Match, Matcher, Poll, Position


def task(pass_number: int, *, priority: int = 3, key: str = "", weight: float = 1.0) -> HeldTask[str]:
    return HeldTask(position(pass_number, priority), key, weight, f"{priority}/{pass_number}")


def position(pass_number: int, priority: int = 3) -> Position:
    return Position(priority, Level(pass_number, pass_number))


def payloads(matches: list[Match[str]]) -> list[str]:
    return [match.task.payload for match in matches]


def test_tasks_are_dispatched_by_priority_and_then_by_level() -> None:
    """FL-11."""
    matcher = Matcher[str]()
    for one in (task(20), task(10), task(30, priority=1), task(5, priority=5)):
        assert matcher.hold(one, 0.0) == []
    got = [payloads(matcher.wait(Poll(), 0.0))[0] for _ in range(4)]
    assert got == ["1/30", "3/10", "3/20", "5/5"]


def test_polls_get_tasks_in_order_of_arrival_even_if_many_have_left() -> None:
    matcher = Matcher[str]()
    polls = [Poll(str(number)) for number in range(2000)]
    for poll in polls:
        matcher.wait(poll, 0.0)
    for poll in polls[::2]:
        assert matcher.cancel(poll)
        assert not matcher.cancel(poll)
    assert matcher.polls == 1000
    got = [matcher.hold(task(number), 0.0)[0].poll for number in range(1000)]
    assert got == polls[1::2]
    assert matcher.polls == 0


def test_polls_get_tasks_in_order_of_arrival() -> None:
    matcher = Matcher[str]()
    first, second = Poll("first"), Poll("second")
    assert matcher.wait(first, 0.0) == matcher.wait(second, 0.0) == []
    assert [match.poll for match in matcher.hold(task(1), 0.0)] == [first]
    assert [match.poll for match in matcher.hold(task(2), 0.0)] == [second]


def test_a_new_task_gets_a_waiting_poll_only_if_no_backlogged_task_waits() -> None:
    """FL-12: a match with a waiting poll never overtakes the backlog."""
    matcher = Matcher[str](rate=Rate(1))
    assert matcher.offer("", 1.0, 0.0) is None
    first, second = Poll(), Poll()
    matcher.wait(first, 0.0)
    matcher.wait(second, 0.0)
    assert matcher.offer("", 1.0, 0.0) is first
    # The rate limit is reached: a backlogged task and a poll both wait for it.
    assert matcher.hold(task(1), 0.0) == []
    assert matcher.offer("", 1.0, 10.0) is None
    assert [match.poll for match in matcher.wake(10.0)] == [second]


def test_a_cancelled_poll_gets_no_task_and_a_matched_poll_cannot_be_cancelled() -> None:
    matcher = Matcher[str]()
    gone, served = Poll(), Poll()
    matcher.wait(gone, 0.0)
    matcher.wait(served, 0.0)
    assert matcher.cancel(gone)
    assert not matcher.cancel(gone)
    assert [match.poll for match in matcher.hold(task(1), 0.0)] == [served]
    assert not matcher.cancel(served)


def test_a_removed_task_is_not_dispatched_and_a_dispatched_task_cannot_be_removed() -> None:
    matcher = Matcher[str]()
    matcher.hold(task(1), 0.0)
    matcher.hold(task(2), 0.0)
    assert matcher.remove(position(1))
    assert not matcher.remove(position(1))
    assert payloads(matcher.wait(Poll(), 0.0)) == ["3/2"]
    assert not matcher.remove(position(2))


def test_a_task_added_twice_is_held_once() -> None:
    matcher = Matcher[str]()
    for _ in range(2):
        matcher.hold(task(1), 0.0)
    assert matcher.tasks == 1
    assert payloads(matcher.wait(Poll(), 0.0)) == ["3/1"]
    assert matcher.wait(Poll(), 0.0) == []


def test_the_overall_rate_limit_holds_and_the_matcher_gives_the_next_wake_time() -> None:
    matcher = Matcher[str](rate=Rate(2))
    for number in range(1, 6):
        matcher.hold(task(number), 0.0)
    polls = [Poll() for _ in range(5)]
    assert [payloads(matcher.wait(poll, 0.0)) for poll in polls] == [["3/1"], ["3/2"], [], [], []]
    assert matcher.next_wake_s(0.0) == pytest.approx(0.5)
    assert payloads(matcher.wake(0.49)) == []
    assert payloads(matcher.wake(0.5)) == ["3/3"]
    assert payloads(matcher.wake(100.0)) == ["3/4", "3/5"]
    assert matcher.next_wake_s(100.0) is None


def test_a_key_at_its_rate_limit_does_not_block_other_keys() -> None:
    matcher = Matcher[str](key_rates=KeyRates(1))
    for number in range(1, 4):
        matcher.hold(task(number, key="limited"), 0.0)
    for number in range(4, 7):
        matcher.hold(task(number, key=f"other-{number}"), 0.0)
    got = [payloads(matcher.wait(Poll(), 0.0)) for _ in range(6)]
    assert got == [["3/1"], ["3/4"], ["3/5"], ["3/6"], [], []]
    assert (matcher.parked, matcher.polls) == (2, 2)
    assert matcher.next_wake_s(0.0) == pytest.approx(1.0)
    assert payloads(matcher.wake(1.0)) == ["3/2"]
    assert payloads(matcher.wake(2.0)) == ["3/3"]
    assert matcher.parked == 0


def test_a_key_with_a_higher_weight_has_a_higher_rate_limit() -> None:
    matcher = Matcher[str](key_rates=KeyRates(1))
    for number in range(1, 21):
        matcher.hold(task(number, key="heavy", weight=4.0), 0.0)
    for _ in range(20):
        matcher.wait(Poll(), 0.0)
    assert matcher.tasks == 16
    assert len(matcher.wake(1.0)) == 4


def test_a_task_of_higher_priority_goes_first_within_a_rate_limited_key() -> None:
    matcher = Matcher[str](key_rates=KeyRates(1))
    for number in (1, 2):
        matcher.hold(task(number, key="limited"), 0.0)
    matcher.wait(Poll(), 0.0)
    matcher.wait(Poll(), 0.0)
    matcher.hold(task(9, key="limited", priority=1), 0.5)
    assert payloads(matcher.wake(1.0)) == ["1/9"]


def test_removing_the_first_task_of_a_rate_limited_key_makes_its_next_task_available() -> None:
    matcher = Matcher[str](key_rates=KeyRates(1))
    for number in (1, 2, 3):
        matcher.hold(task(number, key="limited"), 0.0)
    matcher.wait(Poll(), 0.0)
    # At 1 s the key may dispatch again; its first task, 2, is removed before a poll takes it.
    assert matcher.next_wake_s(1.0) is None
    assert matcher.offer("other", 1.0, 1.0) is None
    assert matcher.remove(position(2))
    assert payloads(matcher.wait(Poll(), 1.0)) == ["3/3"]


def test_removed_tasks_of_a_rate_limited_key_are_no_longer_counted_as_parked() -> None:
    matcher = Matcher[str](key_rates=KeyRates(1))
    matcher.wait(Poll(), 0.0)
    matcher.wait(Poll(), 0.0)
    for number in range(1, 501):
        matcher.hold(task(number, key="limited"), 0.0)
    assert matcher.parked == 499
    for number in range(2, 501):
        matcher.remove(position(number))
    assert matcher.wake(5.0) == []
    assert (matcher.tasks, matcher.parked) == (0, 0)


def test_a_paused_key_resumes_when_its_rate_limit_is_removed() -> None:
    matcher = Matcher[str](key_rates=KeyRates(0))
    matcher.hold(task(1, key="paused"), 0.0)
    matcher.hold(task(2, key="paused"), 0.0)
    assert matcher.wait(Poll(), 0.0) == matcher.wait(Poll(), 0.0) == []
    assert matcher.next_wake_s(0.0) is None
    matches = matcher.change_rates(rate_per_s=math.inf, key_rate_per_s=math.inf, now_s=5.0)
    assert payloads(matches) == ["3/1", "3/2"]


def test_a_refunded_task_does_not_count_against_the_rate_limits() -> None:
    matcher = Matcher[str](rate=Rate(1), key_rates=KeyRates(1))
    matcher.hold(task(1, key="a"), 0.0)
    matches = matcher.wait(Poll(), 0.0)
    matcher.refund("a", 1.0)
    assert matcher.hold(matches[0].task, 0.0) == []
    assert payloads(matcher.wait(Poll(), 0.0)) == ["3/1"]


def test_heap_entries_of_removed_tasks_are_cleaned_up() -> None:
    matcher = Matcher[str]()
    for number in range(10_000):
        matcher.hold(task(number), 0.0)
        matcher.remove(position(number))
    assert len(matcher._lanes[""].positions) <= 65
    assert len(matcher._heads) <= 65


def test_heap_entries_of_overtaken_tasks_are_cleaned_up() -> None:
    matcher = Matcher[str]()
    for number in range(10_000, 0, -1):
        matcher.hold(task(number), 0.0)
        assert len(matcher._heads) <= 65
    assert payloads(matcher.wait(Poll(), 0.0)) == ["3/1"]


def test_a_key_at_its_limit_is_parked_and_tasks_of_other_keys_overtake_it() -> None:
    """FL-84: a free slot lets one parked task go, and without a notification one is tried after a while."""
    matcher = Matcher[str]()
    for number in range(1, 5):
        matcher.hold(task(number, key="full"), 0.0)
    (first,) = matcher.wait(Poll(), 0.0)
    matcher.refund("full", 1.0)
    matcher.park("full", Full.KEY, 0.0)
    assert matcher.hold(first.task, 0.0) == []
    assert matcher.wait(Poll(), 0.0) == matcher.wait(Poll(), 0.0) == []
    assert (matcher.parked, matcher.next_wake_s(0.0)) == (4, RETRY_S)
    assert payloads(matcher.hold(task(9, key="other"), 0.1)) == ["3/9"]
    assert payloads(matcher.note_free_slot("full", 0.2)) == ["3/1"]
    assert matcher.wait(Poll(), 0.3) == []
    # One try without a notification; its success allows the next try.
    assert payloads(matcher.wake(RETRY_S)) == ["3/2"]
    assert matcher.wait(Poll(), RETRY_S) == []
    assert payloads(matcher.note_started("full", RETRY_S)) == ["3/3"]


def test_a_full_task_queue_lets_nothing_go_until_a_slot_is_free() -> None:
    matcher = Matcher[str]()
    matcher.hold(task(1, key="a"), 0.0)
    matcher.hold(task(2, key="b"), 0.0)
    matcher.park("a", Full.QUEUE, 0.0)
    assert matcher.wait(Poll(), 0.0) == matcher.wait(Poll(), 0.0) == []
    assert matcher.offer("c", 1.0, 0.0) is None
    assert not matcher.admit("c", 1.0, 0.0)
    assert payloads(matcher.note_free_slot("z", 0.1)) == ["3/1"]
    assert matcher.next_wake_s(0.1) == RETRY_S


def test_a_try_that_fails_for_another_reason_is_not_lost() -> None:
    matcher = Matcher[str]()
    matcher.park("a", Full.KEY, 0.0)
    matcher.hold(task(1, key="a"), 0.0)
    matcher.hold(task(2, key="a"), 0.0)
    matcher.wait(Poll(), 0.0)
    (first,) = matcher.note_free_slot("a", 0.1)
    matcher.refund("a", 1.0)
    matcher.wait(Poll(), 0.1)
    assert first.task.payload == "3/1"
    assert not matcher.tasks


class MatcherMachine(RuleBasedStateMachine):
    """Compares the matcher with a model that scans all tasks and polls."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.rate, self.key_rates = Rate(3), KeyRates(1)
        self.matcher = Matcher[str](rate=Rate(3), key_rates=KeyRates(1))
        self.tasks: dict[Position, HeldTask[str]] = {}
        self.polls: list[Poll] = []
        self.next_pass = 0
        self.parked_keys, self.parked_queue = ParkedKeys(), ParkedKeys()

    def expect(self, matches: list[Match[str]]) -> None:
        """Compare with the model: while a poll waits, the first task that both rate limits allow is matched."""
        expected = []
        while self.polls and self.all_ready():
            free = [at for at, one in self.tasks.items() if self.may_go(one.fairness_key, one.weight)]
            if not free:
                break
            one = self.tasks.pop(min(free))
            self.take(one.fairness_key, one.weight)
            expected.append((one.payload, self.polls.pop(0)))
        assert [(match.task.payload, match.poll) for match in matches] == expected

    def all_ready(self) -> bool:
        return max(self.rate.ready_s(self.now_s), self.parked_queue.ready_s("", self.now_s)) <= self.now_s

    def may_go(self, key: str, weight: float) -> bool:
        is_parked = self.parked_keys.ready_s(key, self.now_s) > self.now_s
        return not is_parked and self.key_rates.of(key, weight).ready_s(self.now_s) <= self.now_s

    def take(self, key: str, weight: float) -> None:
        self.rate.take(self.now_s)
        self.key_rates.of(key, weight).take(self.now_s)
        self.parked_keys.take(key, self.now_s)
        self.parked_queue.take("", self.now_s)

    @rule(key=st.sampled_from("abc"), full=st.sampled_from(Full))
    def park(self, key: str, full: Full) -> None:
        self.matcher.park(key, full, self.now_s)
        if full is Full.KEY:
            self.parked_keys.refused(key, self.now_s)
        else:
            self.parked_queue.refused("", self.now_s)
        self.expect(self.matcher.wake(self.now_s))

    @rule(key=st.sampled_from("abc"))
    def free_slot(self, key: str) -> None:
        self.parked_keys.freed(key)
        self.parked_queue.freed("")
        self.expect(self.matcher.note_free_slot(key, self.now_s))

    @rule(key=st.sampled_from("abc"))
    def started(self, key: str) -> None:
        self.parked_keys.started(key)
        self.parked_queue.started("")
        self.expect(self.matcher.note_started(key, self.now_s))

    @rule(key=st.sampled_from("abc"), priority=st.sampled_from([1, 3]))
    def hold(self, key: str, priority: int) -> None:
        self.next_pass += 1
        one = task(self.next_pass, priority=priority, key=key)
        self.tasks[one.position] = one
        self.expect(self.matcher.hold(one, self.now_s))

    @rule()
    def wait(self) -> None:
        poll = Poll()
        self.polls.append(poll)
        self.expect(self.matcher.wait(poll, self.now_s))

    @rule(key=st.sampled_from("abc"))
    def offer(self, key: str) -> None:
        is_free = not any(self.may_go(one.fairness_key, one.weight) for one in self.tasks.values())
        is_free = is_free and self.all_ready() and self.may_go(key, 1.0)
        expected = self.polls[0] if self.polls and is_free else None
        assert self.matcher.offer(key, 1.0, self.now_s) is expected
        if expected is not None:
            self.polls.pop(0)
            self.take(key, 1.0)

    @precondition(lambda self: self.polls)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        poll = data.draw(st.sampled_from(self.polls))
        self.polls.remove(poll)
        assert self.matcher.cancel(poll)

    @precondition(lambda self: self.tasks)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        removed = data.draw(st.sampled_from(sorted(self.tasks)))
        del self.tasks[removed]
        assert self.matcher.remove(removed)

    @rule(step_s=st.sampled_from([0.1, 0.5, 1.0, 3.0]))
    def let_time_pass(self, step_s: float) -> None:
        self.now_s += step_s
        self.expect(self.matcher.wake(self.now_s))

    @rule()
    def sleep_until_woken(self) -> None:
        wake_s = self.matcher.next_wake_s(self.now_s)
        if wake_s is not None:
            self.now_s = max(self.now_s, wake_s) + 1e-6
            self.expect(self.matcher.wake(self.now_s))

    @invariant()
    def tasks_and_polls_are_as_in_the_model(self) -> None:
        assert self.matcher.tasks == len(self.tasks)
        assert self.matcher.polls == len(self.polls)

    @invariant()
    def waking_in_time_leaves_no_pair_unmatched(self) -> None:
        """FL-13: if only a rate limit keeps a task and a poll apart, the matcher gives the time to wake."""
        if self.tasks and self.polls:
            assert self.matcher.next_wake_s(self.now_s) is not None


@pytest.mark.sim
def test_every_interleaving_gives_the_same_matches_as_the_model() -> None:
    run_state_machine_as_test(MatcherMachine)
