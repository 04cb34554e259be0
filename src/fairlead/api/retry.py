"""Retry decisions for activities and workflows."""

import math
from typing import NamedTuple

from temporalio.api.common.v1 import RetryPolicy
from temporalio.api.enums.v1 import RetryState, TimeoutType
from temporalio.api.failure.v1 import Failure

from fairlead.api.times import SECOND_NS, from_duration, to_duration

_INTERVAL_NS_MAX = (1 << 63) - 1
_BACKOFF_COEFFICIENT_DEFAULT = 2.0
_MAXIMUM_INTERVAL_FACTOR = 100
# Number of first attempts for which the policy's backoff applies unchanged, even if it is very short.
FREE_ATTEMPTS = 10
# Minimum backoff in nanoseconds after the first of the later attempts; doubles with each attempt, up to SPACING_NS_MAX.
_SPACING_NS_FIRST = SECOND_NS // 1024
SPACING_NS_MAX = SECOND_NS
TIMEOUT_TYPE_PREFIX = "TemporalTimeout:"
_TIMEOUT_NAMES = {
    TimeoutType.TIMEOUT_TYPE_START_TO_CLOSE: "StartToClose",
    TimeoutType.TIMEOUT_TYPE_HEARTBEAT: "Heartbeat",
    TimeoutType.TIMEOUT_TYPE_SCHEDULE_TO_START: "ScheduleToStart",
    TimeoutType.TIMEOUT_TYPE_SCHEDULE_TO_CLOSE: "ScheduleToClose",
}
_RETRIED_TIMEOUTS = (TimeoutType.TIMEOUT_TYPE_START_TO_CLOSE, TimeoutType.TIMEOUT_TYPE_HEARTBEAT)


class RetryDecision(NamedTuple):
    """`backoff_ns` is None if there is no further attempt; `state` gives the reason, as in the API."""

    backoff_ns: int | None
    state: RetryState.ValueType


def timeout_name(kind: TimeoutType.ValueType) -> str:
    """The name of a timeout type in messages and in non-retryable error types."""
    return _TIMEOUT_NAMES[kind]


def timeout_failure(message: str, kind: TimeoutType.ValueType) -> Failure:
    """The failure that the server reports for a timeout."""
    failure = Failure(message=message, source="Server")
    failure.timeout_failure_info.timeout_type = kind
    return failure


def fill_retry_policy(policy: RetryPolicy) -> None:
    """Fill in Temporal's defaults: first interval 1 s, coefficient 2, maximum interval 100 times the first."""
    if not from_duration(policy.initial_interval):
        policy.initial_interval.CopyFrom(to_duration(SECOND_NS))
    if not from_duration(policy.maximum_interval):
        policy.maximum_interval.CopyFrom(to_duration(_MAXIMUM_INTERVAL_FACTOR * from_duration(policy.initial_interval)))
    if not policy.backoff_coefficient:
        policy.backoff_coefficient = _BACKOFF_COEFFICIENT_DEFAULT


def retry_policy_problem(policy: RetryPolicy) -> str | None:
    """The problem with a policy, in Temporal's words; None if it is valid."""
    if policy.maximum_attempts == 1:
        # With one attempt, nothing is retried and the other fields don't matter.
        return None
    initial_ns, maximum_ns = from_duration(policy.initial_interval), from_duration(policy.maximum_interval)
    problems = (
        (initial_ns < 0, "invalid InitialInterval set on retry policy: negative duration"),
        (policy.backoff_coefficient < 1, "BackoffCoefficient cannot be less than 1 on retry policy."),
        (maximum_ns < 0, "invalid MaximumInterval set on retry policy: negative duration"),
        (0 < maximum_ns < initial_ns, "MaximumInterval cannot be less than InitialInterval on retry policy."),
        (policy.maximum_attempts < 0, "MaximumAttempts cannot be negative on retry policy."),
    )
    return next((problem for is_wrong, problem in problems if is_wrong), None) or _unknown_timeout_type(policy)


def is_retryable(failure: Failure | None, non_retryable_types: tuple[str, ...]) -> bool:
    """Whether the failure itself allows a further attempt."""
    if failure is None:
        return True
    match failure.WhichOneof("failure_info"):
        case "terminated_failure_info" | "canceled_failure_info":
            return False
        case "timeout_failure_info":
            kind = failure.timeout_failure_info.timeout_type
            return kind in _RETRIED_TIMEOUTS and TIMEOUT_TYPE_PREFIX + timeout_name(kind) not in non_retryable_types
        case "server_failure_info":
            return not failure.server_failure_info.non_retryable
        case "application_failure_info":
            information = failure.application_failure_info
            return not information.non_retryable and information.type not in non_retryable_types
        case _:
            return True


def decide_retry(
    policy: RetryPolicy, *, attempt: int, failure: Failure | None, now_ns: int, expires_at_ns: int
) -> RetryDecision:
    """Decide whether attempt `attempt + 1` begins, and when.

    No attempt may begin after `expires_at_ns`, unless that is 0.
    """
    if not is_retryable(failure, tuple(policy.non_retryable_error_types)):
        return RetryDecision(None, RetryState.RETRY_STATE_NON_RETRYABLE_FAILURE)
    if 0 < policy.maximum_attempts <= attempt:
        return RetryDecision(None, RetryState.RETRY_STATE_MAXIMUM_ATTEMPTS_REACHED)
    maximum_ns = from_duration(policy.maximum_interval)
    interval_ns = _chosen_delay_ns(failure)
    if interval_ns is None:
        interval_ns = _exponential_ns(policy, attempt)
    if maximum_ns == 0 and interval_ns <= 0:
        return RetryDecision(None, RetryState.RETRY_STATE_TIMEOUT)
    if maximum_ns != 0 and (interval_ns <= 0 or interval_ns > maximum_ns):
        interval_ns = maximum_ns
    if expires_at_ns and now_ns + interval_ns > expires_at_ns:
        return RetryDecision(None, RetryState.RETRY_STATE_TIMEOUT)
    spaced_ns = max(interval_ns, spacing_ns(attempt))
    if expires_at_ns:
        spaced_ns = min(spaced_ns, expires_at_ns - now_ns)
    return RetryDecision(spaced_ns, RetryState.RETRY_STATE_IN_PROGRESS)


def spacing_ns(attempt: int, maximum_ns: int = SPACING_NS_MAX) -> int:
    """Minimum backoff after a failed attempt, so that an activity that fails at once does not keep a server busy."""
    if attempt < FREE_ATTEMPTS:
        return 0
    return min(_SPACING_NS_FIRST << min(attempt - FREE_ATTEMPTS, 32), maximum_ns)


def _chosen_delay_ns(failure: Failure | None) -> int | None:
    """The next retry delay in the worker's failure."""
    if failure is None or failure.WhichOneof("failure_info") != "application_failure_info":
        return None
    information = failure.application_failure_info
    return from_duration(information.next_retry_delay) if information.HasField("next_retry_delay") else None


def _exponential_ns(policy: RetryPolicy, attempt: int) -> int:
    """The interval by the backoff coefficient; 0 if it overflows, which stands for the maximum interval."""
    try:
        interval_ns = from_duration(policy.initial_interval) * math.pow(policy.backoff_coefficient, attempt - 1)
    except OverflowError:
        return 0
    return int(interval_ns) if interval_ns <= _INTERVAL_NS_MAX else 0


def _unknown_timeout_type(policy: RetryPolicy) -> str | None:
    for kind in policy.non_retryable_error_types:
        name = kind.removeprefix(TIMEOUT_TYPE_PREFIX)
        if name != kind and name not in _TIMEOUT_NAMES.values():
            return f"Invalid timeout type value: {name}."
    return None
