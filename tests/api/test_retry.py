"""Retry policies: backoff, limits and retryable failures."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from temporalio.api.common.v1 import RetryPolicy
from temporalio.api.enums.v1 import RetryState, TimeoutType
from temporalio.api.failure.v1 import Failure

from fairlead.api.retry import (
    decide_retry,
    fill_retry_policy,
    is_retryable,
    retry_policy_problem,
    spacing_ns,
    timeout_failure,
)
from fairlead.api.times import SECOND_NS, from_duration, to_duration
from tests.history.scenario import failure


def policy(**fields: object) -> RetryPolicy:
    made = RetryPolicy(**fields)  # type: ignore[arg-type]
    fill_retry_policy(made)
    return made


def wait_s(made: RetryPolicy, attempt: int) -> float | None:
    decision = decide_retry(made, attempt=attempt, failure=None, now_ns=0, expires_at_ns=0)
    return None if decision.backoff_ns is None else decision.backoff_ns / SECOND_NS


def test_the_backoff_doubles_up_to_a_hundred_times_the_first() -> None:
    assert [wait_s(policy(), attempt) for attempt in (1, 2, 3, 7, 8, 5000)] == [1, 2, 4, 64, 100, 100]


def test_a_coefficient_of_one_gives_a_constant_backoff() -> None:
    made = policy(backoff_coefficient=1, initial_interval=to_duration(3 * SECOND_NS))
    assert {wait_s(made, attempt) for attempt in range(1, 50)} == {3}


def test_no_retry_follows_the_last_attempt() -> None:
    assert wait_s(policy(maximum_attempts=3), 2) == 2
    assert wait_s(policy(maximum_attempts=3), 3) is None


@given(
    attempt=st.integers(1, 10_000),
    coefficient=st.floats(1, 100),
    initial_ns=st.integers(1, 1000 * SECOND_NS),
    left_ns=st.integers(0, 10**13),
)
def test_a_backoff_never_exceeds_the_maximum_the_spacing_or_the_remaining_time(
    attempt: int, coefficient: float, initial_ns: int, left_ns: int
) -> None:
    made = policy(backoff_coefficient=coefficient, initial_interval=to_duration(initial_ns))
    decision = decide_retry(made, attempt=attempt, failure=None, now_ns=10**18, expires_at_ns=10**18 + left_ns)
    if decision.backoff_ns is None:
        assert decision.state == RetryState.RETRY_STATE_TIMEOUT
    else:
        longest_ns = max(from_duration(made.maximum_interval), spacing_ns(attempt))
        assert 0 < decision.backoff_ns <= min(longest_ns, left_ns)


@pytest.mark.parametrize(
    ("failed", "types", "expected"),
    [
        (failure(), (), True),
        (failure("terminated"), (), False),
        (failure("canceled"), (), False),
        (failure("server", non_retryable=True), (), False),
        (failure("server"), (), True),
        (failure("application", type="A"), ("B",), True),
        (failure("application", type="A"), ("A",), False),
        (timeout_failure("", TimeoutType.TIMEOUT_TYPE_START_TO_CLOSE), (), True),
        (timeout_failure("", TimeoutType.TIMEOUT_TYPE_HEARTBEAT), ("TemporalTimeout:Heartbeat",), False),
        (timeout_failure("", TimeoutType.TIMEOUT_TYPE_SCHEDULE_TO_START), (), False),
        (timeout_failure("", TimeoutType.TIMEOUT_TYPE_SCHEDULE_TO_CLOSE), (), False),
    ],
)
def test_retryable_failures_are_recognized(failed: Failure, types: tuple[str, ...], expected: bool) -> None:
    assert is_retryable(failed, types) is expected


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (policy(), None),
        (policy(backoff_coefficient=0.9, maximum_attempts=1), None),
        (policy(backoff_coefficient=0.9), "BackoffCoefficient cannot be less than 1 on retry policy."),
        (
            policy(initial_interval=to_duration(2), maximum_interval=to_duration(1)),
            "MaximumInterval cannot be less than InitialInterval on retry policy.",
        ),
        (policy(maximum_attempts=-1), "MaximumAttempts cannot be negative on retry policy."),
        (policy(non_retryable_error_types=["TemporalTimeout:Tea"]), "Invalid timeout type value: Tea."),
        (policy(initial_interval=to_duration(-5)), "invalid InitialInterval set on retry policy: negative duration"),
    ],
)
def test_an_invalid_policy_has_an_error_message(made: RetryPolicy, problem: str | None) -> None:
    assert retry_policy_problem(made) == problem
